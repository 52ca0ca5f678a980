# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Publishing: folders that load with the package or without it, checked before they are sent to a Hub.

`save_for_hub` writes such a folder, `push` sends one. Neither leaves anything half-done: files are written
beside and renamed, and what is sent becomes one commit.
"""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .cards import PLACE, write_card
from .hub_checks import check_code, check_files, check_finite, check_loading, check_weights, checked_card, sort_files
from .modeling_convbert_composite import ConvBertCompositePreTrainedModel
from .saved_files import CARD_FILE, CONFIG_FILE, CONVERSION_FILE, INDEX_FILE, RESULTS_FILE, WEIGHTS_PATTERN


# Seconds before a commit is tried again when the server has asked for patience. Both mean that nothing was done.
PATIENCE = (1.0, 2.0, 4.0)
BUSY = (429, 503)

STALE_WEIGHTS = re.compile(r"model.*\.safetensors(\.index\.json)?|pytorch_model.*\.bin(\.index\.json)?")


@dataclass
class PushReport:
    """
    What `push` has sent, or in a dry run would send: `files` path -> bytes, `left_out` and `deleted` names,
    `difference` the largest between outputs with and without the package. `commit`, `url` and `pull_request` are empty
    in a dry run.
    """

    repo_id: str
    revision: str
    files: dict[str, int]
    left_out: list[str]
    difference: float
    deleted: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    commit: str = ""
    url: str = ""
    pull_request: str = ""

    def lines(self) -> list[str]:
        """The report as printed."""
        verb = "Sent" if self.commit else "Would send"
        place = f"{self.repo_id} ({self.revision})"
        rows = [f"  {size:>13,}  {path}" for path, size in self.files.items()]
        rows += [f"  {'left out':>13}  {name}" for name in self.left_out]
        rows += [f"  {'deleted there':>13}  {name}" for name in self.deleted]
        checked = f"Loads without the package; outputs differ by at most {self.difference:.1e}."
        done = [f"{verb} {len(self.files)} files, {sum(self.files.values()):,} bytes, to {place}:", *rows, checked]
        return (
            done + [f"Tag: {tag}" for tag in self.tags] + [line for line in (self.pull_request or self.url,) if line]
        )


def save_for_hub(
    model: PreTrainedModel,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    card: bool | str | ModelCard = True,
) -> Path:
    """
    Saves a model so that others can load it: weights, config with a full `auto_map`, code, tokenizer and card.

    Args:
        model: any ConvBertComposite model.
        folder: where to; other files in it stay, results.json and hand-written parts of README.md among them.
        tokenizer: saved along.
        card: True writes or refreshes README.md, False leaves it; or a card to be written as it is.

    Returns:
        the folder.

    Raises:
        TypeError: another kind of model. ValueError: weights that are NaN or infinite.
    """
    if not is_ours(model):
        raise TypeError(f"`model` must be a ConvBertComposite model, got {type(model).__name__}.")
    check_finite(model)
    folder = Path(folder).resolve()
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # Inside, so that the files need not cross the border of a file system.
        with tempfile.TemporaryDirectory(prefix=".save.", suffix=".partial", dir=folder) as name:
            scratch = Path(name)
            model.save_pretrained(scratch)
            if tokenizer is not None:
                tokenizer.save_pretrained(scratch)
            add_card(scratch, folder, card)
            move_files(scratch, folder)
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
    return folder


def add_card(scratch: Path, folder: Path, card: bool | str | ModelCard) -> None:
    """The card of what was saved in `scratch`, with what `folder` knows already."""
    if card is False:
        return
    if card is not True:
        (scratch / CARD_FILE).write_text(str(card), encoding="utf-8")
        return
    for name in (CARD_FILE, RESULTS_FILE, CONVERSION_FILE, "tokenizer_config.json"):
        if (folder / name).is_file() and not (scratch / name).exists():
            shutil.copyfile(folder / name, scratch / name)
    write_card(scratch, title=folder.name)


def is_ours(model: object) -> bool:
    """By name, since a model that was loaded by remote code has another class object."""
    return any(kind.__name__ == ConvBertCompositePreTrainedModel.__name__ for kind in type(model).__mro__)


def move_files(source: Path, target: Path) -> None:
    """Each file takes the place of an earlier one at once; weights of an earlier save that are left over go."""
    names = {file.name for file in source.iterdir()}
    umask = os.umask(0)
    os.umask(umask)
    # config.json last: until it stands, an interrupted first save is no model.
    for file in sorted(source.iterdir(), key=lambda file: file.name == CONFIG_FILE):
        file.chmod(0o666 & ~umask)
        os.replace(file, target / file.name)
    for old in [*target.glob(WEIGHTS_PATTERN), target / INDEX_FILE]:
        if old.name not in names:
            old.unlink(missing_ok=True)


def push(
    source: PreTrainedModel | str | Path,
    repo_id: str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    private: bool | None = None,
    branch: str | None = None,
    create_pr: bool = False,
    tag: str | None = None,
    checkpoints: bool = False,
    message: str = "Upload a ConvBertComposite model",
    parent_commit: str | None = None,
    token: str | None = None,
    dry_run: bool = False,
) -> PushReport:
    """
    Checks a model and sends it to a repository of the Hub that `HF_ENDPOINT` names, as one commit.

    Args:
        source: a saved folder, or a model (then with `tokenizer`), which is saved for the purpose.
        repo_id: `owner/name`, or `name` for the token's owner; created if it does not exist.
        private: whether a new repository is private; refused for an existing one that is not.
        branch: where to, `main` by default; created if it does not exist.
        create_pr: open a pull request instead of committing.
        tag: name for the new commit.
        checkpoints: send the folder's `checkpoint-N` first, each as a commit with a tag of its name; those whose tag
            exists are passed over.
        message: of the commit. token: instead of the one that is set.
        parent_commit: refuse if the branch has moved on from this commit.
        dry_run: check and report, send nothing.

    Raises:
        ValueError: the folder fails a check of `hub_checks`, or the arguments contradict each other.
        OSError: the Hub refuses (`HfHubHTTPError`) or cannot be reached.
    """
    if create_pr and (tag or checkpoints):
        raise ValueError("A pull request gets no tags: leave out `tag` and `checkpoints`, or `create_pr`.")
    if isinstance(source, PreTrainedModel):
        with tempfile.TemporaryDirectory() as name:
            folder = save_for_hub(source, Path(name) / repo_id.rsplit("/")[-1], tokenizer)
            parcels = [Parcel.of(folder, message, tag)]
            return send(parcels, repo_id, private, branch, create_pr, parent_commit, token, dry_run)
    folder = Path(source)
    if not folder.is_dir():
        raise ValueError(f"{str(source)!r} is not a folder.")
    parcels = [
        Parcel.of(step, f"{message}, {step.name}", step.name) for step in (steps(folder) if checkpoints else [])
    ]
    if checkpoints and not parcels:
        raise ValueError(f"{str(folder)!r} holds no folders `checkpoint-N`.")
    if not parcels or any(folder.glob(WEIGHTS_PATTERN)):
        parcels.append(Parcel.of(folder, message, tag))
    return send(parcels, repo_id, private, branch, create_pr, parent_commit, token, dry_run)


def steps(folder: Path) -> list[Path]:
    """The Trainer's checkpoints, oldest first."""
    found = [place for place in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", place.name)]
    return sorted(found, key=lambda place: int(place.name.split("-")[1]))


@dataclass
class Parcel:
    """A folder that has passed all checks, as one commit to be made."""

    folder: Path
    files: list[Path]
    left_out: list[str]
    card: str
    difference: float
    message: str
    tag: str | None

    @classmethod
    def of(cls, folder: Path, message: str, tag: str | None) -> "Parcel":
        files, left_out = sort_files(folder)
        check_files(folder, files)
        check_weights(folder)
        check_code(folder)
        card = checked_card(folder)
        return cls(folder, files, left_out, card, check_loading(folder), message, tag)

    def contents(self, repo_id: str) -> dict[str, Path | bytes]:
        """Path in the repository -> file; the card, with the repository's name in it, as bytes."""
        named = {file.relative_to(self.folder).as_posix(): file for file in self.files}
        return {**named, CARD_FILE: self.card.replace(PLACE, repo_id).encode()}

    def report(self, repo_id: str, revision: str) -> PushReport:
        sizes = {
            path: len(content) if isinstance(content, bytes) else content.stat().st_size
            for path, content in sorted(self.contents(repo_id).items())
        }
        return PushReport(repo_id, revision, sizes, self.left_out, self.difference)


def send(
    parcels: list[Parcel],
    repo_id: str,
    private: bool | None,
    branch: str | None,
    create_pr: bool,
    parent_commit: str | None,
    token: str | None,
    dry_run: bool,
) -> PushReport:
    """Sends the parcels one after the other; returns the report of the last, with the tags of all."""
    revision = branch or "main"
    if dry_run:
        report = parcels[-1].report(repo_id, revision)
        report.tags = [parcel.tag for parcel in parcels if parcel.tag]
        return report
    api = HfApi(token=token)
    repo_id = prepare_repository(api, repo_id, private, branch)
    known = {ref.name for ref in api.list_repo_refs(repo_id).tags}
    if parcels[-1].tag in known:
        raise ValueError(f"{repo_id} has a tag {parcels[-1].tag!r} already: choose another, tags do not move.")
    done: list[str] = []
    for parcel in parcels:
        if parcel.tag in known:
            continue
        report = send_one(api, parcel, repo_id, revision, create_pr, parent_commit)
        parent_commit = None
        if parcel.tag:
            api.create_tag(repo_id, tag=parcel.tag, revision=report.commit)
            done.append(parcel.tag)
    report.tags = done
    return report


def prepare_repository(api: HfApi, repo_id: str, private: bool | None, branch: str | None) -> str:
    """Full id of the repository, which exists afterwards, with the branch."""
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if private and not api.model_info(repo_id).private:
        raise ValueError(
            f"{repo_id} exists and is public: nothing was sent. Make it private first, or choose another."
        )
    if branch is not None:
        api.create_branch(repo_id, branch=branch, exist_ok=True)
    return repo_id


def send_one(
    api: HfApi, parcel: Parcel, repo_id: str, revision: str, create_pr: bool, parent_commit: str | None
) -> PushReport:
    report = parcel.report(repo_id, revision)
    tip = api.model_info(repo_id, revision=revision)
    present = {entry.rfilename for entry in tip.siblings or []}
    report.deleted = sorted(name for name in present - report.files.keys() if STALE_WEIGHTS.fullmatch(name))
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(path, content) for path, content in parcel.contents(repo_id).items()
    ]
    operations += [CommitOperationDelete(name) for name in report.deleted]

    def commit() -> CommitInfo:
        return api.create_commit(
            repo_id,
            operations,
            commit_message=parcel.message,
            revision=revision,
            create_pr=create_pr,
            # Whoever pushed in between is not overwritten.
            parent_commit=parent_commit or (None if create_pr else tip.sha),
        )

    info = patiently(commit)
    report.commit, report.url, report.pull_request = info.oid, str(info.commit_url), info.pr_url or ""
    return report


Result = TypeVar("Result")


def patiently(call: Callable[[], Result]) -> Result:
    """Tries again when the server says that it is busy; the client does so for everything but the commit itself."""
    for seconds in PATIENCE:
        try:
            return call()
        except HfHubHTTPError as error:
            if error.response is None or error.response.status_code not in BUSY:
                raise
            time.sleep(seconds)
    return call()


__all__ = ["PushReport", "push", "save_for_hub", "write_card"]
