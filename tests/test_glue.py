# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The GLUE protocol: its table, its data, whole runs with a kill in between, the dev table and the archive."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from glue_folder import write_glue
from helpers import HEADS
from test_pipelines import WORDS, word_tokenizer
from transformers import pipeline

from modeling_convbert_composite.cli import main
from modeling_convbert_composite.finetuning.glue_data import read_task
from modeling_convbert_composite.finetuning.glue_protocol import SCORES, SEEDS, TASKS, GlueSettings
from modeling_convbert_composite.finetuning.glue_report import formatted, glue_report, glue_submission
from modeling_convbert_composite.finetuning.glue_run import run_glue, run_settings
from modeling_convbert_composite.records import read_json, read_lines, write_json, write_lines


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_glue(tmp_path_factory.mktemp("glue"))


def settings_of(checkpoint: Path, glue: Path, output: Path, **changes: Any) -> GlueSettings:
    values: dict[str, Any] = {
        "model": str(checkpoint),
        "output": output,
        "data": glue,
        "seeds": (42, 97),
        "steps_scale": 0.0004,
        "largest_batch": 8,
    }
    return GlueSettings(**(values | changes))


# The protocol as data


def test_the_schedules_are_those_of_the_papers_code() -> None:
    """Steps, batch, and rate of the three schedules, as PAPER.md 10 lists them."""
    expected = {
        "MNLI": (12121, 128, 3e-4, 1e-4, 484860),
        "CoLA": (851, 32, 3e-4, 1e-4, 11340),
        "SST-2": (6409, 32, 3e-4, 1e-4, 85460),
        "MRPC": (343, 32, 3e-4, 1e-4, 4580),
        "STS-B": (1836, 32, 3e-4, 1e-4, 7340),
        "QQP": (11200, 128, 3e-4, 1e-4, 448000),
        "QNLI": (9835, 32, 1e-4, 1e-4, 131140),
        "RTE": (777, 32, 3e-4, 1e-4, 3100),
        "WNLI": (100, 32, 3e-4, 1e-4, 2000),
    }
    assert list(TASKS) == list(expected)
    assert SEEDS == (42, 97, 834, 622, 329, 75, 213, 101, 123, 57)
    for name, (steps, batch, small, base, stable) in expected.items():
        task = TASKS[name]
        for protocol, schedule in (
            ("electra", (steps, batch, small)),
            ("electra_base", (steps, batch, base)),
            ("stable", (stable, 16, 2e-5)),
        ):
            settings = GlueSettings(model="m", output=Path("o"), data=Path("d"), protocol=protocol)  # type: ignore[arg-type]
            assert settings.schedule(task) == schedule
    capped = GlueSettings(model="m", output=Path("o"), data=Path("d"), largest_batch=16, steps_scale=0.01)
    assert capped.schedule(TASKS["MNLI"]) == (121, 16, 3e-4)
    run = run_settings(capped, TASKS["RTE"], 97)
    assert run.model == str(Path("o/MNLI/seed-97"))
    assert (run.weight_decay, run.warmup, run.adam_epsilon, run.schedule, run.best_checkpoint) == (
        0.0,
        0.1,
        1e-8,
        "linear",
        False,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("MNLI", "XNLI")}, "--tasks must be among MNLI, CoLA.*got 'XNLI'"),
        ({"seeds": (1, 1)}, "--seeds must be different numbers, got 1,1"),
        ({"steps_scale": 0.0}, r"--steps-scale must be positive, got 0\.0"),
        ({"data": None}, "--data FOLDER or as --dataset"),
        ({"limit": 0}, "--limit must be at least 1, got 0"),
    ],
)
def test_wrong_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings_of(Path("m"), Path("d"), Path("o"), **changes)


