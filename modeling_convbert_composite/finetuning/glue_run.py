# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The GLUE protocol: every task with every seed, resumable at the step where it was killed."""

import shutil
from pathlib import Path

from tqdm.auto import tqdm

from modeling_convbert_composite import records
from modeling_convbert_composite.finetuning.glue_data import read_task
from modeling_convbert_composite.finetuning.glue_protocol import TASKS as PROTOCOL
from modeling_convbert_composite.finetuning.glue_protocol import GlueSettings, GlueTask
from modeling_convbert_composite.finetuning.run import TASKS, finetune
from modeling_convbert_composite.finetuning.settings import FinetuningSettings
from modeling_convbert_composite.finetuning.tables import Table
from modeling_convbert_composite.run_folders import RESULTS
from modeling_convbert_composite.settings import plain, refuse_other_settings


GLUE = "glue.json"
MAY_DIFFER = frozenset({"resume", "overwrite", "keep_models", "output", "tasks", "seeds"})


def run_glue(settings: GlueSettings) -> None:
    """
    Runs the protocol. Each run leaves `{output}/{task}/seed-{seed}/results.json` and its predictions; those that are
    there already are not repeated under `resume`.

    Raises:
        ValueError, OSError: missing or broken data of any task, before the first run starts.
    """
    prepare(settings)
    tasks = settings.chosen_tasks
    # All data is read and checked first: nobody wants to learn after a week that the last task's file is missing.
    for task in tasks:
        check(settings, task, read_task(settings, task))
    check_mnli(settings, tasks)
    with tqdm(
        total=len(tasks) * len(settings.seeds), desc="GLUE", unit="run", disable=not records.is_main_process()
    ) as bar:
        for task in tasks:
            tables = read_task(settings, task)
            for seed in settings.seeds:
                bar.set_postfix_str(f"{task.name}, seed {seed}")
                run_one(settings, task, tables, seed)
                bar.update()


def prepare(settings: GlueSettings) -> None:
    """Records the settings of the protocol; refuses a folder that holds another run."""
    record = settings.output / GLUE
    if not records.is_main_process():
        return
    if record.is_file() and settings.resume:
        refuse_other_settings(records.read_json(record), settings, MAY_DIFFER, settings.output)
    elif settings.output.is_dir() and any(settings.output.iterdir()):
        if not settings.overwrite:
            raise FileExistsError(f"{settings.output} is not empty; --resume its run, or --overwrite it.")
        for name in PROTOCOL:
            shutil.rmtree(settings.output / name, ignore_errors=True)
    settings.output.mkdir(parents=True, exist_ok=True)
    records.write_json(record, plain(settings))


def check(settings: GlueSettings, task: GlueTask, tables: dict[str, Table]) -> None:
    """Reads every row of a task as the run will."""
    TASKS[task.kind](run_settings(settings, task, settings.seeds[0])).read(tables)


def check_mnli(settings: GlueSettings, tasks: list[GlueTask]) -> None:
    """Refuses tasks that start from MNLI where neither this run nor an earlier one has it."""
    if any(task.name == "MNLI" for task in tasks):
        return
    for task in tasks:
        for seed in settings.seeds:
            model = mnli_model(settings, seed)
            if task.from_mnli and settings.from_mnli and not (model / "config.json").is_file():
                raise ValueError(
                    f"{task.name} starts from the MNLI model of the same seed, and {model} is not there. "
                    "Run MNLI as well, or give --no-from-mnli."
                )


def mnli_model(settings: GlueSettings, seed: int) -> Path:
    return run_folder(settings.output, "MNLI", seed)


def run_folder(output: Path, task: str, seed: int) -> Path:
    return output / task / f"seed-{seed}"


def run_one(settings: GlueSettings, task: GlueTask, tables: dict[str, Table], seed: int) -> None:
    if not (run_folder(settings.output, task.name, seed) / RESULTS).is_file():
        finetune(run_settings(settings, task, seed), tables)


def run_settings(settings: GlueSettings, task: GlueTask, seed: int) -> FinetuningSettings:
    """The protocol of one run: AdamW without weight decay, a tenth of warm-up, linear decay, the last step's model."""
    steps, batch, rate = settings.schedule(task)
    starts_from_mnli = task.from_mnli and settings.from_mnli
    folder = run_folder(settings.output, task.name, seed)
    return FinetuningSettings(
        model=str(mnli_model(settings, seed)) if starts_from_mnli else settings.model,
        output=folder,
        task=task.kind,
        dataset=f"GLUE {task.name}",
        text_column="text",
        second_column="second" if task.second else None,
        label_column="label",
        labels=task.labels,
        max_length=settings.max_length,
        max_steps=steps,
        batch_size=batch,
        accumulate=settings.accumulate,
        learning_rate=rate,
        weight_decay=0.0,
        warmup=0.1,
        adam_epsilon=1e-8,
        group_by_length=False,
        evaluate="end",
        eval_steps=settings.save_steps,
        best_checkpoint=False,
        seed=seed,
        bf16=settings.bf16,
        trust_remote_code=settings.trust_remote_code,
        resume=folder.is_dir(),
        # Others start from MNLI's.
        save_model=settings.keep_models or task.name == "MNLI",
    )
