# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The kernel as software: building, refusals, compilers and exporters, memory. Its numbers: test_fast_attention."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fast_cases import Shape, make_inputs, reference
from helpers import needs_kernel, randomise, text_batch, tiny_config
from transformers import AttentionInterface, AttentionMaskInterface, BertConfig, BertModel

from modeling_convbert_composite import ConvBertCompositeForMaskedLM, ConvBertCompositeModel
from modeling_convbert_composite.native import NAME, build, operators


pytestmark = needs_kernel

ROOT = Path(__file__).parents[1]
SEED = torch.zeros(1, dtype=torch.long)


def operator_arguments(shape: Shape, gradients: bool = False) -> list[Any]:
    inputs = make_inputs(shape)
    inputs = inputs.to(torch.float32) if gradients else inputs
    terms = inputs.terms
    slots = [None if slots is None else slots.float() for slots in (terms.query_slots, terms.key_slots)]
    states = [inputs.query, inputs.key, inputs.value]
    return [*states, *slots, inputs.mask, inputs.borders, terms.kernel_size, terms.window, inputs.scaling, 0.0, SEED]


def test_both_interfaces_know_the_backend() -> None:
    assert NAME in AttentionInterface().valid_keys()
    assert NAME in AttentionMaskInterface().valid_keys()


@pytest.mark.parametrize(
    "shape", (Shape(), Shape(1, 2, 9, 6, 3, "fixed", True, "soft", True), Shape(slots="none")), ids=str
)
def test_operators_keep_torch_s_rules(shape: Shape) -> None:
    """Schema, fake tensors, autograd registration, and tracing with them."""
    library = operators.load(build.KERNEL)
    torch.library.opcheck(library.attention.default, operator_arguments(shape, gradients=True))


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    (
        ("query", torch.zeros(2, 3, 40), "batch, heads, length, size"),
        ("query", torch.zeros(2, 3, 41, 8), "one shape"),
        ("query", torch.zeros(2, 3, 40, 8, dtype=torch.float64), "float32 and bfloat16"),
        ("value", torch.zeros(2, 3, 40, 8, dtype=torch.bfloat16), "one dtype"),
        ("query_slots", torch.zeros(2, 3, 40, 7, dtype=torch.float64), "query_slots must be float32"),
        ("query_slots", torch.zeros(2, 3, 40, 9), "expand"),
        ("mask", torch.zeros(2, 1, 39, 40), "expand"),
        ("borders", torch.zeros(2, 40, 2), "int64"),
        ("kernel_size", 6, "odd"),
        ("dropout", 1.0, "dropout"),
        ("seed", torch.zeros(2, dtype=torch.long), "seed"),
    ),
)
def test_operator_refuses_what_it_cannot_read(name: str, wrong: Any, message: str) -> None:
    """Whatever is passed, memory beyond the tensors is never touched."""
    library = operators.load(build.KERNEL)
    names = [argument.name for argument in library.attention.default._schema.arguments]
    arguments = operator_arguments(Shape())
    arguments[names.index(name)] = wrong
    with pytest.raises(RuntimeError, match=message):
        library.attention(*arguments)


def test_borders_outside_the_text_are_cut() -> None:
    arguments = operator_arguments(Shape())
    arguments[6] = torch.tensor([-5, 99]).expand(2, 40, 2).contiguous()
    expected = operator_arguments(Shape())
    library = operators.load(build.KERNEL)
    assert torch.equal(library.attention(*arguments)[0], library.attention(*expected)[0])
    arguments[6] = torch.tensor([7, 3]).expand(2, 40, 2).contiguous()
    output, normalisers = library.attention(*arguments)
    assert not output.any()
    gradients = library.attention_backward(torch.ones_like(output), output, normalisers, *arguments)
    assert not any(gradient.any() for gradient in gradients)


@pytest.fixture
def nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return tmp_path


def test_without_a_compiler_the_error_says_what_to_do(nothing_built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler .*attn_implementation=\"sdpa\"") as caught:
        build.built_library()
    assert "\n" not in str(caught.value)
    assert not list(nothing_built.rglob("*.so"))


