# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
What is measured: attention alone and whole models, ours and their peers, all of BERT-base's sizes.

A contender is a function of a `Case` that returns a step: a function without arguments that does the work once. The
baselines are torch's scaled_dot_product_attention with a padding mask, and transformers' BERT upon it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from modeling_convbert_composite import ConvBertCompositeConfig, ConvBertCompositeModel
from modeling_convbert_composite.layers_convbert_composite import ConvBertCompositeSelfAttention


HEADS, HEAD_SIZE = 12, 64
VOCABULARY = 30522
Step = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One setting: `scope` "attention" or "model", `mode` "inference" or "training"."""

    scope: str
    mode: str
    batch: int
    length: int
    dtype: str = "float32"
    dropout: float = 0.0
    layers: int = 12
    device: str = "cpu"

    @property
    def name(self) -> str:
        parts = [self.scope, self.mode, f"{self.batch}x{self.length}", self.dtype]
        parts += [f"dropout {self.dropout}"] if self.mode == "training" else []
        parts += [f"{self.layers} layers"] if self.scope == "model" else []
        return ", ".join(parts)

    def padding(self) -> torch.Tensor:
        """Who is a token, (B, L) bool: the first text is full, the others at least half."""
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(self.length // 2, self.length + 1, (self.batch,), generator=generator)
        lengths[0] = self.length
        return (torch.arange(self.length)[None] < lengths[:, None]).to(self.device)

    def random(self, *shape: int) -> torch.Tensor:
        """Normal numbers in the case's dtype that want gradients in training."""
        numbers = torch.randn(*shape).to(self.device, getattr(torch, self.dtype))
        return numbers.requires_grad_(self.mode == "training")


def as_step(case: Case, forward: Callable[[], torch.Tensor], leaves: list[torch.Tensor]) -> Step:
    """Inference: the forward pass. Training: also the gradients of a sum over the output."""

    def infer() -> None:
        with torch.inference_mode():
            forward()

    def train() -> None:
        output = forward()
        torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)

    return infer if case.mode == "inference" else train


def sdpa(case: Case) -> Step:
    """The baseline: plain attention, as BERT pays for it."""
    query, key, value = (case.random(case.batch, case.length, HEADS, HEAD_SIZE).transpose(1, 2) for _ in range(3))
    mask = case.padding()[:, None, None, :]

    def forward() -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value, mask, case.dropout)

    return as_step(case, forward, [query, key, value])


def bert_eager(case: Case) -> Step:
    """Plain attention written out, as transformers' eager BERT has it."""
    query, key, value = (case.random(case.batch, case.length, HEADS, HEAD_SIZE).transpose(1, 2) for _ in range(3))
    hidden = torch.finfo(query.dtype).min
    mask = torch.zeros(case.batch, 1, 1, case.length, dtype=query.dtype, device=case.device)
    mask = mask.masked_fill(~case.padding()[:, None, None], hidden)

    def forward() -> torch.Tensor:
        scores = query @ key.transpose(-1, -2) * HEAD_SIZE**-0.5 + mask
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        return nn.functional.dropout(weights, case.dropout, case.dropout > 0) @ value

    return as_step(case, forward, [query, key, value])


class OriginalAttention(ConvBertCompositeSelfAttention):
    """The paper's code re-stated: a repeated index, gathered per pair, added to written-out attention."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        values: torch.Tensor,
        attention_mask: torch.Tensor | None,
        borders: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        query, key = self.split_heads(query), self.split_heads(key)
        batch, heads, length, _ = query.shape
        offsets = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        half_width = self.config.kernel_size // 2
        index = (offsets.clamp(-half_width, half_width) + half_width)[None, None].to(query.device)
        scores = query @ key.transpose(-1, -2) * self.scaling
        slots = (
            self.fixed_kernel[None, :, None] + torch.einsum("dr,bhld->bhlr", self.query_kernel, query) * self.scaling
        )
        scores = scores + slots.gather(3, index.repeat(batch, heads, 1, 1))
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = scores.softmax(-1)
        weights = nn.functional.dropout(weights, self.config.attention_probs_dropout_prob, self.training)
        return (weights.to(values.dtype) @ values.transpose(1, 2)).transpose(1, 2), None


def composite_model(case: Case, backend: str, layers: int, **terms: Any) -> ConvBertCompositeModel:
    """Ours, all parameters random, with an attention backend; "original" is the paper's code upon eager masks."""
    config = ConvBertCompositeConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        hidden_dropout_prob=case.dropout,
        attention_probs_dropout_prob=case.dropout,
        **terms,
    )
    config._attn_implementation = "eager" if backend == "original" else backend
    model = ConvBertCompositeModel(config, add_pooling_layer=False)
    if backend not in ("eager", "original"):
        model.set_attn_implementation(backend)
    for layer in model.encoder.layer:
        nn.init.normal_(layer.attention.self.fixed_kernel)
        if backend == "original":
            layer.attention.self.__class__ = OriginalAttention
    return model.to(case.device, getattr(torch, case.dtype)).train(case.mode == "training")


