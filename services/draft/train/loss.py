"""Annealed KL divergence to the teacher over the draft vocabulary (arXiv:2601.19278), logits a few rows at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Rows whose logits exist at once: on a processor few enough for its cache (measured with 8,192 tokens), on a GPU enough
# to fill it.
_CHUNK = 128
_CHUNK_CUDA = 4096


class OutputKL(torch.autograd.Function):
    """sum over rows of weight * KL(teacher || softmax(normed @ matrix^T + left @ right)), differentiated in chunks.

    normed [R, H]; matrix [V_draft, H]; ids int64 [R, K] draft ids and probs float32 [R, K], the teacher, summing to 1
    (or 0 in rows to leave out); weights float32 [R]. left [R, r] and right [r, V_draft] add the transition score of the
    token before; both None without. Gradients are computed of those that want one. Products are taken in the dtype of
    `matrix`, all else in float32 or better.
    """

    @staticmethod
    def forward(
        ctx: Any,
        normed: Tensor,
        matrix: Tensor,
        ids: Tensor,
        probs: Tensor,
        weights: Tensor,
        left: Tensor | None = None,
        right: Tensor | None = None,
    ) -> Tensor:
        wide = torch.promote_types(torch.float32, normed.dtype)
        with torch.autocast(normed.device.type, enabled=False):
            rows = normed.to(matrix.dtype)
            wants_rows, wants_matrix = ctx.needs_input_grad[:2]
            wants_left, wants_right = ctx.needs_input_grad[5:] or (False, False)
            of_rows = torch.empty_like(normed, dtype=wide) if wants_rows else None
            of_matrix = torch.zeros_like(matrix, dtype=wide) if wants_matrix else None
            of_left = torch.empty_like(left, dtype=wide) if left is not None and wants_left else None
            of_right = torch.zeros_like(right, dtype=wide) if right is not None and wants_right else None
            total = torch.zeros((), dtype=wide, device=normed.device)
            step = _CHUNK_CUDA if normed.is_cuda else _CHUNK
            for begin in range(0, len(rows), step):
                part = slice(begin, begin + step)
                chosen, teacher, weight = ids[part], probs[part].to(wide), weights[part, None].to(wide)
                logits = (rows[part] @ matrix.T).to(wide)
                if left is not None and right is not None:
                    logits += (left[part].to(matrix.dtype) @ right.to(matrix.dtype)).to(wide)
                picked = logits.gather(-1, chosen)
                # In place, so that the logits stay in the cache: they become exp, then the loss's slope.
                highest = logits.amax(-1, keepdim=True)
                slope = logits.sub_(highest).exp_()
                mass = slope.sum(-1, keepdim=True)
                logprobs = picked - highest - mass.log()
                total += (weight * (torch.special.xlogy(teacher, teacher) - teacher * logprobs)).sum()
                slope.mul_(weight * teacher.sum(-1, keepdim=True) / mass)
                slope.scatter_add_(-1, chosen, -weight * teacher)
                narrow = slope.to(matrix.dtype)
                if of_rows is not None:
                    of_rows[part] = narrow @ matrix
                if of_matrix is not None:
                    of_matrix += (narrow.T @ rows[part]).to(wide)
                if of_left is not None and right is not None:
                    of_left[part] = (narrow @ right.T.to(matrix.dtype)).to(wide)
                if of_right is not None and left is not None:
                    of_right += (left[part].T.to(matrix.dtype) @ narrow).to(wide)
        ctx.save_for_backward(of_rows, of_matrix, of_left, of_right)
        ctx.dtypes = [None if value is None else value.dtype for value in (normed, matrix, left, right)]
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        parts = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        rows, matrix, left, right = (None if part is None else (part * grads[0]).to(dtype) for part, dtype in parts)
        return rows, matrix, None, None, None, left, right


def restrict_teacher(ids: Tensor, probs: Tensor, draft_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Teacher over the draft vocabulary, renormalised: target ids -> draft ids; tokens outside get probability 0.

    draft_ids: int64 [V], the draft id of each target id, -1 outside. A row with nothing inside becomes all zero.
    """
    mapped = draft_ids[ids]
    inside = torch.where(mapped >= 0, probs, 0.0)
    return mapped.clamp(min=0), inside / inside.sum(-1, keepdim=True).clamp(min=1e-9)
