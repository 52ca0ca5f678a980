# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""From the results of GLUE runs to the dev table and the submission archive. Only the result files are read."""

import statistics
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeling_convbert_composite import records
from modeling_convbert_composite.finetuning.glue_protocol import SCORES, TASKS, Score


Runs = dict[int, float]


@dataclass(frozen=True)
class GlueReport:
    """
    `scores`: of every line of the dev table, seed -> score (0 to 1). `averages`: what is averaged, in words, and the
    average (0 to 100).
    """

    scores: dict[str, Runs]
    averages: dict[str, float]

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Headers and cells of the dev table: score x 100 with one decimal, a column a seed."""
        seeds = sorted_seeds(self.scores)
        headers = ["task", "metric", *(f"seed {seed}" for seed in seeds), "mean", "deviation", "best"]
        metric_of = {score.name: TASKS[score.task].metric for score in SCORES}
        rows = []
        for name, runs in self.scores.items():
            values = list(runs.values())
            deviation = percent(statistics.stdev(values)) if len(values) > 1 else "-"
            cells = [percent(runs[seed]) if seed in runs else "-" for seed in seeds]
            rows.append(
                [name, metric_of[name], *cells, percent(statistics.mean(values)), deviation, percent(max(values))]
            )
        return headers, rows

    def markdown(self) -> str:
        lines = [f"{text}: {value:.1f}" for text, value in self.averages.items()]
        return records.markdown_table(*self.rows()) + "\n" + "\n".join(f"- {line}" for line in lines) + "\n"


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def sorted_seeds(scores: dict[str, Runs]) -> list[int]:
    return list(dict.fromkeys(seed for runs in scores.values() for seed in runs))


def glue_report(folder: Path) -> GlueReport:
    """
    The dev table of the runs in `folder`; writes `dev.md`, `dev.json` and, with matplotlib, `dev.png` there.

    Raises:
        ValueError: no finished run in `folder`.
    """
    scores = read_scores(folder)
    report = GlueReport(scores, averages(scores))
    records.write_text(folder / "dev.md", report.markdown())
    records.write_json(folder / "dev.json", {"scores": scores, "averages": report.averages})
    plot_scores(report, folder / "dev.png")
    return report


def read_scores(folder: Path) -> dict[str, Runs]:
    """Line of the dev table -> seed -> score, in the order of the protocol and of its seeds."""
    found = {}
    for score in SCORES:
        runs = {}
        for seed, results in finished_runs(folder, score.task).items():
            metrics = results["metrics"].get(score.split)
            if metrics is not None:
                runs[seed] = metrics[TASKS[score.task].metric]
        if runs:
            found[score.name] = runs
    if not found:
        raise ValueError(f"{folder} holds no finished GLUE run (TASK/seed-N/results.json).")
    return found


def finished_runs(folder: Path, task: str) -> dict[int, dict[str, Any]]:
    """Seed -> results of the finished runs of a task."""
    recorded = folder / "glue.json"
    seeds = records.read_json(recorded)["seeds"] if recorded.is_file() else []
    files = {int(path.parent.name.rpartition("-")[2]): path for path in folder.glob(f"{task}/seed-*/results.json")}
    ordered = [seed for seed in seeds if seed in files] + sorted(set(files) - set(seeds))
    return {seed: records.read_json(files[seed]) for seed in ordered}


def averages(scores: dict[str, Runs]) -> dict[str, float]:
    """
    Averages over tasks, of the mean and of the best run of each. How the paper averages is not known; these say what
    they are.
    """
    found = {}
    for what, pick in (("the mean over seeds", statistics.mean), ("the best run on dev", max)):
        of_task = task_values(scores, pick)
        for names, left_out in (
            (list(of_task), ""),
            ([name for name in of_task if name != "WNLI"], ", WNLI left out"),
        ):
            if names and (left_out == "" or "WNLI" in of_task):
                mnli = ", MNLI as the mean of m and mm" if "MNLI" in names else ""
                text = f"Average of {len(names)} tasks by {what}{mnli}{left_out}"
                found[text] = 100 * statistics.mean(of_task[name] for name in names)
    return found


def task_values(scores: dict[str, Runs], pick: Callable[[Any], float]) -> dict[str, float]:
    """One value a task; MNLI's is the mean of its two lines."""
    found: dict[str, list[float]] = {}
    for score in SCORES:
        if score.name in scores:
            found.setdefault(score.task, []).append(pick(scores[score.name].values()))
    return {task: statistics.mean(values) for task, values in found.items()}


def plot_scores(report: GlueReport, path: Path) -> bool:
    """Every run as a dot and the mean as a line, a column a task. False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for index, runs in enumerate(report.scores.values()):
        values = [100 * value for value in runs.values()]
        axes.scatter([index] * len(values), values, s=14, alpha=0.6, color="tab:blue")
        axes.hlines(statistics.mean(values), index - 0.3, index + 0.3, color="tab:orange")
    axes.set_xticks(range(len(report.scores)), list(report.scores))
    axes.set_ylabel("dev score x 100 (dots: seeds, line: mean)")
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120)
    return True


def best_seed(runs: Runs) -> int:
    """The seed with the best score; of equal ones the first."""
    return max(runs, key=lambda seed: runs[seed])


def glue_submission(folder: Path, archive: Path, partial: bool = False) -> dict[str, int]:
    """
    The submission archive: for each file the predictions of the run that is best on dev.

    Args:
        partial: leave out what is not there instead of refusing.

    Returns:
        File name -> seed of its run.

    Raises:
        ValueError: files are missing.
    """
    scores = read_scores(folder)
    contents: dict[str, str] = {}
    seeds: dict[str, int] = {}
    missing = []
    for score in SCORES:
        for name, split in score.submissions.items():
            runs = scores.get(score.name)
            path = run_predictions(folder, score, best_seed(runs), split) if runs else None
            if runs is None or path is None:
                missing.append(name)
                continue
            contents[f"{name}.tsv"] = submission_file(path, score.task)
            seeds[f"{name}.tsv"] = best_seed(runs)
    if missing and not partial:
        raise ValueError(f"{folder} has no predictions for {', '.join(missing)}; --partial leaves them out.")
    write_archive(archive, contents)
    return seeds


def run_predictions(folder: Path, score: Score, seed: int, split: str) -> Path | None:
    path = folder / score.task / f"seed-{seed}" / f"predictions-{split}.jsonl"
    return path if path.is_file() else None


def submission_file(predictions: Path, task: str) -> str:
    """The file for the server: labels by name; scores of STS-B between 0 and 5, with three decimals."""
    lines = ["index\tprediction"]
    for index, item in enumerate(records.read_lines(predictions)):
        lines.append(f"{index}\t{formatted(item['prediction'], task)}")
    return "\n".join(lines) + "\n"


def formatted(prediction: Any, task: str) -> str:
    labels = TASKS[task].labels
    if not labels:
        return f"{min(max(float(prediction), 0.0), 5.0):.3f}"
    if prediction not in labels:
        raise ValueError(f"{task}: {prediction!r} is none of {', '.join(labels)}.")
    return str(prediction)


def write_archive(archive: Path, contents: dict[str, str]) -> None:
    """A zip of files, the same bytes for the same contents."""
    scratch = archive.with_name(archive.name + ".part")
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, text in contents.items():
            opened.writestr(zipfile.ZipInfo(name), text)
    scratch.replace(archive)
