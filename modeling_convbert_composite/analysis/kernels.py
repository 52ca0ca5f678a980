# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
What a model's heads have learnt about distance: its kernels, by layer, head and offset in tokens.

The fixed kernel F[h, r] is a parameter. The query kernel s * q_i.U[r] depends on the token; it is averaged over the
tokens of a text. Offset n means a key n tokens after the query; at -K and K stand all that are farther away.
"""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from modeling_convbert_composite.attention_convbert_composite import query_kernel
from modeling_convbert_composite.cards import auto_class_of
from modeling_convbert_composite.checkpoints import find_model
from modeling_convbert_composite.configuration_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.layers_convbert_composite import ConvBertCompositeSelfAttention
from modeling_convbert_composite.pretraining.examples import chunks


TABLE_FILE = "kernels.csv"


@dataclass(frozen=True)
class Kernels:
    """`values` (layers, H, R) of one kind of kernel; `label` says what they are."""

    kind: Literal["fixed", "query"]
    label: str
    values: torch.Tensor

    @property
    def offsets(self) -> range:
        half_width = self.values.shape[-1] // 2
        return range(-half_width, half_width + 1)


def attentions(model: PreTrainedModel) -> list[ConvBertCompositeSelfAttention]:
    return [module for module in model.modules() if isinstance(module, ConvBertCompositeSelfAttention)]


def fixed_kernels(model: PreTrainedModel) -> Kernels | None:
    """The fixed kernels, or None if the model has none."""
    if not model.config.fixed_kernel:
        return None
    tables = [attention.fixed_kernel.detach().float() for attention in attentions(model)]
    return Kernels("fixed", "fixed kernels F", torch.stack(tables))


def query_kernels(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], max_length: int = 512
) -> Kernels | None:
    """
    The query kernels, averaged over all tokens of `texts` but the special ones; None if the model has none.

    Raises:
        ValueError: no token to average over.
    """
    if not model.config.query_kernel:
        return None
    total, count = torch.zeros(()), 0
    limit = min(max_length, model.config.length_limit or max_length)
    model.eval()
    special = torch.tensor(tokenizer.all_special_ids)
    for batch in windows(texts, tokenizer, limit):
        # The mask of special tokens knows those that the tokenizer adds, not a [MASK] in the text.
        is_text = (batch.pop("special_tokens_mask") == 0) & ~torch.isin(batch["input_ids"], special)
        with torch.no_grad(), recorded_queries(model) as queries:
            model(**batch)
        slots = torch.stack(
            [
                query_kernel(attention.split_heads(query), attention.query_kernel, attention.scaling).detach()
                for attention, query in zip(attentions(model), queries, strict=True)
            ]
        )  # (layers, B, H, L, R)
        total = total + slots.masked_fill(~is_text[None, :, None, :, None], 0).sum(dim=(1, 3)).float()
        count += int(is_text.sum())
    if count == 0:
        raise ValueError("The text has no token to average the query kernels over.")
    what = f"over {count:,} tokens" if len(texts) > 1 else f"over {count} tokens of one text"
    return Kernels("query", f"query kernels s q.U, mean {what}", total / count)


def windows(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int, size: int = 16
) -> Iterator[dict[str, torch.Tensor]]:
    """All of the texts in pieces of at most `length` tokens, `size` of them at a time."""
    pieces = (piece for text in texts for piece in pieces_of(text, tokenizer, length))
    for batch in chunks(pieces, size):
        yield dict(tokenizer.pad(batch, return_tensors="pt"))


def pieces_of(text: str, tokenizer: PreTrainedTokenizerBase, length: int) -> Iterator[dict[str, list[int]]]:
    found = tokenizer(
        text, truncation=True, max_length=length, return_overflowing_tokens=True, return_special_tokens_mask=True
    )
    found.pop("overflow_to_sample_mapping")
    for index in range(len(found["input_ids"])):
        yield {name: rows[index] for name, rows in found.items()}


@contextmanager
def recorded_queries(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """The projected queries (B, L, A) of every layer during a forward pass."""
    queries: list[torch.Tensor] = []

    def record(module: Any, inputs: Any, output: torch.Tensor) -> None:
        queries.append(output)

    hooks = [attention.query.register_forward_hook(record) for attention in attentions(model)]
    try:
        yield queries
    finally:
        for hook in hooks:
            hook.remove()


def write_csv(kernels: list[Kernels], path: Path) -> None:
    """A row for each kind, layer, head and offset; layers and heads count from 0."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["kind", "layer", "head", "offset", "value"])
        for kernel in kernels:
            for layer, heads in enumerate(kernel.values.tolist()):
                for head, values in enumerate(heads):
                    for offset, value in zip(kernel.offsets, values, strict=True):
                        writer.writerow([kernel.kind, layer, head, offset, f"{value:.6g}"])


