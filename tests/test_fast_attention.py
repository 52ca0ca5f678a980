# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Attention in tiles, and the native kernel, against written-out attention in float64: values, gradients, dropout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fast_cases import Inputs, Shape, make_inputs, reference, shapes
from helpers import NO_KERNELS, OPTIONS, needs_kernel, randomise, text_batch, tiny_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from modeling_convbert_composite import ConvBertCompositeForMaskedLM, ConvBertCompositeModel
from modeling_convbert_composite import fast_attention_convbert_composite as fast
from modeling_convbert_composite.attention_convbert_composite import kernel_slots
from modeling_convbert_composite.backends_convbert_composite import border_block_mask, flex_score_mod
from modeling_convbert_composite.native import kernel_attention


def native(*arguments: Any) -> torch.Tensor:
    """The kernel's output as (B, H, L, D)."""
    return kernel_attention(*arguments).transpose(1, 2)


PATHS: dict[str, Callable[..., torch.Tensor]] = {"pure": fast.fast_attention, "native": native}
paths = pytest.mark.parametrize("path", ["pure", pytest.param("native", marks=needs_kernel)])
KERNEL = pytest.param("composite_cpu", marks=needs_kernel)
# Relative to the largest value of the reference if that is above 1.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 3e-5, torch.bfloat16: 4e-2}
SETTINGS = settings(
    max_examples=120,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that short texts need several of them."""
    monkeypatch.setattr(fast, "TILE", {"cpu": 90})
    monkeypatch.setattr(fast, "TILE_QUERIES", {"cpu": 5})


def worst(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    assert found.isfinite().all()
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1))


def assert_equals_reference(path: Callable[..., torch.Tensor], inputs: Inputs) -> None:
    """Outputs with and without gradients, and all gradients."""
    dtype = inputs.query.dtype
    ours, exact = inputs.to(dtype), inputs.to(torch.float64)
    expected = reference(exact)
    with torch.no_grad():
        assert worst(path(*ours.arguments()), expected) <= TOLERANCE[dtype]
    found = path(*ours.arguments())
    assert worst(found, expected) <= TOLERANCE[dtype]
    assert found.dtype == dtype
    outer = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    for one, other in zip(
        torch.autograd.grad(found, ours.leaves, outer),
        torch.autograd.grad(expected, exact.leaves, outer.double()),
        strict=True,
    ):
        assert worst(one, other) <= 2 * TOLERANCE[dtype]


@SETTINGS
@given(shape=shapes(largest=40))
def test_tiles_equal_the_reference(shape: Shape, small_tiles: None) -> None:
    assert_equals_reference(PATHS["pure"], make_inputs(shape))


@SETTINGS
@given(shape=shapes(largest=30))
def test_tiles_equal_the_reference_in_float64(shape: Shape, small_tiles: None) -> None:
    inputs = make_inputs(shape)
    assert_equals_reference(PATHS["pure"], inputs.to(torch.float64))


@needs_kernel
@SETTINGS
@given(shape=shapes())
def test_kernel_equals_the_reference(shape: Shape) -> None:
    assert_equals_reference(PATHS["native"], make_inputs(shape))


# Around the sizes at which the kernel cuts, and the head sizes of real models.
SIZES = ((63, 64, 17), (64, 32, 17), (65, 64, 1), (257, 80, 33), (300, 64, 183), (130, 128, 3))


@paths
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes_of_real_models(path: str, sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    length, size, kernel_size = sizes
    for has_key, mask, window in ((False, "padding", False), (True, "pairs", False), (False, "none", True)):
        shape = Shape(1, 2, length, size, kernel_size, "query", has_key, mask, False, window, dtype)
        assert_equals_reference(PATHS[path], make_inputs(shape))


@SETTINGS
@given(data=st.data())
def test_spreading_slots_is_gathering_them(data: st.DataObject) -> None:
    """Any rectangle of pairs, also one that the kernel does not reach; and the gradient is the adjoint."""
    length = data.draw(st.integers(1, 30))
    kernel_size = 2 * data.draw(st.integers(0, 6)) + 1
    rows, columns = (
        slice(start, data.draw(st.integers(start + 1, length)))
        for start in (data.draw(st.integers(0, length - 1)) for _ in range(2))
    )
    generator = torch.Generator().manual_seed(0)
    slots = torch.randn(2, 3, rows.stop - rows.start, kernel_size, generator=generator, dtype=torch.float64)
    index = kernel_slots(length, kernel_size)[rows, columns]
    expected = slots.gather(-1, index.expand(2, 3, -1, -1))
    assert torch.equal(fast.spread(slots, rows, columns), expected)
    outer = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    gradient = torch.zeros_like(slots).scatter_add(-1, index.expand(2, 3, -1, -1), outer)
    memory, inside = fast.with_margins(outer, kernel_size)
    inside.copy_(outer)
    torch.testing.assert_close(fast.gather_slots(memory, kernel_size, rows, columns), gradient)


def test_gradients_by_finite_differences() -> None:
    for shape in (Shape(1, 2, 5, 3, 3, "query", True, "padding"), Shape(2, 1, 4, 2, 7, "fixed", False, "soft", True)):
        inputs = make_inputs(shape).to(torch.float64)

        def run(*leaves: torch.Tensor, inputs: Inputs = inputs) -> torch.Tensor:
            query, key, value, query_slots, *rest = leaves
            terms = inputs.terms._replace(query_slots=query_slots, key_slots=rest[0] if rest else None)
            return fast.fast_attention(query, key, value, inputs.mask, terms, inputs.borders, inputs.scaling)

        torch.autograd.gradcheck(run, inputs.leaves)


@needs_kernel
def test_kernel_gradients_by_finite_differences() -> None:
    """Along random directions; float32 allows three digits."""
    inputs = make_inputs(Shape(1, 2, 6, 4, 5, "query", True, "padding")).to(torch.float32)
    output = native(*inputs.arguments())
    outer = torch.randn(output.shape)
    gradients = torch.autograd.grad(output, inputs.leaves, outer)
    for leaf, gradient in zip(inputs.leaves, gradients, strict=True):
        direction, step = torch.randn_like(leaf), 1e-2
        with torch.no_grad():
            values = []
            for sign in (1, -1):
                leaf += sign * step * direction
                values.append((native(*inputs.arguments()) * outer).sum().double())
                leaf -= sign * step * direction
        measured = (values[0] - values[1]) / (2 * step)
        torch.testing.assert_close((gradient * direction).sum().double(), measured, atol=5e-3, rtol=5e-3)


@paths
@pytest.mark.parametrize("kept_length", (0, 2))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_dropout_drops_the_same_weights_in_both_directions(
    path: str, kept_length: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that are a unit matrix show the weights, so that the reference can be told which were kept."""
    # Several tiles, which draw each for themselves.
    monkeypatch.setattr(fast, "TILE", {"cpu": 3000})
    monkeypatch.setattr(fast, "TILE_QUERIES", {"cpu": 30})
    monkeypatch.setattr(fast, "KEPT_LENGTH", kept_length)
    length, rate = 70, 0.3
    inputs = make_inputs(Shape(2, 2, length, length, 5, "query", True, "padding", dtype=dtype)).to(dtype)
    inputs.value = torch.eye(length, dtype=dtype).expand(2, 2, -1, -1).contiguous().requires_grad_()
    torch.manual_seed(3)
    found = PATHS[path](*inputs.arguments(rate))
    exact = inputs.to(torch.float64)
    weights = reference(exact).detach()
    keep = (found.detach() != 0).double() / (1 - rate)
    seen = weights > 1e-3
    # Four standard deviations.
    share = keep[seen].mean() * (1 - rate)
    assert abs(share - (1 - rate)) < 4 * (rate * (1 - rate) / seen.sum()) ** 0.5
    assert worst(found, weights * keep) <= TOLERANCE[dtype]
    outer = torch.randn(found.shape).to(dtype)
    for one, other in zip(
        torch.autograd.grad(found, inputs.leaves, outer),
        torch.autograd.grad(reference(exact, keep), exact.leaves, outer.double()),
        strict=True,
    ):
        assert worst(one, other) <= 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("dropout", (0.0, 0.3))
def test_weights_are_kept_for_short_inputs_alone(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept or made again, gradients are the same; what is kept never grows faster than the queries."""
    made: list[int] = []
    memory_for_weights = fast.memory_for_weights

    def watch(query: torch.Tensor) -> torch.Tensor | None:
        kept = memory_for_weights(query)
        made.append(0 if kept is None else kept.numel() // query.numel())
        return kept

    monkeypatch.setattr(fast, "memory_for_weights", watch)
    for length, size, expected in ((32, 16, 2), (33, 16, 0), (128, 64, 2), (512, 64, 0)):
        inputs = make_inputs(Shape(2, 2, length, size, 9, "query", True, "padding")).to(torch.float32)
        outer = torch.randn(2, 2, length, size)
        gradients = []
        for longest in (2, 0):
            monkeypatch.setattr(fast, "KEPT_LENGTH", longest)
            torch.manual_seed(4)
            gradients.append(
                torch.autograd.grad(fast.fast_attention(*inputs.arguments(dropout)), inputs.leaves, outer)
            )
        assert made[-2:] == [expected, 0]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)


@paths
def test_dropout_follows_the_seed(path: str) -> None:
    inputs = make_inputs(Shape(2, 2, 70, 16, 5))
    outputs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outputs.append(PATHS[path](*inputs.arguments(0.2)))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    # One step after another draws anew; heads, texts and rows drop different weights.
    assert not torch.equal(PATHS[path](*inputs.arguments(0.2)), outputs[2])


@pytest.mark.parametrize("backend", ("sdpa", KERNEL))
def test_checkpointing_repeats_the_dropout(backend: str) -> None:
    config = tiny_config(attention_probs_dropout_prob=0.2, hidden_dropout_prob=0.1, key_kernel=True)
    model = randomise(ConvBertCompositeForMaskedLM(config)).train()
    model.set_attn_implementation(backend)
    inputs = text_batch(config)
    gradients = []
    for options in (None, {"use_reentrant": False}, {"use_reentrant": True}):
        if options is not None:
            model.gradient_checkpointing_enable(options)
        model.zero_grad()
        torch.manual_seed(5)
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for other in gradients[1:]:
        for one, two in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(one, two)


@paths
def test_threads_and_repetition_change_nothing(path: str) -> None:
    """A race or memory that was never written would show."""
    inputs = make_inputs(Shape(3, 2, 150, 16, 7, "query", True, "padding")).to(torch.float32)
    outer = torch.randn(3, 2, 150, 16)
    runs = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 2, 1, 2):
            torch.set_num_threads(threads)
            # Freed memory full of NaN is what the next allocation of its size gets.
            torch.full((3, 2, 150, 16), torch.nan)
            output = PATHS[path](*inputs.arguments())
            runs.append([output, *torch.autograd.grad(output, inputs.leaves, outer)])
    finally:
        torch.set_num_threads(before)
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
            assert path == "pure" or torch.equal(one, other)


@paths
def test_inputs_are_left_alone(path: str) -> None:
    inputs = make_inputs(Shape(mask="soft", has_key=True)).to(torch.float32)
    tensors = [*inputs.leaves, inputs.mask]
    before = [tensor.detach().clone() for tensor in tensors]
    PATHS[path](*inputs.arguments(0.1)).sum().backward()
    assert all(torch.equal(tensor, old) for tensor, old in zip(tensors, before, strict=True))


@torch.no_grad()
@paths
def test_strides_of_any_kind(path: str) -> None:
    inputs = make_inputs(Shape(2, 2, 33, 8, 5, "query", True, "pairs"))
    expected = PATHS[path](*inputs.arguments())
    wide = torch.randn(2, 2, 33, 16)
    wide[..., ::2] = inputs.query
    inputs.query = wide[..., ::2]
    inputs.key = inputs.key.transpose(-1, -2).contiguous().transpose(-1, -2)
    inputs.value = inputs.value.flip(0).flip(0)
    terms = inputs.terms
    assert terms.query_slots is not None
    inputs.terms = terms._replace(query_slots=terms.query_slots.transpose(1, 3).contiguous().transpose(1, 3))
    torch.testing.assert_close(PATHS[path](*inputs.arguments()), expected)


@torch.no_grad()
@paths
def test_no_rows_and_no_texts(path: str) -> None:
    for batch, length in ((0, 5), (2, 0)):
        inputs = make_inputs(Shape(batch, 2, 5, 8, 5))
        inputs.query, inputs.key, inputs.value = (t[:, :, :length] for t in (inputs.query, inputs.key, inputs.value))
        assert inputs.terms.query_slots is not None
        inputs.terms = inputs.terms._replace(query_slots=inputs.terms.query_slots[:, :, :length])
        assert PATHS[path](*inputs.arguments()).shape == (batch, 2, length, 8)


@paths
def test_huge_values_saturate_and_not_a_number_stays_in_its_rows(path: str) -> None:
    inputs = make_inputs(Shape(1, 2, 70, 16, 5, mask="padding")).to(torch.float32)
    with torch.no_grad():
        inputs.query *= 1e4
    output = PATHS[path](*inputs.arguments())
    assert worst(output, reference(inputs.to(torch.float64))) <= 1e-4
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.sum(), inputs.leaves))
    for bad in (torch.nan, torch.inf):
        with torch.no_grad():
            inputs.query[0, 1, 3] = bad
        output = PATHS[path](*inputs.arguments())
        assert output[0, 1, 3].isnan().all()
        output[0, 1, 3] = 0
        assert output.isfinite().all()
        (gradient,) = torch.autograd.grad(PATHS[path](*inputs.arguments()).sum(), inputs.query)
        assert gradient[0, 1, 3].isnan().all()
        assert gradient[0, 0].isfinite().all()


@needs_kernel
def test_rows_whose_keys_are_all_masked_agree() -> None:
    """Weights over masked keys are even, and sum to one in both directions."""
    inputs = make_inputs(Shape(1, 1, 9, 4, 3))
    inputs.mask = torch.zeros(1, 1, 1, 9, dtype=torch.bool)
    for path in PATHS.values():
        assert_equals_reference(path, inputs)


def test_a_learned_mask_gets_its_gradient() -> None:
    inputs = make_inputs(Shape(mask="soft"))
    assert inputs.mask is not None
    model_mask = inputs.mask.requires_grad_()
    fast.fast_attention(*inputs.arguments()).sum().backward()
    assert model_mask.grad is not None


@torch.no_grad()
@pytest.mark.parametrize("window", (False, True))
def test_memory_grows_with_the_length_alone(window: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tile's bias is larger than said, at lengths 256 to 2048, and none is of all pairs."""
    sizes: list[int] = []
    spread = fast.spread

    def watch(*arguments: Any) -> torch.Tensor:
        scores = spread(*arguments)
        sizes.append(scores.numel())
        return scores

    monkeypatch.setattr(fast, "spread", watch)
    for length in (256, 512, 2048):
        inputs = make_inputs(Shape(1, 2, length, 4, 5, "query", window=window))
        sizes.clear()
        fast.fast_attention(*inputs.arguments())
        assert max(sizes) <= max(fast.TILE["cpu"], fast.TILE_QUERIES["cpu"] * length)
    # Beyond a window there is nothing to do.
    assert not window or sum(sizes) < length * 2 * 300


class LargestTensor(TorchDispatchMode):
    """Watches every tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            # Views and expanded tensors cost what is behind them, which was seen when it was made.
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().size():
                size = tensor.untyped_storage().size() // tensor.element_size()
                self.numbers = max(self.numbers, size)
        return output


@pytest.mark.parametrize("layers", (2, 12))
@pytest.mark.parametrize("backend", ("sdpa", KERNEL, "eager"))
def test_a_training_step_makes_no_tensor_of_all_pairs(backend: str, layers: int) -> None:
    """At most linear in the length (eager: one number a pair and head, and never a vector a pair)."""
    config = tiny_config(num_hidden_layers=layers, key_kernel=True, max_position_embeddings=512)
    model = randomise(ConvBertCompositeModel(config, add_pooling_layer=False), scale=0.1).train()
    model.set_attn_implementation(backend)
    heads, batch = config.num_attention_heads, 2
    for length in (128, 256, 512):
        inputs = text_batch(config, batch, length)
        with LargestTensor() as largest:
            model(**inputs).last_hidden_state.sum().backward()
        pairs = batch * heads * length * length
        if backend == "eager":
            # The index that gathers slots has two numbers' room a pair, and no head has one of its own.
            assert pairs <= largest.numbers <= pairs + batch * length * 100
            continue
        margin = 4 * config.kernel_size
        assert largest.numbers <= max(fast.TILE["cpu"] * (1 + margin / length), batch * length * 100)
        assert length < 512 or largest.numbers < pairs / 4


@torch.no_grad()
@settings(SETTINGS, max_examples=12)
@given(shape=shapes(largest=20))
def test_flex_looks_up_what_the_reference_has(shape: Shape) -> None:
    """What is given to flex_attention, without its compiler."""
    inputs = make_inputs(shape).to(torch.float64)
    query, key, value, mask, terms, borders, scaling, _ = inputs.arguments()
    score_mod = flex_score_mod(query, mask, terms, borders)
    found = flex_attention(query.detach(), key.detach(), value.detach(), score_mod=score_mod, scale=scaling)
    assert worst(found, reference(inputs)) <= 1e-6


def test_borders_become_blocks_that_flex_skips() -> None:
    position = torch.arange(512)
    first = torch.where(position < 128, 0, torch.where(position < 384, 128, 384))
    end = torch.where(position < 128, 128, torch.where(position < 384, 384, 512))
    blocks = border_block_mask(torch.stack([first, end], -1)[None]).to_dense()[0, 0]
    assert blocks.tolist() == [[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("backend", ("sdpa", "flex_attention"))
def test_gpu_equals_cpu(backend: str, dtype: torch.dtype) -> None:
    """Outputs and gradients, padded and packed. flex needs head sizes of 16 and more there."""
    config = tiny_config(hidden_size=64, key_kernel=True)
    model = randomise(ConvBertCompositeModel(config, add_pooling_layer=False), scale=0.1).eval()
    inputs = text_batch(config, 2, 200)
    packing = {"sequence_ids": torch.arange(200)[None].expand(2, -1) // 70}
    for more in ({}, packing):
        runs = []
        for device, name in (("cpu", "eager"), ("cuda", backend)):
            model.to(device, torch.float32 if device == "cpu" else dtype).set_attn_implementation(name)
            model.zero_grad()
            batch = {key: tensor.to(device) for key, tensor in (inputs | more).items()}
            output = model(**batch).last_hidden_state[batch["attention_mask"].bool()].float()
            (output * torch.linspace(-1, 1, 64, device=device)).mean().backward()
            runs.append([output.detach().cpu(), *(p.grad.float().cpu() for p in model.parameters())])
        tolerance = 1e-4 if dtype == torch.float32 else 5e-2
        for one, other in zip(*runs, strict=True):
            torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


@needs_kernel
@pytest.mark.parametrize("option", [name for name in OPTIONS if "dynamic_convbert" not in name])
def test_model_on_the_kernel_equals_eager(option: str) -> None:
    """Every option through the interfaces for attention and masks, padded: outputs and gradients at real tokens."""
    model = randomise(ConvBertCompositeModel(tiny_config(**OPTIONS[option]), add_pooling_layer=False)).eval()
    inputs = text_batch(model.config)
    real = inputs["attention_mask"].bool()
    outputs, gradients = [], []
    for backend in ("eager", "composite_cpu"):
        model.set_attn_implementation(backend)
        model.zero_grad()
        output = model(**inputs).last_hidden_state[real]
        (output * torch.linspace(-1, 1, 32)).mean().backward()
        outputs.append(output)
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(outputs[1], outputs[0], atol=2e-5, rtol=1e-5)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@needs_kernel
@torch.no_grad()
def test_what_the_kernel_does_not_take_is_for_torch() -> None:
    for dtype in (torch.float64, torch.float16):
        model = randomise(ConvBertCompositeModel(tiny_config())).eval().to(dtype)
        inputs = text_batch(model.config)
        model.set_attn_implementation("composite_cpu")
        found = model(**inputs).last_hidden_state
        model.set_attn_implementation("sdpa")
        assert torch.equal(found, model(**inputs).last_hidden_state)


@needs_kernel
@torch.no_grad()
def test_autocast_runs_on_both() -> None:
    model = randomise(ConvBertCompositeModel(tiny_config(key_kernel=True), add_pooling_layer=False), scale=0.2).eval()
    inputs = text_batch(model.config)
    expected = model(**inputs).last_hidden_state
    for backend in ("sdpa", "composite_cpu"):
        model.set_attn_implementation(backend)
        with torch.autocast("cpu", torch.bfloat16):
            found = model(**inputs).last_hidden_state
        assert (found.float() - expected).abs().max() < 0.2


def test_plain_terms_go_to_plain_attention() -> None:
    """BERT's own attention is not cut into tiles."""
    model = randomise(ConvBertCompositeModel(tiny_config(**NO_KERNELS))).eval()
    model.set_attn_implementation("sdpa")
    inputs = text_batch(model.config)
    with torch.profiler.profile() as profile:
        model(**inputs)
    names = [event.key for event in profile.key_averages()]
    assert not any("TiledAttention" in name for name in names)
