# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The HTTP side of the test Hub: two ports, a log of the requests, faults on demand."""

import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import cast
from urllib.parse import parse_qs, unquote, urlsplit

from hub_server.messages import Request, Response, respond_error
from hub_server.routes import answer
from hub_server.store import HubError, Store, User


@dataclass
class LoggedRequest:
    """One request as it came, and the status that was sent (0 = the connection was cut)."""

    method: str
    path: str
    authorized: bool
    origin: str
    range: str | None
    status: int = 0

    def __str__(self) -> str:
        return f"{self.method} {self.path} -> {self.status}"


@dataclass
class Fault:
    """
    What to do to the next `times` requests that match: answer with `status`, cut the body after `cut` bytes (of the
    request if it is a PUT, else of the response), or wait `delay` seconds first.
    """

    method: str
    pattern: str
    times: int = 1
    status: int | None = None
    cut: int | None = None
    delay: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method == method and re.search(self.pattern, path) is not None


class HubServer:
    """The Hub as a context manager; `endpoint` is what `HF_ENDPOINT` must be."""

    def __init__(self, users: dict[str, User]):
        self.store = Store(users)
        self.log: list[LoggedRequest] = []
        self.faults: list[Fault] = []
        self.chunk_size: int | None = None
        self.sockets = [_Listener(self, "hub"), _Listener(self, "cdn")]
        # Another port is another origin to new clients; older ones look at the host's name only.
        self.endpoint = f"http://127.0.0.1:{self.sockets[0].server_port}"
        self.cdn = f"http://localhost:{self.sockets[1].server_port}"

    def __enter__(self) -> "HubServer":
        for listener in self.sockets:
            threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self.sockets:
            listener.shutdown()
            listener.server_close()

    def fail(self, method: str, pattern: str, **what: int | float | dict[str, str]) -> Fault:
        """Adds a `Fault` and returns it."""
        fault = Fault(method, pattern, **what)  # type: ignore[arg-type]
        self.faults.append(fault)
        return fault

    def take_fault(self, method: str, path: str) -> Fault | None:
        with self.store.lock:
            fault = next((fault for fault in self.faults if fault.matches(method, path)), None)
            if fault is not None:
                fault.times -= 1
            return fault

    def requests(self, method: str, pattern: str) -> list[LoggedRequest]:
        """The logged requests whose path matches."""
        return [entry for entry in self.log if entry.method == method and re.search(pattern, entry.path)]


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, hub: HubServer, origin: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub, self.origin = hub, origin


class _Cut(Exception):
    """The connection is to be dropped."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_any(self) -> None:
        listener = cast(_Listener, self.server)
        hub = listener.hub
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        entry = LoggedRequest(self.command, self.path, bool(token), listener.origin, self.headers.get("Range"))
        hub.log.append(entry)
        fault = hub.take_fault(self.command, self.path)
        try:
            if fault is not None:
                time.sleep(fault.delay)
            body = self.read_body(fault)
            if fault is not None and fault.status is not None:
                response = Response(fault.status, b"fault", fault.headers)
            else:
                response = self.answer(hub, token, body)
            self.send(response, entry, fault)
        except (_Cut, ConnectionError):
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

    def answer(self, hub: HubServer, token: str, body: bytes) -> Response:
        try:
            if token and token not in hub.store.users:
                raise HubError(401, message="Invalid credentials in Authorization header")
            parts = urlsplit(self.path)
            request = Request(
                hub=hub,
                method="GET" if self.command == "HEAD" else self.command,
                # Split before decoding: a revision may hold an encoded slash.
                segments=[unquote(segment) for segment in parts.path.strip("/").split("/")],
                query={name: values[0] for name, values in parse_qs(parts.query).items()},
                headers={name.lower(): value for name, value in self.headers.items()},
                body=body,
                user=hub.store.users.get(token),
            )
            with hub.store.lock:
                return answer(request, cast(_Listener, self.server).origin)
        except HubError as error:
            return respond_error(error)

    def read_body(self, fault: Fault | None) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if fault is not None and fault.cut is not None and self.command == "PUT":
            self.rfile.read(min(fault.cut, length))
            raise _Cut
        return self.rfile.read(length)

    def send(self, response: Response, entry: LoggedRequest, fault: Fault | None) -> None:
        entry.status = response.status
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in response.headers:
            self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is not None and fault.cut is not None:
            self.wfile.write(response.body[: fault.cut])
            raise _Cut
        self.wfile.write(response.body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the log is `HubServer.log`."""
