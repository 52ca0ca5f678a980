# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Saved folders stand alone: they load by their own code, whoever saved them and however often."""

import ast
import json
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import hub_steps as steps
import pytest
import transformers
from helpers import ALL_HEADS, HEADS
from hub_client import Client, ClientError
from huggingface_hub.errors import StrictDataclassError
from minimal_environment import link_environment, run_in

from modeling_convbert_composite import ConvBertCompositeConfig, ConvBertCompositeModel
from modeling_convbert_composite.configuration_convbert_composite import CODE_VERSION
from modeling_convbert_composite.modeling_convbert_composite import AUTO_MODEL_CLASSES, auto_map
from modeling_convbert_composite.saved_files import code_files


pytestmark = pytest.mark.xdist_group("remote code")

ROOT = Path(__file__).parents[1]
MLM = "AutoModelForMaskedLM"
CODE = {file.name for file in code_files()}

LOAD_EACH = f"""
import importlib.util, json, torch, transformers
torch.set_num_threads(1)
extras = ("sentencepiece", "sklearn", "evaluate", "datasets", "accelerate", "scipy", "google", "matplotlib")
present = [name for name in (*extras, "modeling_convbert_composite") if importlib.util.find_spec(name)]
ids, mask = torch.tensor({steps.IDS}), torch.tensor({steps.MASK})
outputs = {{}}
for name, (auto_class, folder) in json.loads(sys.argv[1]).items():
    model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True).eval()
    inputs = {{"input_ids": ids, "attention_mask": mask}}
    if auto_class == "AutoModelForMultipleChoice":
        inputs = {{key: value[None] for key, value in inputs.items()}}
    with torch.no_grad():
        outputs[name] = {{key: value.tolist() for key, value in model(**inputs).items()}}
print(json.dumps({{"present": present, "outputs": outputs}}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_environment(tmp_path_factory.mktemp("site") / "packages")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Somebody without the package, offline."""
    client = Client(tmp_path_factory.mktemp("stranger"), "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    yield client
    client.close()


def assert_stands_alone(folder: Path) -> None:
    """All code, as installed; the `auto_map` of this folder alone."""
    assert {file.name: file.read_bytes() for file in folder.glob("*.py")} == {
        file.name: file.read_bytes() for file in code_files()
    }
    config = json.loads((folder / "config.json").read_text())
    assert config["auto_map"] == auto_map()
    assert config["code_version"] == CODE_VERSION


def test_chains_of_saves_in_an_environment_with_torch_and_transformers_only(
    site: Path, stranger: Client, tmp_path: Path
) -> None:
    """
    A exported, B fine-tuned with the Trainer, C saved again, each by somebody with or without the package, each source
    deleted; then all C, and one export of each head, in a fresh process without the package and its extras.
    """

    def run_here(step: object, *arguments: object, **options: object) -> object:
        return step(*arguments, **options)  # type: ignore[operator]

    people = {"plugin": run_here, "remote": stranger.run}
    folders: dict[str, tuple[str, str]] = {}
    expected = {}
    for tuner in people:
        for saver in people:
            head = HEADS["mlm" if tuner == saver else "sequence"]
            name = f"{tuner}-{saver}"
            places = {step: tmp_path / f"{name}-{step}" for step in "ABC"}
            head.build().save_pretrained(places["A"])
            people[tuner](steps.train, str(places["A"]), str(places["B"]), head.auto_class, save_strategy="no")
            assert_stands_alone(places["B"])
            shutil.rmtree(places["A"])
            expected[name] = people[saver](steps.resave, str(places["B"]), str(places["C"]), head.auto_class, 0.01)
            shutil.rmtree(places["B"])
            assert_stands_alone(places["C"])
            folders[name] = (head.auto_class, str(places["C"]))
    for head in ALL_HEADS:
        head.build().save_pretrained(tmp_path / head.name)
        folders[head.name] = (head.auto_class, str(tmp_path / head.name))
        expected[head.name] = steps.load_and_run(str(tmp_path / head.name), head.auto_class)
    found = run_in(site, tmp_path / "home", LOAD_EACH, json.dumps(folders))
    assert found["present"] == []
    assert found["outputs"] == expected


def test_a_checkpoint_of_the_trainer_stands_alone_and_so_does_the_folder_around_it(tmp_path: Path) -> None:
    HEADS["mlm"].build().save_pretrained(tmp_path / "A")
    steps.train(str(tmp_path / "A"), str(tmp_path / "run"), MLM, save_steps=1)
    for place in ("run", "run/checkpoint-1", "run/checkpoint-2"):
        assert_stands_alone(tmp_path / place)


@pytest.mark.parametrize(
    "name", ["with.dots.v1.5", "with-dashes-1", "with spaces in it", "ünïcode", "1starts-with-digit", "class"]
)
def test_names_of_folders(name: str, stranger: Client, tmp_path: Path) -> None:
    HEADS["mlm"].build().save_pretrained(tmp_path / name)
    expected = steps.load_and_run(str(tmp_path / name))
    for spelling in (str(tmp_path / name), f"{tmp_path / name}/"):
        assert stranger.run(steps.load_and_run, spelling) == expected


@pytest.mark.parametrize("spelling", [".", "./", "../here", "../here/"])
def test_relative_folders(spelling: str, stranger: Client, tmp_path: Path) -> None:
    HEADS["mlm"].build().save_pretrained(tmp_path / "here")
    expected = steps.load_and_run(str(tmp_path / "here"))
    assert stranger.run(steps.load_from_within, str(tmp_path / "here"), spelling) == expected


def test_saving_into_the_working_folder(stranger: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    HEADS["mlm"].build().save_pretrained(".")
    assert_stands_alone(tmp_path)
    assert stranger.run(steps.load_and_run, str(tmp_path)) == steps.load_and_run(".")


def test_fresh_models_of_a_config_by_remote_code(stranger: Client, tmp_path: Path) -> None:
    HEADS["base"].build().save_pretrained(tmp_path)
    for head in ALL_HEADS:
        built = stranger.run(steps.build_from_config, str(tmp_path), head.auto_class)
        assert built == head.model_class.__name__


# What the code of saved folders may look like (traps 3 to 5 of the library's loader)


@pytest.mark.parametrize("file", code_files(), ids=lambda file: file.stem)
def test_imports_of_the_code_that_travels(file: Path) -> None:
    """`from .sibling import name`, or torch, transformers and its hub client; none hides in a function."""
    allowed = {*sys.stdlib_module_names, "torch", "transformers", "huggingface_hub"}
    tree = ast.parse(file.read_text(encoding="utf-8"))
    top_level = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    every = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert every == top_level
    for node in every:
        if isinstance(node, ast.Import):
            assert len(node.names) == 1
            assert node.names[0].name.split(".")[0] in allowed
        elif node.level:
            assert node.level == 1
            assert f"{node.module}.py" in CODE
        else:
            assert str(node.module).split(".")[0] in allowed


def test_what_the_library_copies_is_all_of_the_code() -> None:
    from transformers.dynamic_module_utils import get_relative_import_files, get_relative_imports

    modeling = next(file for file in code_files() if file.stem.startswith("modeling"))
    assert {Path(file).name for file in get_relative_import_files(str(modeling))} | {modeling.name} == CODE
    # All by itself, too: what only another file names may be missing while a second process copies.
    named = {f"{name}.py" for name in get_relative_imports(str(modeling))}
    assert named | {modeling.name} == CODE


def test_imports_of_evaluate_scripts_stand_one_a_line() -> None:
    """The loader of `evaluate` takes `import a, b` for a package `a,`."""
    for file in (ROOT / "modeling_convbert_composite" / "finetuning").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Import) or len(node.names) == 1


def test_classes_never_live_in_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `__main__` defines cannot be shipped: a script that runs by its path must save the package's classes."""
    monkeypatch.setattr(sys, "argv", ["convert", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "conversion" / "convert_checkpoint.py"), run_name="__main__")
    for auto_class, model_class in AUTO_MODEL_CLASSES.items():
        assert model_class.__module__ == "modeling_convbert_composite.modeling_convbert_composite"
        assert model_class._auto_class == auto_class


def test_a_modules_folder_that_was_deleted_stops_a_save_and_spoils_nothing(stranger: Client, tmp_path: Path) -> None:
    """Trap 4: the code of a model that was loaded by it lies in the cache; without it, saving is an error."""
    HEADS["mlm"].build().save_pretrained(tmp_path / "A")
    with pytest.raises(ClientError) as caught:
        stranger.run(steps.resave_without_modules, str(tmp_path / "A"), str(tmp_path / "B"))
    assert "FileNotFoundError" in caught.value.kinds
    assert not (tmp_path / "B" / "config.json").exists()
    assert_stands_alone(tmp_path / "A")


# Versions


def test_a_checkpoint_of_newer_code_is_refused_with_the_way_out(stranger: Client, tmp_path: Path) -> None:
    """Before fields that this code does not know are looked at; its own code loads it."""
    HEADS["mlm"].build().save_pretrained(tmp_path)
    expected = steps.load_and_run(str(tmp_path))
    file = tmp_path / "config.json"
    config = json.loads(file.read_text()) | {"code_version": CODE_VERSION + 1, "beyond_kernel": "wrap"}
    file.write_text(json.dumps(config))
    for auto_class in ("AutoConfig", MLM):
        with pytest.raises(StrictDataclassError, match=r"newer code .*Upgrade .*trust_remote_code"):
            getattr(transformers, auto_class).from_pretrained(tmp_path)
    file.write_text(json.dumps(config | {"beyond_kernel": "clip"}))
    code = tmp_path / "configuration_convbert_composite.py"
    code.write_text(code.read_text().replace(f"CODE_VERSION = {CODE_VERSION}", f"CODE_VERSION = {CODE_VERSION + 1}"))
    assert stranger.run(steps.load_and_run, str(tmp_path)) == expected


def test_checkpoints_without_a_code_version_are_of_the_first_and_saves_write_todays(tmp_path: Path) -> None:
    ConvBertCompositeModel(HEADS["base"].config()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["code_version"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = ConvBertCompositeConfig.from_pretrained(tmp_path)
    assert loaded.code_version == 1
    loaded.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["code_version"] == CODE_VERSION
    with pytest.raises(StrictDataclassError, match="at least 1"):
        ConvBertCompositeConfig(code_version=0)


# Trust


def test_a_config_cannot_switch_on_code(tmp_path: Path) -> None:
    """A folder whose files ask for code of their own: every verb that reads it runs none of it."""
    HEADS["mlm"].build().save_pretrained(tmp_path / "evil")
    marker = tmp_path / "marker"
    (tmp_path / "evil" / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: pass\n")
    file = tmp_path / "evil" / "config.json"
    config = json.loads(file.read_text()) | {
        "trust_remote_code": True,
        "auto_map": dict.fromkeys(["AutoConfig", "AutoModel", MLM], "evil.Evil"),
    }
    file.write_text(json.dumps(config))
    codes = {}
    for verb in ("info", "card", "push --dry-run"):
        name, *options = verb.split()
        arguments = [name, str(tmp_path / "evil"), *(["ann/evil"] if name == "push" else []), *options]
        codes[verb], _, error = steps.run_command(*arguments)
    assert codes == {"info": 0, "card": 0, "push --dry-run": 1}
    assert "`auto_map`" in error
    transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "evil")
    assert not marker.exists()
