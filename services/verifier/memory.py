"""How much memory a verifier takes, part by part, and how many KV positions its budget leaves. Pure but for counting.

Everything that grows with use is reserved by position, so the sum never exceeds the budget, whatever is asked of it:
the target's and the head's keys and values, features that wait for the head, features at the ends of reusable blocks.
Scratch is that of the largest pass: every session verifies as many nodes as it may while a prompt is read, or the
passes that are measured at start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.draft.head import DraftHead
from dartspec.services.verifier.features import bytes_per_position
from dartspec.services.verifier.kv_cache import SLAB_SLOTS, SLOT_BLOCK, rounded_capacity
from dartspec.services.verifier.linear import KERNEL_BYTES, KERNELS_KEPT, Matrix
from dartspec.services.verifier.packed_head import packed_matrices
from dartspec.services.verifier.scheduler import MAX_DECODING, PREFILL_ROWS, SHARED_PREFILL_ROWS
from dartspec.services.verifier.target import Target

MIB = 1 << 20
# Different shapes of matrices in a target.
SHAPES = 5
# Of what is allocated and freed while it runs, the share that the allocator may hold besides. Without it SmolLM2 in
# float32 once took 0.1% more than all parts together.
ALLOCATOR_SHARE = 0.05


@dataclass(frozen=True)
class Limits:
    """The settings that memory depends on. measured_rows: rows of the largest pass that is measured at start."""

    max_sessions: int
    max_nodes: int
    context_length: int
    measured_rows: int


@dataclass(frozen=True)
class Parts:
    """Bytes by purpose."""

    target_weights: int
    head_weights: int
    target_cache: int
    head_cache: int  # with the features that wait
    logits: int
    activations: int
    attention: int
    kernels: int
    allocator: int  # what it rounds up and keeps

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))

    def table(self) -> str:
        """``target weights 257 MiB, head weights 13 MiB, ...``."""
        return ", ".join(
            f"{field.name.replace('_', ' ')} {getattr(self, field.name) / MIB:.1f} MiB" for field in fields(self)
        )


class Demand:
    """What a target and its head need, as a function of the KV positions."""

    def __init__(self, target: Target, head: DraftHead | None, limits: Limits) -> None:
        self._limits = limits
        c, item = target.config, target.dtype.itemsize
        self._config = c
        self._item = item
        self._on_cpu = target.device.type == "cpu"
        # Plain weights are multiplied by kernels that are there from the start.
        self._compiled = self._on_cpu and target.lm_head.plain is None
        self._weights, self._head_weights = _weights(target, head)
        self._kv_bytes = 2 * c.layers * c.kv_heads * c.head_dim * item
        self._head_bytes = 0.0
        if head is not None:
            self._head_bytes = bytes_per_position(head.config, SLOT_BLOCK, head.fc.weight.element_size(), item)

    def at(self, positions: int) -> Parts:
        """The parts with so many KV positions."""
        c, item, limits = self._config, self._item, self._limits
        decoding = min(limits.max_sessions, MAX_DECODING) * (limits.max_nodes + 1)
        rows = max(decoding + SHARED_PREFILL_ROWS, PREFILL_ROWS, limits.measured_rows)
        logit_rows = max(decoding, limits.measured_rows)
        # Products come in tiles that are put together, so they exist twice for a moment; logits once more in float32.
        logits = logit_rows * c.vocab_size * (2 * item + (4 if item < 4 or not self._on_cpu else 0))
        projected = (c.heads + 2 * c.kv_heads) * c.head_dim
        per_row = item * (2 * max(2 * c.intermediate, projected) + 2 * c.intermediate + 2 * projected + 10 * c.hidden)
        per_row += 8 * c.hidden  # norms in float32
        slot = rounded_capacity(limits.context_length + limits.max_nodes + 1)
        keys = min(min(limits.max_sessions, MAX_DECODING) * slot, positions)
        # A mask exists as truth values, their negation, and what is added to the scores.
        masks = (2 + item) * ((limits.max_nodes + 4) * keys + max(PREFILL_ROWS, limits.measured_rows) * slot)
        # Kernels of graphics processors want the keys of every head by themselves.
        laid_out = 0 if self._on_cpu else 2 * item * c.heads * c.head_dim * min(SLAB_SLOTS * slot, positions)
        activations, attention = rows * per_row, masks + laid_out
        kernels = min(KERNELS_KEPT, SHAPES * rows) * KERNEL_BYTES if self._compiled else 0
        return Parts(
            target_weights=self._weights,
            head_weights=self._head_weights,
            target_cache=self._kv_bytes * positions,
            head_cache=int(self._head_bytes * positions),
            logits=logits,
            activations=activations,
            attention=attention,
            kernels=kernels,
            allocator=int(ALLOCATOR_SHARE * (logits + activations + attention + kernels)),
        )

    def positions(self, budget: int) -> int:
        """The most KV positions whose parts fit into ``budget`` bytes, whole blocks; 0 when not even one does."""
        low, high = 0, max(budget // self._kv_bytes // SLOT_BLOCK, 0)
        while low < high:
            middle = (low + high + 1) // 2
            if self.at(middle * SLOT_BLOCK).total <= budget:
                low = middle
            else:
                high = middle - 1
        return low * SLOT_BLOCK


def check_fit(parts: Parts, budget: int, setting: str) -> None:
    """Raise FailedPrecondition with every part and the settings that change them if they exceed ``budget`` bytes."""
    if parts.total > budget:
        raise FailedPrecondition(
            f"{setting}: {parts.total / MIB:.1f} MiB are needed ({parts.table()}), {budget / MIB:.1f} MiB are there; "
            "give more with --memory, or lower --kv-positions, --max-sessions, --budget or --context-length",
            field=setting,
        )


def _weights(target: Target, head: DraftHead | None) -> tuple[int, int]:
    """Bytes of the target's weights, and of the head's own; tensors that are shared count once."""
    seen: set[int] = set()

    def count(tensors: Iterable[torch.Tensor | Matrix | None]) -> int:
        total = 0
        for tensor in tensors:
            if isinstance(tensor, Matrix):
                if tensor.plain is None:  # packed: in memory of its own
                    total += tensor.out_features * tensor.in_features * tensor.dtype.itemsize
                tensor = tensor.plain
            if tensor is not None and tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                total += tensor.nbytes
        return total

    own = count([target.embedding, target.norm, target.lm_head, *target.rope])
    own += sum(count(getattr(layer, field.name) for field in fields(layer)) for layer in target.layers)
    return own, 0 if head is None else count([*head.parameters(), *head.buffers(), *packed_matrices(head)])
