# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The verbs that train and look into what was learnt. As in `cli.py`: parsing and printing only."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import needing, show_scores, show_table
from .finetuning.glue_protocol import GlueSettings
from .finetuning.settings import FinetuningSettings
from .pretraining.settings import PretrainingSettings, TokenizerSettings
from .settings import command_of


if TYPE_CHECKING:
    from .finetuning.glue_report import GlueReport


training_verbs = typer.Typer()


def run_finetune(settings: FinetuningSettings) -> None:
    with needing("train"):
        from .finetuning.run import finetune as run
        from .records import is_main_process
    result = run(settings)
    if not is_main_process():
        return
    show_scores(f"{settings.task}, {settings.model}", result.metrics)
    for note in result.notes:
        print(f"Note: {note}")
    print(f"Saved {result.output}.")


training_verbs.command(
    "finetune",
    short_help="Train a checkpoint for a task.",
    epilog="Example: convbert-composite finetune --model ./composite --task text-classification --train reviews.csv "
    "--test new.csv --output ./sentiment",
)(
    command_of(
        FinetuningSettings,
        run_finetune,
        "Train a checkpoint for a task on your own data. Everything is checked before any training starts; the folder "
        "OUTPUT gets the model, results.json, a table, a plot and predictions.",
    )
)


def run_train_tokenizer(settings: TokenizerSettings) -> None:
    with needing("convert"):
        from .pretraining.tokenizers import train_tokenizer as run

        tokenizer = run(settings)
    print(f"Saved {settings.output} ({len(tokenizer):,} tokens).")


training_verbs.command(
    "train-tokenizer",
    short_help="Train a tokenizer on text.",
    epilog="Example: convbert-composite train-tokenizer --data corpus.txt --vocab-size 8000 --output ./tokenizer",
)(
    command_of(
        TokenizerSettings,
        run_train_tokenizer,
        "Train a tokenizer on text of any language: SentencePiece unigram as the paper's, WordPiece or byte-level "
        "BPE, saved as tokenizer.json.",
    )
)


def run_pretrain(settings: PretrainingSettings) -> None:
    with needing("train"):
        from .pretraining.run import pretrain as run
        from .records import is_main_process
    result = run(settings)
    if not is_main_process():
        return
    columns = {**result.metrics, "frequencies alone": result.measures["floor"]}
    show_scores(f"{settings.architecture or settings.initial}, {settings.max_steps:,} steps", columns)
    if settings.max_steps:
        print(f"{result.measures['tokens']:,} tokens, {result.measures['tokens_per_second']:,.0f} a second.")
    for note in result.notes:
        print(f"Note: {note}")
    print(f"Saved {result.output}.")


training_verbs.command(
    "pretrain",
    short_help="Pre-train a masked language model.",
    epilog="Example: convbert-composite pretrain --architecture mini --tokenizer ./tokenizer --data corpus.txt "
    "--max-steps 10000 --warmup 0.1 --output ./mini",
)(
    command_of(
        PretrainingSettings,
        run_pretrain,
        "Pre-train a masked language model on text. The paper's recipe is the default; a run that was killed goes on "
        "with --resume and ends with the same weights.",
    )
)


@training_verbs.command(
    short_help="Learned kernels as plots and a table.",
    epilog='Example: convbert-composite kernels ./composite --output ./plots --text "The state is strong."',
)
def kernels(
    model: Annotated[str, typer.Argument(help="Folder or repository id of a model, or `mini`, which is shipped.")],
    output: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("kernels"),
    text: Annotated[str | None, typer.Option(help="A sentence whose query kernels to show.")] = None,
    text_file: Annotated[Path | None, typer.Option(help="File of text to average query kernels over.")] = None,
    svg: Annotated[bool, typer.Option("--svg", help="Plots as SVG instead of PNG.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a repository.")] = None,
) -> None:
    """What the heads have learnt about distance: kernels by layer, head and offset, as heat maps, lines and CSV."""
    from .analysis.kernels import analyse_kernels
    from .pretraining.text import file_texts

    if text is not None and not text.strip():
        raise ValueError("--text is empty.")
    texts = [text] if text else []
    if text_file is not None:
        texts += [" ".join(lines) for lines in file_texts([text_file])]
    with needing("plot"):
        files = analyse_kernels(model, output, texts, "svg" if svg else "png", revision)
    for path in files:
        print(f"Wrote {path}.")


def run_glue(settings: GlueSettings) -> None:
    with needing("train"):
        from .finetuning.glue_report import glue_report as report
        from .finetuning.glue_run import run_glue as run
        from .records import is_main_process
    run(settings)
    if is_main_process():
        show_glue(report(settings.output))
        print(f"Saved {settings.output}.")


training_verbs.command(
    "glue",
    short_help="The GLUE protocol of the paper's code.",
    epilog="Example: convbert-composite glue --model ./composite --data ./glue_data --output ./glue --resume",
)(
    command_of(
        GlueSettings,
        run_glue,
        "Fine-tune on all GLUE tasks as the paper's code does: its steps, batches, rates and seeds, MNLI first. "
        "Prints the dev table; a run that was killed goes on with --resume.",
    )
)


@training_verbs.command(
    "glue-report", short_help="The dev table of GLUE runs.", epilog="Example: convbert-composite glue-report ./glue"
)
def glue_report(folder: Annotated[Path, typer.Argument(help="The output folder of `glue`.")]) -> None:
    """The dev table, from the result files of the runs that are finished; writes dev.md, dev.json and dev.png."""
    with needing("train"):
        from .finetuning.glue_report import glue_report as report
    show_glue(report(folder))


@training_verbs.command(
    "glue-submission",
    short_help="The archive for the GLUE server.",
    epilog="Example: convbert-composite glue-submission ./glue ./submission.zip",
)
def glue_submission(
    folder: Annotated[Path, typer.Argument(help="The output folder of `glue`.")],
    archive: Annotated[Path, typer.Argument(help="Zip file to write.")],
    partial: Annotated[bool, typer.Option("--partial", help="Leave out files whose predictions are missing.")] = False,
) -> None:
    """The archive for the GLUE server: of every task the predictions of the run that is best on the dev set."""
    with needing("train"):
        from .finetuning.glue_report import glue_submission as run
    seeds = run(folder, archive, partial)
    show_table("", ["file", "seed"], [[name, str(seed)] for name, seed in seeds.items()])
    print(f"Saved {archive}.")


def show_glue(report: "GlueReport") -> None:
    """Prints the dev table of a `GlueReport`."""
    show_table("Dev set, score x 100", *report.rows())
    for text, value in report.averages.items():
        print(f"{text}: {value:.1f}")
