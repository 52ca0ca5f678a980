# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""One pre-training run: text is prepared, the model is built and trained, and what it learnt is measured."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)

from modeling_convbert_composite import records
from modeling_convbert_composite.checkpoints import find_model
from modeling_convbert_composite.configuration import ConvBertCompositeConfig, list_presets, load_preset
from modeling_convbert_composite.losses_convbert_composite import cross_entropy
from modeling_convbert_composite.named_datasets import repository_of
from modeling_convbert_composite.optimization import CompositeTrainer, KernelRates, position_limit, shared_arguments
from modeling_convbert_composite.pretraining.examples import Packer, id_count
from modeling_convbert_composite.pretraining.masking import IGNORED, MaskedBatch, word_starts
from modeling_convbert_composite.pretraining.measures import (
    StepTimes,
    all_ids,
    masked_metrics,
    plot_lengths,
    results_table,
    texts_of,
    token_scores,
    unigram_floor,
)
from modeling_convbert_composite.pretraining.prepared import PreparedData, Visits, prepare, record_text
from modeling_convbert_composite.pretraining.settings import PretrainingSettings
from modeling_convbert_composite.pretraining.trial import check_longest, first_position
from modeling_convbert_composite.run_folders import RESULTS, RunFolder
from modeling_convbert_composite.settings import as_command, plain


MAY_DIFFER = frozenset({"resume", "overwrite", "keep_checkpoints", "output", "tensorboard", "prepared", "workers"})
# Masks to validate on are others than those to train on.
VALIDATION_SEED = 1
LENGTHS_PLOT = "lengths.png"
# Tokens of a word, on average, beyond which the words are none.
LONGEST_WORDS = 8


@dataclass(frozen=True)
class PretrainingResult:
    """
    What a run found; `results.json` holds it all. `metrics` of the validation text; `measures`: the floor below them,
    the scores by length, tokens and their rate (of the steps alone, without evaluations and checkpoints).
    """

    output: Path
    metrics: dict[str, dict[str, float]]
    measures: dict[str, Any]
    history: list[dict[str, float]]
    notes: list[str]


@dataclass(frozen=True)
class Run:
    settings: PretrainingSettings
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    data: PreparedData
    first_position: int = 0


def pretrain(settings: PretrainingSettings) -> PretrainingResult:
    """
    Trains a masked language model and writes it with its results to `settings.output`.

    Raises:
        ValueError: text, architecture or settings that do not fit. OSError: files that are not there.
        FileExistsError: an earlier result in the folder.
    """
    folder = RunFolder(settings, MAY_DIFFER, saves_model=settings.max_steps > 0)
    folder.check()
    earlier = folder.finished_results()
    if earlier is not None:
        notes = ["The run had come to its end already."]
        return PretrainingResult(settings.output, earlier["metrics"], earlier["measures"], earlier["history"], notes)
    tokenizer = load_tokenizer(settings)
    config = build_config(settings, tokenizer)
    set_seed(settings.seed)
    model = build_model(settings, config)
    arguments = training_arguments(settings)
    model.to(arguments.device)  # type: ignore[arg-type]
    start = try_out(settings, tokenizer, model)
    with arguments.main_process_first(desc="preparing text"):
        data = prepare(settings, tokenizer)
    run = Run(settings, tokenizer, model, data, start)
    if settings.whole_words:
        check_words(run)
    check_labels(run)
    trainer = build_trainer(run, arguments)
    folder.prepare()
    record_text(settings, data)
    speed = train(trainer, folder.last_checkpoint()) if settings.max_steps else 0.0
    result = finish(run, trainer, speed)
    folder.close()
    return result


def train(trainer: CompositeTrainer, checkpoint: str | None) -> float:
    """From a checkpoint or the start to the end of the run. -> tokens a second, 0 if there was no step to take."""
    before, times = tokens_seen(checkpoint), StepTimes()
    trainer.add_callback(times)
    trainer.train_from(checkpoint)
    tokens = int(trainer.state.num_input_tokens_seen) - before
    return tokens / len(times.steps) / times.typical if times.steps else 0.0


