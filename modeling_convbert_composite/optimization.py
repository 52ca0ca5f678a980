# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Parameter groups and the order of the data: what our runs set themselves, on top of transformers' Trainer."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Sampler
from transformers import Trainer


# The lightweight convolutions of the scores. They start at zero or near it, and move little at the rate of the rest.
KERNEL_NAMES = ("fixed_kernel", "query_kernel", "key_kernel")


def is_kernel(name: str) -> bool:
    """Whether a parameter is a kernel of the attention scores."""
    return name.rpartition(".")[2] in KERNEL_NAMES


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    kernel_learning_rate: float | None = None,
    kernel_weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """
    Groups for AdamW. Decayed is what the paper's code decays: every weight and table, the kernels among them, but no
    bias and no LayerNorm.

    Args:
        kernel_learning_rate, kernel_weight_decay: for fixed, query and key kernels; None = as the rest.
    """
    kernels: dict[str, Any] = {
        "params": [],
        "weight_decay": weight_decay if kernel_weight_decay is None else kernel_weight_decay,
    }
    if kernel_learning_rate is not None:
        kernels["lr"] = kernel_learning_rate
    decayed: dict[str, Any] = {"params": [], "weight_decay": weight_decay}
    plain: dict[str, Any] = {"params": [], "weight_decay": 0.0}
    norms = {
        id(part) for module in model.modules() if isinstance(module, nn.LayerNorm) for part in module.parameters()
    }
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_plain = name.endswith("bias") or id(parameter) in norms
            group = kernels if is_kernel(name) else plain if is_plain else decayed
            group["params"].append(parameter)
    return [group for group in (decayed, plain, kernels) if group["params"]]


class EpochSampler(Sampler[int]):
    """
    The order of an epoch: random, or batches of about equal length in random order. Seed and epoch alone decide it,
    so that a resumed run, and one on more processes, sees the same batches.
    """

    def __init__(self, size: int, seed: int, batch_size: int, lengths: Sequence[int] | None = None):
        """
        Args:
            batch_size: texts per optimiser step. lengths: of each text, to group by; None = random order.
        """
        self.size, self.seed, self.batch_size = size, seed, batch_size
        self.lengths = None if lengths is None else torch.tensor(lengths)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.size, generator=generator)
        if self.lengths is not None:
            order = grouped_by_length(order, self.lengths, self.batch_size, generator)
        return iter(order.tolist())


def grouped_by_length(
    order: torch.Tensor, lengths: torch.Tensor, batch_size: int, generator: torch.Generator
) -> torch.Tensor:
    """
    `order` with stretches of 50 batches sorted by length and the batches shuffled. The longest batch comes first, so
    that one that does not fit into memory fails at once; the rest that fills no batch stays last.
    """
    parts = [part[lengths[part].argsort(descending=True, stable=True)] for part in order.split(50 * batch_size)]
    batches = list(torch.cat(parts).split(batch_size))
    whole = len(order) // batch_size
    if whole == 0:
        return torch.cat(batches)
    shuffled = torch.randperm(whole, generator=generator).tolist()
    longest = max(shuffled, key=lambda index: int(lengths[batches[index]].max()))
    shuffled.remove(longest)
    return torch.cat([batches[index] for index in (longest, *shuffled)] + batches[whole:])


class CompositeTrainer(Trainer):
    """transformers' Trainer with our parameter groups and an order of data that resumes exactly."""

    def __init__(
        self,
        *args: Any,
        kernel_learning_rate: float | None = None,
        kernel_weight_decay: float | None = None,
        lengths: Sequence[int] | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.kernel_learning_rate = kernel_learning_rate
        self.kernel_weight_decay = kernel_weight_decay
        self.lengths = lengths

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            model = self.model if model is None else model
            groups = parameter_groups(
                model, self.args.weight_decay, self.kernel_learning_rate, self.kernel_weight_decay
            )
            optimizer_class, arguments = self.get_optimizer_cls_and_kwargs(self.args, model)
            self.optimizer = optimizer_class(groups, **arguments)
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return EpochSampler(len(dataset), self.args.seed, step, self.lengths)