def plot_kernels(kernels: Kernels, path: Path) -> None:
    """A row for each layer: on the left a heat map of heads by offset, on the right a line for each head."""
    from matplotlib.figure import Figure

    layers, heads, _ = kernels.values.shape
    largest = float(kernels.values.abs().max()) or 1.0
    offsets = list(kernels.offsets)
    figure = Figure(figsize=(10, 0.9 + layers * max(1.3, 0.16 * heads)), layout="constrained")
    figure.suptitle(kernels.label)
    grid = figure.subplots(layers, 2, squeeze=False, sharex=True)
    for layer, (map_axes, line_axes) in enumerate(grid):
        image = map_axes.imshow(
            kernels.values[layer].numpy(),
            cmap="RdBu_r",
            vmin=-largest,
            vmax=largest,
            aspect="auto",
            interpolation="nearest",
            extent=(offsets[0] - 0.5, offsets[-1] + 0.5, heads - 0.5, -0.5),
        )
        map_axes.set_ylabel(f"layer {layer}\nhead")
        map_axes.set_yticks(range(0, heads, max(1, heads // 6)))
        for head in range(heads):
            line_axes.plot(offsets, kernels.values[layer, head].tolist(), label=f"head {head}", linewidth=1)
        line_axes.axhline(0, color="grey", linewidth=0.5)
        line_axes.set_ylabel("score")
    half_width = offsets[-1]
    step = max(1, half_width // 4)
    for axes in grid[-1]:
        axes.set_xticks([*range(-half_width, 0, step), *range(0, half_width + 1, step)])
        axes.set_xlabel("offset of the key from the query, in tokens")
    figure.colorbar(image, ax=grid[:, 0].tolist(), label="score")
    if heads <= 8:
        figure.legend(
            *grid[0, 1].get_legend_handles_labels(), loc="outside lower center", ncols=heads, fontsize="small"
        )
    figure.savefig(path, dpi=120)


def analyse_kernels(
    model: str, output: Path, texts: list[str] | None = None, image: str | None = "png", revision: str | None = None
) -> list[Path]:
    """
    Writes `kernels.csv`, and a plot for each kind of kernel, to the folder `output`.

    Args:
        model: folder, repository id, or the name of a shipped checkpoint.
        texts: to average query kernels over; without them fixed kernels alone.
        image: png or svg; None = no plots.

    Returns:
        The files.

    Raises:
        ValueError: the model has no kernel to show.
    """
    source: dict[str, Any] = {"pretrained_model_name_or_path": find_model(model), "revision": revision or "main"}
    config = AutoConfig.from_pretrained(**source)
    if not isinstance(config, ConvBertCompositeConfig):
        raise ValueError(
            f"{model} is a {config.model_type}; only ConvBertComposite models have kernels. `convert` it."
        )
    loaded = getattr(transformers, auto_class_of(config)).from_pretrained(**source, dtype=torch.float32)
    found = [fixed_kernels(loaded)]
    if texts:
        tokenizer = AutoTokenizer.from_pretrained(**source)
        found.append(query_kernels(loaded, tokenizer, texts))
    kernels = [kernel for kernel in found if kernel is not None]
    if not kernels:
        hint = "; give --text for its query kernels" if loaded.config.query_kernel and not texts else ""
        raise ValueError(f"{model} has no fixed kernels{hint}.")
    output.mkdir(parents=True, exist_ok=True)
    files = [output / TABLE_FILE]
    write_csv(kernels, files[0])
    for kernel in kernels if image else ():
        files.append(output / f"{kernel.kind}-kernels.{image}")
        plot_kernels(kernel, files[-1])
    return files