# Data


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_read(name: str, glue: Path) -> None:
    task = TASKS[name]
    tables = read_task(settings_of(Path("m"), glue, Path("o")), task)
    splits = {"train", "validation", "test"}
    assert set(tables) == (splits | {"validation_mismatched", "test_mismatched", "ax"} if name == "MNLI" else splits)
    for split, table in tables.items():
        roles = {"text"} | ({"second"} if task.second else set())
        is_labelled = split.startswith(("train", "validation"))
        assert set(table.columns) == roles | ({"label"} if is_labelled else set())
        assert len(table) == {"train": 48 if name == "MNLI" else 24}.get(split, 8)
        if is_labelled and task.labels:
            assert set(table.columns["label"]) <= set(task.labels)
    first = (glue / name / "train.tsv").read_text(encoding="utf-8-sig").splitlines()[0 if name == "CoLA" else 1]
    for role in ("text", "second", "label"):
        if role in tables["train"].columns:
            assert tables["train"].columns[role][0] in first.split("\t")


def test_a_torn_line_is_left_out_of_the_training_file_only(glue: Path, tmp_path: Path) -> None:
    copy = write_glue(tmp_path)
    task, settings = TASKS["QQP"], settings_of(Path("m"), copy, Path("o"))
    assert (copy / "QQP" / "train.tsv").read_text().endswith("7\t8\n")
    assert len(read_task(settings, task)["train"]) == 24
    with (copy / "QQP" / "dev.tsv").open("a") as file:
        file.write("7\t8\n")
    with pytest.raises(ValueError, match=r"dev\.tsv, row 9 has 2 columns, too few"):
        read_task(settings, task)


@pytest.mark.parametrize(
    "order", [("entailment", "neutral", "contradiction"), ("neutral", "contradiction", "entailment")]
)
def test_a_dataset_in_another_label_order_is_the_same(order: tuple[str, ...], glue: Path, tmp_path: Path) -> None:
    """`datasets` numbers the classes of MNLI otherwise than the paper's code; names decide."""
    task = TASKS["MNLI"]
    tables = read_task(settings_of(Path("m"), glue, Path("o")), task)
    names = {
        "train": "train",
        "validation": "validation_matched",
        "validation_mismatched": "validation_mismatched",
        "test": "test_matched",
        "test_mismatched": "test_mismatched",
    }
    features = datasets.Features(
        {
            "premise": datasets.Value("string"),
            "hypothesis": datasets.Value("string"),
            "label": datasets.ClassLabel(names=list(order)),
            "idx": datasets.Value("int32"),
        }
    )

    def hub(split: str) -> datasets.Dataset:
        columns = tables[split].columns
        labels = [order.index(label) for label in columns.get("label", [])] or [-1] * len(tables[split])
        rows = {
            "premise": columns["text"],
            "hypothesis": columns["second"],
            "label": labels,
            "idx": list(range(len(labels))),
        }
        return datasets.Dataset.from_dict(rows, features=features)

    datasets.DatasetDict({name: hub(split) for split, name in names.items()}).save_to_disk(str(tmp_path / "mnli"))
    datasets.DatasetDict({"test": hub("ax")}).save_to_disk(str(tmp_path / "ax"))
    settings = settings_of(Path("m"), glue, Path("o"), data=None, dataset=str(tmp_path))
    read = read_task(settings, task)
    assert {split: table.columns for split, table in read.items()} == {
        split: table.columns for split, table in tables.items()
    }


