# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Parameter groups and the order of the data: what our runs set themselves, on top of transformers' Trainer."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from modeling_convbert_composite.run_folders import CHECKPOINTS


# The lightweight convolutions of the scores. They start at zero or near it, and move little at the rate of the rest.
KERNEL_NAMES = ("fixed_kernel", "query_kernel", "key_kernel")


# Those of transformers that need nothing but the steps.
SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup"),
    "inverse_sqrt",
)


def is_kernel(name: str) -> bool:
    """Whether a parameter is a kernel of the attention scores."""
    return name.rpartition(".")[2] in KERNEL_NAMES


@dataclass(frozen=True)
class KernelRates:
    """What kernels may have for themselves; None = as the rest. `fixed_rate` is for fixed kernels, before `rate`."""

    rate: float | None = None
    fixed_rate: float | None = None
    weight_decay: float | None = None


def parameter_groups(
    model: nn.Module, weight_decay: float, kernels: KernelRates | None = None
) -> list[dict[str, Any]]:
    """
    Groups for AdamW. Decayed is what the paper's code decays: every weight and table, the kernels among them, but no
    bias and no LayerNorm.
    """
    kernels = kernels or KernelRates()
    kernel_decay = weight_decay if kernels.weight_decay is None else kernels.weight_decay
    fixed_rate = kernels.rate if kernels.fixed_rate is None else kernels.fixed_rate
    norms = {
        id(part) for module in model.modules() if isinstance(module, nn.LayerNorm) for part in module.parameters()
    }
    # (weight decay, learning rate or None) -> parameters
    groups: dict[tuple[float, float | None], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if is_kernel(name):
            key = (kernel_decay, fixed_rate if name.endswith("fixed_kernel") else kernels.rate)
        else:
            key = (0.0 if name.endswith("bias") or id(parameter) in norms else weight_decay, None)
        groups.setdefault(key, []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay} | ({} if rate is None else {"lr": rate})
        for (decay, rate), parameters in groups.items()
    ]


def shared_arguments(settings: Any) -> dict[str, Any]:
    """The `TrainingArguments` that fine-tuning and pre-training take from their settings in the same way."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    parts = processes * settings.accumulate
    if settings.batch_size % parts:
        raise ValueError(
            f"--batch-size {settings.batch_size} must be divisible by {parts} "
            f"({processes} processes x --accumulate {settings.accumulate})."
        )
    if settings.schedule not in SCHEDULES:
        raise ValueError(f"--schedule must be one of {', '.join(SCHEDULES)}, got {settings.schedule!r}.")
    if settings.tensorboard:
        if find_spec("tensorboard") is None:
            raise ImportError("--tensorboard needs a package of that name: pip install tensorboard.")
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(settings.output / "tensorboard")
    return {
        "output_dir": str(settings.output / CHECKPOINTS),
        "per_device_train_batch_size": settings.batch_size // parts,
        "per_device_eval_batch_size": max(1, settings.eval_batch_size // processes),
        "gradient_accumulation_steps": settings.accumulate,
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "warmup_steps": settings.warmup,
        "lr_scheduler_type": settings.schedule,
        "adam_epsilon": settings.adam_epsilon,
        "max_grad_norm": settings.clip,
        "eval_steps": settings.eval_steps,
        "seed": settings.seed,
        "bf16": settings.bf16,
        "torch_compile": settings.compile,
        "report_to": ["tensorboard"] if settings.tensorboard else [],
        # Without it, bfloat16 is refused where there is no accelerator.
        "use_cpu": not torch.accelerator.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def position_limit(config: Any) -> int | None:
    """Tokens of the longest input, the rows of a model's position table; None without one. Models of any kind."""
    has_table = getattr(config, "position_embedding_type", "absolute") == "absolute"
    return getattr(config, "max_position_embeddings", None) if has_table else None


class EpochSampler(Sampler[int]):
    """
    The order of an epoch: random, or batches of about equal length in random order. Seed and epoch alone decide it,
    so that a resumed run, and one on more processes, sees the same batches.
    """

    def __init__(
        self,
        size: int,
        seed: int,
        batch_size: int,
        lengths: Sequence[int] | np.ndarray | None = None,
        counts_visits: bool = False,
    ):
        """
        Args:
            batch_size: texts per optimiser step. lengths: of each text, to group by; None = random order.
            counts_visits: give `epoch * size + index` in place of `index`, and fill up the last batch with the first
                indices: several processes would do so, and one must not differ.
        """
        self.size, self.seed, self.batch_size, self.counts_visits = size, seed, batch_size, counts_visits
        self.lengths = None if lengths is None else torch.tensor(lengths)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def steps(self) -> int:
        """Optimiser steps of an epoch."""
        return -(-len(self) // self.batch_size)

    def __len__(self) -> int:
        return self.size + (-self.size % self.batch_size if self.counts_visits else 0)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.size, generator=generator)
        if self.lengths is not None:
            order = grouped_by_length(order, self.lengths, self.batch_size, generator)
        if self.counts_visits:
            order = order.repeat(1 + len(self) // self.size)[: len(self)] + self.epoch * self.size
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


class EpochOrder(TrainerCallback):
    """Tells an `EpochSampler` its epoch: a run that is resumed on several processes hides it from the Trainer."""

    def __init__(self, sampler: EpochSampler):
        self.sampler = sampler

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **names: Any
    ) -> None:
        self.sampler.set_epoch(state.global_step // self.sampler.steps)


class CompositeTrainer(Trainer):
    """transformers' Trainer with our parameter groups and an order of data that resumes exactly."""

    def __init__(
        self,
        *args: Any,
        kernels: KernelRates | None = None,
        lengths: Sequence[int] | np.ndarray | None = None,
        counts_visits: bool = False,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"{self.args.n_gpu} GPUs need a process each: torchrun --nproc-per-node {self.args.n_gpu} -m "
                "modeling_convbert_composite ...; or show one of them alone (CUDA_VISIBLE_DEVICES=0)."
            )
        self.counts_visits = counts_visits
        self.kernels = kernels
        self.lengths = lengths

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            model = self.model if model is None else model
            groups = parameter_groups(model, self.args.weight_decay, self.kernels)
            optimizer_class, arguments = self.get_optimizer_cls_and_kwargs(self.args, model)
            self.optimizer = optimizer_class(groups, **arguments)
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        sampler = EpochSampler(len(dataset), self.args.seed, step, self.lengths, self.counts_visits)
        self.add_callback(EpochOrder(sampler))
        return sampler

    def train_from(self, checkpoint: str | None) -> None:
        """
        Trains from the start or goes on from a checkpoint, early stopping with it. If the run had come to its end
        there, what it ended with is loaded: the Trainer would take one more step.
        """
        if checkpoint is None:
            self.train()
            return
        state = TrainerState.load_from_json(str(Path(checkpoint) / "trainer_state.json"))
        for callback in self.callback_handler.callbacks:
            kept: Any = state.stateful_callbacks.get(type(callback).__name__, {})
            for name, value in kept.get("attributes", {}).items():
                setattr(callback, name, value)
        control: Any = state.stateful_callbacks["TrainerControl"]
        if not control["args"]["should_training_stop"]:
            self.train(resume_from_checkpoint=checkpoint)
            return
        self.state = state
        if self.args.load_best_model_at_end and state.best_model_checkpoint:
            self._load_best_model()
        else:
            self._load_from_checkpoint(checkpoint)
