# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The command `convbert-composite`: parsing and printing only, each verb calls one function. Verbs import what they need
when they run, so that the base install suffices for the others.

Exit codes: 0 done, 1 the work failed (one line on stderr; `--debug` shows the traceback), 2 wrong usage.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers.utils import logging

from ._version import __version__
from .finetuning.glue_protocol import GlueSettings
from .finetuning.settings import FinetuningSettings
from .pretraining.settings import PretrainingSettings, TokenizerSettings
from .settings import command_of


if TYPE_CHECKING:
    from .finetuning.glue_report import GlueReport


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Composite attention (convolutions and self-attention) for today's transformers.",
)

# Piped output has no width of its own; 80 columns would cut the tables.
PIPED_WIDTH = 140


def main(arguments: list[str] | None = None) -> None:
    """Runs the command and leaves the process with its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    # Wherever it stands, so that one can add it to the end of a command that failed.
    arguments = [argument for argument in arguments if argument != "--debug"]
    # The bars of loading and saving small files would stand between the lines of a report.
    logging.disable_progress_bar()
    try:
        app(arguments, prog_name="convbert-composite")
    except Exception as error:
        if debug:
            raise
        print(f"Error: {reason(error)}", file=sys.stderr)
        sys.exit(1)


def reason(error: Exception) -> str:
    """One line for an error. Those that are not meant for users name their class."""
    text = re.sub(r"\s+", " ", str(error)).strip()
    is_meant = isinstance(error, (ValueError, OSError, ImportError, RuntimeError)) and text
    return text if is_meant else f"{type(error).__name__}: {text} (run again with --debug for the traceback)"


def show_version(is_asked: bool) -> None:
    if is_asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Options of every verb; `main` reads `--debug`."""


def show_table(title: str, headers: list[str], rows: list[list[str]]) -> None:
    """Prints a table, columns of numbers to the right, without a head if all headers are empty."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=PIPED_WIDTH)
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", show_header=any(headers)
    )
    for index, header in enumerate(headers):
        is_number = all(re.fullmatch(r"[-\d.,]+", row[index]) for row in rows)
        is_last = index == len(headers) - 1
        table.add_column(header, justify="right" if is_number else "left", overflow="fold", no_wrap=not is_last)
    for row in rows:
        # Escaped, since formulas have brackets.
        table.add_row(*(escape(cell) for cell in row))
    with console.capture() as printed:
        console.print(table)
    print("\n".join(line.rstrip() for line in printed.get().splitlines()))


@app.command(short_help="The main job in a minute.", epilog="Example: convbert-composite demo")
def demo() -> None:
    """The main job in a minute: convert a trained encoder with proof, use it, build the paper's model."""
    from .demo import run_demo

    run_demo(print, lambda table: show_table(*table))


@app.command(short_help="The named architectures.", epilog="Example: convbert-composite presets")
def presets() -> None:
    """The named architectures, their attention and their parameters with a masked-LM head."""
    import torch

    from modeling_convbert_composite.configuration import list_presets, load_preset

    from . import ConvBertCompositeForMaskedLM
    from .description import features

    rows = []
    for name in list_presets():
        config = load_preset(name)
        with torch.device("meta"):
            parameters = ConvBertCompositeForMaskedLM(config).num_parameters()
        rows.append([name, f"{parameters:,}", "; ".join(features(config))])
    show_table("", ["preset", "parameters", "attention and positions"], rows)


@app.command(short_help="What a checkpoint is.", epilog="Example: convbert-composite info ./converted")
def info(path: Annotated[Path, typer.Argument(help="A checkpoint folder, ours or one to convert.")]) -> None:
    """What a checkpoint is: attention terms, sizes, where it came from."""
    from modeling_convbert_composite.conversion.inspect_checkpoint import describe_checkpoint

    for title, rows in describe_checkpoint(path):
        show_table(title, ["", ""], rows)


