# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Building the kernel, once on first use, by torch's own extension tools.

The library lies in torch's folder for extensions (`TORCH_EXTENSIONS_DIR`, else the user's cache) under a name made of
all that it depends on, so that a new release, another torch or another processor builds its own. Processes wait for
each other by a file lock that dies with its holder.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock
from transformers.utils import logging


logger = logging.get_logger(__name__)

SOURCES = Path(__file__).parent
# By what torch found on this machine: what its `Vectorized` needs. On ARM the compiler's default has NEON.
CAPABILITY_FLAGS = {
    "AVX512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mf16c"],
    "AVX2": ["-mavx2", "-mfma", "-mf16c"],
}
FLAGS = ["-O3", "-std=c++20", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]


@dataclass(frozen=True)
class Kind:
    """A way to build: the name of torch's operator library, and flags."""

    library: str
    flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()


KERNEL = Kind("convbert_composite")
# For tests: bounds and uninitialised memory show, no generated code that a sanitizer cannot see into.
PLAIN = Kind("convbert_composite_plain", ("-DCOMPOSITE_PLAIN_PRODUCT", "-DCOMPOSITE_POISON"))
SANITIZED = Kind(
    "convbert_composite_sanitized",
    ("-DCOMPOSITE_PLAIN_PRODUCT", "-DCOMPOSITE_POISON", "-fsanitize=address,undefined", "-g", "-O1"),
    ("-fsanitize=address,undefined",),
)


def capability() -> str:
    """AVX512, AVX2 or DEFAULT, as torch uses."""
    found = torch.backends.cpu.get_cpu_capability()
    return found if found in CAPABILITY_FLAGS else "DEFAULT"


def flags(kind: Kind) -> list[str]:
    name = capability()
    return [
        *FLAGS,
        *CAPABILITY_FLAGS.get(name, []),
        f"-DCPU_CAPABILITY={name}",
        f"-DCPU_CAPABILITY_{name}",
        f"-DCOMPOSITE_LIBRARY={kind.library}",
        *kind.flags,
    ]


def library_path(kind: Kind) -> Path:
    """Where the library lies or will lie."""
    from torch.utils.cpp_extension import get_default_build_root

    parts = [torch.__version__, sys.implementation.cache_tag, platform.machine(), *flags(kind), compiler() or "none"]
    parts += [path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.[ch]*"))]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    return root / "convbert_composite" / key / f"{kind.library}.so"


def compiler() -> str | None:
    """The C++ compiler, as torch's tools choose it."""
    return shutil.which(os.environ.get("CXX", "c++"))


def refuse(reason: str) -> RuntimeError:
    return RuntimeError(
        f'attn_implementation="composite_cpu" needs a kernel that is compiled once on this machine, but {reason}. '
        'attn_implementation="sdpa", the default, computes the same in plain torch.'
    )


def path_with_ninja() -> str:
    """The search path with ninja on it, also where only the environment's Python was started."""
    path = os.environ.get("PATH", "")
    try:
        import ninja
    except ImportError:
        return path
    return f"{ninja.BIN_DIR}{os.pathsep}{path}"


# In a process of its own: torch's function also loads what it built, from where it is not to stay.
COMPILE = "import json, sys; from torch.utils.cpp_extension import load; load(**json.loads(sys.argv[1]))"


def build(kind: Kind, target: Path) -> None:
    """Compiles beside `target`, then renames: what stands there is whole."""
    if sys.platform == "win32":
        raise refuse("it is built on Linux and macOS only")
    if compiler() is None:
        raise refuse("there is no C++ compiler (install g++ or clang++, or name one in CXX)")
    path = path_with_ninja()
    if shutil.which("ninja", path=path) is None:
        raise refuse("ninja is missing (pip install 'convbert-composite[native]')")
    logger.warning("Building the native attention kernel, once, in about 20 seconds: %s", target)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        arguments = {
            "name": kind.library,
            "sources": [str(SOURCES / "attention.cpp")],
            "extra_cflags": flags(kind),
            "extra_ldflags": ["-fopenmp", *kind.link_flags],
            "build_directory": folder,
            "is_python_module": False,
        }
        command = [sys.executable, "-c", COMPILE, json.dumps(arguments)]
        done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
        found = Path(folder) / target.name
        if not found.exists():
            (target.parent / "build.log").write_text(done.stdout + done.stderr, encoding="utf-8")
            raise refuse(f"the compiler failed (its words: {target.parent / 'build.log'})")
        os.replace(found, target)


def built_library(kind: Kind = KERNEL) -> Path:
    """
    The library, built if it is not there yet.

    Raises:
        RuntimeError: it cannot be built here; the message says why and what to do.
    """
    target = library_path(kind)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_suffix(".lock")):
            if not target.exists():
                build(kind, target)
    return target