def test_numbers_and_scores_of_a_dataset(glue: Path, tmp_path: Path) -> None:
    """Classes with other names than the protocol's are its 0 and 1; scores stay numbers."""
    for task, name, label in (
        ("MRPC", "mrpc", datasets.ClassLabel(names=["not_equivalent", "equivalent"])),
        ("STS-B", "stsb", datasets.Value("float32")),
    ):
        values = [1, 0] if task == "MRPC" else [2.5, 3.0]
        rows = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": values}
        features = datasets.Features(
            {"sentence1": datasets.Value("string"), "sentence2": datasets.Value("string"), "label": label}
        )
        split = datasets.Dataset.from_dict(rows, features=features)
        whole = datasets.DatasetDict({"train": split, "validation": split, "test": split})
        whole.save_to_disk(str(tmp_path / name))
        settings = settings_of(Path("m"), glue, Path("o"), data=None, dataset=str(tmp_path))
        assert read_task(settings, TASKS[task])["train"].columns["label"] == (["1", "0"] if task == "MRPC" else values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no folder", "has no folder RTE"),
        ("no file", r"There is no file .*RTE/dev\.tsv"),
        ("no column", r"RTE/dev\.tsv has no column 'label'"),
        ("wrong label", r"RTE/dev\.tsv, row 1, column 'label': 'maybe' is none of the labels entailment, not_entail"),
    ],
)
def test_broken_data_is_named_before_the_first_run(
    change: str, message: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_glue(tmp_path / "data")
    dev = data / "RTE" / "dev.tsv"
    if change == "no folder":
        (data / "RTE").rename(data / "other")
    elif change == "no file":
        dev.unlink()
    elif change == "no column":
        dev.write_text(dev.read_text().replace("label", "gold", 1))
    else:
        header, first, *rest = dev.read_text().splitlines()
        dev.write_text("\n".join([header, first.rpartition("\t")[0] + "\tmaybe", *rest]))
    monkeypatch.setattr(
        "modeling_convbert_composite.finetuning.glue_run.finetune", lambda *args: pytest.fail("a run began")
    )
    with pytest.raises((ValueError, OSError), match=message):
        run_glue(settings_of(checkpoint, data, tmp_path / "out"))


def test_tasks_that_start_from_mnli_need_it(checkpoint: Path, glue: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"RTE starts from the MNLI model of the same seed.*--no-from-mnli"):
        run_glue(settings_of(checkpoint, glue, tmp_path / "out", tasks=("RTE",)))


# Runs


def test_a_task_after_mnli_starts_from_its_encoder(checkpoint: Path, glue: Path, tmp_path: Path) -> None:
    """Encoder and pooler are those of MNLI's model of the same seed, the classifier is new; the seeds differ."""
    settings = settings_of(
        checkpoint, glue, tmp_path / "out", tasks=("MNLI", "RTE"), keep_models=True, steps_scale=1e-9
    )
    run_glue(settings)
    from safetensors.torch import load_file

    def weights(task: str, seed: int) -> dict[str, torch.Tensor]:
        return load_file(tmp_path / "out" / task / f"seed-{seed}" / "model.safetensors")

    # One step at the end of a warm-up from zero leaves the weights where they were.
    for seed in settings.seeds:
        mnli, rte = weights("MNLI", seed), weights("RTE", seed)
        assert mnli.pop("classifier.weight").shape[0] == 3
        assert rte.pop("classifier.weight").shape[0] == 2
        moved = max(float((mnli[name] - rte[name]).abs().max()) for name in rte if "classifier" not in name)
        assert moved < 1e-3
        assert read_json(tmp_path / "out" / "RTE" / f"seed-{seed}" / "results.json")["base_model"] == str(
            tmp_path / "out" / "MNLI" / f"seed-{seed}"
        )
    first, second = (weights("RTE", seed)["classifier.weight"] for seed in settings.seeds)
    assert not torch.allclose(first, second)


def test_resume_repeats_nothing(checkpoint: Path, glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(checkpoint, glue, tmp_path / "out", tasks=("CoLA", "WNLI"))
    run_glue(settings)
    with pytest.raises(FileExistsError, match="--resume"):
        run_glue(settings)
    monkeypatch.setattr(
        "modeling_convbert_composite.finetuning.glue_run.finetune", lambda *args: pytest.fail("a run was repeated")
    )
    run_glue(replace(settings, resume=True))
    with pytest.raises(ValueError, match=r"steps_scale was 0\.0004, is 1\.0"):
        run_glue(replace(settings, resume=True, steps_scale=1.0))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [pytest.param(SEEDS[:2], marks=pytest.mark.ci), SEEDS], ids=["two", "ten"])
def test_the_whole_protocol_killed_once(seeds: tuple[int, ...], checkpoint: Path, glue: Path, tmp_path: Path) -> None:
    """
    Nine tasks, all seeds, killed in the middle of a run and resumed: the same files as without the kill, and a table,
    averages and an archive that equal what plain code finds in the prediction files.
    """
    output = tmp_path / "out"
    command = [sys.executable, "-m", "modeling_convbert_composite", "glue", "--model", str(checkpoint)]
    command += ["--data", str(glue), "--steps-scale", "0.0004", "--largest-batch", "8", "--save-steps", "1"]
    command += ["--seeds", ",".join(map(str, seeds))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    quiet: dict[str, Any] = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen([*command, "--output", str(output)], **quiet)
    deadline = time.monotonic() + 300
    while len(list(output.glob("*/*/results.json"))) < 2.5 * len(seeds) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    finished = {path: path.stat().st_mtime_ns for path in output.glob("*/*/results.json")}
    assert 2.5 * len(seeds) <= len(finished) < 9 * len(seeds)
    subprocess.run([*command, "--output", str(output), "--resume"], check=True, **quiet)
    assert all(path.stat().st_mtime_ns == written for path, written in finished.items())
    assert len(list(output.glob("*/*/results.json"))) == 9 * len(seeds)

    # The runs about the kill, once more without it: the same predictions.
    again = tmp_path / "again"
    subprocess.run([*command, "--output", str(again), "--tasks", "MNLI,CoLA,SST-2,MRPC"], check=True, **quiet)
    for path in again.glob("*/*/predictions-*.jsonl"):
        assert path.read_bytes() == (output / path.relative_to(again)).read_bytes()

    report = glue_report(output)
    by_hand = {}
    for score in SCORES:
        for seed in seeds:
            folder = output / score.task / f"seed-{seed}"
            found = [item["prediction"] for item in read_lines(folder / f"predictions-{score.split}.jsonl")]
            by_hand[score.name, seed] = metric_by_hand(score.task, found, labels_by_hand(glue, score.name))
            assert report.scores[score.name][seed] == pytest.approx(by_hand[score.name, seed], abs=1e-9)
    means = {score.name: statistics.mean(by_hand[score.name, seed] for seed in seeds) for score in SCORES}
    means["MNLI"] = (means.pop("MNLI-m") + means.pop("MNLI-mm")) / 2
    expected = 100 * statistics.mean(means.values())
    assert report.averages["Average of 9 tasks by the mean over seeds, MNLI as the mean of m and mm"] == pytest.approx(
        expected, abs=1e-9
    )

    archive = tmp_path / "submission.zip"
    chosen = glue_submission(output, archive)
    with zipfile.ZipFile(archive) as opened:
        assert sorted(opened.namelist()) == sorted(
            f"{name}.tsv" for name in [*(set(TASKS) - {"MNLI"}), "MNLI-m", "MNLI-mm", "AX"]
        )
        for score in SCORES:
            best = max(seeds, key=lambda seed: by_hand[score.name, seed])
            for name, split in score.submissions.items():
                assert chosen[f"{name}.tsv"] == best
                path = output / score.task / f"seed-{best}" / f"predictions-{split}.jsonl"
                values = [item["prediction"] for item in read_lines(path)]
                if score.task == "STS-B":
                    values = [f"{min(5.0, max(0.0, value)):.3f}" for value in values]
                text = "index\tprediction\n" + "".join(f"{index}\t{value}\n" for index, value in enumerate(values))
                assert opened.read(f"{name}.tsv") == text.encode()


def labels_by_hand(glue: Path, name: str) -> list[str]:
    """The last column of a dev file, or CoLA's second and MRPC's first."""
    folder, file = {"MNLI-m": ("MNLI", "dev_matched"), "MNLI-mm": ("MNLI", "dev_mismatched")}.get(name, (name, "dev"))
    lines = [line.split("\t") for line in (glue / folder / f"{file}.tsv").read_text(encoding="utf-8-sig").splitlines()]
    column = {"CoLA": 1, "MRPC": 0}.get(name, -1)
    return [line[column] for line in lines[0 if name == "CoLA" else 1 :]]


def metric_by_hand(task: str, found: list[Any], labels: list[str]) -> float:
    from scipy import stats
    from sklearn import metrics

    if task == "STS-B":
        values = [float(label) for label in labels]
        return float(stats.pearsonr(found, values)[0] + stats.spearmanr(found, values)[0]) / 2
    if task == "CoLA":
        return float(metrics.matthews_corrcoef(labels, found))
    accuracy = sum(a == b for a, b in zip(found, labels, strict=True)) / len(labels)
    if task in ("MRPC", "QQP"):
        return (accuracy + float(metrics.f1_score(labels, found, pos_label="1", zero_division=0.0))) / 2
    return accuracy


# Report and archive, from result files alone


def write_run(folder: Path, task: str, seed: int, scores: dict[str, float], predictions: dict[str, list[Any]]) -> None:
    run = folder / task / f"seed-{seed}"
    run.mkdir(parents=True)
    metric = TASKS[task].metric
    write_json(run / "results.json", {"metrics": {split: {metric: value} for split, value in scores.items()}})
    for split, values in predictions.items():
        write_lines(run / f"predictions-{split}.jsonl", [{"prediction": value} for value in values])


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two seeds of everything, made up; seed 97 is better on MNLI-mm and STS-B, seed 42 elsewhere."""
    for seed, gain in ((42, 0.0), (97, 0.1)):
        words = ["contradiction", "entailment", "neutral"]
        if seed == 97:
            words = words[::-1]
        write_run(
            tmp_path,
            "MNLI",
            seed,
            {"validation": 0.8 - gain, "validation_mismatched": 0.7 + gain},
            {"test": words, "test_mismatched": words[1:], "ax": words[:2]},
        )
        write_run(tmp_path, "STS-B", seed, {"validation": 0.8 + gain}, {"test": [-0.2, 5.7, 3.14159 + gain, 2.0005]})
        for task in TASKS:
            if task not in ("MNLI", "STS-B"):
                write_run(tmp_path, task, seed, {"validation": 0.6 - gain}, {"test": list(TASKS[task].labels)})
    write_json(tmp_path / "glue.json", {"seeds": [97, 42]})
    return tmp_path


def test_the_dev_table_by_hand(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = glue_report(runs)
    headers, rows = report.rows()
    assert headers == ["task", "metric", "seed 97", "seed 42", "mean", "deviation", "best"]
    assert rows[0] == ["MNLI-m", "accuracy", "70.0", "80.0", "75.0", "7.1", "80.0"]
    assert rows[1] == ["MNLI-mm", "accuracy", "80.0", "70.0", "75.0", "7.1", "80.0"]
    assert rows[2] == ["CoLA", "matthews_correlation", "50.0", "60.0", "55.0", "7.1", "60.0"]
    assert [row[0] for row in rows[2:]] == list(TASKS)[1:]
    # Means: MNLI 75, STS-B 85, seven others 55; best: 80, 90, 60.
    assert list(report.averages.values()) == pytest.approx(
        [(75 + 85 + 7 * 55) / 9, (75 + 85 + 6 * 55) / 8, (80 + 90 + 7 * 60) / 9, (80 + 90 + 6 * 60) / 8]
    )
    assert [" of 8 " in text and text.endswith("WNLI left out") for text in report.averages] == [False, True] * 2
    with pytest.raises(SystemExit) as stop:
        main(["glue-report", str(runs)])
    assert stop.value.code == 0
    assert "75.0" in capsys.readouterr().out
    assert "| STS-B | pearson_and_spearman | 90.0 | 80.0 | 85.0 | 7.1 | 90.0 |" in (runs / "dev.md").read_text()
    assert (runs / "dev.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((runs / "dev.json").read_text())["scores"]["RTE"] == {"97": 0.5, "42": 0.6}


def test_the_archive_byte_for_byte(runs: Path, tmp_path: Path) -> None:
    """MNLI-m (seed 42), AX (its run) and MNLI-mm (seed 97) are chosen apart; STS-B is clipped."""
    seeds = glue_submission(runs, tmp_path / "a.zip")
    assert seeds == {
        "MNLI-m.tsv": 42,
        "AX.tsv": 42,
        "MNLI-mm.tsv": 97,
        "STS-B.tsv": 97,
        **{f"{task}.tsv": 42 for task in TASKS if task not in ("MNLI", "STS-B")},
    }
    with zipfile.ZipFile(tmp_path / "a.zip") as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    assert contents["MNLI-m.tsv"] == b"index\tprediction\n0\tcontradiction\n1\tentailment\n2\tneutral\n"
    assert contents["MNLI-mm.tsv"] == b"index\tprediction\n0\tentailment\n1\tcontradiction\n"
    assert contents["AX.tsv"] == b"index\tprediction\n0\tcontradiction\n1\tentailment\n"
    assert contents["STS-B.tsv"] == b"index\tprediction\n0\t0.000\n1\t5.000\n2\t3.242\n3\t2.001\n"
    for task in ("QNLI", "RTE"):
        assert contents[f"{task}.tsv"] == b"index\tprediction\n0\tentailment\n1\tnot_entailment\n"
    for task in ("CoLA", "SST-2", "MRPC", "QQP", "WNLI"):
        assert contents[f"{task}.tsv"] == b"index\tprediction\n0\t0\n1\t1\n"
    glue_submission(runs, tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_an_archive_that_is_not_whole(runs: Path, tmp_path: Path) -> None:
    (runs / "MNLI" / "seed-42" / "predictions-ax.jsonl").unlink()
    with pytest.raises(ValueError, match="has no predictions for AX; --partial"):
        glue_submission(runs, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()
    assert "AX.tsv" not in glue_submission(runs, tmp_path / "a.zip", partial=True)


def test_equal_runs_are_decided_by_the_order_of_seeds(tmp_path: Path) -> None:
    for seed in (7, 3):
        write_run(tmp_path, "WNLI", seed, {"validation": 0.5}, {"test": [str(seed % 2)]})
    write_json(tmp_path / "glue.json", {"seeds": [7, 3]})
    assert glue_submission(tmp_path, tmp_path / "a.zip", partial=True) == {"WNLI.tsv": 7}


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no finished GLUE run"):
        glue_report(tmp_path)


def test_a_prediction_that_is_no_label() -> None:
    with pytest.raises(ValueError, match="RTE: 'LABEL_0' is none of entailment, not_entailment"):
        formatted("LABEL_0", "RTE")


def test_predictions_are_the_words_of_the_model(checkpoint: Path, glue: Path, tmp_path: Path) -> None:
    """Started from a head that numbers the classes otherwise: words in the file are those that a pipeline gives."""
    model = HEADS["sequence"].build(vocab_size=len(WORDS), pad_token_id=0)
    order = ("neutral", "entailment", "contradiction")
    model.config.id2label, model.config.label2id = dict(enumerate(order)), {name: i for i, name in enumerate(order)}
    model.save_pretrained(tmp_path / "other")
    word_tokenizer().save_pretrained(tmp_path / "other")
    run_glue(settings_of(tmp_path / "other", glue, tmp_path / "out", tasks=("MNLI",), seeds=(42,), steps_scale=0.02))
    folder = tmp_path / "out" / "MNLI" / "seed-42"
    classify = pipeline("text-classification", model=str(folder))
    assert tuple(classify.model.config.id2label.values()) == TASKS["MNLI"].labels
    columns = read_task(settings_of(checkpoint, glue, tmp_path), TASKS["MNLI"])["test"].columns
    pairs = [{"text": first, "text_pair": second} for first, second in zip(*columns.values(), strict=True)]
    predictions = [item["prediction"] for item in read_lines(folder / "predictions-test.jsonl")]
    assert [answer["label"] for answer in classify(pairs)] == predictions
    assert len(set(predictions)) > 1
