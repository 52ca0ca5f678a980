# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
What a family of checkpoints has to say for itself, so that one walk (`plan_conversion`) converts all of them: a table
of names, a few tensors to compute, the names that are known and dropped, and a forward pass to prove against.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

import modeling_convbert_composite as ours
from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.configuration.reference_flags import REFERENCE_KEYS
from modeling_convbert_composite.conversion.sources import ConversionError, Source, one_line


Names = Mapping[str, str]
Outputs = dict[str, torch.Tensor]
Forward = Callable[..., Outputs]

BARE_ENCODER = ""

# The heads we have, by the end of their class names. The bare encoder has none.
HEADS: dict[str, type[ours.ConvBertCompositePreTrainedModel]] = {
    "ForPreTraining": ours.ConvBertCompositeForPreTraining,
    "ForMaskedLM": ours.ConvBertCompositeForMaskedLM,
    "ForSequenceClassification": ours.ConvBertCompositeForSequenceClassification,
    "ForTokenClassification": ours.ConvBertCompositeForTokenClassification,
    "ForQuestionAnswering": ours.ConvBertCompositeForQuestionAnswering,
    "ForMultipleChoice": ours.ConvBertCompositeForMultipleChoice,
    BARE_ENCODER: ours.ConvBertCompositeModel,
}

# No encoder has as many; a config that claims more would keep us busy for hours before its tensors are missed.
MOST_LAYERS = 1000

LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Computed:
    """
    A tensor of ours that is a small function of source tensors.

    `*` in `target` stands for our layer number, and so in `sources`, unless that is a function of the layer. `exact`
    says that values are only moved, so that half precision loses nothing.
    """

    target: str
    sources: tuple[str, ...] | Callable[[int], tuple[str, ...]]
    function: Callable[..., torch.Tensor]
    exact: bool = True

    def layers(self, config: ConvBertCompositeConfig) -> range:
        return range(config.num_hidden_layers if "*" in self.target else 1)

    def names(self, layer: int) -> list[str]:
        """Names of the source tensors for one of our layers."""
        if callable(self.sources):
            return list(self.sources(layer))
        return [name.replace("*", str(layer)) for name in self.sources]


@dataclass(frozen=True)
class Layout:
    """
    How a family names its tensors. Names are those of the bare encoder; in files with a head `prefix` stands before.

    `encoder`, and for each head the family has a table in `heads`, map a source name to ours: whole modules or single
    tensors, `*` for the layer number, `?` before a name that not every file has. `computed` lists what is not just
    copied, `dropped` (regular expressions for whole names) what is known to have no place here.
    """

    prefix: str
    encoder: Names
    heads: Mapping[str, Names]
    computed: tuple[Computed, ...] = ()
    dropped: tuple[str, ...] = ()

    def plain(self, name: str) -> str:
        """A source name without the prefix."""
        return name.removeprefix(self.prefix)

    def is_dropped(self, name: str) -> bool:
        return any(re.fullmatch(pattern, self.plain(name)) for pattern in self.dropped)

    def table(self, head: str) -> Names:
        """The names of encoder and head together, ours with the prefix that a model with a head needs."""
        prefix = encoder_prefix(head)
        encoder = {name: prefix + target for name, target in self.encoder.items()}
        return encoder | {name.removeprefix("?"): target for name, target in self.heads[head].items()}

    def computed_from(self, config: ConvBertCompositeConfig) -> set[str]:
        """Plain names of all source tensors that something is computed from."""
        return {name for rule in self.computed for layer in rule.layers(config) for name in rule.names(layer)}


@dataclass(frozen=True)
class Family:
    """
    One family of checkpoints.

    It reads sources whose config.json names one of `model_types`, if they meet `condition`. `exact` says in a line
    what is carried over, `proof` what the result is compared with. `fields` gives our config's and `layout` the names;
    `reference` is an independent forward pass of the source with a head (inputs as BERT's -> outputs by name);
    `refuse` raises for what cannot be exact.
    """

    name: str
    model_types: tuple[str, ...]
    exact: str
    fields: Callable[[Source], dict[str, Any]]
    layout: Callable[[Source, ConvBertCompositeConfig], Layout]
    reference: Callable[[Source, str], Forward]
    proof: str = "transformers' own class"
    condition: Callable[[Source], bool] = lambda source: True
    refuse: Callable[[Source], None] = lambda source: None

    def matches(self, source: Source) -> bool:
        return source.model_type in self.model_types and self.condition(source)


@dataclass
class Plan:
    """
    A source laid out as our model: config, head, state dict, the names that were dropped, remarks for the user, and
    whether every value was only moved.
    """

    config: ConvBertCompositeConfig
    head: str
    tensors: dict[str, torch.Tensor]
    dropped: list[str]
    notes: list[str] = field(default_factory=list)
    exact: bool = True


