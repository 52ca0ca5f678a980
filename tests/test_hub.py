# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Push and pull over HTTP with the real client. The publisher has the package, the reader does not; each is a process of
its own with its own cache (`hub_client`), the Hub runs here (`hub_server`).
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import hub_steps as steps
import huggingface_hub
import pytest
from helpers import ALL_HEADS
from hub_client import Client, ClientError
from hub_server import HubServer, User

from modeling_convbert_composite.finetuning.tables import dataset_table
from modeling_convbert_composite.modeling_convbert_composite import AUTO_MODEL_CLASSES
from modeling_convbert_composite.pretraining import prepared
from modeling_convbert_composite.records import read_json
from modeling_convbert_composite.saved_files import code_files


# One worker of pytest-xdist has all of these, since the processes take seconds to start.
pytestmark = pytest.mark.xdist_group("hub")

USERS = {"ann-writes": User("ann"), "ann-reads": User("ann", role="read"), "bob-writes": User("bob")}
MLM = "AutoModelForMaskedLM"
newest_client = pytest.mark.skipif(huggingface_hub.__version__ < "2", reason="older clients ask and wait otherwise")
CODE = {file.name for file in code_files()}


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with HubServer(USERS) as server:
        yield server


@pytest.fixture(scope="module")
def ann(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A publisher, with the package."""
    client = Client(tmp_path_factory.mktemp("ann"), hub.endpoint, "ann-writes", plugin=True)
    yield client
    client.close()


@pytest.fixture(scope="module")
def bob(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A reader, without the package."""
    client = Client(tmp_path_factory.mktemp("bob"), hub.endpoint, "bob-writes")
    yield client
    client.close()


@pytest.fixture(autouse=True)
def no_faults_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "hub" in request.fixturenames:
        server = request.getfixturevalue("hub")
        server.faults.clear()
        server.chunk_size = None


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Auto class -> a saved tiny model of it."""
    place = tmp_path_factory.mktemp("models")
    for head in ALL_HEADS:
        head.build().save_pretrained(place / head.auto_class)
    return {head.auto_class: place / head.auto_class for head in ALL_HEADS}


@pytest.fixture(scope="module")
def published(hub: HubServer, ann: Client, folders: dict[str, Path]) -> str:
    """A repository with a masked-LM model."""
    ann.run(steps.push_unproved, str(folders[MLM]), "ann/published")
    return "ann/published"


def commits(hub: HubServer, repo: str, revision: str = "main") -> list[str]:
    return [commit.title for commit in hub.store.repos["models", repo].history(revision)]


def files(hub: HubServer, repo: str, revision: str = "main") -> dict[str, bytes]:
    return {path: file.data for path, file in hub.store.repos["models", repo].commit(revision).files.items()}


# Round trip


def test_every_auto_class_makes_the_round_trip(
    hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path]
) -> None:
    """By the library's own `push_to_hub`, into a process without the package: equal outputs to the last bit."""
    names = {auto_class: f"ann/{auto_class.lower()}" for auto_class in AUTO_MODEL_CLASSES}
    assert len(names) == 7
    for auto_class, folder in folders.items():
        ann.run(steps.push_model, str(folder), names[auto_class], auto_class)
        assert len(commits(hub, names[auto_class])) == 2
        assert files(hub, names[auto_class]).keys() == {"config.json", "model.safetensors", "README.md", *CODE}
    expected = ann.run(steps.load_all, {name: str(folder) for name, folder in folders.items()})
    assert bob.run(steps.load_all, names) == expected


def test_what_push_sends_is_what_was_proved(
    hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[MLM], tmp_path / "model")
    nested = folder / "2_Dense" / "deep"
    nested.mkdir(parents=True)
    (nested / "config.json").write_text("{}")
    (folder / "training_args.bin").write_bytes(b"\x80\x02.")
    start = len(hub.log)
    dry = ann.run(steps.push_unproved, str(folder), "sent", dry_run=True)
    assert hub.log[start:] == []
    code, out, error = ann.run(steps.run_command, "push", str(folder), "sent", "--private", "--tag", "v1")
    assert (code, error) == (0, "")
    # Folders of any depth, unlike the library's own push.
    expected = {"config.json", "model.safetensors", "README.md", "2_Dense/deep/config.json", *CODE}
    assert files(hub, "ann/sent").keys() == expected
    assert dry["files"].keys() == expected
    assert all(name in out for name in expected)
    assert "left out  training_args.bin" in out
    assert float(re.search(r"outputs differ by at most ([\d.e+-]+)\.\n", out)[1]) < 1e-6  # type: ignore[index]
    assert hub.store.repos["models", "ann/sent"].private
    assert files(hub, "ann/sent", "v1") == files(hub, "ann/sent")
    assert {name: files(hub, "ann/sent")[name] for name in CODE} == {
        file.name: file.read_bytes() for file in code_files()
    }
    assert 'from_pretrained("ann/sent")' in files(hub, "ann/sent")["README.md"].decode()
    assert len(commits(hub, "ann/sent")) == 2
    with pytest.raises(ClientError, match="not a valid model identifier"):
        bob.run(steps.load_and_run, "ann/sent")
    assert bob.run(steps.load_and_run, "ann/sent", token="ann-reads") == ann.run(steps.load_and_run, str(folder))


@newest_client
def test_a_warm_cache_asks_once_and_a_pinned_commit_never(hub: HubServer, bob: Client, published: str) -> None:
    first = bob.run(steps.load_and_run, published)
    start = len(hub.log)
    assert bob.run(steps.load_and_run, published) == first
    assert [str(entry) for entry in hub.log[start:]] == [f"GET /api/models/{published} -> 200"]
    sha = hub.store.repos["models", published].commit("main").oid
    start = len(hub.log)
    assert bob.run(steps.load_and_run, published, revision=sha) == first
    assert hub.log[start:] == []


def test_tokens_go_to_the_hub_and_not_to_the_file_host(hub: HubServer, bob: Client, published: str) -> None:
    bob.run(steps.load_and_run, published)
    from_host = [entry for entry in hub.log if entry.origin == "cdn"]
    assert {entry.method for entry in from_host} >= {"GET", "PUT"}
    assert not any(entry.authorized for entry in from_host)
    assert all(entry.authorized for entry in hub.requests("HEAD", r"^/ann/published/resolve"))


def test_a_tokenizer_comes_along(hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path]) -> None:
    from test_pipelines import word_tokenizer

    folder = folders[MLM].parent / "with-tokenizer"
    shutil.copytree(folders[MLM], folder)
    tokenizer = word_tokenizer()
    tokenizer.save_pretrained(folder)
    ann.run(steps.push_unproved, str(folder), "ann/words")
    text = "some words of a text"
    assert bob.run(steps.tokenize, "ann/words", text) == list(tokenizer(text)["input_ids"])


