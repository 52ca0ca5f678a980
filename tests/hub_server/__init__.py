# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
A Hub on this machine for tests: what a real client needs to create, push to, pull from and manage repositories.

`store.py` holds users, repositories and files in memory, `routes.py` and `transfers.py` answer requests, `server.py`
speaks HTTP, keeps a log of the requests and injects faults. A second port plays the file host, so that a client which
hands its token on to another origin shows. It is a test tool: nothing is stored on disk, and tokens are plain words.
"""

from hub_server.server import Fault, HubServer, LoggedRequest
from hub_server.store import Repo, Store, User


__all__ = ["Fault", "HubServer", "LoggedRequest", "Repo", "Store", "User"]
