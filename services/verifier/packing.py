"""Many small tensors from the host to a device in one copy."""

from __future__ import annotations

import dataclasses
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
    tensors: list[torch.Tensor] = []
    _collect(value, tensors)
    moved = iter(copy_together(tensors, device))
    return _replace(value, moved)


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


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu":
            found.append(value)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, found)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _collect(getattr(value, field.name), found)


def _replace(value: Any, moved: Any) -> Any:
    """``value`` with its CPU tensors taken from ``moved``, in the order of `_collect`."""
    if isinstance(value, torch.Tensor):
        return next(moved) if value.device.type == "cpu" else value
    if isinstance(value, list | tuple):
        return type(value)(_replace(each, moved) for each in value)
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: _replace(getattr(value, name), moved) for name in names})  # type: ignore[type-var]
    return value