def test_offline(hub: HubServer, ann: Client, bob: Client, published: str, folders: dict[str, Path]) -> None:
    """What was fetched once loads without any request; what was not gives an error, not a wait."""
    expected = bob.run(steps.load_and_run, published)
    offline = Client(bob.home, hub.endpoint, HF_HUB_OFFLINE="1")
    try:
        start = len(hub.log)
        assert offline.run(steps.load_and_run, published) == expected
        with pytest.raises(ClientError) as caught:
            offline.run(steps.load_and_run, "ann/never-fetched")
        assert "OSError" in caught.value.kinds
        assert hub.log[start:] == []
    finally:
        offline.close()


# Who may do what


def test_wrong_missing_and_foreign_tokens(hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path]) -> None:
    folder = str(folders[MLM])
    ann.run(steps.push_unproved, folder, "ann/secret", private=True)
    reading = {"bad": "connection error|credentials", False: "not a valid model identifier"}
    for token, message in reading.items():
        with pytest.raises(ClientError, match=message):
            bob.run(steps.load_and_run, "ann/secret", token=token)
    writing = {"bad": "401", "bob-writes": "403|404", "ann-reads": "403"}
    for token, message in writing.items():
        with pytest.raises(ClientError, match=message) as caught:
            ann.run(steps.push_unproved, folder, "ann/secret", token=token)
        assert "HfHubHTTPError" in caught.value.kinds
    assert len(commits(hub, "ann/secret")) == 2


def test_a_public_repository_does_not_become_private_by_pushing(
    hub: HubServer, ann: Client, published: str, folders: dict[str, Path]
) -> None:
    before = commits(hub, published)
    with pytest.raises(ClientError, match="exists and is public"):
        ann.run(steps.push_unproved, str(folders[MLM]), published, private=True)
    assert commits(hub, published) == before


def test_gated(hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path]) -> None:
    """Access is asked for and granted; and trap 1: what was fetched once is served from this machine's cache."""
    ann.run(steps.push_unproved, str(folders[MLM]), "ann/gated")
    repo = hub.store.repos["models", "ann/gated"]
    repo.gated = "manual"
    with pytest.raises(ClientError, match="gated repo"):
        bob.run(steps.load_and_run, "ann/gated")
    repo.granted.add("bob")
    expected = bob.run(steps.load_and_run, "ann/gated")
    repo.granted.clear()
    assert bob.run(steps.load_and_run, "ann/gated") == expected
    with pytest.raises(ClientError) as caught:
        bob.run(steps.download, "ann/gated", "config.json", force_download=True)
    assert "GatedRepoError" in caught.value.kinds


