# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The paper's code re-stated in float64, straight from its state dict and its flag strings: what a conversion is proved
against. It shares nothing with our model or our reading of the flags, and prefers the obvious to the fast.

Letters: B batch, L length, H heads, D head size, K radius of a kernel in tokens, m_j 1 at tokens and 0 at padding.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import conv1d, gelu, layer_norm, linear, relu, silu


Tensor = torch.Tensor
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_new": lambda x: gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: gelu(x, approximate="tanh"),
    "relu": relu,
    "swish": silu,
    "silu": silu,
    "tanh": torch.tanh,
    "mish": torch.nn.functional.mish,
}


def reference_forward(
    tensors: Mapping[str, Tensor], flags: Mapping[str, Any], head: str
) -> Callable[..., dict[str, Tensor]]:
    """
    A forward pass of the original's model.

    Args:
        tensors: its state dict. flags: its config.json. head: end of the class name, "" for the bare encoder.

    Returns:
        a function of input_ids, attention_mask, token_type_ids (B, L) that gives hidden_states.N and the head's
        outputs by name.
    """
    return OriginalModel(tensors, flags, head).forward


class OriginalModel:
    """The original's computation, section by section as in its description."""

    def __init__(self, tensors: Mapping[str, Tensor], flags: Mapping[str, Any], head: str):
        self.weights = {
            name.removeprefix("bert."): tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }
        self.flags = flags
        self.head = head
        self.hidden_size = flags.get("hidden_size", 768)
        self.heads = flags.get("num_attention_heads", 12)
        size = flags.get("attention_head_size", -1)
        self.head_size = self.hidden_size // self.heads if size == -1 else size
        self.kernel = flags.get("attention_kernel", "dot_product")
        self.act = ACTIVATIONS[flags.get("hidden_act", "gelu")]
        self.eps = flags.get("layer_norm_eps", 1e-12)

    def affine(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.eps)

    def convolve(self, name: str, x: Tensor, groups: int) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return conv1d(x.mT, weight, bias, padding=weight.shape[-1] // 2, groups=groups).mT

    def per_head(self, x: Tensor) -> Tensor:
        """(B, L, H * D) -> (B, H, L, D)."""
        return x.reshape(*x.shape[:2], -1, self.head_size).transpose(1, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        if self.head == "ForMultipleChoice":
            choices = input_ids.shape[1]
            input_ids, attention_mask, token_type_ids = (
                x.flatten(0, 1) for x in (input_ids, attention_mask, token_type_ids)
            )
        x = self.embed(input_ids, token_type_ids)
        states = [x]
        for layer in range(self.flags.get("num_hidden_layers", 12)):
            x = self.layer(f"encoder.layer.{layer}", x, attention_mask.double())
            states.append(x)
        outputs = {f"hidden_states.{index}": state for index, state in enumerate(states)} | self.head_outputs(x)
        if self.head == "ForMultipleChoice":
            outputs["logits"] = outputs["logits"].reshape(-1, choices)
        return outputs

    def embed(self, ids: Tensor, types: Tensor) -> Tensor:
        x = self.weights["embeddings.word_embeddings.weight"][ids]
        x = x + self.weights["embeddings.token_type_embeddings.weight"][types]
        if not self.flags.get("remove_position_embeddings"):
            x = x + self.weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self.norm("embeddings.LayerNorm", x)
        return self.affine("embeddings_project", x) if "embeddings_project.weight" in self.weights else x

    def layer(self, name: str, x: Tensor, m: Tensor) -> Tensor:
        attended = self.attention(f"{name}.attention.self", x, m)
        x = self.norm(
            f"{name}.attention.output.LayerNorm", x + self.affine(f"{name}.attention.output.dense", attended)
        )
        wide = self.act(self.affine(f"{name}.intermediate.dense", x))
        return self.norm(f"{name}.output.LayerNorm", x + self.affine(f"{name}.output.dense", wide))

    def attention(self, name: str, x: Tensor, m: Tensor) -> Tensor:
        if self.kernel == "convbert":
            return self.convbert(name, x * m[..., None], m)
        query_key, value = self.flags.get("qk", "linear"), self.flags.get("value_forward", "feedforward")
        removed = self.flags.get("remove_qk") or query_key == "none"
        if value.startswith("convolution") or (query_key.startswith("convolution") and not removed):
            x = x * m[..., None]
        if removed:
            q = k = x
        else:
            q, k = self.project(f"{name}.query", x, query_key), self.project(f"{name}.key", x, query_key)
        v = self.project(f"{name}.value", x, value)
        scores = self.scores(name, self.per_head(q), self.per_head(k))
        weights = (scores - 10000 * (1 - m[:, None, None, :])).softmax(-1)
        output = weights @ self.per_head(v)  # (B, H, L, D)
        if "convolution" in self.kernel.split()[0]:
            extra = self.convolve(f"{name}.convolution", v * m[..., None], groups=v.shape[-1])
            output = output + self.weights[f"{name}.convolution_scalar"] * self.per_head(extra)
        return output.transpose(1, 2).flatten(2)

    def project(self, name: str, x: Tensor, flag: str) -> Tensor:
        if not flag.startswith("convolution"):
            return self.affine(name, x)
        kind, _, groups = flag.split()[:3]
        depth = "depth" in kind
        y = self.convolve(f"{name}_conv", x, self.hidden_size if depth else int(groups))
        if depth:
            y = self.affine(f"{name}_pointwise", y if "no_act" in kind else self.act(y))
        return torch.cat([y, self.affine(f"{name}_linear", x)], -1) if "mixed" in kind else y

    def scores(self, name: str, q: Tensor, k: Tensor) -> Tensor:
        """Scores before the mask, (B, H, L, L), query before key."""
        words = self.kernel.split()
        parts = [part for part in ("convfixed", "convq", "convk") if part in words[0]]
        product = q @ k.mT / self.head_size**0.5
        if not parts:
            return product
        total = product if "qk" in words[0] or "dot" in words[0] else torch.zeros_like(product)
        radius = int(words[1])
        if radius == 0:
            return total
        offsets = torch.arange(q.shape[2])[None, :] - torch.arange(q.shape[2])[:, None]  # key - query
        from_query = offsets.clamp(-radius, radius) + radius
        from_key = (-offsets).clamp(-radius, radius) + radius
        if "convfixed" in parts:
            total = total + self.weights[f"{name}.convfixed_param"][0, :, 0][:, from_query]
        if "convq" in parts:
            table = self.weights[f"{name}.convq_param"]  # (D, 2K+1)
            total = total + torch.einsum("bhid,dij->bhij", q, table[:, from_query]) / self.head_size**0.5
        if "convk" in parts:
            table = self.weights[f"{name}.convk_param"]
            total = total + torch.einsum("bhjd,dij->bhij", k, table[:, from_key]) / self.head_size**0.5
        return total

    def convbert(self, name: str, x: Tensor, m: Tensor) -> Tensor:
        q, k, v = (self.affine(f"{name}.{part}", x) for part in ("query", "key", "value"))
        z = self.affine(
            f"{name}.convbert_key_pointwise", self.convolve(f"{name}.convbert_key_depthwise", x, self.hidden_size)
        )
        rows = self.affine(f"{name}.lightweight_kernel", z * q).unflatten(-1, (self.heads // 2, 9))  # (B, L, H/2, 9)
        length = x.shape[1]
        local = x.new_full((len(x), self.heads // 2, length, length), -10000)
        for i in range(length):
            for j in range(max(0, i - 4), min(length, i + 5)):
                local[:, :, i, j] = rows[:, j, :, j - i + 4]
        product = self.per_head(q) @ self.per_head(k).mT / self.head_size**0.5
        scores = torch.cat([product, local], 1) - 10000 * (1 - m[:, None, None, :])
        return (scores.softmax(-1) @ self.per_head(v)).transpose(1, 2).flatten(2)

    def head_outputs(self, x: Tensor) -> dict[str, Tensor]:
        outputs = {}
        if "pooler.dense.weight" in self.weights:
            pooled = torch.tanh(self.affine("pooler.dense", x[:, 0]))
        if self.head == "ForMaskedLM":
            outputs["logits"] = self.masked_lm(x)
        elif self.head == "ForPreTraining":
            outputs["prediction_logits"] = self.masked_lm(x)
            outputs["seq_relationship_logits"] = self.affine("cls.seq_relationship", pooled)
        elif self.head in ("ForSequenceClassification", "ForMultipleChoice"):
            outputs["logits"] = self.affine("classifier", pooled)
        elif self.head == "ForTokenClassification":
            outputs["logits"] = self.affine("classifier", x)
        elif self.head == "ForQuestionAnswering":
            outputs["start_logits"], outputs["end_logits"] = self.affine("qa_outputs", x).unbind(-1)
        elif "pooler.dense.weight" in self.weights:
            outputs["pooler_output"] = pooled
        return outputs

    def masked_lm(self, x: Tensor) -> Tensor:
        x = self.act(self.affine("cls.predictions.transform.dense", x))
        x = self.norm("cls.predictions.transform.LayerNorm", x)
        words = self.weights["embeddings.word_embeddings.weight"]
        return x @ self.weights.get("cls.predictions.decoder.weight", words).T + self.weights["cls.predictions.bias"]
