# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What the test Hub answers to each request of a client: one table of routes, one short function each."""

import json
import re
from collections.abc import Callable
from typing import Any

import yaml

from hub_server import transfers
from hub_server.messages import Request, Response, respond
from hub_server.store import MAIN, Commit, File, HubError, PullRequest, Repo


# What the card check accepts; the real list is longer.
LICENSES = {"apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "openrail", "unknown", "other"}
KINDS = ("models", "datasets", "spaces")


def whoami(request: Request) -> Response:
    name = request.name()
    role = request.user.role if request.user else ""
    token = {"type": "access_token", "accessToken": {"displayName": "test", "role": role}}
    return respond({"type": "user", "name": name, "fullname": name, "orgs": [], "auth": token})


# Repositories


def create_repo(request: Request) -> Response:
    values, owner = request.json(), request.name()
    organization = values.get("organization") or owner
    kind, id = f"{values.get('type') or 'model'}s", f"{organization}/{values['name']}"
    prefix = "" if kind == "models" else f"{kind}/"
    url = {"url": f"{request.hub.endpoint}/{prefix}{id}", "name": id, "id": id}
    if organization != owner or (request.user and request.user.role != "write"):
        raise HubError(403, message=f"You don't have the rights to create {id} under {organization}.")
    if (kind, id) in request.hub.store.repos:
        return respond({"error": "You already created this repo", **url}, 409)
    is_private = values.get("visibility") == "private" or bool(values.get("private"))
    request.hub.store.create(kind, id, owner, is_private)
    return respond(url)


def delete_repo(request: Request) -> Response:
    values = request.json()
    kind, id = f"{values.get('type') or 'model'}s", f"{values.get('organization') or request.name()}/{values['name']}"
    request.hub.store.writable(kind, id, request.user)
    del request.hub.store.repos[kind, id]
    return Response(200)


def move_repo(request: Request) -> Response:
    values = request.json()
    kind = f"{values.get('type') or 'model'}s"
    repo = request.hub.store.writable(kind, values["fromRepo"], request.user)
    del request.hub.store.repos[kind, repo.id]
    repo.id = values["toRepo"]
    request.hub.store.repos[kind, repo.id] = repo
    return Response(200)


def change_settings(request: Request, kind: str, id: str) -> Response:
    repo, values = request.hub.store.writable(kind, id, request.user), request.json()
    if "visibility" in values or "private" in values:
        repo.private = values.get("visibility") == "private" or bool(values.get("private"))
    repo.gated = values.get("gated", repo.gated)
    return respond({})


def show_repo(request: Request, kind: str, id: str, revision: str = "main") -> Response:
    repo = request.hub.store.seen(kind, id, request.user)
    commit = repo.commit(revision)
    siblings = [describe_sibling(path, file, request.is_set("blobs")) for path, file in sorted(commit.files.items())]
    content = {
        "id": repo.id,
        "sha": commit.oid,
        "private": repo.private,
        "gated": repo.gated,
        "author": repo.owner,
        "createdAt": "2026-01-01T00:00:00.000Z",
        "lastModified": "2026-01-01T00:00:00.000Z",
        "tags": [],
        "siblings": siblings,
    }
    card = card_data(commit)
    return respond(content | ({"cardData": card} if card else {}))


def describe_sibling(path: str, file: File, with_blobs: bool) -> dict[str, Any]:
    if not with_blobs:
        return {"rfilename": path}
    lfs = {"lfs": {"sha256": file.sha256, "size": len(file.data), "pointerSize": 130}} if file.lfs else {}
    return {"rfilename": path, "size": len(file.data), "blobId": file.blob_id, **lfs}


def card_data(commit: Commit) -> dict[str, Any]:
    readme = commit.files.get("README.md")
    found = re.match(rb"---\n(.*?)\n---", readme.data, re.DOTALL) if readme else None
    return dict(json.loads(json.dumps(yaml.safe_load(found[1]), default=str))) if found else {}


def check_access(request: Request, kind: str, id: str) -> Response:
    request.hub.store.readable(kind, id, request.user)
    return respond({})


def check_write_access(request: Request, kind: str, id: str) -> Response:
    request.hub.store.writable(kind, id, request.user)
    return respond({})


def validate_yaml(request: Request) -> Response:
    content = request.json()["content"]
    found = re.match(r"---\n(.*?)\n---", content, re.DOTALL)
    try:
        values = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError as error:
        return respond({"errors": [{"message": f"not YAML: {error}"}], "warnings": []}, 400)
    license = (values or {}).get("license")
    if license is not None and license not in LICENSES:
        return respond({"errors": [{"message": f'"license" must be one of {sorted(LICENSES)}'}], "warnings": []}, 400)
    return respond({"errors": [], "warnings": []})


# References and pull requests


def list_refs(request: Request, kind: str, id: str) -> Response:
    repo = request.hub.store.seen(kind, id, request.user)
    groups = {"branches": "refs/heads/", "tags": "refs/tags/", "pullRequests": "refs/pr/"}
    listed: dict[str, list[dict[str, str]]] = {
        group: [
            {"name": ref.removeprefix(prefix), "ref": ref, "targetCommit": oid}
            for ref, oid in repo.refs.items()
            if ref.startswith(prefix)
        ]
        for group, prefix in groups.items()
    }
    return respond(listed | {"converts": []})


def list_commits(request: Request, kind: str, id: str, revision: str) -> Response:
    repo = request.hub.store.seen(kind, id, request.user)
    return respond(
        [
            {
                "id": item.oid,
                "title": item.title,
                "message": item.message,
                "date": item.date,
                "authors": [{"user": item.author}],
            }
            for item in repo.history(revision)
        ]
    )


def add_ref(repo: Repo, ref: str, start: str) -> Response:
    target = repo.commit(start).oid
    if ref in repo.refs:
        raise HubError(409, message="Reference already exists")
    repo.refs[ref] = target
    return respond({}, 201)


def remove_ref(repo: Repo, ref: str) -> Response:
    if repo.refs.pop(ref, None) is None:
        raise HubError(404, "RevisionNotFound", f"Invalid rev id: {ref}")
    return respond({})


def create_branch(request: Request, kind: str, id: str, name: str) -> Response:
    start = request.json().get("startingPoint") or "main"
    return add_ref(request.hub.store.writable(kind, id, request.user), f"refs/heads/{name}", start)


def delete_branch(request: Request, kind: str, id: str, name: str) -> Response:
    return remove_ref(request.hub.store.writable(kind, id, request.user), f"refs/heads/{name}")


def create_tag(request: Request, kind: str, id: str, revision: str) -> Response:
    return add_ref(request.hub.store.writable(kind, id, request.user), f"refs/tags/{request.json()['tag']}", revision)


def delete_tag(request: Request, kind: str, id: str, revision: str) -> Response:
    return remove_ref(request.hub.store.writable(kind, id, request.user), f"refs/tags/{revision}")


def open_discussion(request: Request, kind: str, id: str) -> Response:
    repo, values = request.hub.store.readable(kind, id, request.user), request.json()
    return respond({"num": repo.open_pull(values["title"], values.get("description", ""), request.name()).number})


def find_pull(repo: Repo, number: str) -> PullRequest:
    if int(number) not in repo.pulls:
        raise HubError(404, "EntryNotFound", f"No discussion {number}")
    return repo.pulls[int(number)]


def show_discussion(request: Request, kind: str, id: str, number: str) -> Response:
    repo = request.hub.store.readable(kind, id, request.user)
    pull = find_pull(repo, number)
    return respond(
        {
            "num": pull.number,
            "title": pull.title,
            "status": pull.status,
            "createdAt": "2026-01-01T00:00:00.000Z",
            "author": {"name": pull.author},
            "repo": {"name": repo.id, "type": kind[:-1]},
            "isPullRequest": True,
            "changes": {"base": MAIN, "mergeCommitId": pull.merge_commit},
            "filesWithConflicts": repo.conflicts(pull),
            "events": [],
            "diff": "",
        }
    )


def merge_discussion(request: Request, kind: str, id: str, number: str) -> Response:
    repo = request.hub.store.writable(kind, id, request.user)
    repo.merge(find_pull(repo, number), request.name())
    return respond({})


Handler = Callable[..., Response]
ID = "{owner}/{name}"
HUB_ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "api/whoami-v2", whoami),
    ("POST", "api/repos/create", create_repo),
    ("DELETE", "api/repos/delete", delete_repo),
    ("POST", "api/repos/move", move_repo),
    ("POST", "api/validate-yaml", validate_yaml),
    ("POST", "lfs/verify", transfers.verify_upload),
    ("PUT", f"api/{{kind}}/{ID}/settings", change_settings),
    ("GET", f"api/{{kind}}/{ID}", show_repo),
    ("GET", f"api/{{kind}}/{ID}/revision/{{revision}}", show_repo),
    ("GET", f"api/{{kind}}/{ID}/auth-check", check_access),
    ("GET", f"api/{{kind}}/{ID}/auth-check/write", check_write_access),
    ("POST", f"api/{{kind}}/{ID}/preupload/{{revision}}", transfers.preupload),
    ("POST", f"api/{{kind}}/{ID}/commit/{{revision}}", transfers.commit),
    ("GET", f"api/{{kind}}/{ID}/tree/{{revision}}", transfers.list_tree),
    ("GET", f"api/{{kind}}/{ID}/tree/{{revision}}/{{path...}}", transfers.list_tree),
    ("POST", f"api/{{kind}}/{ID}/paths-info/{{revision}}", transfers.paths_info),
    ("GET", f"api/{{kind}}/{ID}/refs", list_refs),
    ("GET", f"api/{{kind}}/{ID}/commits/{{revision}}", list_commits),
    ("POST", f"api/{{kind}}/{ID}/branch/{{branch}}", create_branch),
    ("DELETE", f"api/{{kind}}/{ID}/branch/{{branch}}", delete_branch),
    ("POST", f"api/{{kind}}/{ID}/tag/{{revision}}", create_tag),
    ("DELETE", f"api/{{kind}}/{ID}/tag/{{revision}}", delete_tag),
    ("POST", f"api/{{kind}}/{ID}/discussions", open_discussion),
    ("GET", f"api/{{kind}}/{ID}/discussions/{{number}}", show_discussion),
    ("POST", f"api/{{kind}}/{ID}/discussions/{{number}}/merge", merge_discussion),
    ("POST", "{kind}/{owner}/{name}.git/info/lfs/objects/batch", transfers.lfs_batch),
    ("GET", f"{{kind}}/{ID}/resolve/{{revision}}/{{path...}}", transfers.resolve),
]
CDN_ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "files/{oid}", transfers.send_object),
    ("PUT", "upload/{oid}", transfers.receive_object),
    ("PUT", "upload/{oid}/{part}", transfers.receive_part),
    ("POST", "upload/{oid}/complete", transfers.complete_parts),
]


