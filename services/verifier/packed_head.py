"""The draft head's products with weights laid out for the processor.

The head has its own plain modules, which training needs. Served, their weights do not change, and the few rows of a
draft are the case that plain weights are slowest in (see `linear.py`).
"""

from __future__ import annotations

import torch
from torch import nn

from dartspec.services.draft.head import DraftHead
from dartspec.services.verifier.linear import HEAD_STEPS, Matrix, kernel_rows, pad_rows


class PackedLinear(nn.Linear):
    """A linear layer without bias whose product is a `Matrix`'s. The weight stays, to be saved and fingerprinted."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False, device="meta")
        self.weight = plain.weight
        self.matrix = Matrix(plain.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, in] -> [rows, out]."""
        return self.matrix(pad_rows(x, kernel_rows(len(x), HEAD_STEPS)))[: len(x)]


def pack(head: DraftHead) -> None:
    """Exchange the head's linear layers for packed ones, where the processor has a layout of its own."""
    for module in list(head.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                packed = PackedLinear(child)
                if packed.matrix.plain is None:
                    setattr(module, name, packed)


def packed_matrices(head: DraftHead) -> list[Matrix]:
    """What `pack` has made."""
    return [module.matrix for module in head.modules() if isinstance(module, PackedLinear)]
