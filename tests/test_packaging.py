# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The built wheel and source archive: what they hold, and that the command runs from the wheel alone."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from modeling_convbert_composite.configuration import list_presets


ROOT = Path(__file__).parents[1]
HUB_FILES = ("configuration", "attention", "backends", "fast_attention", "packing", "layers", "losses", "modeling")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and source archive, built from a copy so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("dist")
    copy = tmp_path_factory.mktemp("copy") / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    # The environment has setuptools, so that no build environment needs the network.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(copy)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def wheel_names(built: Path) -> list[str]:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        return archive.namelist()


def test_the_wheel_adds_one_top_level_name(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"modeling_convbert_composite"}


def test_the_wheel_holds_code_presets_templates_and_types(wheel_names: list[str]) -> None:
    package = "modeling_convbert_composite/"
    expected = [f"{package}{name}_convbert_composite.py" for name in HUB_FILES]
    expected += [f"{package}configuration/presets/{name}.json" for name in list_presets()]
    expected += [f"{package}{name}" for name in ("py.typed", "cli.py", "conversion/families/bert.py")]
    expected += [f"{package}model_cards/{name}" for name in ("__init__.py", "card_template.md", "citation.md")]
    expected += [f"{package}native/{name}" for name in ("attention.cpp", "matrices.h", "scores.h", "build.py")]
    shipped = (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
        "results.json",
    )
    expected += [f"{package}checkpoints/mini/{name}" for name in shipped]
    assert not set(expected) - set(wheel_names)


def test_the_wheel_lacks_nothing_of_the_sources(wheel_names: list[str]) -> None:
    """`packages` is written by hand: a forgotten folder would only show at the user's."""
    mapped = {name: f"{name}/" for name in ("configuration", "conversion", "model_cards")}
    for folder, target in ({"modeling_convbert_composite": ""} | mapped).items():
        for file in (ROOT / folder).rglob("*.py"):
            assert f"modeling_convbert_composite/{target}{file.relative_to(ROOT / folder).as_posix()}" in wheel_names


def test_the_source_archive_builds_the_same_wheel(built: Path, wheel_names: list[str], tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    source = next(tmp_path.iterdir())
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path / "dist")]
    subprocess.run([*command, str(source)], check=True, capture_output=True, timeout=300)
    with zipfile.ZipFile(next((tmp_path / "dist").glob("*.whl"))) as archive:
        assert set(archive.namelist()) == set(wheel_names)


def test_metadata(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = archive.read(name).decode()
    assert "Requires-Python: >=3.11" in metadata
    assert "Requires-Dist: transformers>=5.14.1" in metadata
    for version in ("3.11", "3.12", "3.13"):
        assert f"Classifier: Programming Language :: Python :: {version}" in metadata
    for extra in ("convert", "train", "plot", "export", "native", "dev", "all"):
        assert f"Provides-Extra: {extra}" in metadata


@pytest.mark.slow
@pytest.mark.ci
def test_the_command_works_in_an_empty_environment_with_the_base_install(built: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    wheel = next(built.glob("*.whl"))
    constraints = ROOT / "constraints" / "newest.txt"
    install = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", constraints, wheel]
    subprocess.run([*map(str, install)], check=True, timeout=600)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: str) -> str:
        result = subprocess.run(
            command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=300, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    command = str(environment / "bin" / "convbert-composite")
    assert "13,428,196" in run(command, "presets")
    # The demo with the network cut: there is no way out for sockets.
    no_network = "import socket, sys; socket.socket.connect = socket.getaddrinfo = None; "
    start = "from modeling_convbert_composite.cli import main; main(['demo', '--output', 'demo'])"
    printed = run(str(environment / "bin" / "python"), "-c", no_network + start)
    assert "Largest difference: 0" in printed and "need the extra `plot`" in printed
    python = str(environment / "bin" / "python")
    missing = "import sentencepiece"
    assert subprocess.run([python, "-c", missing], capture_output=True, check=False).returncode != 0
    script = (
        "import torch; from transformers import AutoModel;"
        "from modeling_convbert_composite.configuration import load_preset;"
        "m = AutoModel.from_config(load_preset('tiny')); m.save_pretrained('saved');"
        "print(AutoModel.from_pretrained('saved')(torch.tensor([[1, 2, 3]])).last_hidden_state.shape)"
    )
    assert "[1, 3, 32]" in run(python, "-c", script)
    # A verb that needs an extra names it in one line.
    (tmp_path / "source").mkdir()
    make_source = (
        "from transformers import BertConfig, BertModel;"
        "BertModel(BertConfig(vocab_size=30, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,"
        " intermediate_size=32)).save_pretrained('source')"
    )
    run(python, "-c", make_source)
    (tmp_path / "spm.model").write_bytes(b"anything")
    result = subprocess.run(
        [command, "convert", "source", "out", "--tokenizer", "spm.model"],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "convbert-composite[convert]" in result.stderr
    assert not (tmp_path / "out").exists()