def test_without_ninja_the_error_names_the_extra(nothing_built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = nothing_built / "bin"
    tools.mkdir()
    (tools / "c++").symlink_to(build.compiler() or "")
    monkeypatch.setenv("PATH", str(tools))
    # As if the package were not there either.
    monkeypatch.setitem(sys.modules, "ninja", None)
    with pytest.raises(RuntimeError, match=r"ninja is missing \(pip install 'convbert-composite\[native\]'\)"):
        build.built_library()


def test_a_compiler_that_fails_leaves_its_words(nothing_built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FLAGS", ["-fno-such-flag"])
    with pytest.raises(RuntimeError, match=r"the compiler failed \(its words: .*build.log\)"):
        build.built_library()
    assert "no-such-flag" in next(nothing_built.rglob("build.log")).read_text()
    assert not list(nothing_built.rglob("*.so"))


def test_another_processor_or_source_is_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {build.library_path(build.KERNEL)}
    for found in ("AVX2", "NO AVX", "AVX512"):
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda found=found: found)
        paths.add(build.library_path(build.KERNEL))
    assert len(paths) == 3
    assert "-DCPU_CAPABILITY_AVX512" in build.flags(build.KERNEL)


@torch.no_grad()
def test_other_models_take_it_as_plain_attention() -> None:
    """Registered for all, so right for all."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=50, **sizes)).eval()
    inputs = {"input_ids": torch.randint(0, 50, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    inputs["attention_mask"][1, 4:] = 0
    real = inputs["attention_mask"].bool()
    expected = model(**inputs).last_hidden_state[real]
    model.set_attn_implementation(NAME)
    torch.testing.assert_close(model(**inputs).last_hidden_state[real], expected, atol=1e-5, rtol=1e-5)


TWO_BUILDERS = """
import logging, sys
from modeling_convbert_composite.native import build
print(build.built_library())
"""


@pytest.mark.slow
@pytest.mark.ci
def test_two_processes_build_once(nothing_built: Path) -> None:
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "warning"}
    command = [sys.executable, "-c", TWO_BUILDERS]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=400) for process in running]
    assert [process.returncode for process in running] == [0, 0], printed
    assert sorted("Building the native" in error for _, error in printed) == [False, True]
    assert printed[0][0] == printed[1][0]
    assert len(list(nothing_built.rglob("*.so"))) == 1


@pytest.mark.slow
@pytest.mark.ci
def test_plain_build_reads_no_uninitialised_memory() -> None:
    """Buffers full of NaN, and products without generated code: what other processors run."""
    library = operators.load(build.PLAIN)
    for shape in (
        Shape(),
        Shape(1, 1, 1, 1, 1),
        Shape(2, 1, 65, 7, 33, "query", True, "pairs"),
        Shape(1, 2, 300, 20, 5, "fixed", False, "padding", True),
        Shape(1, 2, 130, 24, 5, "query", True, "soft", window=True),
    ):
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
            inputs = make_inputs(shape).to(dtype)
            exact = inputs.to(torch.float64)
            expected = reference(exact)
            arguments = operator_arguments(shape)
            arguments[:3] = [tensor.detach().to(dtype) for tensor in arguments[:3]]
            if arguments[5] is not None and arguments[5].dtype == torch.bool:
                mask = arguments[5]
                arguments[5] = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
            output, normalisers = library.attention(*arguments)
            torch.testing.assert_close(output.transpose(1, 2).double(), expected, atol=tolerance, rtol=tolerance)
            found = library.attention_backward(torch.ones_like(output), output, normalisers, *arguments)
            gradients = torch.autograd.grad(expected.sum(), exact.leaves)
            for one, other in zip(found[:3], gradients, strict=False):
                assert (one.transpose(1, 2).double() - other).abs().max() <= 2 * tolerance * other.abs().max().clamp(1)


@pytest.mark.slow
@pytest.mark.ci
def test_address_sanitizer_finds_nothing(tmp_path: Path) -> None:
    """The shapes at which the kernel's tiles begin and end, in a process with the sanitizer preloaded."""
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    build.built_library(build.SANITIZED)
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime.stdout.strip(),
        # Python and torch keep memory until the end; and torch's own globals are seen twice.
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
        "PYTHONPATH": str(ROOT / "tests"),
    }
    command = [sys.executable, str(ROOT / "tests" / "sanitized_kernel.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "checked" in done.stdout


@pytest.mark.slow
@pytest.mark.ci
def test_compiled_and_exported_models_use_the_operator() -> None:
    torch._dynamo.reset()
    model = randomise(ConvBertCompositeForMaskedLM(tiny_config(key_kernel=True))).eval()
    model.set_attn_implementation(NAME)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, length in ((3, 11), (2, 17)):
        inputs = text_batch(model.config, batch, length)
        with torch.no_grad():
            torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits, atol=1e-4, rtol=1e-4)
        labels = inputs["input_ids"]
        gradients = []
        for runner in (model, compiled):
            model.zero_grad()
            runner(**inputs, labels=labels).loss.backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    torch._dynamo.reset()
    bare = ConvBertCompositeModel(tiny_config()).eval()
    bare.set_attn_implementation(NAME)
    inputs = text_batch(bare.config)
    size = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=2, max=512)}
    program = torch.export.export(bare, (), inputs, dynamic_shapes=dict.fromkeys(inputs, size))
    assert any("convbert_composite.attention" in str(node.target) for node in program.graph.nodes)
    other = text_batch(bare.config, 2, 30)
    torch.testing.assert_close(
        program.module()(**other).last_hidden_state, bare(**other).last_hidden_state, atol=1e-5, rtol=1e-5
    )
