# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Model cards: what is known about the model in a folder, as README.md. Unknown facts are left out.

Facts come from config.json, the headers of the weights, conversion_report.json and results.json. All of them are files
that anybody may have written: values are taken as text on one line, numbers as numbers, the rest is passed over.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import StrictDataclassError
from huggingface_hub.repocard import metadata_load
from jinja2 import Environment, StrictUndefined

from ._version import __version__
from .card_sections import merge, parse, without_blanks
from .checkpoints import shipped_or_same
from .configuration_convbert_composite import ConvBertCompositeConfig
from .description import features, formula, legend
from .modeling_convbert_composite import AUTO_MODEL_CLASSES
from .saved_files import (
    CARD_FILE,
    CONFIG_FILE,
    CONVERSION_FILE,
    RESULTS_FILE,
    WEIGHTS_PATTERN,
    read_object,
    stored_size,
)


TASKS = {
    "AutoModel": "feature-extraction",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForPreTraining": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForMultipleChoice": "multiple-choice",
}
TAGS = ["convbert_composite", "composite-attention"]

# How cards call a folder whose repository is not known yet; `push` puts the repository's name in its place.
PLACE = "path/to/this/folder"

REPOSITORY_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")

# Of a digest, so many tell data apart.
DIGITS = 16

# What is a matter of the source or of the author: taken over from the source, and never overwritten.
CARRIED_KEYS = ("license", "license_name", "license_link", "language", "datasets", "base_model")


def write_card(folder: str | Path, *, title: str | None = None, metadata: dict[str, Any] | None = None) -> ModelCard:
    """
    Writes or refreshes README.md of a saved model; see `card_sections` for what is kept.

    Args:
        folder: holds at least config.json.
        title: heading of a new card; the folder's name by default.
        metadata: facts that no file knows, such as `license`, `language`, `datasets`, `base_model`; they win.

    Raises:
        ValueError: no folder of a ConvBertComposite model, or a file in it that cannot be read.
    """
    folder = Path(folder)
    card = make_card(folder, title=title, metadata=metadata)
    scratch = folder / f".{CARD_FILE}.partial"
    try:
        scratch.write_text(str(card), encoding="utf-8")
        os.replace(scratch, folder / CARD_FILE)
    finally:
        scratch.unlink(missing_ok=True)
    return card


def make_card(folder: Path, *, title: str | None = None, metadata: dict[str, Any] | None = None) -> ModelCard:
    """The card that `write_card` would write."""
    facts = read_facts(folder)
    old = read_card(folder / CARD_FILE)
    title = title or folder.resolve().name
    fresh = parse(render_template("card_template.md", facts.context(title)))
    body = merge(fresh, old.text if old else None)
    data = facts.metadata(title, old.data.to_dict() if old else {}) | (metadata or {})
    return ModelCard(f"---\n{ModelCardData(**data).to_yaml()}\n---\n\n{body.render()}")


def render_template(name: str, context: dict[str, Any]) -> str:
    """A template of `model_cards/`, filled; a name that it uses and the context lacks is an error."""
    folder = files("modeling_convbert_composite.model_cards")
    text, citation = ((folder / file).read_text(encoding="utf-8") for file in (name, "citation.md"))
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    return environment.from_string(text).render(context, citation=citation.strip())


def read_card(file: Path) -> ModelCard | None:
    """The card in a file, None if there is none."""
    if not file.is_file():
        return None
    try:
        return ModelCard(file.read_text(encoding="utf-8"))
    except Exception as error:  # YAML has errors of its own
        reason = " ".join(str(error).split())
        raise ValueError(f"The metadata of {str(file)!r} cannot be read; mend or remove it: {reason}") from error


def carried_metadata(readme: Path) -> dict[str, Any]:
    """What the card of a source says about licence, languages, data and base model; nothing if it cannot be read."""
    try:
        found = metadata_load(readme) or {}
    except Exception:  # a stranger's file
        return {}
    return {key: found[key] for key in CARRIED_KEYS if is_text(found.get(key))}


def is_text(value: Any) -> bool:
    """Whether it is a word or a list of words."""
    words = value if isinstance(value, list) and value else [value]
    return all(isinstance(word, str) and word.strip() and len(word) < 200 for word in words)


def adopt_sections(own: str, other: str) -> str:
    """One's own card with the sections and metadata that another program has filled in added, blanks aside."""
    mine, theirs = ModelCard(own), ModelCard(other)
    text = parse(mine.text)
    added = without_blanks(theirs.text).sections
    text.sections |= {name: body for name, body in added.items() if name not in text.generated}
    data = theirs.data.to_dict() | {key: value for key, value in mine.data.to_dict().items() if value}
    data |= {key: value for key, value in theirs.data.to_dict().items() if key == "model-index"}
    return f"---\n{ModelCardData(**data).to_yaml()}\n---\n\n{text.render()}"


