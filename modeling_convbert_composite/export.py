# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Export to ONNX by torch.export, with free batch and length, and the proof: onnxruntime at other sizes than the ones
that were traced, shorter and longer than the kernel.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from .checkpoints import find_model
from .configuration_convbert_composite import ConvBertCompositeConfig
from .modeling_convbert_composite import AUTO_MODEL_CLASSES, ConvBertCompositePreTrainedModel


OPSET = 18
# Texts and tokens that are traced: neither 1, which compilers take as a constant, nor equal.
TRACED = (2, 11)
OUTPUTS = ("last_hidden_state", "logits", "prediction_logits", "start_logits", "end_logits")


@dataclass(frozen=True)
class ExportReport:
    """What was written and how far it is from the model: the largest difference by (texts, tokens)."""

    file: Path
    outputs: list[str]
    differences: dict[tuple[int, int], float]
    tolerance: float

    @property
    def passed(self) -> bool:
        return max(self.differences.values()) <= self.tolerance

    def lines(self) -> list[str]:
        """For people."""
        head = f"Largest difference between onnxruntime and torch ({', '.join(self.outputs)}):"
        rows = [
            f"  {texts} x {tokens:<5} {difference:.1e}" for (texts, tokens), difference in self.differences.items()
        ]
        return [head, *rows]


class Named(torch.nn.Module):
    """A model with positional inputs, and the outputs that are named."""

    def __init__(self, model: ConvBertCompositePreTrainedModel, outputs: list[str]):
        super().__init__()
        self.model = model
        self.outputs = outputs

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        found = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return tuple(found[name] for name in self.outputs)


def load_model(folder: str | Path) -> ConvBertCompositePreTrainedModel:
    """The model that a checkpoint folder says it is, in float32, with the attention that graphs take."""
    folder = find_model(folder)
    config = ConvBertCompositeConfig.from_pretrained(folder)
    if config.model_type != "convbert_composite" or not (Path(folder) / "config.json").exists():
        raise ValueError(f"{str(folder)!r} is not a folder of a convbert_composite model; `convert` makes one.")
    architecture = (config.architectures or ["ConvBertCompositeModel"])[0]
    names = [name for name, model in AUTO_MODEL_CLASSES.items() if model.__name__ == architecture]
    if not names:
        raise ValueError(f"{str(folder)!r} holds a {architecture}, which is none of this package's models.")
    auto_class = getattr(transformers, names[0])
    return auto_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


def example(config: ConvBertCompositeConfig, texts: int, tokens: int) -> dict[str, torch.Tensor]:
    """Random texts, the last one padded."""
    generator = torch.Generator().manual_seed(texts * tokens)
    ids = torch.randint(0, config.vocab_size, (texts, tokens), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, (tokens + 1) // 2 :] = 0 if tokens > 2 else 1
    if config.pad_token_id is not None:
        ids = torch.where(ids == config.pad_token_id, (ids + 1) % config.vocab_size, ids).masked_fill(
            mask == 0, config.pad_token_id
        )
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def sizes_to_check(config: ConvBertCompositeConfig) -> list[tuple[int, int]]:
    """One token, fewer than the kernel has, more, and much more, up to what a position table allows."""
    kernel = config.kernel_size
    limit = config.length_limit or 10 * kernel + 300
    lengths = sorted({1, max(kernel // 2, 1), kernel, kernel + 1, 4 * kernel + 3, 257})
    return [(1 + number % 3, length) for number, length in enumerate(lengths) if length <= limit]


def export(model: str | Path, file: str | Path, tolerance: float = 1e-4) -> ExportReport:
    """
    Writes an ONNX file of a model, checked. Nothing is left behind if the check fails.

    Args:
        model: a checkpoint folder. file: to write; the weights stand in it, up to the 2 GB that ONNX allows.
        tolerance: the largest difference of an output that counts as equal.

    Raises:
        ImportError: the extra `export` is missing.
        ValueError: not a model of ours, or a difference above the tolerance.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"Export needs {error.name}: pip install 'convbert-composite[export]'.") from error
    loaded = load_model(model)
    inputs = example(loaded.config, *TRACED)
    with torch.no_grad():
        found = loaded(**inputs)
    outputs = [name for name in OUTPUTS if name in found]
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        written = Path(folder) / "model.onnx"
        write(Named(loaded, outputs).eval(), inputs, outputs, written)
        session = onnxruntime.InferenceSession(str(written), providers=["CPUExecutionProvider"])
        differences = {size: difference(session, loaded, outputs, size) for size in sizes_to_check(loaded.config)}
        report = ExportReport(file, outputs, differences, tolerance)
        if not report.passed:
            raise ValueError(
                f"The exported graph differs from the model by {max(differences.values()):.1e}, more than the "
                f"tolerance {tolerance:.0e}; nothing was written."
            )
        os.replace(written, file)
    return report


def write(model: Named, inputs: dict[str, torch.Tensor], outputs: list[str], file: Path) -> None:
    """Traces and writes, without the exporter's own words."""
    size = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with torch.no_grad():
        torch.onnx.export(
            model,
            tuple(inputs.values()),
            str(file),
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=tuple(size for _ in inputs),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@torch.no_grad()
def difference(
    session: Any, model: ConvBertCompositePreTrainedModel, outputs: list[str], size: tuple[int, int]
) -> float:
    """The largest at real tokens, in units of the largest value if that is above 1."""
    inputs = example(model.config, *size)
    expected = model(**inputs)
    found = session.run(outputs, {name: tensor.numpy() for name, tensor in inputs.items()})
    worst = 0.0
    for name, array in zip(outputs, found, strict=True):
        one, other = torch.from_numpy(array), expected[name]
        if one.shape[:2] == inputs["input_ids"].shape:
            real = inputs["attention_mask"].bool()
            one, other = one[real], other[real]
        worst = max(worst, float((one - other).abs().max() / other.abs().max().clamp(min=1)))
    return worst