# Revisions


def test_branch_tag_pull_request_and_merge(
    hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    first, second = str(folders[MLM]), str(tmp_path / "second")
    before, after = ann.run(steps.load_and_run, first), ann.run(steps.resave, first, second, MLM, 0.01)
    ann.run(steps.push_unproved, first, "ann/versions", tag="v1")
    ann.run(steps.push_unproved, second, "ann/versions", branch="trial")
    assert bob.run(steps.load_and_run, "ann/versions", revision="trial") == after
    assert bob.run(steps.load_and_run, "ann/versions") == before

    report = ann.run(steps.push_unproved, second, "ann/versions", create_pr=True)
    assert report["pull_request"].endswith("/ann/versions/discussions/1")
    assert bob.run(steps.load_and_run, "ann/versions", revision="refs/pr/1") == after
    assert bob.run(steps.load_and_run, "ann/versions") == before
    ann.run(steps.api, "merge_pull_request", "ann/versions", 1)
    assert bob.run(steps.load_and_run, "ann/versions") == after
    assert bob.run(steps.load_and_run, "ann/versions", revision="v1") == before
    with pytest.raises(ClientError, match="has a tag 'v1' already"):
        ann.run(steps.push_unproved, first, "ann/versions", tag="v1")
    with pytest.raises(ClientError, match="not a valid git identifier"):
        bob.run(steps.load_and_run, "ann/versions", revision="nowhere")
    with pytest.raises(ClientError, match="gets no tags"):
        ann.run(steps.push_unproved, first, "ann/versions", create_pr=True, tag="v2")


def test_a_stale_parent_is_refused(hub: HubServer, ann: Client, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders[MLM], tmp_path / "model")
    first = ann.run(steps.push_unproved, str(folder), "ann/raced")
    (folder / "notes.txt").write_text("more")
    second = ann.run(steps.push_unproved, str(folder), "ann/raced", parent_commit=first["commit"])
    (folder / "notes.txt").write_text("still more")
    with pytest.raises(ClientError, match="412"):
        ann.run(steps.push_unproved, str(folder), "ann/raced", parent_commit=first["commit"])
    assert files(hub, "ann/raced", second["commit"]) == files(hub, "ann/raced")


def test_an_unchanged_push_makes_no_commit_and_stale_weights_go(
    hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    ann.run(steps.save_shards, str(folders[MLM]), str(tmp_path / "shards"))
    sharded = ann.run(steps.push_unproved, str(tmp_path / "shards"), "ann/shards")
    assert sum(name.endswith(".safetensors") for name in sharded["files"]) > 1
    expected = ann.run(steps.load_and_run, str(folders[MLM]))
    assert bob.run(steps.load_and_run, "ann/shards") == expected
    whole = ann.run(steps.push_unproved, str(folders[MLM]), "ann/shards")
    assert "model.safetensors.index.json" in whole["deleted"]
    assert [name for name in files(hub, "ann/shards") if "safetensors" in name] == ["model.safetensors"]
    assert bob.run(steps.load_and_run, "ann/shards") == expected
    again = ann.run(steps.push_unproved, str(folders[MLM]), "ann/shards")
    assert again["commit"] == whole["commit"]


def test_checkpoints_become_tagged_revisions(
    hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    last = ann.run(steps.train, str(folders[MLM]), str(run), MLM, steps=11, save_steps=5)
    ann.run(steps.push_unproved, str(run), "ann/steps", checkpoints=True)
    repo = hub.store.repos["models", "ann/steps"]
    assert commits(hub, "ann/steps")[:4] == [
        "Upload a ConvBertComposite model",
        "Upload a ConvBertComposite model, checkpoint-11",
        "Upload a ConvBertComposite model, checkpoint-10",
        "Upload a ConvBertComposite model, checkpoint-5",
    ]
    assert {ref for ref in repo.refs if "tags" in ref} == {f"refs/tags/checkpoint-{n}" for n in (5, 10, 11)}
    assert bob.run(steps.load_and_run, "ann/steps") == last
    middle = ann.run(steps.load_and_run, str(run / "checkpoint-5"))
    assert bob.run(steps.load_and_run, "ann/steps", revision="checkpoint-5") == middle
    # Those that are there already are not sent again.
    before = len(repo.commits)
    ann.run(steps.push_unproved, str(run), "ann/steps", checkpoints=True)
    assert len(repo.commits) == before


# Faults


def test_an_interrupted_download_leaves_nothing_and_succeeds_on_retry(
    hub: HubServer, bob: Client, ann: Client, folders: dict[str, Path]
) -> None:
    ann.run(steps.push_unproved, str(folders[MLM]), "ann/cut")
    hub.fail("GET", r"^/files/", times=50, cut=20_000)
    with pytest.raises(ClientError):
        bob.run(steps.load_and_run, "ann/cut")
    left = [name for name in bob.run(steps.cached_files) if "ann--cut" in name]
    assert not [name for name in left if "safetensors" in name or name.endswith(".incomplete")]
    hub.faults.clear()
    assert bob.run(steps.load_and_run, "ann/cut") == ann.run(steps.load_and_run, str(folders[MLM]))


def test_a_download_that_breaks_once_is_taken_up_again(
    hub: HubServer, bob: Client, ann: Client, folders: dict[str, Path]
) -> None:
    ann.run(steps.push_unproved, str(folders[MLM]), "ann/broken-once")
    fault = hub.fail("GET", r"^/files/", cut=20_000)
    expected = ann.run(steps.load_and_run, str(folders[MLM]))
    assert bob.run(steps.load_and_run, "ann/broken-once") == expected
    assert fault.times == 0


@pytest.mark.parametrize(
    ("method", "pattern", "fault"),
    [
        ("PUT", "^/upload/", {"status": 403}),
        ("POST", "/info/lfs/objects/batch", {"status": 400}),
        ("POST", "/commit/", {"status": 500}),
        ("POST", "/validate-yaml", {"status": 400}),
    ],
    ids=["file host", "batch", "commit", "card check"],
)
def test_a_failed_upload_changes_nothing_and_succeeds_on_retry(
    method: str,
    pattern: str,
    fault: dict[str, int],
    hub: HubServer,
    ann: Client,
    folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    source, repo = tmp_path / "changed", f"ann/failed{re.sub('[^a-z]', '', pattern)}"
    ann.run(steps.push_unproved, str(folders[MLM]), repo)
    before = files(hub, repo)
    ann.run(steps.resave, str(folders[MLM]), str(source), MLM, fault["status"] * 1e-5)
    hub.fail(method, pattern, **fault)
    with pytest.raises(ClientError):
        ann.run(steps.push_unproved, str(source), repo, tag="new")
    assert files(hub, repo) == before
    assert "refs/tags/new" not in hub.store.repos["models", repo].refs
    hub.faults.clear()
    ann.run(steps.push_unproved, str(source), repo, tag="new")
    assert files(hub, repo)["model.safetensors"] == (source / "model.safetensors").read_bytes()


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_waited_for(status: int, hub: HubServer, ann: Client, folders: dict[str, Path]) -> None:
    """The client itself waits for everything but the commit; there `push` does."""
    fault = hub.fail("POST", "/commit/", status=status)
    ann.run(steps.push_unproved, str(folders[MLM]), f"ann/busy-{status}")
    assert fault.times == 0
    assert "model.safetensors" in files(hub, f"ann/busy-{status}")


@newest_client
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_on_the_way_down(
    status: int, hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path]
) -> None:
    """The client waits after 429 and gives up after 503; then the next load succeeds."""
    repo = f"ann/busy-reading-{status}"
    ann.run(steps.push_unproved, str(folders[MLM]), repo)
    fault = hub.fail("GET", "/resolve/.*/config.json", status=status, headers={"Retry-After": "0"})
    if status == 503:
        with pytest.raises(ClientError, match="503"):
            bob.run(steps.load_and_run, repo)
    assert bob.run(steps.load_and_run, repo) == ann.run(steps.load_and_run, str(folders[MLM]))
    assert fault.times == 0


def test_a_slow_server_is_no_error(hub: HubServer, bob: Client, ann: Client, folders: dict[str, Path]) -> None:
    ann.run(steps.push_unproved, str(folders[MLM]), "ann/slow")
    hub.fail("GET", "^/files/", delay=0.5)
    assert bob.run(steps.load_and_run, "ann/slow") == ann.run(steps.load_and_run, str(folders[MLM]))


def test_large_files_in_parts(
    hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    hub.chunk_size = 30_000
    expected = ann.run(steps.resave, str(folders[MLM]), str(tmp_path / "parts"), MLM, 0.02)
    ann.run(steps.push_unproved, str(tmp_path / "parts"), "ann/parts")
    assert len(hub.requests("PUT", r"^/upload/\w+/\d+$")) >= 3
    assert bob.run(steps.load_and_run, "ann/parts") == expected


@pytest.mark.slow
@pytest.mark.ci
def test_an_upload_that_is_cut_for_good(hub: HubServer, ann: Client, folders: dict[str, Path], tmp_path: Path) -> None:
    """The client tries for about 25 seconds, then gives up; nothing has changed."""
    ann.run(steps.resave, str(folders[MLM]), str(tmp_path / "cut"), MLM, 0.03)
    hub.fail("PUT", "^/upload/", times=100, cut=10_000)
    with pytest.raises(ClientError):
        ann.run(steps.push_unproved, str(tmp_path / "cut"), "ann/cut-up")
    assert files(hub, "ann/cut-up") == {}
    hub.faults.clear()
    ann.run(steps.push_unproved, str(tmp_path / "cut"), "ann/cut-up")
    assert "model.safetensors" in files(hub, "ann/cut-up")


def test_first_loads_in_parallel(hub: HubServer, tmp_path: Path, published: str, folders: dict[str, Path]) -> None:
    """Eight processes at once fill the same empty cache."""
    crowd = Client(tmp_path, hub.endpoint, "bob-writes")
    try:
        answers = crowd.run(steps.load_in_parallel, published, str(folders["AutoModel"]), 8)
    finally:
        crowd.close()
    assert answers == ["loaded ConvBertCompositeModel"] * 8


# Trainer


@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_the_trainer_pushes_what_others_can_load(
    strategy: str, hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    repo = f"ann/trained-{strategy}"
    options = {"push_to_hub": True, "hub_model_id": repo, "hub_strategy": strategy, "save_steps": 1}
    expected = ann.run(steps.train, str(folders[MLM]), str(tmp_path / "run"), MLM, hub_always_push=True, **options)
    assert files(hub, repo).keys() > CODE
    assert bob.run(steps.load_and_run, repo) == expected
    repository = hub.store.repos["models", repo]
    loadable = [commit for commit in repository.history("main") if "model.safetensors" in commit.files]
    # Every state in between, too.
    assert all(commit.files.keys() > CODE for commit in loadable)
    inner = {"checkpoint": "last-checkpoint", "all_checkpoints": "checkpoint-1"}.get(strategy)
    if inner:
        folder = bob.run(steps.snapshot, repo)
        assert bob.run(steps.load_and_run, f"{folder}/{inner}").keys() == {"logits"}


def test_a_trainer_that_keeps_the_card(
    hub: HubServer, ann: Client, bob: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n\nMy words.\n\n## My findings\n\nMany.\n")
    options = {"push_to_hub": True, "hub_model_id": "ann/kept-card", "hub_strategy": "every_save", "save_steps": 1}
    expected = ann.run(steps.train, str(folders[MLM]), str(run), MLM, trainer="HubTrainer", **options)
    card = bob.run(steps.card_of, "ann/kept-card")
    assert card["data"]["license"] == "mit"
    assert {"convbert_composite", "generated_from_trainer"} <= set(card["data"]["tags"])
    assert card["text"].count("# Mine") == 1
    for part in ("My words.", "## My findings\n\nMany.", "## Attention", "### Training hyperparameters"):
        assert part in card["text"]
    assert "More information needed" not in card["text"]
    assert bob.run(steps.load_and_run, "ann/kept-card") == expected


# Code


def test_without_the_package_or_trust_there_is_a_clear_error(bob: Client, published: str) -> None:
    with pytest.raises(ClientError, match="trust_remote_code"):
        bob.run(steps.load_and_run, published, trust_remote_code=False)


def test_the_package_wins_over_the_code_of_a_repository(ann: Client, bob: Client, published: str) -> None:
    for trust in (True, False):
        module = ann.run(steps.class_module, published, trust_remote_code=trust)
        assert module == "modeling_convbert_composite.modeling_convbert_composite"
    assert bob.run(steps.class_module, published, trust_remote_code=True).startswith("transformers_modules.")


def test_weights_alone_with_code_elsewhere(
    hub: HubServer, ann: Client, bob: Client, published: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """A repository that names another's code loads; saved again, by whomever, it stands alone."""
    folder = tmp_path / "weights-only"
    folder.mkdir()
    config = json.loads((folders[MLM] / "config.json").read_text())
    config["auto_map"] = {name: f"{published}--{place}" for name, place in config["auto_map"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copyfile(folders[MLM] / "model.safetensors", folder / "model.safetensors")
    ann.run(steps.api, "create_repo", "ann/weights-only")
    ann.run(steps.api, "upload_folder", repo_id="ann/weights-only", folder_path=str(folder))
    with pytest.raises(ClientError, match="lacks"):
        ann.run(steps.push_unproved, str(folder), "ann/weights-only")
    for name, client in (("plugin", ann), ("remote", bob)):
        saved = tmp_path / name
        expected = client.run(steps.resave, "ann/weights-only", str(saved), MLM)
        assert "--" not in json.dumps(json.loads((saved / "config.json").read_text())["auto_map"])
        assert {file.name for file in saved.iterdir()} > CODE
        assert bob.run(steps.load_and_run, str(saved)) == expected
        client.run(steps.resave_config, "ann/weights-only", str(tmp_path / f"{name}-config"))
        alone = json.loads((tmp_path / f"{name}-config" / "config.json").read_text())["auto_map"]
        assert alone == {"AutoConfig": "configuration_convbert_composite.ConvBertCompositeConfig"}


# Datasets by name


def reviews_of(names: list[str], **splits: int) -> datasets.DatasetDict:
    """Reviews of so many rows a split, with classes of these names."""
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    made = {}
    for split, count in splits.items():
        rows = [{"text": f"the {split} cat {row}", "label": row % len(names)} for row in range(count)]
        made[split] = datasets.Dataset.from_list(rows, features=features)
    return datasets.DatasetDict(made)


# The names of the classes in an order that is not the alphabet's.
REVIEWS = reviews_of(["worst", "best"], train=20, validation=8, test=6)
STARS = reviews_of(["one", "two", "three"], train=12, dev=6)


@pytest.fixture(scope="module")
def reviews(ann: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset with two configurations, as Parquet."""
    folder = tmp_path_factory.mktemp("reviews")
    for config, rows in {"default": REVIEWS, "stars": STARS}.items():
        rows.save_to_disk(str(folder / config))
        ann.run(steps.push_dataset, str(folder / config), "ann/reviews", config_name=config)
    return "ann/reviews"


@pytest.fixture(scope="module")
def prose(ann: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of texts that is in `ann/prose`."""
    file = tmp_path_factory.mktemp("prose") / "train.jsonl"
    texts = [f"the cat sat on mat {row % 7}\na dog ran under the house {row % 5}" for row in range(60)]
    file.write_text("".join(json.dumps({"id": row, "text": text}) + "\n" for row, text in enumerate(texts)))
    upload(ann, "ann/prose", {file.name: file.read_text()})
    return file


def upload(client: Client, repo: str, contents: dict[str, str]) -> None:
    client.run(steps.api, "create_repo", repo, repo_type="dataset")
    for path, text in contents.items():
        options = {"path_or_fileobj": text.encode(), "path_in_repo": path, "repo_id": repo, "repo_type": "dataset"}
        client.run(steps.api, "upload_file", **options)


def test_a_dataset_repository_is_one_like_any_other(hub: HubServer, ann: Client) -> None:
    """What clients ask besides loading; a model of the same name is another repository."""
    here: dict[str, Any] = {"repo_id": "ann/twice", "repo_type": "dataset"}
    upload(ann, "ann/twice", {"a.csv": "text\nx\n", "deep/er/b.csv": "text\ny\n"})
    ann.run(steps.api, "create_repo", "ann/twice")
    info = ann.run(steps.api, "dataset_info", "ann/twice")
    assert [item["rfilename"] for item in info["siblings"]] == ["a.csv", "deep/er/b.csv"]
    assert ann.run(steps.api, "list_repo_files", "ann/twice") == []
    found = ann.run(steps.api, "get_paths_info", paths=["a.csv", "deep/er", "nothing"], **here)
    assert [entry["path"] for entry in found] == ["a.csv", "deep/er"]
    ann.run(steps.api, "move_repo", "ann/twice", "ann/moved", repo_type="dataset")
    assert ann.run(steps.api, "list_repo_files", "ann/moved", repo_type="dataset") == ["a.csv", "deep/er/b.csv"]
    ann.run(steps.api, "delete_repo", "ann/moved", repo_type="dataset")
    assert {kind for kind, name in hub.store.repos if name in ("ann/twice", "ann/moved")} == {"models"}


def finetuning(checkpoint: Path, output: Path, dataset: str, *more: str) -> list[str]:
    """The command for a step of fine-tuning."""
    flags = ["--model", str(checkpoint), "--output", str(output), "--dataset", dataset]
    return ["finetune", *flags, "--task", "text-classification", "--max-steps", "1", *more]


def pretraining(checkpoint: Path, output: Path, *more: str) -> list[str]:
    """The command for a step of pre-training."""
    flags = ["--architecture", "tiny", "--tokenizer", str(checkpoint), "--output", str(output)]
    small = ["--max-steps", "1", "--max-length", "16", "--batch-size", "4", "--validation-share", "0.1"]
    return ["pretrain", *flags, *small, *more]


def test_finetuning_on_a_dataset_by_name(
    hub: HubServer, ann: Client, reviews: str, checkpoint: Path, tmp_path: Path
) -> None:
    """Its splits are found under their usual names; results and card name the repository, not a place on this disk."""
    cases = {
        "default": (REVIEWS, {"train": "train", "validation": "validation", "test": "test"}, []),
        "stars": (STARS, {"train": "train", "validation": "dev"}, ["--dataset-config", "stars"]),
    }
    for config, (data, splits, flags) in cases.items():
        output, start = tmp_path / config, len(hub.log)
        code, _, error = ann.run(steps.run_command, *finetuning(checkpoint, output, reviews, *flags))
        assert (code, error) == (0, "")
        found = read_json(output / "results.json")
        assert found["labels"] == data["train"].features["label"].names
        assert (found["dataset"]["name"], found["dataset"]["hub_id"]) == (reviews, reviews)
        assert found["dataset"]["counts"] == {split: len(data[name]) for split, name in splits.items()}
        assert found["dataset"]["files"] == {split: f"{reviews} ({name})" for split, name in splits.items()}
        digests = {split: dataset_table("", data[name]).digest for split, name in splits.items()}
        assert found["dataset"]["fingerprint"] == digests
        card = huggingface_hub.ModelCard.load(output / "README.md")
        assert card.data.datasets == [reviews]
        assert {result.dataset_type for result in card.data.eval_results} == {reviews}
        assert f"train {digests['train'][:16]}, validation {digests['validation'][:16]}" in card.text
        # The other configuration is left where it is.
        sent = [entry.path for entry in hub.log[start:] if entry.path.endswith(".parquet")]
        assert sent and all(("/stars/" in path) == (config == "stars") for path in sent)


def test_glue_on_a_dataset_by_name(ann: Client, checkpoint: Path, tmp_path: Path) -> None:
    """A task is a configuration; labels of the test split are hidden, as where it is public."""
    label = datasets.ClassLabel(names=["not_equivalent", "equivalent"])
    features = datasets.Features(
        {"sentence1": datasets.Value("string"), "sentence2": datasets.Value("string"), "label": label}
    )
    splits = {}
    for split in ("train", "validation", "test"):
        labels = [-1] * 8 if split == "test" else [0, 1] * 4
        columns = {"sentence1": ["the cat"] * 8, "sentence2": [f"a dog {row}" for row in range(8)], "label": labels}
        splits[split] = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "data"))
    ann.run(steps.push_dataset, str(tmp_path / "data"), "ann/glue", config_name="mrpc")
    flags = ["--model", str(checkpoint), "--output", str(tmp_path / "out"), "--dataset", "ann/glue"]
    small = ["--tasks", "MRPC", "--seeds", "1", "--no-from-mnli", "--steps-scale", "0.001", "--largest-batch", "4"]
    code, out, error = ann.run(steps.run_command, "glue", *flags, *small)
    assert code == 0, error
    assert "MRPC" in out
    found = read_json(tmp_path / "out" / "MRPC" / "seed-1" / "results.json")["dataset"]
    assert (found["name"], found["hub_id"]) == ("GLUE MRPC", "ann/glue")
    assert found["counts"] == dict.fromkeys(("train", "validation", "test"), 8)


def test_a_private_dataset_by_name(hub: HubServer, ann: Client, checkpoint: Path, tmp_path: Path) -> None:
    """Strangers learn as little as of one that is not there; with the owner's token it is read."""
    REVIEWS.save_to_disk(str(tmp_path / "data"))
    ann.run(steps.push_dataset, str(tmp_path / "data"), "ann/own-reviews", private=True)
    assert hub.store.repos["datasets", "ann/own-reviews"].private
    command = finetuning(checkpoint, tmp_path / "out", "ann/own-reviews")
    for token in ("bob-writes", ""):
        code, _, error = ann.run(steps.run_command_as, token, *command)
        assert (code, error) == (1, no_dataset("ann/own-reviews"))
        assert not (tmp_path / "out").exists()
    code, _, error = ann.run(steps.run_command, *command)
    assert (code, error) == (0, "")
    assert not any(entry.authorized for entry in hub.log if entry.origin == "cdn")


def no_dataset(name: str) -> str:
    return f"Error: Dataset '{name}' doesn't exist on the Hub or cannot be accessed.\n"


BROKEN = {
    "ann/torn": {"train.jsonl": "{not json\n"},
    "ann/columns": {"train.csv": "words,mark\n" + "the cat,1\n" * 20},
    "ann/choice": {"README.md": "---\nconfigs:\n- {config_name: a, data_files: a.txt}\n- {config_name: b, data_files: "
                                "b.txt}\n---\n", "a.txt": "x\n", "b.txt": "y\n"},
}  # fmt: skip
# What is given with --dataset, and what is said to it.
REFUSED = {
    "no such dataset": (["ann/nothing"], re.escape(no_dataset("ann/nothing").removeprefix("Error: ").strip())),
    "no such configuration": (["ann/reviews", "--dataset-config", "moons"], r"'moons' not found.*'default', 'stars'"),
    "no configuration chosen": (["ann/choice"], r"ann/choice has several configurations, a, b: .*--dataset-config"),
    "rows that are none": (["ann/torn"], "ann/torn cannot be read: JSON parse error"),
    "a folder that is not there": (["./nothing"], r"There is no folder \./nothing\."),
}
REFUSED_BY = {
    "finetune": {
        "no such split": (["ann/reviews", "--train-split", "learn"], "'learn'; it has train, validation, test"),
        "no such column": (["ann/columns"], "which column is the label"),
    },
    "pretrain": {
        "no such split": (["ann/reviews", "--dataset-split", "learn"], '"learn".*train.*validation.*test'),
        "no such column": (["ann/columns"], "has no column 'text'; it has words, mark"),
        "no such dataset, stream": (["ann/nothing", "--streaming"], "doesn't exist on the Hub"),
        "no such split, stream": (["ann/reviews", "--dataset-split", "learn", "--streaming"], "learn.*train.*test"),
        "no such column, stream": (["ann/columns", "--streaming"], "has no column 'text'; it has words, mark"),
        "rows that are none, stream": (["ann/torn", "--streaming"], "JSON parse error"),
    },
}


@pytest.mark.parametrize("verb", REFUSED_BY)
def test_what_is_wrong_with_a_dataset_by_name_is_said_in_a_line(
    verb: str, hub: HubServer, ann: Client, reviews: str, checkpoint: Path, tmp_path: Path
) -> None:
    """Before any training, and without leaving a file."""
    for repo, contents in BROKEN.items():
        if ("datasets", repo) not in hub.store.repos:
            upload(ann, repo, contents)
    for what, ((dataset, *flags), message) in (REFUSED | REFUSED_BY[verb]).items():
        if verb == "finetune":
            command = finetuning(checkpoint, tmp_path / "out", dataset, *flags)
        else:
            command = pretraining(checkpoint, tmp_path / "out", "--dataset", dataset, *flags)
        code, _, error = ann.run(steps.run_command, *command)
        assert code == 1, what
        # Only bars stand above it.
        *above, line = error.splitlines()
        assert re.match(rf"Error: .*{message}", line), (what, error)
        assert "--debug" not in line
        assert all("Preparing: 0 examples" in text for text in above if text), error
        assert not list((tmp_path / "out").glob("*")), what


def test_pretraining_on_a_dataset_by_name(
    hub: HubServer, ann: Client, prose: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """Downloaded or as a stream: the examples that the file gives."""

    def run(name: str, *flags: str) -> tuple[list[Any], dict[str, Any]]:
        command = pretraining(checkpoint, tmp_path / name, *flags)
        code, _, error = ann.run(steps.run_command, *command)
        assert code == 0, error
        splits = [prepared.load(tmp_path / name / "data" / split).to_list() for split in prepared.SPLITS]
        return splits, read_json(tmp_path / name / "results.json")

    def downloads() -> list[str]:
        return [name for name in ann.run(steps.cached_files) if re.search(r"ann___prose.*\.arrow$", name)]

    streamed, stream_results = run("stream", "--dataset", "ann/prose", "--streaming")
    assert hub.requests("GET", "^/datasets/ann/prose/resolve/.*/train.jsonl$")
    assert not downloads()
    named, results = run("named", "--dataset", "ann/prose")
    assert downloads()
    of_file, _ = run("file", "--data", str(prose))
    assert all(len(split) > 1 for split in of_file)
    assert named == streamed == of_file
    for found in (stream_results, results):
        assert (found["dataset"]["name"], found["dataset"]["hub_id"]) == ("ann/prose", "ann/prose")
    for name in ("stream", "named"):
        assert huggingface_hub.ModelCard.load(tmp_path / name / "README.md").data.datasets == ["ann/prose"]
    assert huggingface_hub.ModelCard.load(tmp_path / "file" / "README.md").data.datasets is None
