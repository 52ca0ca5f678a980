# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Files of the test Hub: commits, uploads of large files, downloads."""

import base64
import json
import re
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs

from hub_server.messages import Request, Response, respond, respond_error
from hub_server.store import MAIN, File, HubError


# Commits


def preupload(request: Request, kind: str, id: str, revision: str) -> Response:
    store = request.hub.store
    repo = (
        store.readable(kind, id, request.user)
        if request.is_set("create_pr")
        else store.writable(kind, id, request.user)
    )
    request.name()
    present = repo.commit(revision).files
    answers = []
    for entry in request.json()["files"]:
        path = entry["path"]
        is_lfs = store.is_lfs(path, entry["size"], base64.b64decode(entry.get("sample", "")))
        known = {"oid": present[path].etag} if path in present and present[path].lfs == is_lfs else {}
        answers.append({"path": path, "uploadMode": "lfs" if is_lfs else "regular", "shouldIgnore": False, **known})
    return respond({"files": answers})


def commit(request: Request, kind: str, id: str, revision: str) -> Response:
    is_pull = request.is_set("create_pr")
    store = request.hub.store
    repo = store.readable(kind, id, request.user) if is_pull else store.writable(kind, id, request.user)
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
    entries = describe_entries(request.hub.store.readable(kind, id, request.user).commit(revision).files)
    prefix = f"{path}/" if path else ""
    inside = [entry for name, entry in entries.items() if name.startswith(prefix)]
    if path and not inside:
        raise HubError(404, "EntryNotFound", f"{path} does not exist")
    if not request.is_set("recursive"):
        inside = [entry for entry in inside if "/" not in entry["path"].removeprefix(prefix)]
    return respond(inside)


def describe_entries(files: dict[str, File]) -> dict[str, dict[str, Any]]:
    """All files and the folders that they lie in, by path."""
    entries: dict[str, dict[str, Any]] = {}
    for name, file in sorted(files.items()):
        for folder in reversed([str(parent) for parent in PurePosixPath(name).parents][:-1]):
            entries[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
        entries[name] = describe_file(name, file)
    return entries


def describe_file(path: str, file: File) -> dict[str, Any]:
    lfs = {"lfs": {"oid": file.sha256, "size": len(file.data), "pointerSize": 130}} if file.lfs else {}
    return {"type": "file", "path": path, "size": len(file.data), "oid": file.blob_id, **lfs}


def paths_info(request: Request, kind: str, id: str, revision: str) -> Response:
    entries = describe_entries(request.hub.store.readable(kind, id, request.user).commit(revision).files)
    paths = parse_qs(request.body.decode()).get("paths", [])
    return respond([entries[path] for path in paths if path in entries])