def plan_conversion(family: Family, source: Source) -> Plan:
    """
    Lays a source out as our model.

    Raises:
        ConversionError: a config that does not fit; a tensor that is neither used nor a known drop; a missing one.
    """
    config, layout, head = read_architecture(family, source)
    tensors, used = copy_tensors(layout, head, source)
    computed, sources = compute_tensors(layout, head, config, source)
    dropped = [name for name in source.tensors if name not in used | sources]
    unknown = [name for name in dropped if not layout.is_dropped(name)]
    if unknown:
        raise ConversionError(
            f"The source has tensors that family {family.name!r} does not know: {some(unknown)}. Is the family right "
            "(`--from`)?"
        )
    tensors |= computed
    follow_tying(config, tensors)
    exact = all(rule.exact for rule in layout.computed)
    return Plan(config, head, tensors, dropped, [*source.notes, *head_notes(head, source)], exact)


def read_architecture(family: Family, source: Source) -> tuple[ConvBertCompositeConfig, Layout, str]:
    """Our config for a source, its layout and its head; a ConversionError if it cannot be exact."""
    try:
        family.refuse(source)
        config = ConvBertCompositeConfig(**family.fields(source))
        if config.num_hidden_layers > MOST_LAYERS:
            raise ConversionError(f"config.json claims {config.num_hidden_layers} layers, more than {MOST_LAYERS}.")
        layout = drop_unread_bias(family.layout(source, config), source)
        return config, layout, find_head(layout, source, config)
    except ConversionError:
        raise
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, StrictDataclassError) as error:
        raise ConversionError(f"The source's config.json does not fit: {one_line(error)}") from error


def drop_unread_bias(layout: Layout, source: Source) -> Layout:
    """Beside an untied decoder transformers 5 keeps and saves a second MLM bias, which it never reads."""
    if source.config.get("tie_word_embeddings") is not False:
        return layout
    biases = {name.removeprefix("?") for names in layout.heads.values() for name in names if name.endswith(".bias")}
    unread = {name for name in biases if f"{name.removesuffix('.bias')}.decoder.bias" in source.tensors}
    heads = {
        head: {name: target for name, target in names.items() if name.removeprefix("?") not in unread}
        for head, names in layout.heads.items()
    }
    return replace(layout, heads=heads, dropped=(*layout.dropped, *map(re.escape, unread)))


def find_head(layout: Layout, source: Source, config: ConvBertCompositeConfig) -> str:
    """
    The head that the tensors make up. The one that `architectures` claims, if its tensors are complete and leave
    nothing unexplained; else the largest complete one.
    """
    plain = [layout.plain(name) for name in source.tensors]
    keys = set(map(lookup_key, plain))
    complete = [head for head in layout.heads if all(is_present(name, keys) for name in required(layout.heads[head]))]
    claimed = claimed_head(source)
    if claimed in complete:
        table, computed = layout.table(claimed), layout.computed_from(config)
        if all(translate(table, name) or name in computed or layout.is_dropped(name) for name in plain):
            return claimed
    return max(complete, key=lambda head: len(required(layout.heads[head])))


def head_notes(head: str, source: Source) -> list[str]:
    """A remark where config.json claims another head than the tensors have."""
    claimed = claimed_head(source)
    if claimed is None or claimed == head:
        return []
    found = f"a model {head}" if head else "the bare encoder"
    return [f"config.json claims {source.config['architectures'][0]}; what was converted is {found}."]


def claimed_head(source: Source) -> str | None:
    """The head that `architectures` names, or None."""
    architectures = source.config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else None
    if name is None:
        return None
    if name.endswith(("Model", "Encoder")):
        return BARE_ENCODER
    return next((head for head in HEADS if head and name.endswith(head)), None)


def required(names: Names) -> list[str]:
    return [name for name in names if not name.startswith("?")]


def is_present(name: str, keys: set[str]) -> bool:
    return name in keys or f"{name}.weight" in keys


def encoder_prefix(head: str) -> str:
    return "convbert_composite." if head else ""


def lookup_key(name: str) -> str:
    """A name with `*` in place of layer numbers."""
    return LAYER_NUMBER.sub("*", name)


def translate(table: Names, name: str) -> str | None:
    """Our name of a tensor, looked up by its own name or by its module's; layer numbers are carried over."""
    key = lookup_key(name)
    module, _, parameter = key.rpartition(".")
    target = table.get(key)
    if target is None and parameter in ("weight", "bias") and module in table:
        target = f"{table[module]}.{parameter}"
    if target is None:
        return None
    numbers = iter(LAYER_NUMBER.findall(name))
    return re.sub(r"\*", lambda _: next(numbers), target)


