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

import hub_steps as steps
import huggingface_hub
import pytest
from helpers import ALL_HEADS
from hub_client import Client, ClientError
from hub_server import HubServer, User

from modeling_convbert_composite.modeling_convbert_composite import AUTO_MODEL_CLASSES
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
