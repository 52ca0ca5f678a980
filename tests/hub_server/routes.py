# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What the test Hub answers to each request of a client: one table of routes, one short function each."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import yaml
from hub_server.store import MAIN, Commit, File, HubError, PullRequest, Repo, User


if TYPE_CHECKING:
    from hub_server.server import HubServer

# What the card check accepts; the real list is longer.
LICENSES = {"apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "openrail", "unknown", "other"}
KINDS = ("models", "datasets", "spaces")


@dataclass
class Request:
    """A request, its path split into decoded segments; `user` is None without a token."""

    hub: "HubServer"
    method: str
    segments: list[str]
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    user: User | None

    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body or b"{}"))

    def name(self) -> str:
        """The name of the user, who must be known."""
        if self.user is None:
            raise HubError(401, message="Invalid username or password.")
        return self.user.name

    def is_set(self, option: str) -> bool:
        return self.query.get(option, "").lower() in ("1", "true")


@dataclass
class Response:
    """An answer; `Content-Length` follows from the body."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def respond(content: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


def respond_error(error: HubError) -> Response:
    headers = {"X-Error-Code": error.code, "X-Error-Message": error.message}
    content = json.dumps({"error": error.message or error.code}).encode()
    return Response(error.status, content, {name: value for name, value in headers.items() if value})


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
        raise HubError(403, message=f"You don't have the rights to create a model under {organization}.")
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
        "modelId": repo.id,
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


# Commits


def preupload(request: Request, kind: str, id: str, revision: str) -> Response:
    store = request.hub.store
    repo = store.readable(kind, id, request.user) if request.is_set("create_pr") else writable(request, kind, id)
    request.name()
    present = repo.commit(revision).files
    answers = []
    for entry in request.json()["files"]:
        path = entry["path"]
        is_lfs = store.is_lfs(path, entry["size"], base64.b64decode(entry.get("sample", "")))
        known = {"oid": present[path].etag} if path in present and present[path].lfs == is_lfs else {}
        answers.append(
            {"path": path, "uploadMode": "lfs" if is_lfs else "regular", "shouldIgnore": False, **known}
        )
    return respond({"files": answers})


def writable(request: Request, kind: str, id: str) -> Repo:
    return request.hub.store.writable(kind, id, request.user)


def commit(request: Request, kind: str, id: str, revision: str) -> Response:
    is_pull = request.is_set("create_pr")
    store = request.hub.store
    repo = store.readable(kind, id, request.user) if is_pull else writable(request, kind, id)
    author = request.name()
    lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
    header = next(line["value"] for line in lines if line["key"] == "header")
    ref = MAIN if is_pull else repo.ref(revision)
    if ref is None or ref.startswith("refs/tags/"):
        raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    tip = repo.commit(ref)
    parent = header.get("parentCommit")
    if parent and parent != tip.oid:
        raise HubError(412, message="A commit has happened since. Please refresh and try again.")
    files = apply_operations(request, dict(tip.files), lines)
    pull = repo.open_pull(header["summary"], header.get("description", ""), author) if is_pull else None
    created = repo.add_commit(tip, files, header["summary"], author, header.get("description", ""))
    repo.refs[f"refs/pr/{pull.number}" if pull else ref] = created.oid
    base = f"{request.hub.endpoint}/{'' if kind == 'models' else kind + '/'}{id}"
    answer = {"success": True, "commitOid": created.oid, "commitUrl": f"{base}/commit/{created.oid}"}
    return respond(answer | ({"pullRequestUrl": f"{base}/discussions/{pull.number}"} if pull else {}))


def apply_operations(request: Request, files: dict[str, File], lines: list[dict[str, Any]]) -> dict[str, File]:
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = File(base64.b64decode(value["content"]), lfs=False)
        elif line["key"] == "lfsFile":
            if value["oid"] not in request.hub.store.objects:
                raise HubError(400, message=f"The large file {value['path']} was not uploaded.")
            files[value["path"]] = File(request.hub.store.objects[value["oid"]], lfs=True)
        elif line["key"] == "deletedFile":
            if files.pop(value["path"], None) is None:
                raise HubError(404, "EntryNotFound", f"{value['path']} does not exist")
        elif line["key"] == "deletedFolder":
            inside = [path for path in files if path.startswith(value["path"].rstrip("/") + "/")]
            if not inside:
                raise HubError(404, "EntryNotFound", f"{value['path']} does not exist")
            for path in inside:
                del files[path]
    return files


# Large files


def lfs_batch(request: Request, kind: str, id: str) -> Response:
    request.hub.store.readable(kind, id, request.user)
    request.name()
    values = request.json()
    is_multipart = request.hub.chunk_size is not None and "multipart" in values["transfers"]
    objects = [plan_upload(request, entry, is_multipart) for entry in values["objects"]]
    return respond({"transfer": "multipart" if is_multipart else "basic", "objects": objects})


def plan_upload(request: Request, entry: dict[str, Any], is_multipart: bool) -> dict[str, Any]:
    oid, size = entry["oid"], entry["size"]
    if oid in request.hub.store.objects:
        return {"oid": oid, "size": size}
    upload: dict[str, Any] = {"href": f"{request.hub.cdn}/upload/{oid}"}
    if is_multipart and request.hub.chunk_size:
        chunk = request.hub.chunk_size
        urls = {str(part + 1): f"{upload['href']}/{part + 1}" for part in range(-(-size // chunk))}
        upload = {"href": f"{upload['href']}/complete", "header": {"chunk_size": str(chunk), **urls}}
    verify = {"href": f"{request.hub.endpoint}/lfs/verify"}
    return {"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}}


def verify_upload(request: Request) -> Response:
    request.name()
    values = request.json()
    data = request.hub.store.objects.get(values["oid"])
    if data is None or len(data) != values["size"]:
        raise HubError(404, message="The upload is not complete.")
    return respond({})


def receive_object(request: Request, oid: str) -> Response:
    return store_object(request, oid, request.body)


def store_object(request: Request, oid: str, data: bytes) -> Response:
    if File(data, lfs=True).sha256 != oid:
        raise HubError(400, message="The content does not match its digest.")
    request.hub.store.objects[oid] = data
    return Response(200)


def receive_part(request: Request, oid: str, part: str) -> Response:
    request.hub.store.parts[oid, int(part)] = request.body
    return Response(200, headers={"ETag": f'"{File(request.body, lfs=True).sha256}"'})


def complete_parts(request: Request, oid: str) -> Response:
    numbers = [part["partNumber"] for part in request.json()["parts"]]
    return store_object(request, oid, b"".join(request.hub.store.parts.pop((oid, number)) for number in numbers))


def send_object(request: Request, oid: str) -> Response:
    if oid not in request.hub.store.objects:
        raise HubError(404)
    return send_bytes(request, request.hub.store.objects[oid], {"ETag": f'"{oid}"'})


# Reading


def resolve(request: Request, kind: str, id: str, revision: str, path: str) -> Response:
    repo = request.hub.store.readable(kind, id, request.user)
    found = repo.commit(revision)
    headers = {"X-Repo-Commit": found.oid}
    file = found.files.get(path)
    if file is None:
        missing = respond_error(HubError(404, "EntryNotFound", "Entry not found"))
        return Response(404, missing.body, missing.headers | headers)
    if not file.lfs:
        return send_bytes(request, file.data, headers | {"ETag": f'"{file.blob_id}"'})
    headers |= {"X-Linked-Size": str(len(file.data)), "X-Linked-Etag": f'"{file.sha256}"'}
    return Response(302, headers=headers | {"Location": f"{request.hub.cdn}/files/{file.sha256}"})


def send_bytes(request: Request, data: bytes, headers: dict[str, str]) -> Response:
    headers = headers | {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    if asked is None:
        return Response(200, data, headers)
    start, end = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
    if start >= len(data):
        return Response(416, b"", headers | {"Content-Range": f"bytes */{len(data)}"})
    return Response(206, data[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{len(data)}"})


def list_tree(request: Request, kind: str, id: str, revision: str, path: str = "") -> Response:
    repo = request.hub.store.readable(kind, id, request.user)
    files = repo.commit(revision).files
    prefix = f"{path}/" if path else ""
    inside = {name: file for name, file in sorted(files.items()) if name.startswith(prefix)}
    if path and not inside:
        raise HubError(404, "EntryNotFound", f"{path} does not exist")
    is_recursive = request.is_set("recursive")
    entries: dict[str, dict[str, Any]] = {}
    for name, file in inside.items():
        parts = name[len(prefix) :].split("/")
        for depth in range(1, len(parts) if is_recursive else min(len(parts), 2)):
            folder = prefix + "/".join(parts[:depth])
            entries[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
        if is_recursive or len(parts) == 1:
            entries[name] = describe_file(name, file)
    return respond(list(entries.values()))


def describe_file(path: str, file: File) -> dict[str, Any]:
    lfs = {"lfs": {"oid": file.sha256, "size": len(file.data), "pointerSize": 130}} if file.lfs else {}
    return {"type": "file", "path": path, "size": len(file.data), "oid": file.blob_id, **lfs}


def paths_info(request: Request, kind: str, id: str, revision: str) -> Response:
    files = request.hub.store.readable(kind, id, request.user).commit(revision).files
    paths = parse_qs(request.body.decode()).get("paths", [])
    return respond([describe_file(path, files[path]) for path in paths if path in files])


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
    return add_ref(writable(request, kind, id), f"refs/heads/{name}", start)


def delete_branch(request: Request, kind: str, id: str, name: str) -> Response:
    return remove_ref(writable(request, kind, id), f"refs/heads/{name}")


def create_tag(request: Request, kind: str, id: str, revision: str) -> Response:
    return add_ref(writable(request, kind, id), f"refs/tags/{request.json()['tag']}", revision)


def delete_tag(request: Request, kind: str, id: str, revision: str) -> Response:
    return remove_ref(writable(request, kind, id), f"refs/tags/{revision}")


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
    repo = writable(request, kind, id)
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
    ("POST", "lfs/verify", verify_upload),
    ("PUT", f"api/{{kind}}/{ID}/settings", change_settings),
    ("GET", f"api/{{kind}}/{ID}", show_repo),
    ("GET", f"api/{{kind}}/{ID}/revision/{{revision}}", show_repo),
    ("GET", f"api/{{kind}}/{ID}/auth-check", check_access),
    ("GET", f"api/{{kind}}/{ID}/auth-check/write", check_write_access),
    ("POST", f"api/{{kind}}/{ID}/preupload/{{revision}}", preupload),
    ("POST", f"api/{{kind}}/{ID}/commit/{{revision}}", commit),
    ("GET", f"api/{{kind}}/{ID}/tree/{{revision}}", list_tree),
    ("GET", f"api/{{kind}}/{ID}/tree/{{revision}}/{{path...}}", list_tree),
    ("POST", f"api/{{kind}}/{ID}/paths-info/{{revision}}", paths_info),
    ("GET", f"api/{{kind}}/{ID}/refs", list_refs),
    ("GET", f"api/{{kind}}/{ID}/commits/{{revision}}", list_commits),
    ("POST", f"api/{{kind}}/{ID}/branch/{{branch}}", create_branch),
    ("DELETE", f"api/{{kind}}/{ID}/branch/{{branch}}", delete_branch),
    ("POST", f"api/{{kind}}/{ID}/tag/{{revision}}", create_tag),
    ("DELETE", f"api/{{kind}}/{ID}/tag/{{revision}}", delete_tag),
    ("POST", f"api/{{kind}}/{ID}/discussions", open_discussion),
    ("GET", f"api/{{kind}}/{ID}/discussions/{{number}}", show_discussion),
    ("POST", f"api/{{kind}}/{ID}/discussions/{{number}}/merge", merge_discussion),
    ("POST", "{kind}/{owner}/{name}.git/info/lfs/objects/batch", lfs_batch),
    ("GET", f"{{kind}}/{ID}/resolve/{{revision}}/{{path...}}", resolve),
]
CDN_ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "files/{oid}", send_object),
    ("PUT", "upload/{oid}", receive_object),
    ("PUT", "upload/{oid}/{part}", receive_part),
    ("POST", "upload/{oid}/complete", complete_parts),
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
    """Values of the `{names}` in a pattern; `{name...}` takes all that is left, `{name}.git` a segment that ends so."""
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