def tokens_seen(checkpoint: str | None) -> int:
    """Tokens that a run had seen when it was interrupted."""
    return records.read_json(Path(checkpoint) / "trainer_state.json")["num_input_tokens_seen"] if checkpoint else 0


def load_tokenizer(settings: PretrainingSettings) -> PreTrainedTokenizerBase:
    """That of --tokenizer, which must be the checkpoint's with --initial, where it may be left out."""
    source = settings.tokenizer or settings.initial
    if settings.tokenizer and not Path(find_model(settings.tokenizer)).is_dir():
        raise FileNotFoundError(f"There is no folder {settings.tokenizer} for --tokenizer.")
    tokenizer = AutoTokenizer.from_pretrained(find_model(str(source)))
    missing = [name for name in ("mask", "pad", "cls", "sep") if getattr(tokenizer, f"{name}_token_id") is None]
    if missing:
        names = ", ".join(f"[{name.upper()}]" for name in missing)
        raise ValueError(f"The tokenizer {source} has no {names}; pre-training needs one each.")
    initial = Path(find_model(settings.initial)) if settings.initial else None
    if settings.tokenizer and initial and (initial / "tokenizer_config.json").is_file():
        own = AutoTokenizer.from_pretrained(initial)
        if own.get_vocab() != tokenizer.get_vocab():
            raise ValueError(f"--tokenizer {settings.tokenizer} is not that of {settings.initial}; leave it out.")
    return tokenizer


def source_config(settings: PretrainingSettings) -> PreTrainedConfig:
    """The config of a preset, of a folder, or of the checkpoint to go on from."""
    if settings.initial is not None:
        return AutoConfig.from_pretrained(find_model(settings.initial))
    name = str(settings.architecture)
    if name in list_presets():
        return load_preset(name)
    if (Path(name) / "config.json").is_file():
        return AutoConfig.from_pretrained(name)
    raise ValueError(
        f"--architecture must be a preset ({', '.join(list_presets())}) or a folder with config.json, got {name!r}."
    )