def composite_attention(backend: str, **terms: Any) -> Callable[[Case], Step]:
    def prepare(case: Case) -> Step:
        model = composite_model(case, backend, layers=1, **terms)
        attention = model.encoder.layer[0].attention.self
        query, key = (case.random(case.batch, case.length, HEADS * HEAD_SIZE) for _ in range(2))
        value = case.random(case.batch, case.length, HEADS, HEAD_SIZE)
        mask, _ = model.prepare_masks(case.padding(), query)

        def forward() -> torch.Tensor:
            return attention.attend(query, key, value, mask)[0]

        kernels = [parameter for name, parameter in attention.named_parameters() if name.endswith("_kernel")]
        return as_step(case, forward, [query, key, value, *kernels])

    return prepare


def peer(name: str, backend: str | None = None, **fields: Any) -> Callable[[Case], nn.Module]:
    """A model of transformers at BERT-base's sizes."""

    def build(case: Case) -> nn.Module:
        from transformers import AutoConfig, AutoModel

        fields_ = {
            "vocab_size": VOCABULARY,
            "num_hidden_layers": case.layers,
            "hidden_size": HEADS * HEAD_SIZE,
            "num_attention_heads": HEADS,
            "intermediate_size": 3072,
            "max_position_embeddings": max(512, case.length) + 2,
            "hidden_dropout_prob": case.dropout,
            "attention_probs_dropout_prob": case.dropout,
        }
        config = AutoConfig.for_model(name, **(fields_ | fields))
        model = AutoModel.from_config(config, **({"attn_implementation": backend} if backend else {}))
        return model.to(case.device, getattr(torch, case.dtype)).train(case.mode == "training")

    return build


def whole_model(build: Callable[[Case], nn.Module]) -> Callable[[Case], Step]:
    def prepare(case: Case) -> Step:
        torch.manual_seed(0)
        model = build(case)
        ids = torch.randint(5, VOCABULARY, (case.batch, case.length), device=case.device)
        mask = case.padding().long()

        def forward() -> torch.Tensor:
            return model(input_ids=ids, attention_mask=mask).last_hidden_state

        return as_step(case, forward, list(model.parameters()))

    return prepare


def ours(backend: str) -> Callable[[Case], Step]:
    return whole_model(lambda case: composite_model(case, backend, case.layers))


BASELINE = "plain sdpa"
CONTENDERS: dict[str, dict[str, Callable[[Case], Step]]] = {
    "attention": {
        BASELINE: sdpa,
        "plain eager": bert_eager,
        "composite, original code": composite_attention("original"),
        "composite, eager": composite_attention("eager"),
        "composite, pure torch": composite_attention("sdpa"),
        "composite, native kernel": composite_attention("composite_cpu"),
        "with key kernel, pure torch": composite_attention("sdpa", key_kernel=True),
        "with key kernel, native kernel": composite_attention("composite_cpu", key_kernel=True),
    },
    "model": {
        BASELINE: whole_model(peer("bert", "sdpa")),
        "plain eager": whole_model(peer("bert", "eager")),
        "ConvBERT": whole_model(peer("convbert")),
        "DeBERTa-v2": whole_model(
            peer("deberta-v2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=256)
        ),
        "MPNet": whole_model(peer("mpnet")),
        "composite, original code": ours("original"),
        "composite, eager": ours("eager"),
        "composite, pure torch": ours("sdpa"),
        "composite, native kernel": ours("composite_cpu"),
    },
}
# The kernel is for CPUs; on a GPU flex stands for the fused path.
CUDA_CONTENDERS = {
    "attention": {"composite, flex": composite_attention("flex_attention")},
    "model": {"composite, flex": ours("flex_attention")},
}


def contenders(case: Case) -> dict[str, Callable[[Case], Step]]:
    """All that take part in a case."""
    found = dict(CONTENDERS[case.scope])
    if case.device == "cuda":
        found = {name: make for name, make in found.items() if "native" not in name}
        # Flex takes no dropout.
        found |= CUDA_CONTENDERS[case.scope] if not case.dropout else {}
    return found
