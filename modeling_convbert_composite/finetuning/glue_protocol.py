# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The GLUE protocol of the paper's code as data: tasks, columns, labels, metrics, steps, batches and rates.

Labels stand in the order of the paper's code; predictions are kept by name, so that no order matters later.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modeling_convbert_composite.settings import at_least, setting


@dataclass(frozen=True)
class GlueTask:
    """
    One task.

    `text`, `second`, `label`: column names of the TSV files; `hub_text`, `hub_second` those of the `datasets` version,
    where they differ. `header`: names for files that have none. `metric`: of the dev set, among those of the task.
    `steps`, `batch`: of the schedules `electra` and `electra_base`; `rates`: their peak learning rates.
    `stable_steps`: of the schedule `stable`. `from_mnli`: starts from the MNLI model of the same seed.
    """

    name: str
    kind: Literal["text-classification", "sentence-pair", "regression"]
    labels: tuple[str, ...]
    metric: str
    steps: int
    batch: int
    stable_steps: int
    text: str = "sentence1"
    second: str | None = "sentence2"
    label: str = "label"
    hub_text: str | None = None
    hub_second: str | None = None
    header: tuple[str, ...] = ()
    rates: tuple[float, float] = (3e-4, 1e-4)
    from_mnli: bool = False


BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")

# In the order in which they run: MNLI first, since others start from it.
TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask(
            "MNLI",
            "sentence-pair",
            ("contradiction", "entailment", "neutral"),
            "accuracy",
            steps=12121,
            batch=128,
            stable_steps=484860,
            label="gold_label",
            hub_text="premise",
            hub_second="hypothesis",
        ),
        GlueTask(
            "CoLA",
            "text-classification",
            BINARY,
            "matthews_correlation",
            steps=851,
            batch=32,
            stable_steps=11340,
            text="sentence",
            second=None,
            header=("source", "label", "mark", "sentence"),
        ),
        GlueTask(
            "SST-2",
            "text-classification",
            BINARY,
            "accuracy",
            steps=6409,
            batch=32,
            stable_steps=85460,
            text="sentence",
            second=None,
        ),
        GlueTask(
            "MRPC",
            "sentence-pair",
            BINARY,
            "accuracy_and_f1",
            steps=343,
            batch=32,
            stable_steps=4580,
            text="#1 String",
            second="#2 String",
            label="Quality",
            hub_text="sentence1",
            hub_second="sentence2",
            from_mnli=True,
        ),
        GlueTask(
            "STS-B",
            "regression",
            (),
            "pearson_and_spearman",
            steps=1836,
            batch=32,
            stable_steps=7340,
            label="score",
            from_mnli=True,
        ),
        GlueTask(
            "QQP",
            "sentence-pair",
            BINARY,
            "accuracy_and_f1",
            steps=11200,
            batch=128,
            stable_steps=448000,
            text="question1",
            second="question2",
            label="is_duplicate",
        ),
        GlueTask(
            "QNLI",
            "sentence-pair",
            ENTAILMENT,
            "accuracy",
            steps=9835,
            batch=32,
            stable_steps=131140,
            text="question",
            second="sentence",
            rates=(1e-4, 1e-4),
        ),
        GlueTask(
            "RTE", "sentence-pair", ENTAILMENT, "accuracy", steps=777, batch=32, stable_steps=3100, from_mnli=True
        ),
        GlueTask("WNLI", "sentence-pair", BINARY, "accuracy", steps=100, batch=32, stable_steps=2000),
    )
}

SEEDS = (42, 97, 834, 622, 329, 75, 213, 101, 123, 57)
STABLE_BATCH, STABLE_RATE = 16, 2e-5