@dataclass(frozen=True)
class Metric:
    """One number of results.json."""

    split: str
    name: str
    value: float

    @property
    def text(self) -> str:
        return f"{self.value:.4f}".rstrip("0").rstrip(".") if abs(self.value) >= 1e-3 else f"{self.value:.3g}"


@dataclass(frozen=True)
class Facts:
    """All that a folder's files say; `report` and `results` are empty where there are none."""

    config: ConvBertCompositeConfig
    parameters: int | None
    dtypes: list[str]
    has_tokenizer: bool
    has_code: bool
    report: dict[str, Any]
    results: dict[str, Any]
    base: dict[str, Any]

    @property
    def auto_class(self) -> str:
        return auto_class_of(self.config)

    @property
    def dataset(self) -> dict[str, Any]:
        found = self.results.get("dataset")
        return {"name": found} if isinstance(found, str) else found if isinstance(found, dict) else {}

    @property
    def source_model(self) -> str | None:
        """The repository that the weights come from, if there is one."""
        found = self.carried().get("base_model")
        return found if isinstance(found, str) else None

    def carried(self) -> dict[str, Any]:
        """Metadata of the model that this one was made from; its datasets, and the one that it was trained on here."""
        card = self.report.get("source_card")
        carried = {key: card[key] for key in CARRIED_KEYS if is_text(card.get(key))} if isinstance(card, dict) else {}
        carried |= self.base
        base = self.results.get("base_model")
        if isinstance(base, str) and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", base) and not Path(base).exists():
            carried["base_model"] = base
        hub_id = self.dataset.get("hub_id")
        if isinstance(hub_id, str) and REPOSITORY_ID.fullmatch(hub_id):
            carried["datasets"] = list(dict.fromkeys([*as_list(carried.get("datasets")), hub_id]))
        return carried

    def metrics(self) -> list[Metric]:
        splits = self.results.get("metrics")
        rows = []
        for split, values in splits.items() if isinstance(splits, dict) else ():
            for name, value in values.items() if isinstance(values, dict) else ():
                if is_number(value):
                    rows.append(Metric(flat(split), flat(name), float(value)))
        return rows

    def metadata(self, title: str, old: dict[str, Any]) -> dict[str, Any]:
        """The YAML header: what an earlier card said, with what the files say in its place."""
        data = {**self.carried(), **{key: value for key, value in old.items() if value}}
        data |= {"library_name": "transformers", "pipeline_tag": TASKS[self.auto_class]}
        data["tags"] = list(dict.fromkeys([*data.get("tags", []), *TAGS]))
        metrics = self.metrics()
        if metrics:
            data.pop("model-index", None)
            data["metrics"] = sorted({metric.name for metric in metrics})
            data |= {"model_name": title, "eval_results": [self.eval_result(metric) for metric in metrics]}
        return data

    def eval_result(self, metric: Metric) -> EvalResult:
        task = self.results.get("task")
        name = flat(self.dataset.get("name") or "unnamed")
        return EvalResult(
            task_type=flat(task) if isinstance(task, str) else TASKS[self.auto_class],
            dataset_type=flat(self.dataset.get("hub_id") or name),
            dataset_name=name,
            dataset_split=metric.split,
            metric_type=metric.name,
            metric_value=metric.value,
        )

    def context(self, title: str) -> dict[str, Any]:
        """What the template is filled with."""
        return {
            "title": flat(title),
            "config": self.config,
            "formula": formula(self.config),
            "legend": legend(self.config),
            "features": features(self.config),
            "parameters": f"{self.parameters:,}" if self.parameters else None,
            "dtypes": self.dtypes,
            "version": __version__,
            "auto_class": self.auto_class,
            "has_tokenizer": self.has_tokenizer,
            "has_code": self.has_code,
            "place": PLACE,
            "training": list(self.training()),
            "settings": cells(self.results.get("settings")),
            "metrics": self.metrics(),
            "report": self.conversion(),
            "source_model": self.source_model,
            "limits": list(limits(self.config)),
        }

    def training(self) -> Iterator[tuple[str, str]]:
        """What results.json says about data and procedure."""
        base = self.results.get("base_model")
        if isinstance(base, str) and base:
            # Of a folder on somebody's disk only the name is of interest to others.
            yield "Started from", flat(Path(base).name if Path(base).is_absolute() or Path(base).exists() else base)
        if self.dataset.get("name"):
            yield "Data", flat(self.dataset["name"])
        counts = {name: value for name, value in self.dataset.items() if is_number(value)}
        splits = self.dataset.get("counts") or self.dataset.get("splits")
        counts |= {name: n for name, n in splits.items() if is_number(n)} if isinstance(splits, dict) else {}
        if counts:
            yield "Examples", ", ".join(f"{flat(name)} {int(value):,}" for name, value in counts.items())
        if fingerprint := self.fingerprint():
            yield "Fingerprint of the data", fingerprint
        if is_number(self.results.get("seed")):
            yield "Seed", str(self.results["seed"])
        if isinstance(self.results.get("command"), str):
            yield "Command", f"`{flat(self.results['command'])}`"
        environment = cells(self.results.get("environment"))
        if environment:
            yield "Environment", ", ".join(f"{name} {value}" for name, value in environment)

    def fingerprint(self) -> str:
        """Of the data as a whole, or the beginning of each split's."""
        found = self.dataset.get("fingerprint")
        if isinstance(found, dict):
            digests = {split: digest for split, digest in found.items() if isinstance(digest, str) and digest}
            return ", ".join(f"{flat(split)} {flat(digest[:DIGITS])}" for split, digest in digests.items())
        return flat(found) if isinstance(found, str) else ""

    def conversion(self) -> dict[str, Any] | None:
        """The conversion report in a form that the template can print."""
        report = self.report
        differences = report.get("differences")
        if not isinstance(differences, dict):
            return None
        cast = report.get("cast_difference")
        return {
            "family": flat(report.get("family")),
            "source_sha256": flat(report.get("source_sha256")),
            "notes": texts(report.get("notes")),
            "dropped": sorted(texts(report.get("dropped"))),
            "dtype": flat(report.get("dtype")),
            "positions_dropped": report.get("positions_dropped") is True,
            "differences": [(flat(name), f"{n:.1e}") for name, n in differences.items() if is_number(n)],
            "cast_difference": f"{cast:.1e}" if is_number(cast) else None,
        }


