"""Annealed KL divergence to the teacher over the draft vocabulary (arXiv:2601.19278), with a frozen output matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHUNK = 512


class FrozenOutputKL(torch.autograd.Function):
    """sum over rows of weight * KL(teacher || softmax(normed @ matrix^T)), computed and differentiated in chunks.

    normed [R, H]; matrix [V_draft, H], frozen; ids int64 [R, K] draft ids and probs float32 [R, K], the teacher,
    summing to 1 (or 0 in rows to leave out); weights float32 [R]. Logits of all rows never exist at once.
    """

    @staticmethod
    def forward(ctx: Any, normed: Tensor, matrix: Tensor, ids: Tensor, probs: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=normed.device)
        gradient = torch.empty_like(normed)
        for rows in torch.arange(len(normed), device=normed.device).split(_CHUNK):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            chosen, teacher, weight = ids[part], probs[part], weights[part, None]
            logits = (normed[part] @ matrix.T).float()
            mass = teacher.sum(-1, keepdim=True)
            logprobs = logits.gather(-1, chosen) - logits.logsumexp(-1, keepdim=True)
            total += (weight * (torch.special.xlogy(teacher, teacher) - teacher * logprobs)).sum()
            slope = logits.softmax(-1).mul_(weight * mass)
            slope.scatter_add_(-1, chosen, -weight * teacher)
            gradient[part] = slope.to(matrix.dtype) @ matrix
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype), None, None, None, None


def restrict_teacher(ids: Tensor, probs: Tensor, draft_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Teacher over the draft vocabulary, renormalised: target ids -> draft ids; tokens outside get probability 0.

    draft_ids: int64 [V], the draft id of each target id, -1 outside. A row with nothing inside becomes all zero.
    """
    mapped = draft_ids[ids]
    inside = torch.where(mapped >= 0, probs, 0.0)
    return mapped.clamp(min=0), inside / inside.sum(-1, keepdim=True).clamp(min=1e-9)