def convert_help() -> str:
    """The help of `convert`, which lists the families."""
    from modeling_convbert_composite.conversion import FAMILIES

    families = "\n\n".join(f"{family.name}: {family.exact}." for family in FAMILIES.values())
    return (
        "Convert a checkpoint to ours, with proof: prints the largest difference of every output, fails above the "
        f"tolerance and then leaves nothing behind. Families, and what is exact:\n\n{families}"
    )


@app.command(
    help=convert_help(),
    short_help="Convert a checkpoint, with proof.",
    epilog="Example: convbert-composite convert ./bert-experiments/bert ./composite --tokenizer ./spm.model",
)
def convert(
    source: Annotated[str, typer.Argument(help="Folder with config.json and weights, or a repository id.")],
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
    family: Annotated[str | None, typer.Option("--from", help="Family of the source, if not the one found.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="SentencePiece .model file or tokenizer folder.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a repository.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float16 or bfloat16; default: the source's.")] = None,
    tolerance: Annotated[float, typer.Option(help="Largest difference that counts as equal.")] = 1e-4,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in OUTPUT.")] = False,
    add_terms: Annotated[
        str, typer.Option(help="Kernels of zeros to add, for a warm start: fixed,query,key (some of them).")
    ] = "",
    kernel_size: Annotated[int | None, typer.Option(help="Slots of added kernels, odd; default 17.")] = None,
    drop_absolute: Annotated[
        bool, typer.Option("--drop-absolute", help="Take the position table away after the proof; outputs change.")
    ] = False,
) -> None:
    from modeling_convbert_composite.conversion import convert as run

    report = run(
        source,
        output,
        family=family,
        tokenizer=tokenizer,
        revision=revision,
        dtype=dtype,
        tolerance=tolerance,
        overwrite=overwrite,
        add_terms=[term.strip() for term in add_terms.split(",") if term.strip()],
        kernel_size=kernel_size,
        drop_absolute=drop_absolute,
    )
    for line in report.lines():
        print(line)
    if report.cast_difference is not None:
        print(f"Saved as {report.dtype}: weights change by at most {report.cast_difference:.1e}.")
    if report.dropped:
        print(f"Dropped from the source, as having no place here: {', '.join(sorted(report.dropped))}.")
    for note in report.notes:
        print(f"Note: {note}")
    print(f"Saved {output} ({report.parameters:,} parameters).")


@app.command(
    short_help="The proof again.", epilog="Example: convbert-composite verify ./bert-experiments/bert ./composite"
)
def verify(
    source: Annotated[str, typer.Argument(help="Folder or repository id of the original checkpoint.")],
    converted: Annotated[Path, typer.Argument(help="Folder of its conversion.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a repository.")] = None,
    tolerance: Annotated[float, typer.Option(help="Largest difference that counts as equal.")] = 1e-4,
) -> None:
    """The proof again: source and conversion on the same random, padded input."""
    from modeling_convbert_composite.conversion import verify as run

    report = run(source, converted, revision=revision, tolerance=tolerance)
    for line in report.lines():
        print(line)
    if not report.passed:
        raise typer.Exit(1)


@app.command(
    short_help="Write or refresh the model card.",
    epilog="Example: convbert-composite card ./composite --license apache-2.0 --language en",
)
def card(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    title: Annotated[str | None, typer.Option(help="Heading of a new card; default: the folder's name.")] = None,
    license: Annotated[str | None, typer.Option(help="Licence identifier, such as apache-2.0.")] = None,
    language: Annotated[str | None, typer.Option(help="Language codes, comma-separated.")] = None,
    datasets: Annotated[str | None, typer.Option(help="Repository ids of the data, comma-separated.")] = None,
    base_model: Annotated[
        str | None, typer.Option(help="Repository id of the model that this one comes from.")
    ] = None,
) -> None:
    """
    Write or refresh README.md of a saved model: architecture, use, training, results, conversion, as far as its files
    know them. Sections and text that people wrote are kept.
    """
    from .hub import write_card

    lists = {"language": language, "datasets": datasets}
    metadata: dict[str, Any] = {
        name: [word.strip() for word in words.split(",")] for name, words in lists.items() if words
    }
    metadata |= {name: word for name, word in (("license", license), ("base_model", base_model)) if word}
    write_card(folder, title=title, metadata=metadata)
    print(f"Wrote {folder / 'README.md'}.")


@app.command(
    short_help="Check a model and send it to a Hub.",
    epilog="Example: convbert-composite push ./composite me/composite --private --tag v1",
)
def push(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    repo: Annotated[str, typer.Argument(help="Repository id, owner/name.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    branch: Annotated[str | None, typer.Option(help="Branch to commit to, created if need be.")] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request instead.")] = False,
    tag: Annotated[str | None, typer.Option(help="Tag of the new commit.")] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Send every checkpoint-N of the folder too, tagged so.")
    ] = False,
    message: Annotated[str, typer.Option(help="Commit message.")] = "Upload a ConvBertComposite model",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list, send nothing.")] = False,
) -> None:
    """
    Check a saved model and send it, with code and card, to the Hub that HF_ENDPOINT names: it must load in a process
    without this package with the same outputs; NaN weights, pickles and what looks like a secret are refused.
    """
    from .hub import push as run

    report = run(
        folder,
        repo,
        private=private or None,
        branch=branch,
        create_pr=create_pr,
        tag=tag,
        checkpoints=checkpoints,
        message=message,
        dry_run=dry_run,
    )
    for line in report.lines():
        print(line)


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


app.command(
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


app.command(
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
    show_scores(f"{settings.architecture}, {settings.max_steps:,} steps", columns)
    print(f"{result.measures['tokens']:,} tokens, {result.measures['tokens_per_second']:,.0f} a second.")
    for note in result.notes:
        print(f"Note: {note}")
    print(f"Saved {result.output}.")


app.command(
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


@app.command(
    short_help="Learned kernels as plots and a table.",
    epilog='Example: convbert-composite kernels ./composite --output ./plots --text "The state is strong."',
)
def kernels(
    model: Annotated[str, typer.Argument(help="Folder or repository id of a model.")],
    output: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("kernels"),
    text: Annotated[str | None, typer.Option(help="A sentence whose query kernels to show.")] = None,
    text_file: Annotated[Path | None, typer.Option(help="File of text to average query kernels over.")] = None,
    svg: Annotated[bool, typer.Option("--svg", help="Plots as SVG instead of PNG.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a repository.")] = None,
) -> None:
    """What the heads have learnt about distance: kernels by layer, head and offset, as heat maps, lines and CSV."""
    from .analysis.kernels import analyse_kernels
    from .pretraining.text import file_texts

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


app.command(
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


@app.command(
    "glue-report", short_help="The dev table of GLUE runs.", epilog="Example: convbert-composite glue-report ./glue"
)
def glue_report(folder: Annotated[Path, typer.Argument(help="The output folder of `glue`.")]) -> None:
    """The dev table, from the result files of the runs that are finished; writes dev.md, dev.json and dev.png."""
    with needing("train"):
        from .finetuning.glue_report import glue_report as report
    show_glue(report(folder))


@app.command(
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


def show_scores(title: str, scores: dict[str, dict[str, float]]) -> None:
    """A table of metrics, one column a split."""
    names = list(dict.fromkeys(name for split in scores.values() for name in split))
    rows = [[name, *(f"{split[name]:.4f}" if name in split else "" for split in scores.values())] for name in names]
    if rows:
        show_table(title, ["metric", *scores], rows)


@contextlib.contextmanager
def needing(extra: str) -> Iterator[None]:
    """Says which extra a verb needs where one of its packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"This needs the package {error.name!r}: pip install 'convbert-composite[{extra}]'"
        ) from error
