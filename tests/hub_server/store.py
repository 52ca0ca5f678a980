# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Users, repositories, commits, pull requests and large files of the test Hub, in memory."""

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta


MAIN = "refs/heads/main"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LFS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".parquet", ".arrow", ".onnx", ".model", ".zip", ".gz", ".png")
LFS_SIZE = 10 << 20


class HubError(Exception):
    """An answer other than success: HTTP status, the code that clients read, and a message."""

    def __init__(self, status: int, code: str = "", message: str = ""):
        super().__init__(f"{status} {code} {message}")
        self.status, self.code, self.message = status, code, message


@dataclass(frozen=True)
class User:
    """Who a token belongs to; a token with the role `read` may not change anything."""

    name: str
    role: str = "write"


@dataclass(frozen=True)
class File:
    """Content of a file, and whether it is kept as a large file."""

    data: bytes
    lfs: bool

    @property
    def blob_id(self) -> str:
        """As git names it; of a large file git only knows the pointer, here its digest does."""
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.blob_id


@dataclass(frozen=True)
class Commit:
    """A state of a repository."""

    oid: str
    parent: str | None
    title: str
    message: str
    author: str
    date: str
    files: dict[str, File]


@dataclass
class PullRequest:
    """A proposed change; its commits stand under `refs/pr/NUMBER`."""

    number: int
    title: str
    description: str
    author: str
    base: str
    status: str = "draft"
    merge_commit: str | None = None


@dataclass
class Repo:
    """A repository of one kind (`models`, `datasets`, `spaces`) with all its commits and references."""

    kind: str
    id: str
    private: bool = False
    gated: str | bool = False
    granted: set[str] = field(default_factory=set)
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pulls: dict[int, PullRequest] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        return self.id.split("/")[0]

    def ref(self, revision: str) -> str | None:
        """The full name of a branch, tag or pull request."""
        names = (revision, f"refs/heads/{revision}", f"refs/tags/{revision}")
        return next((name for name in names if name in self.refs), None)

    def commit(self, revision: str) -> Commit:
        """The commit that a branch, tag, `refs/pr/N` or commit id stands for."""
        name = self.ref(revision)
        oid = self.refs[name] if name else revision
        if oid not in self.commits:
            raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return self.commits[oid]

    def add_commit(
        self, parent: Commit | None, files: dict[str, File], title: str, author: str, message: str = ""
    ) -> Commit:
        date = (EPOCH + timedelta(seconds=len(self.commits))).isoformat()
        content = sorted((path, file.sha256) for path, file in files.items())
        text = repr((self.kind, self.id, parent.oid if parent else "", title, author, date, content))
        oid = hashlib.sha1(text.encode()).hexdigest()
        self.commits[oid] = Commit(oid, parent.oid if parent else None, title, message, author, date, dict(files))
        return self.commits[oid]

    def history(self, revision: str) -> Iterable[Commit]:
        """Newest first."""
        commit: Commit | None = self.commit(revision)
        while commit is not None:
            yield commit
            commit = self.commits[commit.parent] if commit.parent else None

    def open_pull(self, title: str, description: str, author: str) -> PullRequest:
        number = len(self.pulls) + 1
        pull = PullRequest(number, title, description, author, base=self.refs[MAIN])
        self.pulls[number] = pull
        self.refs[f"refs/pr/{number}"] = self.refs[MAIN]
        return pull

    def conflicts(self, pull: PullRequest) -> list[str]:
        """Files that both the pull request and the main branch have changed in different ways."""
        base, ours, theirs = self._sides(pull)
        paths = base.keys() | ours.keys() | theirs.keys()
        changed = (path for path in paths if base.get(path) != ours.get(path) and base.get(path) != theirs.get(path))
        return sorted(path for path in changed if ours.get(path) != theirs.get(path))

    def merge(self, pull: PullRequest, author: str) -> None:
        if pull.status == "merged":
            raise HubError(400, message="This pull request has been merged.")
        if self.conflicts(pull):
            raise HubError(409, message=f"Conflicts in {', '.join(self.conflicts(pull))}")
        base, files, theirs = self._sides(pull)
        for path in base.keys() | theirs.keys():
            if theirs.get(path) == base.get(path):
                continue
            if path in theirs:
                files[path] = theirs[path]
            else:
                files.pop(path, None)
        commit = self.add_commit(self.commit(MAIN), files, f"{pull.title} (#{pull.number})", author)
        self.refs[MAIN] = commit.oid
        pull.status, pull.merge_commit = "merged", commit.oid

    def _sides(self, pull: PullRequest) -> tuple[dict[str, File], dict[str, File], dict[str, File]]:
        base, ours, theirs = (self.commit(rev).files for rev in (pull.base, MAIN, f"refs/pr/{pull.number}"))
        return dict(base), dict(ours), dict(theirs)


class Store:
    """Everything that the Hub keeps. `lock` guards it; handlers hold it while they work."""

    def __init__(self, users: dict[str, User]):
        self.users = users
        self.repos: dict[tuple[str, str], Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.lock = threading.RLock()

    def create(self, kind: str, id: str, author: str, private: bool = False) -> Repo:
        repo = Repo(kind, id, private)
        repo.refs[MAIN] = repo.add_commit(None, {}, "initial commit", author).oid
        self.repos[kind, id] = repo
        return repo

    def seen(self, kind: str, id: str, user: User | None) -> Repo:
        """The repository, if the user may know that it is there."""
        repo = self.repos.get((kind, id))
        if repo is None or (repo.private and (user is None or user.name != repo.owner)):
            raise HubError(401 if user is None else 404, "RepoNotFound", "Repository not found")
        return repo

    def readable(self, kind: str, id: str, user: User | None) -> Repo:
        """The repository, if the user may read its files."""
        repo = self.seen(kind, id, user)
        name = user.name if user else None
        if repo.gated and name != repo.owner and name not in repo.granted:
            raise HubError(
                401 if user is None else 403, "GatedRepo", f"Access to {id} is restricted. Ask for access first."
            )
        return repo

    def writable(self, kind: str, id: str, user: User | None) -> Repo:
        """The repository, if the user may change it."""
        repo = self.seen(kind, id, user)
        if user is None:
            raise HubError(401, message="Invalid username or password.")
        if user.name != repo.owner or user.role != "write":
            raise HubError(403, message=f"You don't have the rights to write to {id} with this token.")
        return repo

    def is_lfs(self, path: str, size: int, sample: bytes) -> bool:
        return path.endswith(LFS_SUFFIXES) or size > LFS_SIZE or b"\0" in sample
