# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The models as transformers models: loading, tying, start values, outputs, masks, precision, training mode."""

import copy
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import transformers
from helpers import (
    ALL_HEADS,
    HEADS,
    LEAKING_OPTIONS,
    OPTIONS,
    Head,
    assert_outputs_close,
    assert_states_equal,
    persistent_tensors,
    random_ids,
    randomise,
    state_copy,
    text_batch,
    tiny_config,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

import modeling_convbert_composite
from modeling_convbert_composite import (
    ConvBertCompositeConfig,
    ConvBertCompositeForMaskedLM,
    ConvBertCompositeModel,
)
from modeling_convbert_composite.configuration import load_preset
from modeling_convbert_composite.modeling_convbert_composite import (
    AUTO_MODEL_CLASSES,
    ConvBertCompositeConvolution,
    ConvBertCompositeLayer,
)


WEIGHTS = "model.safetensors"
PACKAGE = Path(modeling_convbert_composite.__file__).parent
heads = pytest.mark.parametrize("head", ALL_HEADS, ids=lambda head: head.name)
options = pytest.mark.parametrize("option", OPTIONS)
mlm_heads = pytest.mark.parametrize("head", [HEADS["mlm"], HEADS["pretraining"]], ids=lambda head: head.name)
tied = pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
backends = pytest.mark.parametrize("backend", ["eager", "sdpa"])


def build(option: str = "composite", name: str = "mlm", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random tiny model with one of the OPTIONS."""
    return HEADS[name].build(seed, **(OPTIONS[option] | overrides))


def reload(model: PreTrainedModel, folder: Path, **kwargs: Any) -> PreTrainedModel:
    """Saved and loaded by its own class."""
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder, **kwargs)


def dirty_memory() -> None:
    """Leaves freed blocks of many sizes full of NaN, as an uninitialised tensor would find them."""
    blocks = [torch.full((size,), float("nan")) for size in (1, 4, 8, 28, 32, 64, 224, 256, 1024, 4096, 65536)]
    del blocks


def run_remote(script: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Runs a script in a process that cannot import the plugin and has a Hugging Face home of its own."""
    blocker = (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'modeling_convbert_composite':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "try:\n"
        "    import modeling_convbert_composite\n"
        "    raise SystemExit('the plugin could be imported')\n"
        "except ModuleNotFoundError:\n"
        "    pass\n"
    )
    path = folder / "remote_script.py"
    path.write_text(blocker + script, encoding="utf-8")
    environment = os.environ | {"HF_HOME": str(folder / "hf_home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    # `HF_MODULES_CACHE` and its like would win over `HF_HOME`.
    for name in ("HF_MODULES_CACHE", "HF_HUB_CACHE", "TRANSFORMERS_CACHE"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(path), *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@heads
def test_reload_is_bit_equal(head: Head, tmp_path: Path) -> None:
    model = head.build()
    before = state_copy(model)
    dirty_memory()
    assert_states_equal(state_copy(reload(model, tmp_path)), before)
    assert_states_equal(state_copy(getattr(transformers, head.auto_class).from_pretrained(tmp_path)), before)
    # Saving and loading leave the saved model itself alone.
    assert_states_equal(state_copy(model), before)


@options
@pytest.mark.parametrize("name", ["base", "mlm"])
def test_reload_is_bit_equal_with_every_option(option: str, name: str, tmp_path: Path) -> None:
    model = build(option, name)
    dirty_memory()
    loaded, info = type(model).from_pretrained(_saved(model, tmp_path), output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_states_equal(state_copy(loaded), state_copy(model))
    inputs = text_batch(model.config)
    assert_outputs_close(loaded(**inputs), model(**inputs), HEADS[name].logits, atol=0)


def _saved(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


REMOTE_SCRIPT = """
import json, pathlib
import torch, transformers
from safetensors.torch import load_file

torch.set_num_threads(1)
results = {}
for folder in sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if path.is_dir()):
    expected = load_file(folder / "expected" / "state.safetensors")
    case = load_file(folder / "expected" / "case.safetensors")
    auto_class = json.loads((folder / "expected" / "auto_class.json").read_text())
    blocks = [torch.full((size,), float("nan")) for size in (1, 4, 8, 28, 32, 64, 224, 256, 1024, 4096)]
    del blocks
    model, info = getattr(transformers, auto_class).from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    state = model.state_dict()
    model.eval()
    with torch.no_grad():
        output = model(**{k.removeprefix("input."): v for k, v in case.items() if k.startswith("input.")})
    results[folder.name] = {
        "module": type(model).__module__,
        "loading": {kind: len(info[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")},
        "names": sorted(state) == sorted(expected),
        "different": [n for n, t in expected.items() if n not in state or not torch.equal(state[n], t)],
        "outputs": {
            k.removeprefix("output."): (output[k.removeprefix("output.")] - v).abs().max().item()
            for k, v in case.items()
            if k.startswith("output.")
        },
    }
print(json.dumps(results))
"""


def test_remote_code_reload_is_bit_equal(tmp_path: Path) -> None:
    """Every head, and the options whose modules own special parameters, in a process without the plugin."""
    cases = [(head.name, head, {}) for head in ALL_HEADS]
    cases += [
        (option, HEADS["mlm"], OPTIONS[option])
        for option in (
            "skip_padding",
            "all_per_head",
            "depthwise",
            "depthwise_learned",
            "qk_separable_mixed",
            "value_convolution_mixed",
            "dynamic_span",
            "dynamic_convbert",
            "narrow_embeddings",
            "untied",
        )
    ]
    models = tmp_path / "models"
    for name, head, overrides in cases:
        model = head.build(**overrides)
        folder = models / name
        model.save_pretrained(folder)
        (folder / "expected").mkdir()
        save_file({k: v.clone() for k, v in model.state_dict().items()}, folder / "expected" / "state.safetensors")
        inputs = head.inputs(model.config)
        with torch.no_grad():
            output = model(**inputs)
        case = {f"input.{k}": v for k, v in inputs.items()}
        case |= {f"output.{k}": output[k].contiguous().clone() for k in head.logits}
        save_file(case, folder / "expected" / "case.safetensors")
        (folder / "expected" / "auto_class.json").write_text(json.dumps(head.auto_class))

    results = run_remote(REMOTE_SCRIPT, tmp_path, str(models))

    assert sorted(results) == sorted(name for name, *_ in cases)
    for name, result in results.items():
        assert result["module"].startswith("transformers_modules."), name
        assert not any(result["loading"].values()), (name, result["loading"])
        assert result["names"], name
        assert not result["different"], (name, result["different"])
        assert all(difference <= 1e-5 for difference in result["outputs"].values()), (name, result["outputs"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_buffers_after_loading(dtype: torch.dtype, tmp_path: Path) -> None:
    """The only buffers are saved ones, and they survive loading again and again in dirty memory."""
    folder = _saved(build("depthwise").to(dtype), tmp_path / "random")
    fresh = ConvBertCompositeForMaskedLM(tiny_config(depthwise_kernel=True)).to(dtype)
    fresh_folder = _saved(fresh, tmp_path / "fresh")
    saved = load_file(folder / WEIGHTS)
    for _ in range(20):
        dirty_memory()
        buffers = dict(ConvBertCompositeForMaskedLM.from_pretrained(folder, dtype=dtype).named_buffers())
        assert len(buffers) == 2
        assert_states_equal(buffers, {name: saved[name] for name in buffers})
        buffers = dict(ConvBertCompositeForMaskedLM.from_pretrained(fresh_folder, dtype=dtype).named_buffers())
        assert_states_equal(buffers, dict(fresh.named_buffers()))


def test_no_buffer_needs_rebuilding() -> None:
    """A non-persistent buffer would have to be refilled after loading: there are none, for any option."""
    for option in OPTIONS:
        for head in ALL_HEADS:
            with torch.device("meta"):
                model = head.model_class(head.config(**OPTIONS[option]))
            hidden = {name for name, _ in model.named_buffers()} - model.state_dict().keys()
            assert not hidden, (option, head.name)


@options
def test_meta_device(option: str) -> None:
    for head in ALL_HEADS:
        with torch.device("meta"):
            model = head.model_class(head.config(**OPTIONS[option]))
        real = [name for name, tensor in model.state_dict().items() if not tensor.is_meta]
        real += [f"{name}.{key}" for name, key, tensor in _attribute_tensors(model) if not tensor.is_meta]
        assert not real, (head.name, real)


def test_meta_device_of_presets() -> None:
    with torch.device("meta"):
        model = transformers.AutoModelForMaskedLM.from_config(load_preset("bert-base-qkv-convolution-composite"))
    assert all(tensor.is_meta for tensor in model.state_dict().values())


def _attribute_tensors(model: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Tensors that modules hold outside parameters and buffers, in attributes, lists, tuples and dicts."""

    def search(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | set) and depth < 4:
            for item in value:
                yield from search(item, depth + 1)
        elif isinstance(value, dict) and depth < 4:
            for item in value.values():
                yield from search(item, depth + 1)

    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules"):
                yield from ((name, key, tensor) for tensor in search(value))


def assert_start_value(name: str, tensor: torch.Tensor, model: PreTrainedModel) -> None:
    """The documented start values (`_init_weights`), read from the names alone."""
    config = model.config
    tensor = tensor.detach().float()
    kind = name.rsplit(".", 1)[-1]
    owner = model.get_submodule(name.rsplit(".", 1)[0])

    def is_uniform(bound: float) -> None:
        assert tensor.abs().max() <= bound * 1.001, name
        assert tensor.unique().numel() > tensor.numel() * 0.9, name
        if tensor.numel() >= 20:
            assert tensor.abs().max() > bound * 0.7, name
            assert tensor.std() == pytest.approx(bound / 3**0.5, rel=0.4), name

    if "LayerNorm" in name:
        assert torch.equal(tensor, torch.ones_like(tensor) if kind == "weight" else torch.zeros_like(tensor)), name
    elif kind == "fixed_kernel":
        assert not tensor.any(), name
    elif kind in ("query_kernel", "key_kernel"):
        is_uniform(config.kernel_size**-0.5)
    elif kind == "depthwise_scale":
        assert torch.equal(tensor, torch.ones_like(tensor)), name
    elif isinstance(owner, ConvBertCompositeConvolution):
        _, inputs, size = owner.weight.shape
        is_uniform((inputs * size) ** -0.5)
    elif kind == "bias":
        assert not tensor.any(), name
    else:
        assert isinstance(owner, nn.Linear | nn.Embedding), name
        assert tensor.abs().max() < 6 * config.initializer_range, name
        assert tensor.std() == pytest.approx(config.initializer_range, rel=0.4), name
        if isinstance(owner, nn.Embedding):
            # The padding row too: the paper's code does not zero it.
            assert (tensor.std(1) > config.initializer_range / 3).all(), name


@options
def test_start_values(option: str) -> None:
    for head in ALL_HEADS:
        model = head.model_class(head.config(**OPTIONS[option]))
        for name, tensor in persistent_tensors(model):
            assert_start_value(name, tensor, model)


def test_initializer_range_is_used() -> None:
    model = ConvBertCompositeForMaskedLM(tiny_config(initializer_range=0.5))
    for name, tensor in persistent_tensors(model):
        assert_start_value(name, tensor, model)


@options
def test_missing_tensors_get_start_values(option: str, tmp_path: Path) -> None:
    """A third of the tensors taken away in turn, so that every module has loaded and missing ones together."""
    model = build(option)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / WEIGHTS)
    names = sorted(saved)
    for offset in range(3):
        missing = set(names[offset::3])
        save_file({k: v for k, v in saved.items() if k not in missing}, tmp_path / WEIGHTS, {"format": "pt"})
        dirty_memory()
        loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
        # A tied decoder is not in the file; it is missing only together with the embeddings that it is tied to.
        assert set(info["missing_keys"]) - set(loaded.all_tied_weights_keys) == missing
        for name, tensor in persistent_tensors(loaded):
            assert torch.isfinite(tensor).all(), name
            if name in missing:
                assert_start_value(name, tensor, loaded)
            else:
                assert torch.equal(tensor, saved[name]), name


def test_a_kernel_a_table_and_a_bias_missing(tmp_path: Path) -> None:
    """On one layer; the other layer keeps its own."""
    model = build("value_separable_depthwise")
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / WEIGHTS)
    attention = "convbert_composite.encoder.layer.1.attention"
    missing = {
        f"{attention}.self.value.depthwise.weight",
        f"{attention}.self.query_kernel",
        f"{attention}.output.dense.bias",
        f"{attention}.self.depthwise_scale",
    }
    save_file({k: v for k, v in saved.items() if k not in missing}, tmp_path / WEIGHTS, {"format": "pt"})
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == missing
    state = loaded.state_dict()
    for name in missing:
        assert_start_value(name, state[name], loaded)
    assert_states_equal(
        {k: state[k] for k in saved if k not in missing}, {k: saved[k] for k in saved if k not in missing}
    )


@pytest.mark.parametrize("pooler", [True, False], ids=["pooler", "no_pooler"])
@heads
def test_bare_encoder_into_every_head(head: Head, pooler: bool, tmp_path: Path) -> None:
    base = randomise(ConvBertCompositeModel(tiny_config(depthwise_kernel=True), add_pooling_layer=pooler))
    base.save_pretrained(tmp_path)
    loaded, info = head.model_class.from_pretrained(tmp_path, output_loading_info=True)
    saved = state_copy(base)
    prefix = "" if head.name == "base" else "convbert_composite."
    has_pooler = head.name in ("base", "pretraining", "sequence", "choice")
    own = {name for name in loaded.state_dict() if name.removeprefix(prefix) not in saved}
    own -= set(loaded.all_tied_weights_keys)
    assert set(info["missing_keys"]) == own
    assert bool(info["unexpected_keys"]) == (pooler and not has_pooler)
    for name, tensor in persistent_tensors(loaded):
        if name in own:
            assert_start_value(name, tensor, loaded)
        else:
            assert torch.equal(tensor, saved[name.removeprefix(prefix)]), name


@heads
def test_every_head_into_the_bare_encoder(head: Head, tmp_path: Path) -> None:
    model = head.build()
    model.save_pretrained(tmp_path)
    loaded = ConvBertCompositeModel.from_pretrained(tmp_path)
    prefix = "" if head.name == "base" else "convbert_composite."
    saved = state_copy(model)
    for name, tensor in loaded.state_dict().items():
        if prefix + name in saved:
            assert torch.equal(tensor, saved[prefix + name]), name
        else:
            assert name.startswith("pooler."), name
            assert_start_value(name, tensor, loaded)


@pytest.mark.parametrize("name", ["sequence", "token"])
def test_mismatched_classifier(name: str, tmp_path: Path) -> None:
    """Two labels saved, five loaded."""
    head = HEADS[name]
    model = head.build(num_labels=2)
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        head.model_class.from_pretrained(tmp_path, num_labels=5)
    dirty_memory()
    loaded, info = head.model_class.from_pretrained(
        tmp_path, num_labels=5, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert {key[0] for key in info["mismatched_keys"]} == {"classifier.weight", "classifier.bias"}
    for key in ("classifier.weight", "classifier.bias"):
        assert_start_value(key, loaded.state_dict()[key], loaded)
    rest = {k: v for k, v in state_copy(model).items() if not k.startswith("classifier")}
    assert_states_equal({k: v for k, v in state_copy(loaded).items() if k in rest}, rest)
    optimizer = torch.optim.SGD(loaded.train().parameters(), lr=0.01)
    inputs, labels = head.inputs(loaded.config), head.labels(loaded.config)
    for _ in range(3):
        loss = loaded(**inputs, **labels).loss
        assert torch.isfinite(loss) and loss > 0
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@tied
@mlm_heads
def test_tying(head: Head, tie: bool, tmp_path: Path) -> None:
    """What is stored, and what shares storage after loading and after a step."""
    model = head.build(tie_word_embeddings=tie)
    inputs, labels = head.inputs(model.config), head.labels(model.config)
    expected = model(**inputs)
    loaded = reload(model, tmp_path)
    stored = load_file(tmp_path / WEIGHTS).keys()
    words = "convbert_composite.embeddings.word_embeddings.weight"
    assert words in stored
    assert ("mlm_head.decoder.weight" in stored) == (not tie)
    assert "mlm_head.decoder.bias" in stored
    assert stored == {name for name, _ in persistent_tensors(model)}

    def is_shared(model: PreTrainedModel) -> bool:
        return model.get_input_embeddings().weight is model.get_output_embeddings().weight

    assert is_shared(loaded) == tie
    assert torch.equal(loaded.get_output_embeddings().weight, model.get_output_embeddings().weight)
    assert_outputs_close(loaded.eval()(**inputs), expected, head.logits, atol=0)
    loaded.train()(**inputs, **labels).loss.backward()
    torch.optim.SGD(loaded.parameters(), lr=0.1).step()
    assert is_shared(loaded) == tie
    assert torch.equal(loaded.get_input_embeddings().weight, loaded.get_output_embeddings().weight) == tie


def test_untied_checkpoint_keeps_its_decoder(tmp_path: Path) -> None:
    """An untied file opened with tying on: the config decides, and a fresh save holds what the model computes with."""
    model = build("untied")
    model.save_pretrained(tmp_path / "untied")
    loaded = type(model).from_pretrained(tmp_path / "untied", tie_word_embeddings=False)
    assert torch.equal(loaded.mlm_head.decoder.weight, model.mlm_head.decoder.weight)
    assert not torch.equal(loaded.mlm_head.decoder.weight, loaded.get_input_embeddings().weight)


@mlm_heads
def test_a_decoder_untied_by_hand_is_saved(head: Head, tmp_path: Path) -> None:
    """R09: what does not share storage is in the file, whatever the config says; nothing is dropped in silence."""
    model = head.build()
    decoder = model.get_output_embeddings()
    decoder.weight = nn.Parameter(decoder.weight.detach() + 1)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / WEIGHTS)
    assert "mlm_head.decoder.weight" in saved
    assert torch.equal(saved["mlm_head.decoder.weight"], decoder.weight)


@tied
@mlm_heads
def test_resizing_the_vocabulary(head: Head, tie: bool, tmp_path: Path) -> None:
    """+7, then -3."""
    model = head.build(tie_word_embeddings=tie)
    old = state_copy(model)
    vocabulary = model.config.vocab_size
    for step, size in enumerate((vocabulary + 7, vocabulary + 4)):
        model.resize_token_embeddings(size)
        kept = min(size, vocabulary)
        assert model.config.vocab_size == size
        decoder = model.get_output_embeddings()
        words = model.get_input_embeddings().weight
        assert decoder.out_features == words.shape[0] == decoder.weight.shape[0] == decoder.bias.shape[0] == size
        assert torch.equal(words[:kept], old["convbert_composite.embeddings.word_embeddings.weight"][:kept])
        assert torch.equal(decoder.weight[:kept], old["mlm_head.decoder.weight"][:kept])
        assert torch.equal(decoder.bias[:kept], old["mlm_head.decoder.bias"][:kept])
        assert (decoder.weight is words) == tie
        assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
        inputs, labels = head.inputs(model.config), head.labels(model.config)
        inputs["input_ids"][0, 2] = size - 1
        output = model(**inputs, **labels)
        assert output[head.logits[0]].shape[-1] == size
        output.loss.backward()
        # The graph remembers the shapes of this size.
        del output
        model.zero_grad()
        loaded = reload(model, tmp_path / str(step))
        assert_states_equal(state_copy(loaded), state_copy(model))
        assert (loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight) == tie
        assert_outputs_close(loaded(**inputs), model(**inputs), head.logits, atol=0)


@heads
def test_resizing_every_head(head: Head) -> None:
    model = head.build()
    old = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(107)
    assert model.config.vocab_size == 107
    assert torch.equal(model.get_input_embeddings().weight[:100], old)
    model(**head.inputs(model.config))


@options
def test_safetensors_content(option: str, tmp_path: Path) -> None:
    for name in ("base", "pretraining"):
        model = build(option, name)
        folder = tmp_path / name
        model.save_pretrained(folder)
        files = {path.name for path in folder.iterdir()}
        code = {path.name for path in PACKAGE.glob("*_convbert_composite.py")}
        assert len(code) >= 4
        assert files == {"config.json", WEIGHTS, *code}
        with safe_open(folder / WEIGHTS, "pt") as file:
            keys = set(file.keys())
            assert {file.get_slice(key).get_dtype() for key in keys} == {"F32"}
        assert keys == {name for name, _ in persistent_tensors(model)}
        assert not any("position_ids" in key or "slots" in key for key in keys)
        assert all(tensor.is_contiguous() for tensor in model.state_dict().values())


def test_config_names_every_head(tmp_path: Path) -> None:
    for head in ALL_HEADS:
        head.build().save_pretrained(tmp_path / head.name)
        config = json.loads((tmp_path / head.name / "config.json").read_text())
        assert config["auto_map"].keys() == {"AutoConfig", *AUTO_MODEL_CLASSES}
        assert config["architectures"] == [head.model_class.__name__]
        assert config["model_type"] == "convbert_composite"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("option", ["composite", "depthwise", "qkv_separable", "dynamic_span"])
def test_loading_in_another_dtype(option: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = build(option)
    model.save_pretrained(tmp_path / "full")
    cast = {name: tensor.to(dtype) for name, tensor in state_copy(model).items()}
    low = type(model).from_pretrained(tmp_path / "full", dtype=dtype)
    assert_states_equal(state_copy(low), cast)
    low.save_pretrained(tmp_path / "low")
    assert json.loads((tmp_path / "low" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert_states_equal(state_copy(type(model).from_pretrained(tmp_path / "low", dtype="auto")), cast)
    back = type(model).from_pretrained(tmp_path / "low", dtype=torch.float32)
    assert_states_equal(state_copy(back), {name: tensor.float() for name, tensor in cast.items()})


@pytest.mark.parametrize(
    "kwargs",
    [{"low_cpu_mem_usage": True}, {"device_map": "cpu"}, {"device_map": {"": "cpu"}, "dtype": torch.bfloat16}],
    ids=str,
)
@pytest.mark.parametrize("option", ["composite", "depthwise", "dynamic_convbert"])
def test_ways_of_loading(option: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    model = build(option)
    loaded = reload(model, tmp_path, **kwargs)
    dtype = kwargs.get("dtype", torch.float32)
    assert_states_equal(state_copy(loaded), {name: tensor.to(dtype) for name, tensor in state_copy(model).items()})
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert not any(tensor.is_meta for tensor in loaded.state_dict().values())


@heads
def test_auto_classes(head: Head, tmp_path: Path) -> None:
    auto_class = getattr(transformers, head.auto_class)
    assert type(auto_class.from_config(head.config())) is head.model_class
    head.build().save_pretrained(tmp_path)
    assert type(auto_class.from_pretrained(tmp_path)) is head.model_class
    assert type(transformers.AutoConfig.from_pretrained(tmp_path)) is ConvBertCompositeConfig


def test_copy_and_pickle_of_a_model() -> None:
    model = build("dynamic_span")
    inputs = text_batch(model.config)
    assert torch.equal(copy.deepcopy(model)(**inputs).logits, model(**inputs).logits)


@heads
def test_tuple_and_dict_outputs(head: Head) -> None:
    model = head.build()
    model.set_attn_implementation("eager")
    arguments = head.inputs(model.config) | head.labels(model.config)
    for extra in ({}, {"output_hidden_states": True, "output_attentions": True}):
        as_dict = model(**arguments, **extra)
        as_tuple = model(**arguments, **extra, return_dict=False)
        assert isinstance(as_tuple, tuple)
        flat = list(_flatten(as_tuple))
        assert len(flat) == len(list(_flatten(as_dict.to_tuple())))
        assert all(torch.equal(one, other) for one, other in zip(flat, _flatten(as_dict.to_tuple()), strict=True))
        expected = ["loss"] * bool(head.labels(model.config)) + list(head.logits)
        assert list(as_dict.keys()) == expected + (["hidden_states", "attentions"] if extra else [])
    model.config.return_dict = False
    assert isinstance(model(**arguments), tuple)


def _flatten(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in value:
            yield from _flatten(item)


@heads
def test_output_shapes(head: Head) -> None:
    model = head.build()
    batch, length, choices = 3, 11, 2
    output = model(**head.inputs(model.config, batch, length))
    shapes = {
        "base": {"last_hidden_state": (batch, length, 32), "pooler_output": (batch, 32)},
        "mlm": {"logits": (batch, length, 100)},
        "pretraining": {"prediction_logits": (batch, length, 100), "seq_relationship_logits": (batch, 2)},
        "sequence": {"logits": (batch, 3)},
        "token": {"logits": (batch, length, 3)},
        "answer": {"start_logits": (batch, length), "end_logits": (batch, length)},
        "choice": {"logits": (batch, choices)},
    }[head.name]
    assert {name: tuple(output[name].shape) for name in head.logits} == shapes
    assert output.get("loss") is None


def test_no_pooling_layer() -> None:
    model = randomise(ConvBertCompositeModel(tiny_config(), add_pooling_layer=False))
    output = model(**text_batch(model.config))
    assert output.pooler_output is None
    assert not any(name.startswith("pooler") for name in model.state_dict())


@heads
def test_inputs_embeds(head: Head) -> None:
    for option in ("composite", "narrow_embeddings", "absolute"):
        model = head.build(**OPTIONS[option])
        inputs = head.inputs(model.config)
        expected = model(**inputs)
        embeds = model.get_input_embeddings()(inputs["input_ids"])
        rest = {name: tensor for name, tensor in inputs.items() if name != "input_ids"}
        assert_outputs_close(model(**rest, inputs_embeds=embeds), expected, head.logits, atol=1e-6)
        for wrong in (rest, {**inputs, "inputs_embeds": embeds}):
            with pytest.raises(ValueError, match="Pass exactly one of `input_ids` and `inputs_embeds`"):
                model(**wrong)


@heads
def test_absent_inputs_mean_zeros_and_ones(head: Head) -> None:
    model = head.build()
    inputs = head.inputs(model.config, padded=False)
    ids = inputs["input_ids"]
    explicit = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    assert_outputs_close(model(input_ids=ids), model(**explicit), head.logits, atol=1e-6)


@pytest.mark.parametrize("option", ["composite", "depthwise", "dynamic_span", "dynamic_convbert", "window"])
@heads
def test_hidden_states_and_attentions(head: Head, option: str) -> None:
    model = head.build(**OPTIONS[option])
    inputs = head.inputs(model.config)
    rows = inputs["input_ids"].numel() // 11
    flags = {"output_hidden_states": True, "output_attentions": True}
    model.set_attn_implementation("eager")
    output = model(**inputs, **flags)
    assert [tuple(states.shape) for states in output.hidden_states] == [(rows, 11, 32)] * 3
    assert [tuple(weights.shape) for weights in output.attentions] == [(rows, 4, 11, 11)] * 2
    score_heads = model.config.num_score_heads
    for weights in output.attentions:
        torch.testing.assert_close(
            weights[:, :score_heads].sum(-1), torch.ones(rows, score_heads, 11), atol=1e-5, rtol=0
        )
        is_padding = inputs["attention_mask"].flatten(0, -2) == 0
        looks_at_padding = weights[:, :score_heads].amax((1, 2))[is_padding]
        assert looks_at_padding.max() == 0
    model.set_attn_implementation("sdpa")
    with_sdpa = model(**inputs, **flags)
    assert not [weights for weights in with_sdpa.attentions or () if weights is not None]
    for one, other in zip(with_sdpa.hidden_states, output.hidden_states, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert model(**inputs).hidden_states is None and model(**inputs).attentions is None


def test_hidden_states_are_what_they_say() -> None:
    """The first enters layer 0 (after the projection), the last is the output, each follows from the one before."""
    model = build("narrow_embeddings", "base")
    inputs = text_batch(model.config, padded=False)
    states = model(**inputs, output_hidden_states=True).hidden_states
    torch.testing.assert_close(
        states[0], model.embeddings(inputs["input_ids"], inputs["token_type_ids"], None, None), atol=0, rtol=0
    )
    for layer, before, after in zip(model.encoder.layer, states, states[1:], strict=False):
        torch.testing.assert_close(layer(before, None, None), after, atol=1e-6, rtol=1e-6)
    assert torch.equal(states[-1], model(**inputs).last_hidden_state)


@heads
@pytest.mark.parametrize(
    "name", ["head_mask", "encoder_hidden_states", "encoder_attention_mask", "past_key_values", "cache"]
)
def test_refused_arguments(head: Head, name: str) -> None:
    model = head.build()
    with pytest.raises(ValueError, match=f"`{name}` is not supported: .+"):
        model(**head.inputs(model.config), **{name: torch.ones(2, 4)})
    # As callers that always name it pass it.
    model(**head.inputs(model.config), **{name: None})


@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2"])
def test_flash_attention_is_refused(name: str, tmp_path: Path) -> None:
    reason = "flash attention kernels take no additive bias"
    folder = _saved(build(), tmp_path)
    with pytest.raises(ValueError, match=reason):
        ConvBertCompositeForMaskedLM.from_pretrained(folder, attn_implementation=name)
    with pytest.raises(ValueError, match=reason):
        transformers.AutoModel.from_config(tiny_config(), attn_implementation=name)
    model = build()
    with pytest.raises(ValueError, match=reason):
        model.set_attn_implementation(name)
    assert model.config._attn_implementation == "sdpa"


@heads
@options
def test_backends_agree_and_switch(head: Head, option: str) -> None:
    model = head.build(**OPTIONS[option])
    assert model.config._attn_implementation == "sdpa"
    inputs = head.inputs(model.config)
    real = inputs["attention_mask"].bool() if head.name in ("mlm", "token", "base") else None
    with torch.no_grad():
        outputs = {}
        for backend in ("sdpa", "eager"):
            model.set_attn_implementation(backend)
            assert model.base_model.encoder.layer[1].attention.self.config._attn_implementation == backend
            outputs[backend] = model(**inputs)
    for name in head.logits:
        one, other = outputs["sdpa"][name], outputs["eager"][name]
        if real is not None and one.shape[:2] == real.shape:
            one, other = one[real], other[real]
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


def test_choosing_the_backend_on_loading(tmp_path: Path) -> None:
    folder = _saved(build(), tmp_path)
    for backend in ("eager", "sdpa"):
        loaded = ConvBertCompositeForMaskedLM.from_pretrained(folder, attn_implementation=backend)
        assert loaded.config._attn_implementation == backend
    assert "attn_implementation" not in (folder / "config.json").read_text()


@backends
@pytest.mark.parametrize("option", [name for name in OPTIONS if name not in LEAKING_OPTIONS])
def test_padding_does_not_leak(option: str, backend: str) -> None:
    """One text alone against the same text padded on the right, padding ids random, in train mode too."""
    length = 9
    # Room for the padding: positions are looked up at padded places as well.
    model = build(option, "base", max_position_embeddings=80)
    model.set_attn_implementation(backend)
    config = model.config
    ids = random_ids(config, (1, length))
    types = torch.zeros_like(ids)
    if config.type_vocab_size > 1:
        types[:, 4:] = 1
    for is_training in (False, True):
        model.train(is_training)
        with torch.no_grad():
            alone = model(input_ids=ids, token_type_ids=types)
            masked = model(input_ids=ids, token_type_ids=types, attention_mask=torch.ones_like(ids))
            torch.testing.assert_close(masked.last_hidden_state, alone.last_hidden_state, atol=1e-5, rtol=0)
            for padding in (1, 7, 64):
                if config.position_ids_rule == "skip_padding":
                    # The rule reads the ids: only the padding id itself is skipped.
                    extra = torch.full((1, padding), config.pad_token_id)
                else:
                    extra = random_ids(config, (1, padding), seed=padding)
                padded = model(
                    input_ids=torch.cat([ids, extra], 1),
                    token_type_ids=torch.cat([types, torch.zeros_like(extra)], 1),
                    attention_mask=torch.cat([torch.ones_like(ids), torch.zeros_like(extra)], 1),
                )
                torch.testing.assert_close(
                    padded.last_hidden_state[:, :length], alone.last_hidden_state, atol=1e-5, rtol=0
                )
                torch.testing.assert_close(padded.pooler_output, alone.pooler_output, atol=1e-5, rtol=0)


@backends
@pytest.mark.parametrize("option", [name for name in OPTIONS if name not in LEAKING_OPTIONS | {"absolute"}])
def test_left_padding_does_not_leak(option: str, backend: str) -> None:
    """
    With relative positions, or positions that skip padding, the side of the padding is free; an absolute table with
    sequential ids counts padding on the left, as BERT does.
    """
    model = build(option, "base", max_position_embeddings=80)
    model.set_attn_implementation(backend)
    ids = random_ids(model.config, (1, 9))
    extra = torch.full((1, 8), model.config.pad_token_id)
    mask = torch.cat([torch.zeros_like(extra), torch.ones_like(ids)], 1)
    with torch.no_grad():
        alone = model(input_ids=ids).last_hidden_state
        padded = model(input_ids=torch.cat([extra, ids], 1), attention_mask=mask).last_hidden_state
    torch.testing.assert_close(padded[:, 8:], alone, atol=1e-5, rtol=0)


def _masks(mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """A 2-D mask (1 = token) in every form that means the same."""
    length = mask.shape[1]
    cubes = {"3d": mask[:, None].expand(-1, length, -1), "4d": mask[:, None, None].expand(-1, -1, length, -1)}
    forms = {"2d": mask, "4d_row": mask[:, None, None], **cubes}
    masks = {
        f"{form}_{dtype}": tensor.to(dtype)
        for form, tensor in forms.items()
        for dtype in (torch.bool, torch.int64, torch.uint8, torch.float32, torch.bfloat16)
    }
    for lowest in (float("-inf"), torch.finfo(torch.float32).min, torch.finfo(torch.float16).min, -10000.0):
        for form in ("3d", "4d", "4d_row"):
            zeros = torch.zeros(forms[form].shape)
            masks[f"{form}_additive_{lowest}"] = zeros.masked_fill(forms[form] == 0, lowest)
    return masks


@backends
@options
def test_masks_of_every_form_mean_the_same(option: str, backend: str) -> None:
    """2, 3 and 4 dimensions; bool, integer, float, additive."""
    model = build(option)
    model.set_attn_implementation(backend)
    inputs = text_batch(model.config)
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = model(**inputs).logits[real]
        for form, mask in _masks(inputs["attention_mask"]).items():
            actual = model(**(inputs | {"attention_mask": mask})).logits[real]
            torch.testing.assert_close(
                actual, expected, atol=1e-5, rtol=1e-5, msg=lambda text, form=form: f"{form}: {text}"
            )
        everywhere = {"attention_mask": torch.ones_like(inputs["attention_mask"])}
        expected = model(input_ids=inputs["input_ids"]).logits
        for form, mask in _masks(everywhere["attention_mask"]).items():
            actual = model(input_ids=inputs["input_ids"], attention_mask=mask).logits
            torch.testing.assert_close(
                actual, expected, atol=1e-5, rtol=1e-5, msg=lambda text, form=form: f"{form}: {text}"
            )


@backends
@pytest.mark.parametrize("option", ["composite", "no_positions", "window", "depthwise", "dynamic_span"])
def test_a_mask_per_head(option: str, backend: str) -> None:
    """One that is the same for every head changes nothing; where heads have no use for it, a clear error."""
    model = build(option)
    model.set_attn_implementation(backend)
    inputs = text_batch(model.config)
    expected = model(**inputs).logits
    mask = inputs["attention_mask"][:, None, None].bool().expand(-1, model.config.num_attention_heads, 11, -1)
    try:
        actual = model(**(inputs | {"attention_mask": mask})).logits
    except ValueError as error:
        assert "attention_mask" in str(error) and model.config.dynamic_convolution_heads
    else:
        real = inputs["attention_mask"].bool()
        torch.testing.assert_close(actual[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "shape",
    [
        (3, 10),
        (2, 11),
        (11,),
        (3, 1, 11),
        (3, 11, 10),
        (3, 1, 10, 11),
        (2, 1, 11, 11),
        (3, 3, 11, 11),
        (3, 1, 1, 11, 11),
    ],
    ids=str,
)
def test_masks_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    model = build()
    with pytest.raises(ValueError, match=r"`attention_mask` must have one of the shapes \(3, 11\), .* got"):
        model(input_ids=text_batch(model.config)["input_ids"], attention_mask=torch.ones(shape))


@backends
@options
def test_packed_texts(option: str, backend: str) -> None:
    """Two texts in one row with a block mask equal the two alone, or a model with convolutions refuses."""
    model = build(option)
    model.set_attn_implementation(backend)
    first, second = random_ids(model.config, (1, 6)), random_ids(model.config, (1, 9), seed=1)
    owner = torch.tensor([0] * 6 + [1] * 9)
    packed = {
        "input_ids": torch.cat([first, second], 1),
        "attention_mask": (owner[:, None] == owner[None, :])[None, None],
    }
    if model.config.has_convolution:
        with pytest.raises(ValueError, match="hides tokens from each other"):
            model(**packed)
        return
    if model.config.position_embedding_type == "absolute":
        start = model.config.pad_token_id + 1 if model.config.position_ids_rule == "skip_padding" else 0
        packed["position_ids"] = torch.cat([torch.arange(6), torch.arange(9)])[None] + start
    with torch.no_grad():
        logits = model(**packed).logits
        torch.testing.assert_close(logits[:, :6], model(input_ids=first).logits, atol=3e-5, rtol=1e-5)
        torch.testing.assert_close(logits[:, 6:], model(input_ids=second).logits, atol=3e-5, rtol=1e-5)


@backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@options
def test_a_row_without_tokens_stays_finite(option: str, dtype: torch.dtype, backend: str) -> None:
    """Outputs, loss and gradients finite, the other rows unchanged."""
    model = randomise(build(option), scale=0.2).to(dtype)
    model.set_attn_implementation(backend)
    inputs = text_batch(model.config)
    labels = HEADS["mlm"].labels(model.config)["labels"]
    inputs["attention_mask"][1] = 0
    output = model(**inputs, labels=labels)
    assert torch.isfinite(output.logits).all() and torch.isfinite(output.loss)
    output.loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
    # In float32 only: batched matrix products of another size round differently.
    if dtype == torch.float32:
        for row in (0, 2):
            real = inputs["attention_mask"][row].bool()
            alone = model(**{name: tensor[row : row + 1] for name, tensor in inputs.items()})
            torch.testing.assert_close(output.logits[row][real], alone.logits[0][real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("option", [name for name in OPTIONS if "absolute" not in str(OPTIONS[name])])
def test_any_length(option: str) -> None:
    """Without a table `max_position_embeddings` is no limit, and one token is enough."""
    model = build(option, "mlm")
    longest = model.config.max_position_embeddings
    for backend in ("sdpa", "eager"):
        model.set_attn_implementation(backend)
        with torch.no_grad():
            for length in (1, 2, 3, longest, longest + 1, 2 * longest):
                output = model(**text_batch(model.config, 2, length, padded=length > 3))
                assert output.logits.shape == (2, length, 100)
                assert torch.isfinite(output.logits).all()


def test_long_texts_equal_a_loop() -> None:
    """The formula of composite attention, pair by pair, at twice the configured maximum."""
    config = tiny_config(num_hidden_layers=1)
    model = randomise(ConvBertCompositeModel(config)).eval()
    attention = model.encoder.layer[0].attention.self
    length, half, heads, size = 2 * config.max_position_embeddings, 3, 4, 8
    states = torch.randn(1, length, 32)
    with torch.no_grad():
        actual = attention(states)[0][0]
        query, key, value = (
            getattr(attention, name)(states)[0].double().view(length, heads, size)
            for name in ("query", "key", "value")
        )
        table, bias = attention.query_kernel.double(), attention.fixed_kernel.double()
        for head in range(heads):
            for i in (0, 1, 5, 41, length - 1):
                scores = torch.stack(
                    [
                        (query[i, head] @ (key[j, head] + table[:, slot])) / size**0.5 + bias[head, slot]
                        for j in range(length)
                        for slot in [max(-half, min(half, j - i)) + half]
                    ]
                )
                expected = scores.softmax(0) @ value[:, head]
                torch.testing.assert_close(
                    actual[i, head * size : (head + 1) * size].double(), expected, atol=1e-5, rtol=0
                )


@heads
def test_a_position_table_is_a_limit(head: Head) -> None:
    model = head.build(**OPTIONS["absolute"])
    model(**head.inputs(model.config, 2, 40))
    with pytest.raises(ValueError, match=r"An input of 41 tokens .*`max_position_embeddings=40` allows 40"):
        model(**head.inputs(model.config, 2, 41))
    embeds = torch.zeros(1, 41, 32)
    with pytest.raises(ValueError, match=r"An input of 41 tokens .* allows 40"):
        model(inputs_embeds=embeds[:, None] if head.name == "choice" else embeds)


def test_position_ids_choose_rows_of_the_table() -> None:
    model = build("absolute", "base")
    ids = random_ids(model.config, (2, 5))
    default = model(input_ids=ids).last_hidden_state
    given = model(input_ids=ids, position_ids=torch.arange(5)[None]).last_hidden_state
    shifted = model(input_ids=ids, position_ids=torch.arange(5)[None] + 3).last_hidden_state
    assert torch.equal(default, given)
    assert (default - shifted).abs().max() > 0.01
    relative = build("composite", "base")
    assert torch.equal(
        relative(input_ids=ids).last_hidden_state,
        relative(input_ids=ids, position_ids=torch.arange(5)[None] + 3).last_hidden_state,
    )


def test_skip_padding_rule() -> None:
    """As RoBERTa counts: tokens from pad id + 1, padding gets the pad id, and so much shorter is the table."""
    model = build("skip_padding", "base")
    config = model.config
    pad, limit = config.pad_token_id, config.max_position_embeddings - config.pad_token_id - 1
    ids = random_ids(config, (2, 6))
    ids[0, 4:] = pad
    ids[1, :2] = pad
    rows = model.embeddings.make_position_ids(ids, torch.zeros(2, 6, 32))
    assert rows.tolist() == [[2, 3, 4, 5, 1, 1], [1, 1, 2, 3, 4, 5]]
    assert model.embeddings.make_position_ids(None, torch.zeros(2, 4, 32)).tolist() == [[2, 3, 4, 5]]

    model(input_ids=random_ids(config, (2, limit)))
    with pytest.raises(ValueError, match=f"An input of {limit + 1} tokens .* allows {limit}"):
        model(input_ids=random_ids(config, (2, limit + 1)))
    with pytest.raises(ValueError, match=f"An input of {limit + 1} tokens .* allows {limit}"):
        model(inputs_embeds=torch.zeros(1, limit + 1, 32))
    # Padding takes no row: a longer input is fine as long as its tokens fit.
    padded = torch.cat([random_ids(config, (2, limit)), torch.full((2, 9), pad)], 1)
    model(input_ids=padded, attention_mask=(padded != pad).long())


def _loss_and_gradients(model: PreTrainedModel, head: Head, inputs: dict[str, torch.Tensor]) -> tuple[float, float]:
    """The loss, and the norm of the gradient; both checked to be finite and not zero, tensor by tensor."""
    model.zero_grad()
    output = model(**inputs, **head.labels(model.config))
    for name in head.logits:
        assert torch.isfinite(output[name]).all(), name
    loss = head.loss(output)
    assert loss.dtype == torch.float32 or head.name == "base"
    loss.float().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
    norm = sum(parameter.grad.float().square().sum() for parameter in model.parameters()).sqrt().item()
    assert torch.isfinite(loss) and norm > 0
    return loss.item(), norm


def _check_precision(head: Head, overrides: dict[str, Any], backend: str) -> None:
    model = randomise(head.model_class(head.config(**overrides)), scale=0.1).train()
    model.set_attn_implementation(backend)
    inputs = head.inputs(model.config)
    loss, norm = _loss_and_gradients(model, head, inputs)
    for dtype in (torch.bfloat16, torch.float16):
        # The bare encoder's "loss" is a mean around zero: an absolute margin, of the size of its terms.
        margin = {"abs": 0.02} if head.name == "base" else {"rel": 0.02}
        with torch.autocast("cpu", dtype):
            low = _loss_and_gradients(model, head, inputs)
        assert low[0] == pytest.approx(loss, **margin), ("autocast", dtype)
        assert low[1] == pytest.approx(norm, rel=0.15), ("autocast", dtype)
        low = _loss_and_gradients(copy.deepcopy(model).to(dtype), head, inputs)
        assert low[0] == pytest.approx(loss, **margin), dtype
        assert low[1] == pytest.approx(norm, rel=0.15), dtype


@heads
def test_low_precision_of_every_head(head: Head) -> None:
    """Wholly in bfloat16 and float16, and under autocast."""
    _check_precision(head, {}, "sdpa")


@options
@backends
def test_low_precision_of_every_option(option: str, backend: str) -> None:
    _check_precision(HEADS["mlm"], OPTIONS[option], backend)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@options
def test_a_row_without_tokens_under_autocast(option: str, dtype: torch.dtype) -> None:
    """Scores that hide are made in float32 and end in half precision: they must not become -inf in a whole row."""
    for backend in ("sdpa", "eager"):
        model = randomise(build(option), scale=0.2).train()
        model.set_attn_implementation(backend)
        inputs = text_batch(model.config)
        for mask in (inputs["attention_mask"], inputs["attention_mask"][:, None, None].expand(-1, -1, 11, -1)):
            mask = mask.clone()
            mask[1] = 0
            with torch.autocast("cpu", dtype):
                output = model(**(inputs | {"attention_mask": mask}), labels=inputs["input_ids"])
            assert torch.isfinite(output.logits).all(), backend
            output.loss.backward()
            assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters()), backend


def test_float64() -> None:
    """A model cast to float64 really computes in it, in both backends and every option."""
    for option in OPTIONS:
        model = randomise(build(option)).double()
        inputs = text_batch(model.config)
        with torch.no_grad():
            sdpa = model(**inputs).logits
            model.set_attn_implementation("eager")
            eager = model(**inputs).logits
        real = inputs["attention_mask"].bool()
        assert sdpa.dtype == torch.float64
        assert (sdpa - eager)[real].abs().max() < 1e-11, option


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "not_reentrant"])
@pytest.mark.parametrize("option", ["composite", "depthwise", "qkv_separable", "dynamic_span", "window", "absolute"])
def test_gradient_checkpointing(option: str, use_reentrant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss, gradients and attentions as without, on a padded batch."""
    calls = []
    forward = ConvBertCompositeLayer.feed_forward
    monkeypatch.setattr(ConvBertCompositeLayer, "feed_forward", lambda *args: calls.append(1) or forward(*args))

    def run(model: PreTrainedModel, head: Head) -> tuple[Any, dict[str, torch.Tensor], int]:
        calls.clear()
        model.train().zero_grad()
        inputs = head.inputs(model.config)
        output = model(**inputs, **head.labels(model.config), output_attentions=True, output_hidden_states=True)
        head.loss(output).backward()
        return output, {name: tensor.grad.clone() for name, tensor in model.named_parameters()}, len(calls)

    for head in ALL_HEADS:
        model = head.build(**OPTIONS[option])
        model.set_attn_implementation("eager")
        plain, plain_gradients, plain_calls = run(model, head)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
        saving, gradients, saving_calls = run(model, head)
        assert (plain_calls, saving_calls) == (2, 4), "checkpointing did not run the layers twice"
        assert_outputs_close(saving, plain, head.logits, atol=1e-6)
        for name, gradient in plain_gradients.items():
            torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-5, msg=name)
        for kind in ("attentions", "hidden_states"):
            assert len(saving[kind]) == len(plain[kind])
            for one, other in zip(saving[kind], plain[kind], strict=True):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@options
def test_every_parameter_gets_a_gradient(option: str) -> None:
    for head in ALL_HEADS:
        model = head.build(**OPTIONS[option]).train()
        head.loss(model(**head.inputs(model.config), **head.labels(model.config))).backward()
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad, (head.name, name)
            assert parameter.grad is not None, (head.name, name)
            # A constant added to all keys, all choices or all positions leaves the softmax as it is.
            cancels = name.endswith(("self.key.bias", "self.key.linear.bias")) or (head.name, name) in (
                ("choice", "classifier.bias"),
                ("answer", "qa_outputs.bias"),
            )
            assert cancels or parameter.grad.any(), (head.name, name)


def test_a_frozen_depthwise_scale_is_not_a_parameter() -> None:
    frozen, learned = (build("depthwise", depthwise_scale=scale) for scale in ("frozen", "learned"))
    name = "convbert_composite.encoder.layer.0.attention.self.depthwise_scale"
    assert name in dict(frozen.named_buffers()) and name not in dict(frozen.named_parameters())
    assert name in dict(learned.named_parameters())
    assert frozen.state_dict().keys() == learned.state_dict().keys()


def _dropout_modules(model: nn.Module) -> dict[str, nn.Dropout]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Dropout)}


@pytest.mark.parametrize("option", ["composite", "dynamic_span", "dynamic_reference", "dynamic_convbert"])
@heads
def test_each_dropout_acts_in_train_mode_alone(head: Head, option: str) -> None:
    model = head.build(**OPTIONS[option])
    inputs = head.inputs(model.config)
    places = _dropout_modules(model)
    prefix = "" if head.name == "base" else "convbert_composite."
    expected = {f"{prefix}embeddings.dropout"}
    for layer in (0, 1):
        name = f"{prefix}encoder.layer.{layer}"
        expected |= {f"{name}.attention.output.dropout", f"{name}.output.dropout"}
        if model.config.dynamic_convolution_heads:
            expected.add(f"{name}.attention.self.dynamic_convolution.dropout")
    if head.name in ("sequence", "token", "choice"):
        expected.add("dropout")
    assert places.keys() == expected

    def spread() -> float:
        with torch.no_grad():
            one, other = model(**inputs)[head.logits[0]], model(**inputs)[head.logits[0]]
        return (one - other).abs().max().item()

    for name, module in places.items():
        module.p = 0.5
        assert spread() == 0, name
        model.train()
        assert spread() > 1e-4, name
        model.eval()
        module.p = 0.0


@backends
def test_attention_dropout(backend: str) -> None:
    model = build("composite", "base")
    model.set_attn_implementation(backend)
    inputs = text_batch(model.config)
    model.config.attention_probs_dropout_prob = 0.5
    assert torch.equal(model(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
    model.train()
    assert (model(**inputs).last_hidden_state - model(**inputs).last_hidden_state).abs().max() > 1e-3


def test_dropout_rates_come_from_the_config() -> None:
    rates = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.35}
    model = HEADS["sequence"].build(**rates, **OPTIONS["dynamic_span"])
    for name, module in _dropout_modules(model).items():
        assert module.p == (0.35 if "dynamic_convolution" in name else 0.25), name
    model = HEADS["sequence"].build(**rates, classifier_dropout=0.0)
    assert model.dropout.p == 0.0
    # transformers' ConvBERT drops nothing in its kernels.
    model = HEADS["sequence"].build(**rates, **OPTIONS["dynamic_convbert"])
    assert {module.p for name, module in _dropout_modules(model).items() if "dynamic" in name} == {0.0}


@options
def test_nothing_is_kept_after_forward(option: str) -> None:
    """No tensor stays behind, neither on modules nor in caches; 37 and 37 x 37 appear nowhere else."""
    model = build(option).train()
    for backend in ("sdpa", "eager"):
        model.set_attn_implementation(backend)
        inputs = text_batch(model.config, 2, 37)
        output = model(**inputs, labels=inputs["input_ids"])
        output.loss.backward()
        del output
        gc.collect()
        assert not list(_attribute_tensors(model))
        known = {id(tensor) for tensor in inputs.values()}
        left = [
            tuple(thing.shape)
            for thing in gc.get_objects()
            if issubclass(type(thing), torch.Tensor) and 37 in thing.shape and id(thing) not in known
        ]
        assert not left


COMPILED = [
    "composite",
    "absolute",
    "skip_padding",
    "window",
    "value_separable_depthwise",
    "dynamic_span",
    "dynamic_reference",
]


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("option", COMPILED)
def test_compile_without_graph_breaks(option: str) -> None:
    """One graph, dynamic lengths and batches, few compilations, and the numbers of the plain model."""
    torch._dynamo.reset()
    model = build(option)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    with torch.no_grad():
        for batch, length in ((3, 11), (2, 17), (4, 23), (5, 30), (3, 12), (2, 29)):
            inputs = text_batch(model.config, batch, length)
            torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits, atol=1e-4, rtol=1e-4)
    assert counter.frame_count <= 2, counter.frame_count
    del inputs["attention_mask"]
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits, atol=1e-4, rtol=1e-4)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.ci
def test_compile_for_training() -> None:
    """Forward and backward through the default compiler."""
    torch._dynamo.reset()
    model = build("composite").train()
    inputs = text_batch(model.config) | HEADS["mlm"].labels(model.config)
    model(**inputs).loss.backward()
    expected = {name: tensor.grad.clone() for name, tensor in model.named_parameters()}
    model.zero_grad()
    torch.compile(model, fullgraph=True, dynamic=True)(**inputs).loss.backward()
    for name, tensor in model.named_parameters():
        torch.testing.assert_close(tensor.grad, expected[name], atol=1e-4, rtol=1e-3, msg=name)
    torch._dynamo.reset()