def build_config(settings: PretrainingSettings, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """
    The config with the fields that `settings` change; of a new model with the tokenizer's vocabulary, while a
    checkpoint's must hold it.
    """
    config = source_config(settings)
    changes: dict[str, Any] = {}
    if settings.initial is None:
        changes = {"vocab_size": id_count(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    changes |= fields_of(settings.fields)
    size = changes.get("vocab_size", config.vocab_size)
    if size < id_count(tokenizer):
        raise ValueError(f"The model has {size} tokens, less than the {id_count(tokenizer)} of the tokenizer.")
    if settings.dropout is not None:
        changes |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), settings.dropout)
    unknown = [name for name in changes if not hasattr(config, name)]
    if unknown:
        flag = "--dropout" if unknown[0].endswith("dropout_prob") and settings.dropout is not None else "--fields"
        raise ValueError(f"{flag}: a {config.model_type} has no field {unknown[0]!r}.")
    try:
        # Built anew, so that the fields are checked together.
        config = type(config)(**(config.to_dict() | changes))
    except StrictDataclassError as error:
        raise ValueError(f"--fields: {error.__cause__ or error}") from error
    limit = position_limit(config)
    if limit is not None and settings.max_length > limit:
        raise ValueError(f"--max-length {settings.max_length} is more than the {limit} positions of the architecture.")
    return config


def fields_of(texts: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` with a value in JSON, or else as text."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"--fields must be name=value, got {text!r}.")
        try:
            found[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            found[name.strip()] = value
    return found


def build_model(settings: PretrainingSettings, config: PreTrainedConfig) -> PreTrainedModel:
    auto_class = AutoModelForPreTraining if settings.sentence_order else AutoModelForMaskedLM
    attention = {} if settings.attention is None else {"attn_implementation": settings.attention}
    if settings.initial is not None:
        model, found = auto_class.from_pretrained(
            find_model(settings.initial), config=config, dtype=torch.float32, output_loading_info=True, **attention
        )
        if found["missing_keys"] and not settings.max_steps:
            names = ", ".join(sorted(found["missing_keys"])[:3])
            raise ValueError(f"{settings.initial} cannot be measured: it has no weights for {names}.")
    else:
        model = auto_class.from_config(config, **attention)
    if settings.sentence_order and not takes_sequence_ids(model):
        raise ValueError(f"--sentence-order is for ConvBertComposite models, not for a {config.model_type}.")
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def takes_sequence_ids(model: PreTrainedModel) -> bool:
    """Whether it is one of ours: they know packed rows, the order of pairs, and the number of labels of a step."""
    return isinstance(model.config, ConvBertCompositeConfig)


def try_out(settings: PretrainingSettings, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """The first position of the model's texts; refuses what it cannot do, before any text is read."""

    def collate(start: int) -> MaskedBatch:
        borders: Any = "sequence_ids" if takes_sequence_ids(model) else "pairs"
        return MaskedBatch(tokenizer, settings.max_length, seed=0, borders=borders, first_position=start)

    is_packed = settings.format == "packed"
    # In float32: what is compared there lies closer together than bfloat16 can tell.
    start = first_position(model, collate) if is_packed and not takes_sequence_ids(model) else 0
    with torch.autocast(model.device.type, torch.bfloat16, enabled=settings.bf16):
        check_longest(model, collate(start), is_packed)
    return start


def check_words(run: Run) -> None:
    """Refuses to mask whole words of text that has no blanks between them."""
    examples = run.data.train.select(range(min(1000, len(run.data.train))))
    ids = np.concatenate(list(all_ids(examples)))
    words = int(word_starts(run.tokenizer)[ids].sum())
    if len(ids) > LONGEST_WORDS * max(words, 1):
        raise ValueError(
            f"--whole-words: {len(ids):,} tokens of the text are {words:,} words by the tokenizer's marks, as of text "
            "without blanks between words, whose words it cannot tell; leave --whole-words out."
        )


def check_labels(run: Run) -> None:
    """Refuses text in which there is nothing to predict: all of it unknown, or so little that no mask falls on it."""
    for name, seed, examples in (
        ("train", run.settings.seed, run.data.train),
        ("validate", VALIDATION_SEED, run.data.validation),
    ):
        collate, visits = collator(run, seed), Visits(examples)
        if not any(bool((collate([visits[index]])["labels"] != IGNORED).any()) for index in range(len(visits))):
            raise ValueError(
                f"There is no token to predict in the text to {name} on: all are special or unknown to the tokenizer, "
                "or there are too few of them."
            )


def collator(run: Run, seed: int, **changes: Any) -> MaskedBatch:
    settings = run.settings
    values: dict[str, Any] = {
        "first_position": run.first_position,
        "max_length": settings.max_length,
        "probability": settings.mlm_probability,
        "whole_words": settings.whole_words,
        "fixed_length": settings.fixed_length,
        "sentence_order": settings.sentence_order,
        "borders": "sequence_ids" if takes_sequence_ids(run.model) else "pairs",
    }
    return MaskedBatch(run.tokenizer, seed=seed, **(values | changes))


def masked_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """
    The loss of transformers' models: over the labels of a whole step, however it is divided, and 0 without any. Their
    own does not know how many there are.
    """
    return cross_entropy(outputs["logits"], labels, num_items_in_batch)


def build_trainer(run: Run, arguments: TrainingArguments) -> CompositeTrainer:
    settings = run.settings
    return PretrainingTrainer(
        model=run.model,
        args=arguments,
        train_dataset=Visits(run.data.train),
        eval_dataset=Visits(run.data.validation),
        data_collator=collator(run, settings.seed),
        validation_collator=collator(run, VALIDATION_SEED),
        processing_class=run.tokenizer,
        compute_metrics=masked_metrics,
        compute_loss_func=None if takes_sequence_ids(run.model) else masked_loss,
        kernels=KernelRates(
            settings.kernel_learning_rate, settings.fixed_kernel_learning_rate, settings.kernel_weight_decay
        ),
        lengths=lengths_of(run.data.train) if settings.format != "packed" and not settings.fixed_length else None,
        counts_visits=True,
    )


@contextmanager
def states_to_predict(model: PreTrainedModel, labels: torch.Tensor) -> Iterator[torch.Tensor]:
    """
    Has `model` hand its MLM head the states (1, N, C) of the N tokens with a label alone, and yields their labels
    (1, N): the loss is the same, and most of the logits, (B, L, vocabulary), are never made.
    """
    chosen = labels != IGNORED

    def choose(module: Any, inputs: Any, output: Any) -> Any:
        output["last_hidden_state"] = output["last_hidden_state"][chosen][None]
        return output

    hook = model.base_model.register_forward_hook(choose)
    try:
        yield labels[chosen][None]
    finally:
        hook.remove()


class PretrainingTrainer(CompositeTrainer):
    """Validates with masks of its own, the same at every evaluation; makes logits of the tokens to predict alone."""

    def __init__(self, *args: Any, validation_collator: MaskedBatch, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.validation_collator = validation_collator

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # A compiled model would be compiled anew for most numbers of tokens.
        if not model.training or self.args.torch_compile or not (inputs["labels"] != IGNORED).any():
            return super().compute_loss(model, inputs, *args, **kwargs)
        with states_to_predict(self.accelerator.unwrap_model(model), inputs["labels"]) as labels:
            return super().compute_loss(model, {**inputs, "labels": labels}, *args, **kwargs)

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss, the scores of every token (see `token_scores`), and the labels."""
        labels = inputs["labels"]
        # Without what torch.compile has made of it: a graph does not look for the hook.
        model = self.accelerator.unwrap_model(model, keep_torch_compile=False) if self.args.torch_compile else model
        with states_to_predict(self.accelerator.unwrap_model(model), labels) as few:
            loss, logits, _ = super().prediction_step(model, {**inputs, "labels": few}, *args, **kwargs)
        # Hidden states and attentions stand behind the logits where a config asks for them.
        found: Any = logits if isinstance(logits, tuple) else (logits,)
        order = [found[1].argmax(-1)] if "sentence_order_label" in self.label_names else []
        scores = (*token_scores(found[0][0], labels), *order)
        return loss, scores, tuple(inputs[name] for name in self.label_names)

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        return self.with_validation_masks(super().get_eval_dataloader, *args, **kwargs)

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        return self.with_validation_masks(super().get_test_dataloader, *args, **kwargs)

    def with_validation_masks(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        training, self.data_collator = self.data_collator, self.validation_collator
        try:
            return make(*args, **kwargs)
        finally:
            self.data_collator = training


def lengths_of(examples: datasets.Dataset) -> np.ndarray:
    """Tokens of every pair, special ones included."""
    columns = examples.with_format("arrow")[:]
    first, second = (pyarrow.compute.list_value_length(columns[name]).to_numpy() for name in ("first", "second"))
    return first + second + 3


def training_arguments(settings: PretrainingSettings) -> TrainingArguments:
    return TrainingArguments(
        **shared_arguments(settings),
        max_steps=settings.max_steps,
        eval_strategy="steps",
        save_strategy="steps",
        save_steps=settings.save_steps,
        save_total_limit=2,
        logging_steps=settings.log_steps,
        dataloader_num_workers=settings.workers,
        remove_unused_columns=False,
        # The others wait while one process prepares the text, which takes hours if there is much of it.
        ddp_timeout=6 * 3600,
        label_names=["labels", *(["sentence_order_label"] if settings.sentence_order else [])],
        # Counted by the attention mask, which of packed blocks of other models is one of pairs.
        include_num_input_tokens_seen="all" if settings.format == "packed" else "non_padding",
    )


def finish(run: Run, trainer: CompositeTrainer, tokens_per_second: float) -> PretrainingResult:
    settings = run.settings
    metrics = {"validation": scores_on(trainer, run.data.validation)}
    notes: list[str] = []
    measures: dict[str, Any] = {
        "floor": unigram_floor(run.data, run.tokenizer),
        "by_length": loss_by_length(run, trainer, notes) if settings.eval_lengths else {},
        "tokens": int(trainer.state.num_input_tokens_seen),
        "tokens_per_second": tokens_per_second,
    }
    if not math.isfinite(metrics["validation"]["mlm_loss"]):
        notes.append("The loss is not finite: a lower --learning-rate, or without --bf16.")
    history = [entry for entry in trainer.state.log_history if "step" in entry]
    result = PretrainingResult(settings.output, metrics, measures, history, notes)
    if trainer.is_world_process_zero():
        write_results(run, result, trainer.state.global_step)
    return result


def write_results(run: Run, result: PretrainingResult, steps: int) -> None:
    """
    `results.json` comes last, so that its presence says that all is found. What was measured alone is not saved again.
    """
    settings, output = run.settings, result.output
    if settings.max_steps:
        run.model.save_pretrained(output)
        run.tokenizer.save_pretrained(output)
    records.write_lines(output / "log.jsonl", result.history)
    records.write_text(output / "results.md", results_table(result.metrics["validation"], result.measures))
    if not records.plot_history(
        result.history, output / "training.png", f"Pre-training: {settings.architecture or settings.initial}"
    ):
        result.notes.append("No plots: they need the extra `plot` (matplotlib).")
    elif result.measures["by_length"]:
        plot_lengths(result.measures["by_length"], output / LENGTHS_PLOT)
    if not result.measures["by_length"]:
        (output / LENGTHS_PLOT).unlink(missing_ok=True)
    found = {
        "task": "fill-mask",
        "command": as_command("pretrain", settings),
        "base_model": settings.initial,
        "dataset": {
            "name": settings.dataset or ", ".join(path.name for path in settings.data),
            "hub_id": repository_of(settings.dataset) if settings.dataset else None,
            "counts": {"train": len(run.data.train), "validation": len(run.data.validation)},
        },
        "metrics": result.metrics,
        "measures": result.measures,
        "steps": steps,
        "parameters": run.model.num_parameters(),
        "seed": settings.seed,
        "settings": plain(settings),
        "environment": records.environment(),
        "history": result.history,
    }
    records.write_json(output / RESULTS, found)


def scores_on(trainer: CompositeTrainer, examples: datasets.Dataset) -> dict[str, float]:
    found = trainer.predict(Visits(examples), metric_key_prefix="eval").metrics or {}
    return {
        name.removeprefix("eval_"): value
        for name, value in found.items()
        if name.startswith(("eval_mlm", "eval_masked", "eval_sentence"))
    }


def loss_by_length(run: Run, trainer: CompositeTrainer, notes: list[str]) -> dict[str, dict[str, float]]:
    """Scores on the validation text packed anew into blocks of each length that the model has positions for."""
    limit = position_limit(run.model.config)
    limit = None if limit is None else limit - run.first_position
    # The order of pairs is no matter of blocks.
    trainer.label_names = ["labels"]
    found = {}
    for length in run.settings.eval_lengths:
        if limit is not None and length > limit:
            notes.append(f"No loss at length {length}: the position table ends at {limit}.")
            continue
        packer = Packer(run.tokenizer, length)
        blocks = [block for ids in texts_of(run.data.validation) for block in packer.add(ids)]
        blocks += packer.rest()
        trainer.validation_collator = collator(  # type: ignore[attr-defined]
            run, VALIDATION_SEED, max_length=length, fixed_length=False, sentence_order=False
        )
        found[str(length)] = scores_on(trainer, datasets.Dataset.from_list(blocks))
    return found
