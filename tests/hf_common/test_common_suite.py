# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The library's own common test suite (about 160 checks that every model in it passes) on our classes.

The suite is not installed, but stands in the source archive of the same version on PyPI, from where it is fetched into
a cache folder (`CONVBERT_COMPOSITE_CACHE`, default `.cache` in the repository). It runs in a process of its own, as it
changes tables of the library.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import transformers
from helpers import OPTIONS


HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("CONVBERT_COMPOSITE_CACHE") or HERE.parents[1] / ".cache")
VERSION = transformers.__version__
PACKAGE = "common_tests"

# What the suite imports from sub-folders that the archive lacks.
STUBS = {
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/test_configuration_utils.py": "config_common_kwargs = {}\n",
}

# Everything that may be skipped: a pattern of the suite's message, and why it is no loss.
SKIPS = {
    r"requires (an? )?(multiple )?accelerators?|requires (MPS|CUDA|.*GPU)": "runs where there is a GPU",
    r"requires (deepspeed|bitsandbytes|the kernels library|PEFT)|No peft": "an optional package that is not installed",
    r"requires Flash Attention": "flash attention takes no additive bias; asking for it is a clear error",
    r"test is slow": "compiles for training; test_modeling.py has such a test",
    r"Do not take a cache|language modeling head to check": "an encoder: no cache, no text generation",
    r"[Cc]omposite model|is not composite|does not support SDPA|[Ss]ubconfigs?": "for models made of several models",
    r"No conversion found": "our checkpoints rename no keys on loading",
    r"grouped_mm|experts|router": "no mixture of experts",
    r"_keep_in_fp32_modules": "no module is kept in float32",
    r"RoPE|rope": "no rotary positions",
    r"position embeddings": "BERT's own test leaves the resizing of position tables out as well",
    r"sliding window": "a window is a term of the scores here, not a mask",
    r"TP plan": "no plan for tensor parallelism",
    r"maps of dynamic heads": (
        "the maps of dynamic heads are drawn from their taps beside the computation, so that no gradient reaches them"
    ),
}

ALL_TERMS = {
    "position_embedding_type": "absolute",
    "key_kernel": True,
    "kernels_per_head": True,
    "beyond_kernel": "window",
    "depthwise_kernel": True,
    "depthwise_scale": "learned",
    "query_key_projection": "depthwise_separable",
    "query_key_mixed": True,
    "value_projection": "convolution",
    "value_groups": 2,
    "embedding_size": 16,
}


@pytest.fixture(scope="session")
def archive() -> Path:
    """The source archive of the installed version, in the cache folder."""
    folder = CACHE / "transformers_sdist"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"transformers-{VERSION}.tar.gz"
    if not path.is_file():
        # `pip download` asks the archive for its metadata; with the build backend at hand it need not install one.
        command = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps", "--quiet"]
        command += ["--disable-pip-version-check", "--dest", str(folder), f"transformers=={VERSION}"]
        tries = [
            subprocess.run([*command, *extra], capture_output=True, text=True)
            for extra in (["--no-build-isolation"], [])
            if not path.is_file()
        ]
        assert path.is_file(), "\n".join(done.stderr[-2000:] for done in tries)
    return path


@pytest.fixture
def suite(archive: Path, tmp_path: Path) -> Path:
    """A folder with the package `common_tests`: the library's test files, the stubs, and ours."""
    package = tmp_path / PACKAGE
    package.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            if re.fullmatch(r"transformers-[^/]+/tests/\w+\.py", member.name):
                (package / Path(member.name).name).write_bytes(tar.extractfile(member).read())
    for name, text in STUBS.items():
        path = package / name
        path.parent.mkdir()
        (path.parent / "__init__.py").touch()
        path.write_text(text, encoding="utf-8")
    (package / "__init__.py").touch()
    shutil.copy(HERE / "common_suite.py", package / "test_convbert_composite.py")
    return tmp_path


def run_suite(folder: Path, variant: dict[str, Any], all_classes: bool) -> None:
    """Runs it in a process of its own: no failure, at least ninety tests, nothing skipped but SKIPS."""
    report = folder / "report.xml"
    environment = os.environ | {
        "CONVBERT_COMPOSITE_VARIANT": json.dumps(variant),
        "CONVBERT_COMPOSITE_ALL_CLASSES": str(int(all_classes)),
        "HF_HOME": str(folder / "hf_home"),
        "OMP_NUM_THREADS": "1",
    }
    # Settings of the outer run are not the inner one's; some tests read the log.
    for name in [name for name in environment if name.startswith("PYTEST_") or name == "TRANSFORMERS_VERBOSITY"]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", f"{PACKAGE}/test_convbert_composite.py", "-q", "--tb=short"]
    command += [
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        f"--junitxml={report}",
        f"--rootdir={folder}",
        "-c",
        os.devnull,
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert report.is_file(), done.stdout[-4000:] + done.stderr[-4000:]
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None]
    assert done.returncode == 0 and not failed, f"{failed}\n{done.stdout[-8000:]}"
    skips = [
        (case.get("name"), case.find("skipped").get("message")) for case in cases if case.find("skipped") is not None
    ]
    passed = len(cases) - len(skips)
    unexpected = [skip for skip in skips if not any(re.search(pattern, skip[1] or "") for pattern in SKIPS)]
    assert not unexpected, unexpected
    assert passed >= 90, f"only {passed} tests passed"


@pytest.mark.slow
@pytest.mark.ci
def test_common_suite_of_every_class(suite: Path) -> None:
    run_suite(suite, {}, all_classes=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [ALL_TERMS, OPTIONS["dynamic_span"] | OPTIONS["skip_padding"] | OPTIONS["no_types"]],
    ids=["all_terms", "dynamic"],
)
def test_common_suite_of_other_configs(variant: dict[str, Any], suite: Path) -> None:
    run_suite(suite, variant, all_classes=False)
