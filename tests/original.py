# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Random checkpoints in the layout of the paper's code, made from the list of its parameters (names and shapes)."""

import json
from pathlib import Path
from typing import Any

import torch


Shapes = dict[str, tuple[int, ...]]

FLAGS: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
    "pad_token_id": 58,
    "embedding_size": 16,
    "attention_kernel": "dot_product",
    "attention_head_size": -1,
    "qk": "linear",
    "value_forward": "feedforward",
    "remove_qk": False,
    "remove_position_embeddings": False,
}


def original_flags(**flags: Any) -> dict[str, Any]:
    """The config.json of an original checkpoint."""
    return FLAGS | flags


def original_tensors(flags: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """A random state dict for `flags`; every float tensor is random, the slots are what they must be."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in all_shapes(flags).items():
        noise = torch.randn(shape, generator=generator) * 0.3
        tensors[name] = noise + 1 if name.endswith("LayerNorm.weight") else noise
    add_indices(tensors, flags)
    return tensors


def write_original(folder: Path, flags: dict[str, Any], seed: int = 0) -> Path:
    """Saves such a checkpoint as the original does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(flags))
    torch.save(original_tensors(flags, seed), folder / "pytorch_model.bin")
    return folder


def affine(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, size: int) -> Shapes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def conv(name: str, outputs: int, inputs: int, width: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, width), f"{name}.bias": (outputs,)}


def all_shapes(flags: dict[str, Any]) -> Shapes:
    embedding, hidden = flags["embedding_size"], flags["hidden_size"]
    head = flags["architectures"][0]
    prefix = "" if head == "BertModel" else "bert."
    shapes: Shapes = {"embeddings.word_embeddings.weight": (flags["vocab_size"], embedding)}
    if not flags["remove_position_embeddings"]:
        shapes["embeddings.position_embeddings.weight"] = (flags["max_position_embeddings"], embedding)
    shapes["embeddings.token_type_embeddings.weight"] = (flags["type_vocab_size"], embedding)
    shapes |= norm("embeddings.LayerNorm", embedding)
    if embedding != hidden:
        shapes |= affine("embeddings_project", hidden, embedding)
    for layer in range(flags["num_hidden_layers"]):
        shapes |= {f"encoder.layer.{layer}.{name}": shape for name, shape in layer_shapes(flags).items()}
    if head in ("BertModel", "BertForPreTraining", "BertForSequenceClassification", "BertForMultipleChoice"):
        shapes |= affine("pooler.dense", hidden, hidden)
    return {prefix + name: shape for name, shape in shapes.items()} | head_shapes(flags, head)


def head_shapes(flags: dict[str, Any], head: str) -> Shapes:
    embedding, hidden, words = flags["embedding_size"], flags["hidden_size"], flags["vocab_size"]
    shapes: Shapes = {}
    if head in ("BertForMaskedLM", "BertForPreTraining"):
        shapes |= {"cls.predictions.bias": (words,)}
        shapes |= affine("cls.predictions.transform.dense", embedding, hidden)
        shapes |= norm("cls.predictions.transform.LayerNorm", embedding)
    if head == "BertForPreTraining":
        shapes |= affine("cls.seq_relationship", 2, hidden)
    if head in ("BertForSequenceClassification", "BertForTokenClassification"):
        shapes |= affine("classifier", len(flags.get("id2label", "ab")), hidden)
    if head == "BertForMultipleChoice":
        shapes |= affine("classifier", 1, hidden)
    if head == "BertForQuestionAnswering":
        shapes |= affine("qa_outputs", 2, hidden)
    return shapes


def layer_shapes(flags: dict[str, Any]) -> Shapes:
    hidden, inner = flags["hidden_size"], flags["intermediate_size"]
    shapes = {f"attention.self.{name}": shape for name, shape in attention_shapes(flags).items()}
    shapes |= affine("attention.output.dense", hidden, width_of(flags)) | norm("attention.output.LayerNorm", hidden)
    shapes |= affine("intermediate.dense", inner, hidden) | affine("output.dense", hidden, inner)
    return shapes | norm("output.LayerNorm", hidden)


def head_size(flags: dict[str, Any]) -> int:
    size = flags["attention_head_size"]
    return flags["hidden_size"] // flags["num_attention_heads"] if size == -1 else size


def width_of(flags: dict[str, Any]) -> int:
    return flags["num_attention_heads"] * head_size(flags)


def attention_shapes(flags: dict[str, Any]) -> Shapes:
    hidden, width, heads = flags["hidden_size"], width_of(flags), flags["num_attention_heads"]
    kernel = flags["attention_kernel"]
    if kernel == "convbert":
        half = width // 2
        shapes = affine("query", half, hidden) | affine("key", half, hidden) | affine("value", width, hidden)
        shapes |= conv("convbert_key_depthwise", hidden, 1, 9) | affine("convbert_key_pointwise", half, hidden)
        return shapes | affine("lightweight_kernel", heads // 2 * 9, half)
    name, *numbers = kernel.split()
    slots = 2 * int(numbers[0]) + 1 if numbers else 0
    shapes: Shapes = {}
    if "convfixed" in name:
        shapes["convfixed_param"] = (1, heads, 1, slots)
    if "convq" in name:
        shapes["convq_param"] = (head_size(flags), slots)
    if "convk" in name:
        shapes["convk_param"] = (head_size(flags), slots)
    if "convolution" in name:
        shapes["convolution_scalar"] = (1, heads, 1, 1)
        shapes |= conv("convolution", width, 1, slots)
    if not flags["remove_qk"] and flags["qk"] != "none":
        shapes |= projection_shapes("query", flags["qk"], hidden, width)
        shapes |= projection_shapes("key", flags["qk"], hidden, width)
    return shapes | projection_shapes("value", flags["value_forward"], hidden, width)


def projection_shapes(name: str, flag: str, hidden: int, width: int) -> Shapes:
    if not flag.startswith("convolution"):
        return affine(name, width, hidden)
    kind, radius, groups = flag.split()
    slots, outputs = 2 * int(radius) + 1, width // 2 if "mixed" in kind else width
    if "depth" in kind:
        shapes = conv(f"{name}_conv", width, 1, slots) | affine(f"{name}_pointwise", outputs, width)
    else:
        shapes = conv(f"{name}_conv", outputs, hidden // int(groups), slots)
    return shapes | (affine(f"{name}_linear", width // 2, hidden) if "mixed" in kind else {})


def add_indices(tensors: dict[str, torch.Tensor], flags: dict[str, Any]) -> None:
    """The integer tensors that the original saves along."""
    prefix = "" if flags["architectures"][0] == "BertModel" else "bert."
    length = flags["max_position_embeddings"]
    tensors[f"{prefix}embeddings.position_ids"] = torch.arange(length)[None]
    if f"{prefix}embeddings.word_embeddings.weight" in tensors and "cls.predictions.bias" in tensors:
        tensors["cls.predictions.decoder.weight"] = tensors[f"{prefix}embeddings.word_embeddings.weight"]
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    name, *numbers = flags["attention_kernel"].split()
    if any(part in name for part in ("convfixed", "convq", "convk")):
        radius = int(numbers[0])
        offsets = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        for layer in range(flags["num_hidden_layers"]):
            key = f"{prefix}encoder.layer.{layer}.attention.self.relative_positions_mat"
            tensors[key] = (offsets.clamp(-radius, radius) + radius)[None, None]
