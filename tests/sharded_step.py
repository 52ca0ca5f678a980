# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
One training step of a model whose parameters are sharded over processes (FSDP), as `torchrun` starts it: each process
takes half of the batch. Writes the summed-up gradients.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForMaskedLM

import modeling_convbert_composite  # noqa: F401  (registers the model type)
from modeling_convbert_composite.pretraining.run import states_to_predict


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (count,))
    model = AutoModelForMaskedLM.from_pretrained(folder).train()
    for layer in model.base_model.encoder.layer:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    batch = {name: tensor.chunk(count)[rank] for name, tensor in torch.load(folder / "batch.pt").items()}
    with states_to_predict(model, batch["labels"]) as labels:
        # Of the mean over all labels of both halves; gradients are averaged over processes.
        items = torch.load(folder / "items.pt") / count
        model(input_ids=batch["input_ids"], labels=labels, num_items_in_batch=items).loss.backward()
    gradients = {name: part.grad.full_tensor() for name, part in model.named_parameters() if part.grad is not None}
    if rank == 0:
        save_file({name: tensor.contiguous() for name, tensor in gradients.items()}, folder / "gradients.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
