"""Many small tensors from the host to a device in one copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")

# Each tensor starts at a multiple of this, which suits any type and the kernels' wide loads.
_ALIGNMENT = 64


def to_device(value: T, device: torch.device) -> T:
    """``value`` with every CPU tensor in it on ``device``, whatever dataclasses, lists and tuples it is made of.

    One copy from pinned memory; the results share one block. On the CPU ``value`` itself.
    """
    if device.type == "cpu":
        return value
    return replace_tensors(value, copy_together(tensors_of(value), device))


def copy_together(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The tensors' contents on ``device``, as views of one block."""
    starts, size = [], 0
    for tensor in tensors:
        starts.append(size)
        size += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    # Pinned memory is not given out again before the copy from it is done.
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for tensor, start in zip(tensors, starts, strict=True):
        _part(host, start, tensor).copy_(tensor)
    block = host.to(device, non_blocking=True)
    return [_part(block, start, tensor) for tensor, start in zip(tensors, starts, strict=True)]


def _part(block: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    return block[start : start + like.numel() * like.element_size()].view(like.dtype).view(like.shape)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The CPU tensors in ``value``, in the order in which `replace_tensors` takes them."""
    if isinstance(value, torch.Tensor):
        return [value] if value.device.type == "cpu" else []
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors_of(each)]
    if dataclasses.is_dataclass(value):
        return tensors_of([getattr(value, field.name) for field in dataclasses.fields(value)])
    return []


def replace_tensors(value: T, tensors: Sequence[torch.Tensor]) -> T:
    """``value`` with ``tensors`` in place of its own."""
    return _replace(value, iter(tensors))


def _replace(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return next(tensors) if value.device.type == "cpu" else value
    if isinstance(value, list | tuple):
        return type(value)([_replace(each, tensors) for each in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: _replace(getattr(value, name), tensors) for name in names})
    return value
