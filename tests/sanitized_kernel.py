# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Runs the kernel as built with address sanitizer, which tests/test_native_kernel.py loads before Python starts."""

import torch
from fast_cases import Shape, make_inputs, reference

from modeling_convbert_composite.native import build, kernel_attention


def main() -> None:
    count = 0
    for length in (1, 2, 15, 16, 17, 63, 64, 65, 130, 257):
        for size in (1, 7, 16, 20):
            for kernel_size in (1, 3, 33, 301):
                for dtype in (torch.float32, torch.bfloat16):
                    number = count % 8
                    shape = Shape(
                        2, 1, length, size, kernel_size, ("query", "fixed")[number % 2], number % 3 == 0,
                        ("none", "padding", "pairs", "soft")[number % 4], number > 5, number in (1, 4), dtype,
                    )  # fmt: skip
                    inputs = make_inputs(shape).to(dtype)
                    output = kernel_attention(*inputs.arguments(0.1 * (number == 7)), kind=build.SANITIZED)
                    output.float().sum().backward()
                    if number != 7:
                        exact = reference(inputs.to(torch.float64)).transpose(1, 2)
                        assert (output.double() - exact).abs().max() < 0.1, shape
                    count += 1
    print(f"{count} cases checked")


if __name__ == "__main__":
    main()
