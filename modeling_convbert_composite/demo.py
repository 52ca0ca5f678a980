# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The main job in a minute on what is installed: the shipped checkpoint fills masks, shows its kernels, is saved."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .analysis.kernels import TABLE_FILE, analyse_kernels
from .checkpoints import checkpoint_path
from .description import formula


CHECKPOINT = "mini"
SENTENCES = (
    "The state of the [MASK] is strong.",
    "The captain stood on the [MASK] of the ship.",
    "We must cut taxes and reduce the [MASK].",
)
# Words shown for each mask.
BEST = 5

Table = tuple[str, list[str], list[list[str]]]


def run_demo(
    text: str | None, output: Path, say: Callable[[str], None], show: Callable[[Table], None], plot: bool | None = None
) -> None:
    """
    Runs the demo, text through `say` and tables (title, headers, rows) through `show`.

    Args:
        text: a sentence with [MASK]; None = some of ours.
        output: folder for plots and the saved model, new, empty or of an earlier demo, whose files are replaced.
        plot: whether to draw; None = if matplotlib is installed.

    Raises:
        ValueError: `text` has no [MASK]. FileExistsError: `output` holds something else.
    """
    source = checkpoint_path(CHECKPOINT)
    check_output(output)
    tokenizer = AutoTokenizer.from_pretrained(source)
    sentences = SENTENCES if text is None else (with_mask(text, tokenizer),)
    say(f"1. Loading the checkpoint that the package ships, {source} ...")
    model = AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32).eval()
    say(f"   {model.num_parameters():,} parameters; attention = {formula(model.config)}")
    for sentence in sentences:
        show(best_words(model, tokenizer, sentence))
    say("2. The same with AutoModel: a state for every token ...")
    with only_errors():
        encoder = AutoModel.from_pretrained(source, dtype=torch.float32)
    states = encoder(**tokenizer(sentences[0], return_tensors="pt")).last_hidden_state
    say(f"   {sentences[0]} -> {tuple(states.shape)}")
    say("3. What the heads have learnt about distance ...")
    for line in write_kernels(source, output, sentences[0], plot):
        say(f"   {line}")
    say("4. Saving the model with its code, and loading it again ...")
    say(f"   Largest difference: {saved_difference(model, tokenizer, output / 'model', sentences[0]):g}")
    say(f"   {output / 'model'}")


def check_output(output: Path) -> None:
    if output.exists() and not (output.is_dir() and ((output / TABLE_FILE).is_file() or not any(output.iterdir()))):
        raise FileExistsError(f"{output} holds something else than an earlier demo; take another --output.")


@contextlib.contextmanager
def only_errors() -> Iterator[None]:
    """Silences the list of weights that AutoModel leaves out: those of the masked-LM head."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def with_mask(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    if tokenizer.mask_token not in text:
        raise ValueError(f"The sentence must hold {tokenizer.mask_token} where a word is missing, got {text!r}.")
    return text


def best_words(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentence: str) -> Table:
    """The most probable words for each mask, with their probabilities."""
    inputs = tokenizer(sentence, return_tensors="pt")
    masks = inputs["input_ids"][0] == tokenizer.mask_token_id
    with torch.no_grad():
        shares, ids = model(**inputs).logits[0, masks].softmax(-1).topk(BEST)  # (masks, BEST)
    rows = [
        [f"{word} ({share:.2f})" for word, share in zip(tokenizer.convert_ids_to_tokens(row), values, strict=True)]
        for row, values in zip(ids.tolist(), shares.tolist(), strict=True)
    ]
    return sentence, [""] * BEST, rows


def write_kernels(source: Path, output: Path, sentence: str, plot: bool | None) -> list[str]:
    """The kernels as CSV and plots; what was written, in words."""
    plot = importlib.util.find_spec("matplotlib") is not None if plot is None else plot
    files = analyse_kernels(str(source), output, [sentence], image="png" if plot else None)
    note = [] if plot else ["No plots: they need the extra `plot` (pip install 'convbert-composite[plot]')."]
    return [f"Wrote {path}." for path in files] + note


def saved_difference(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, sentence: str) -> float:
    """The largest difference of the logits between a model and what it saves."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    inputs = AutoTokenizer.from_pretrained(folder)(sentence, return_tensors="pt")
    again = AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return float((again(**inputs).logits - model(**inputs).logits).abs().max())