# Split -> file of the public archive, for most tasks, and for MNLI with its diagnostic set.
FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
MNLI_FILES = {
    "train": "train.tsv",
    "validation": "dev_matched.tsv",
    "validation_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
DIAGNOSTIC_FILES = ("diagnostic/diagnostic.tsv", "AX/AX.tsv", "AX/test.tsv", "MNLI/diagnostic.tsv")
HUB_SPLITS = {"validation": "validation_matched", "test": "test_matched"}


@dataclass(frozen=True)
class Score:
    """A line of the dev table: the metric of `task` on `split`, and the test splits whose predictions it chooses."""

    name: str
    task: str
    split: str
    submissions: dict[str, str]


# Of MNLI the matched and the mismatched run are chosen apart; the diagnostic set is predicted by the matched one.
SCORES = tuple(
    score
    for task in TASKS
    for score in (
        (
            Score("MNLI-m", "MNLI", "validation", {"MNLI-m": "test", "AX": "ax"}),
            Score("MNLI-mm", "MNLI", "validation_mismatched", {"MNLI-mm": "test_mismatched"}),
        )
        if task == "MNLI"
        else (Score(task, task, "validation", {task: "test"}),)
    )
)


@dataclass(frozen=True)
class GlueSettings:
    """The whole protocol, or a part or a small scale of it. The fields are the flags of `convbert-composite glue`."""

    model: str = setting(help="Checkpoint to start from: a folder or a repository id.")
    output: Path = setting(help="Folder for all runs; results are kept, models only if asked.")
    data: Path | None = setting(None, help="Folder with the public GLUE files: MNLI/train.tsv, CoLA/train.tsv, ...")
    dataset: str | None = setting(
        None, help="In place of files: name of a dataset with a configuration a task, or a folder of saved ones."
    )
    protocol: Literal["electra", "electra_base", "stable"] = setting(
        "electra", help="Schedule: for small models, for base models, or long and careful."
    )
    tasks: tuple[str, ...] = setting((), help="Tasks: MNLI,CoLA,...; default: all nine.")
    seeds: tuple[int, ...] = setting(SEEDS, help="Seeds, one run each.")
    steps_scale: float = setting(1.0, help="Share of the protocol's steps.")
    limit: int | None = setting(None, help="Use at most so many rows of each split.")
    largest_batch: int | None = setting(None, help="Cap of the batches; steps stay as they are.")
    accumulate: int = setting(1, help="Forward passes that an optimiser step is divided into.")
    max_length: int = setting(128, help="Tokens of an input.")
    from_mnli: bool = setting(True, help="Start RTE, STS-B and MRPC from the MNLI model of the same seed.")
    bf16: bool = setting(False, help="Compute in bfloat16 where that is safe (autocast).")
    save_steps: int = setting(500, help="Steps between the checkpoints from which a killed run goes on.")
    trust_remote_code: bool = setting(False, help="Run a checkpoint's own code where no installed class fits it.")
    keep_models: bool = setting(False, help="Keep every fine-tuned model, not only those of MNLI.")
    resume: bool = setting(False, help="Go on at the task and seed where an earlier run stopped.")
    overwrite: bool = setting(False, help="Replace earlier results in OUTPUT.")

    def __post_init__(self) -> None:
        if (self.data is None) == (self.dataset is None):
            raise ValueError("Give the data as --data FOLDER or as --dataset NAME, one of the two.")
        for name in self.tasks:
            if name not in TASKS:
                raise ValueError(f"--tasks must be among {', '.join(TASKS)}, got {name!r}.")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"--seeds must be different numbers, got {','.join(map(str, self.seeds))}.")
        if self.steps_scale <= 0:
            raise ValueError(f"--steps-scale must be positive, got {self.steps_scale}.")
        at_least(self, ("limit", "largest_batch", "accumulate", "max_length", "save_steps"), 1)

    @property
    def chosen_tasks(self) -> list[GlueTask]:
        """In the order of the protocol, however they were given."""
        return [task for name, task in TASKS.items() if not self.tasks or name in self.tasks]

    def schedule(self, task: GlueTask) -> tuple[int, int, float]:
        """Steps, batch and peak rate of a task."""
        if self.protocol == "stable":
            steps, batch, rate = task.stable_steps, STABLE_BATCH, STABLE_RATE
        else:
            steps, batch = task.steps, task.batch
            rate = task.rates[("electra", "electra_base").index(self.protocol)]
        return max(1, round(steps * self.steps_scale)), min(batch, self.largest_batch or batch), rate