def read_facts(folder: Path) -> Facts:
    """
    Raises:
        ValueError: no folder of a ConvBertComposite model, or a damaged file in it.
    """
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is not a folder.")
    weights = sorted(folder.glob(WEIGHTS_PATTERN))
    parameters, dtypes = stored_size(weights)
    results = read_object(folder / RESULTS_FILE) or {}
    base = results.get("base_model")
    source = Path(shipped_or_same(base)) if isinstance(base, str) else None
    is_folder = source is not None and (source / CARD_FILE).is_file()
    return Facts(
        config=read_config(folder),
        parameters=parameters if weights else None,
        dtypes=dtypes,
        has_tokenizer=(folder / "tokenizer_config.json").is_file(),
        has_code="auto_map" in (read_object(folder / CONFIG_FILE) or {}),
        report=read_object(folder / CONVERSION_FILE) or {},
        results=results,
        base=carried_metadata(source / CARD_FILE) if source is not None and is_folder else {},
    )


def read_config(folder: Path) -> ConvBertCompositeConfig:
    """The config of a folder; a ValueError of one line if it is none of ours."""
    file = folder / CONFIG_FILE
    values = read_object(file)
    if values is None:
        raise ValueError(f"{str(file)!r} is missing: {str(folder)!r} holds no saved model.")
    if values.get("model_type") != ConvBertCompositeConfig.model_type:
        raise ValueError(
            f"{str(file)!r} has the model type {values.get('model_type')!r}, not "
            f"{ConvBertCompositeConfig.model_type!r}: convert the checkpoint first."
        )
    try:
        return ConvBertCompositeConfig.from_dict(values)
    except (TypeError, ValueError, StrictDataclassError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ValueError(f"{str(file)!r} does not fit: {reason}") from error


def auto_class_of(config: ConvBertCompositeConfig) -> str:
    """The Auto class that loads the saved model, the bare encoder's if the config names none of ours."""
    architecture = (config.architectures or [""])[0]
    return next((name for name, model in AUTO_MODEL_CLASSES.items() if model.__name__ == architecture), "AutoModel")


def limits(config: ConvBertCompositeConfig) -> Iterator[str]:
    """What follows from the architecture."""
    if config.length_limit is None:
        yield "Inputs of any length; time grows with its square, memory of the default attention with the length."
    else:
        yield f"Inputs of at most {config.length_limit} tokens, the rows of the position table."
    yield 'Attention weights need `attn_implementation="eager"`; there is no FlashAttention path.'
    if config.dynamic_convolution_heads and config.dynamic_convolution_mode == "convbert":
        yield "Its convolution heads read padding, as in the original: outputs depend on how a batch is padded."
    if config.has_convolution:
        yield "Texts that are packed into one row need `sequence_ids`: convolutions know no other borders."


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def flat(value: Any) -> str:
    """A value as text on one line that is neither a heading nor the end of a table's cell."""
    return " ".join(str(value).split()).replace("|", "\\|")


def texts(values: Any) -> list[str]:
    return [flat(value) for value in values] if isinstance(values, list) else []


def as_list(value: Any) -> list[Any]:
    """Metadata may be a list, one value, or nothing."""
    return value if isinstance(value, list) else [] if value is None else [value]


def cells(values: Any) -> list[tuple[str, str]]:
    """Names and plain values of an object, nested ones left out."""
    pairs: Iterable[tuple[Any, Any]] = values.items() if isinstance(values, dict) else ()
    return [(flat(name), flat(value)) for name, value in pairs if isinstance(value, str | int | float)]