def answer(request: Request, origin: str) -> Response:
    """The response of the first route that matches."""
    segments = request.segments
    # Outside of the API a model's path has no kind.
    if origin == "hub" and segments[0] not in ("api", "lfs", *KINDS):
        segments = ["models", *segments]
    for method, pattern, handler in CDN_ROUTES if origin == "cdn" else HUB_ROUTES:
        values = match(pattern, segments) if method == request.method else None
        if values is None or values.get("kind", "models") not in KINDS:
            continue
        if "owner" in values:
            values = {"id": f"{values.pop('owner')}/{values.pop('name')}", **values}
        if "branch" in values:
            values["name"] = values.pop("branch")
        return handler(request, **values)
    raise HubError(404, message=f"No route for {request.method} /{'/'.join(request.segments)}")


def match(pattern: str, segments: list[str]) -> dict[str, str] | None:
    """Values of the `{names}` in a pattern; `{name...}` takes all that is left, `{name}.git` what ends so."""
    parts = pattern.split("/")
    if parts[-1].endswith("...}") and len(segments) > len(parts):
        segments = [*segments[: len(parts) - 1], "/".join(segments[len(parts) - 1 :])]
    if len(parts) != len(segments):
        return None
    values = {}
    for part, segment in zip(parts, segments, strict=True):
        found = re.fullmatch(r"\{(\w+)(?:\.\.\.)?\}(.*)", part)
        if found is None:
            if part != segment:
                return None
        elif not segment.endswith(found[2]):
            return None
        else:
            values[found[1]] = segment.removesuffix(found[2])
    return values