def copy_tensors(layout: Layout, head: str, source: Source) -> tuple[dict[str, torch.Tensor], set[str]]:
    """The tensors that only change their names, and the source names they came from."""
    table = layout.table(head)
    tensors: dict[str, torch.Tensor] = {}
    used: set[str] = set()
    for name, tensor in source.tensors.items():
        target = translate(table, layout.plain(name))
        if target is None:
            continue
        if target in tensors and not torch.equal(tensors[target], tensor):
            raise ConversionError(f"{name!r} differs from another tensor of the source that has the same meaning.")
        tensors[target] = tensor
        used.add(name)
    return tensors, used


def compute_tensors(
    layout: Layout, head: str, config: ConvBertCompositeConfig, source: Source
) -> tuple[dict[str, torch.Tensor], set[str]]:
    """The tensors that are made from others, and the source names they were made from."""
    full_names = {layout.plain(name): name for name in source.tensors}
    tensors: dict[str, torch.Tensor] = {}
    used: set[str] = set()
    for rule in layout.computed:
        for layer in rule.layers(config):
            names = rule.names(layer)
            missing = [name for name in names if name not in full_names]
            if missing:
                raise ConversionError(f"The source lacks {some(missing)}.")
            inputs = [source.tensors[full_names[name]] for name in names]
            target = encoder_prefix(head) + rule.target.replace("*", str(layer))
            try:
                tensors[target] = rule.function(*inputs)
            except (RuntimeError, IndexError, ValueError) as error:
                raise ConversionError(f"{some(names)} cannot be converted: {one_line(error)}") from error
            used |= {full_names[name] for name in names}
    return tensors, used


def follow_tying(config: ConvBertCompositeConfig, tensors: dict[str, torch.Tensor]) -> None:
    """A decoder that differs from the word embeddings is an untied one; an equal or absent one is tied."""
    words = tensors.get("convbert_composite.embeddings.word_embeddings.weight")
    if "mlm_head.dense.weight" not in tensors or words is None:
        return
    decoder = tensors.setdefault("mlm_head.decoder.weight", words)
    config.tie_word_embeddings = torch.equal(decoder, words)


def is_original(source: Source) -> bool:
    """Whether a source is of the paper's code, by the flags that only it writes."""
    return source.model_type == "bert" and any(key in source.config for key in REFERENCE_KEYS)


def is_relative(source: Source) -> bool:
    """Whether a source has, or claims, the relative positions that transformers 4 had."""
    claimed = str(source.config.get("position_embedding_type", "absolute"))
    return claimed.startswith("relative") or source.has(r"\.distance_embedding\.weight$")


# Fields of a config that change how a model is run, not what it computes.
IRRELEVANT = {
    "auto_map",
    "dtype",
    "return_dict",
    "chunk_size_feed_forward",
    "output_hidden_states",
    "output_attentions",
}


def transformers_forward(
    source: Source,
    head: str,
    prefix: str,
    prepare: Callable[[transformers.PreTrainedModel], None] = lambda model: None,
    ignored: str = "^$",
    **overrides: Any,
) -> Forward:
    """
    transformers' own class for the source, in float64 with eager attention: independent of our names and maths.

    `prepare` may change the model before it is used; `ignored` is a regular expression for tensors that are not
    loaded; `overrides` are fields of the model's config.
    """
    config_class = transformers.AutoConfig.for_model(source.model_type).__class__
    # Declared fields only: the config of a stranger could ask for kernels, quantisation or code.
    known = {field.name for field in fields(config_class)} - IRRELEVANT
    config = config_class(**{key: value for key, value in source.config.items() if key in known} | overrides)
    auto_class = getattr(transformers, f"AutoModel{head}")
    model = auto_class.from_config(config, attn_implementation="eager")
    found = {}
    for name in model.state_dict():
        for spelling in (name, prefix + name, name.removeprefix(prefix)):
            if spelling in source.tensors and not re.search(ignored, name):
                found[name] = source.tensors[spelling]
    model.load_state_dict(found, strict=False)
    if not head and not source.has(r"(^|\.)pooler\."):
        model.pooler = None
    model.tie_weights()
    model = model.double().eval()
    prepare(model)

    def forward(**inputs: torch.Tensor) -> Outputs:
        with torch.no_grad():
            return named_outputs(model(**inputs, output_hidden_states=True))

    return forward


# Names of outputs -> the ones they have in our models.
OUTPUTS = {
    "logits": "logits",
    "prediction_logits": "prediction_logits",
    "seq_relationship_logits": "seq_relationship_logits",
    "sop_logits": "seq_relationship_logits",
    "start_logits": "start_logits",
    "end_logits": "end_logits",
    "pooler_output": "pooler_output",
}


def named_outputs(outputs: Mapping[str, Any]) -> Outputs:
    """The tensors of a model's output by name; hidden states numbered, 0 = what enters the first layer."""
    named = {f"hidden_states.{i}": states for i, states in enumerate(outputs["hidden_states"])}
    return named | {name: outputs[theirs] for theirs, name in OUTPUTS.items() if outputs.get(theirs) is not None}


def some(names: list[str], limit: int = 5) -> str:
    """A few names for a message."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more
