# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Requests and responses of the test Hub, apart from how they travel."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hub_server.store import HubError, User


if TYPE_CHECKING:
    from hub_server.server import HubServer


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
