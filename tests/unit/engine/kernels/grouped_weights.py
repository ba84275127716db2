"""Grouped weights of every kind that checkpoints have, with random numbers."""

from __future__ import annotations

import torch

from stoker.engine.kernels import Grouped, GroupScales

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
KINDS = ("gptq", "gptq act-order", "gptq 8", "float32 scales", "q4_0", "q4_1", "q8_0", "q4_k", "q6_k", "mxfp4", "fp8")


def grouped_of(kind: str, outputs: int, inputs: int) -> Grouped:
    """inputs: a multiple of 256."""
    match kind:
        case "gptq" | "gptq act-order":
            order = torch.randperm(inputs) if kind != "gptq" else None
            zeros = torch.randint(0, 16, (outputs, inputs // 128)).float()
            return Grouped(
                codes(16, outputs, inputs), torch.arange(16.0), scales(128, outputs, inputs), zeros, order=order
            )
        case "gptq 8":
            zeros = torch.randint(0, 256, (outputs, inputs // 32)).float() - 127.5
            sizes = torch.arange(128) + 0.5
            return Grouped(codes(256, outputs, inputs), signed(sizes), scales(32, outputs, inputs), zeros)
        case "float32 scales":
            found = GroupScales(torch.rand(outputs, inputs // 64))
            return Grouped(codes(16, outputs, inputs), torch.arange(16) - 8.0, found)
        case "q4_0":
            return Grouped(codes(16, outputs, inputs), torch.arange(16) - 8.0, scales(32, outputs, inputs))
        case "q4_1":
            minima = scales(32, outputs, inputs)
            return Grouped(codes(16, outputs, inputs), torch.arange(16.0), scales(32, outputs, inputs), minima=minima)
        case "q8_0":
            return Grouped(codes(256, outputs, inputs), signed(torch.arange(128.0)), scales(32, outputs, inputs))
        case "q4_k":
            found, minima = (outer_scales(32, outputs, inputs, torch.uint8) for _ in range(2))
            return Grouped(codes(16, outputs, inputs), torch.arange(16.0), found, minima=minima)
        case "q6_k":
            found = outer_scales(16, outputs, inputs, torch.int8)
            return Grouped(codes(64, outputs, inputs), torch.arange(64) - 32.0, found)
        case "mxfp4":
            found = GroupScales(torch.exp2(torch.randint(-8, 2, (outputs, inputs // 32))).bfloat16())
            return Grouped(codes(16, outputs, inputs), torch.tensor([*FP4, *(-each for each in FP4)]), found)
        case _:
            levels = torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
            found = GroupScales(torch.rand(outputs, inputs // 128).bfloat16())
            return Grouped(codes(256, outputs, inputs), signed(levels), found)


def codes(count: int, outputs: int, inputs: int) -> torch.Tensor:
    return torch.randint(0, count, (outputs, inputs)).to(torch.uint8)


def signed(sizes: torch.Tensor) -> torch.Tensor:
    return torch.cat((sizes, -sizes))


def scales(group: int, outputs: int, inputs: int) -> GroupScales:
    return GroupScales(torch.rand(outputs, inputs // group).half() / 16)


def outer_scales(group: int, outputs: int, inputs: int, dtype: torch.dtype) -> GroupScales:
    values = torch.randint(-32 if dtype == torch.int8 else 0, 64, (outputs, inputs // group)).to(dtype)
    return GroupScales(values, (torch.rand(outputs, inputs // 256) / 64).half())
