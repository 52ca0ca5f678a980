# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The command `convbert-composite`: parsing and printing only, each verb calls one function. Verbs import what they need
when they run, so that the base install suffices for the others.

Exit codes: 0 done, 1 the work failed (one line on stderr; `--debug` shows the traceback), 2 wrong usage.
"""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from transformers.utils import logging

from ._version import __version__
from .cli_training import training_verbs
from .console import show_table


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Composite attention (convolutions and self-attention) for today's transformers.",
)


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


@app.command(
    short_help="The main job in a minute.",
    epilog='Example: convbert-composite demo "The state of the [MASK] is strong."',
)
def demo(
    text: Annotated[str | None, typer.Argument(help="A sentence with [MASK]; default: some of ours.")] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for the kernel plot and the saved model, new or of an earlier demo.")
    ] = Path("convbert-composite-demo"),
) -> None:
    """The main job in a minute, without a download: the shipped checkpoint fills masks and shows its kernels."""
    from .demo import run_demo

    run_demo(text, output, print, lambda table: show_table(*table))


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
def info(
    path: Annotated[Path, typer.Argument(help="A checkpoint folder, ours or one to convert.")],
) -> None:
    """What a checkpoint is: attention terms, sizes, where it came from."""
    from modeling_convbert_composite.conversion.inspect_checkpoint import describe_checkpoint

    from .checkpoints import shipped_or_same

    for title, rows in describe_checkpoint(Path(shipped_or_same(str(path)))):
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


@app.command(short_help="To ONNX, checked.", epilog="Example: convbert-composite export ./composite ./composite.onnx")
def export(
    model: Annotated[str, typer.Argument(help="Checkpoint folder of a model, or `mini`, which is shipped.")],
    file: Annotated[Path, typer.Argument(help="File to write.")],
    tolerance: Annotated[float, typer.Option(help="Largest difference that counts as equal.")] = 1e-4,
) -> None:
    """To ONNX with free batch and length, checked with onnxruntime at lengths below and above the kernel's."""
    from .export import export as run

    report = run(model, file, tolerance=tolerance)
    for line in report.lines():
        print(line)
    print(f"Saved {file}.")


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


app.registered_commands += training_verbs.registered_commands
