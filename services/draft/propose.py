"""One draft pass: from new features to the top-k tokens of the next d positions, for many sessions at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dartspec.services.common.errors import FailedPrecondition, InvalidArgument
from dartspec.services.common.types import Proposals
from dartspec.services.draft.cache import HeadCache
from dartspec.services.draft.coin import Coin, noise_rows
from dartspec.services.draft.head import DraftHead, Rotation

# A sort key is the log-probability's order among float32 values times this, minus the token id: 32 + 18 bits, exact in
# float64.
_ID_RANGE = 1 << 18
# Candidates of an offset whose noise is looked at: the likeliest ones. Noise for the whole vocabulary costs many times
# as much, and a token far behind seldom wins (docs/draft-evaluation.md has figures).
COIN_CANDIDATES = 256
# Tokens that may have the log-probability of the last candidate; with more the slower way is taken.
_TIES = 16


@dataclass(frozen=True)
class DraftInput:
    """What one session gives the head: the positions p .. n-1 that its cache (p = cache.length) does not cover yet.

    features: [n - p, feature width], h_j for j = p .. n-1. next_tokens: int64 [n - p], x[p+1] .. x[n].
    coin: the noise that the target will sample with, for proposals that follow it; None: they are the likeliest tokens.
    """

    cache: HeadCache
    features: Tensor
    next_tokens: Tensor
    coin: Coin | None = None


class Proposer:
    """The head in use. Not thread-safe: one per engine, called once per step for all sessions of the step."""

    def __init__(self, head: DraftHead) -> None:
        self.head = head
        self.config = head.config
        self._target_ids = head.target_ids()
        if head.transition is not None:
            self._draft_ids = torch.zeros(head.config.vocab_size, dtype=torch.int64, device=self._target_ids.device)
            self._draft_ids[self._target_ids] = torch.arange(len(self._target_ids), device=self._target_ids.device)
        if not head.config.shift:
            raise FailedPrecondition("this draft head was trained without the shift, for comparison; it cannot propose")
        if head.config.vocab_size > _ID_RANGE:
            raise InvalidArgument("head.vocab_size", f"{head.config.vocab_size} exceeds the supported {_ID_RANGE}")

    def new_cache(self, store: Tensor | None = None) -> HeadCache:
        """An empty cache for one session, in the caller's memory if given, see `HeadCache`."""
        return HeadCache(self.config, self.head.fc.weight.dtype, self.head.fc.weight.device, store)

    @torch.inference_mode()
    def append(self, inputs: Sequence[DraftInput]) -> None:
        """Bring the sessions' caches up to date without drafting, so that a later draft has little left to do."""
        if inputs:
            self._append_prefix(inputs, outputs=False)

    @torch.inference_mode()
    def propose(self, inputs: Sequence[DraftInput], top_k: int = 25, offsets: int | None = None) -> list[Proposals]:
        """Bring the caches up to date and draft: per session, d = draft_length + 1 offsets from position n + 1 on.

        Token ids are the target's, sorted by (-log-probability, id); log-probabilities are over the whole draft
        vocabulary, see `top`. `top_k` is cut to the draft vocabulary. ``offsets``: only so many of the first, at most
        d; no offset depends on a later one, so they are the same to rounding. Every session needs at least one new
        position; else InvalidArgument. One device-to-host copy.
        """
        if top_k < 1:
            raise InvalidArgument("top_k", f"must be at least 1, got {top_k}")
        if offsets is not None and not 1 <= offsets <= self.config.depth:
            raise InvalidArgument("offsets", f"must be between 1 and {self.config.depth}, got {offsets}")
        return self.top(self.logits(inputs, offsets), top_k, [entry.coin for entry in inputs]) if inputs else []

    @torch.inference_mode()
    def logits(self, inputs: Sequence[DraftInput], offsets: int | None = None) -> Tensor:
        """As `propose`, but all logits: [sessions, offsets, V_draft]."""
        return self.head.logits(self._hidden(inputs, offsets)).unflatten(0, (len(inputs), -1))

    def _hidden(self, inputs: Sequence[DraftInput], offsets: int | None = None) -> Tensor:
        """Hidden states after the first final norm, [sessions * offsets, H]: last prefix row, then MASK rows, of
        each."""
        head, masks = self.head, (offsets or self.config.depth) - 1
        last_input, last_residual, last_rotation = self._append_prefix(inputs, outputs=True)
        sessions, device = len(inputs), last_input.device
        lengths = torch.tensor([entry.cache.length for entry in inputs], device=device)
        positions = (lengths[:, None] + torch.arange(masks, device=device)).flatten()
        of_masks = (part.unflatten(0, (sessions, masks)) for part in self.mask_projections(head.rotation(positions)))
        mask_queries, keys, values = of_masks
        _, mask_residual = head.mask_rows(sessions * masks)

        def rounds(last: Tensor, mask: Tensor) -> Tensor:  # [sessions, 1 + masks, ...], the last prefix row first
            return torch.cat((last[:, None], mask), 1)

        queries = rounds(head.queries(last_input, last_rotation), mask_queries)
        mixed = self.mixed(queries, inputs, keys, values)
        residual = rounds(last_residual, mask_residual.unflatten(0, (sessions, masks)))
        return head.finish(mixed, residual.flatten(0, 1))

    def mask_projections(self, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [rows, heads, D], keys and values [rows, kv_heads, D] of MASK rows at the rotation's positions."""
        mask_input, _ = self.head.mask_rows(len(rotation.cos))
        return self.head.queries(mask_input, rotation), *self.head.keys_values(mask_input, rotation)

    def mixed(self, queries: Tensor, inputs: Sequence[DraftInput], keys: Tensor, values: Tensor) -> Tensor:
        """Attention of every session's last prefix row and MASK rows, over its cache and the MASK rows before.

        queries [sessions, m + 1, heads, D]; keys and values [sessions, m, kv_heads, D], of the MASK rows -> [sessions *
        (m + 1), heads * D].
        """
        return torch.cat(
            [_attend(queries[row], *entry.cache.with_masks(keys[row], values[row])) for row, entry in enumerate(inputs)]
        )

    def _append_prefix(self, inputs: Sequence[DraftInput], outputs: bool) -> tuple[Tensor, Tensor, Rotation]:
        """Append all new positions to the caches; layer input, residual and rotation of each session's last one."""
        head = self.head
        counts = [self._checked(number, entry) for number, entry in enumerate(inputs)]
        device = head.fc.weight.device
        layer_input, residual = head.prefix_rows(
            torch.cat([entry.features for entry in inputs]).to(device),
            torch.cat([entry.next_tokens for entry in inputs]).to(device),
        )
        starts = [entry.cache.length for entry in inputs]
        positions = torch.tensor(
            [p for start, count in zip(starts, counts, strict=True) for p in range(start, start + count)]
        )
        rotation = head.rotation(positions.to(device))
        keys, values = head.keys_values(layer_input, rotation)
        for entry, key, value in zip(inputs, keys.split(counts), values.split(counts), strict=True):
            entry.cache.append(key, value)
        last = torch.tensor(counts, device=device).cumsum(0) - 1
        return layer_input[last], residual[last], Rotation(rotation.cos[last], rotation.sin[last])

    def _checked(self, number: int, entry: DraftInput) -> int:
        rows, width = entry.features.shape[0], self.config.feature_width
        if rows < 1 or entry.features.shape != (rows, width) or entry.next_tokens.shape != (rows,):
            raise InvalidArgument(
                f"inputs[{number}]",
                f"needs features [m, {width}] and next_tokens [m] with m >= 1, got {list(entry.features.shape)} "
                f"and {list(entry.next_tokens.shape)}",
            )
        return rows

    @torch.inference_mode()
    def top(self, logits: Tensor, top_k: int, coins: Sequence[Coin | None]) -> list[Proposals]:
        """Proposals from what `logits` gave, [sessions, offsets, V_draft]; a coin or None for each session.

        Without a coin, candidates are ranked by s, the logits; with one by s + T G at their target ids, which orders
        them as s / T + G does. Log-probabilities are those of the softmax of the same sum: if the target's logits
        are s plus an error e, the chance of v being argmax s + e + T G has the spread of e in it, not of e / T.
        Only the `COIN_CANDIDATES` likeliest candidates take part with their noise. A head's transition scores come with
        them; they are differences of logits, so they add to either.
        """
        top_k = min(top_k, self.config.draft_vocab_size)
        logprobs = F.log_softmax(logits.float(), -1) + 0.0  # + 0.0 leaves one zero, so equal values have equal bits
        packed = torch.empty(*logprobs.shape[:2], 2 * top_k, device=logprobs.device)
        plain = [row for row, coin in enumerate(coins) if coin is None]
        if plain:
            part = logprobs[plain] if len(plain) < len(coins) else logprobs  # no copy of all rows
            packed[plain] = _ranked(part, self._target_ids, top_k)
        tossed = [row for row, coin in enumerate(coins) if coin is not None]
        if tossed:
            part = logprobs[tossed] if plain else logprobs
            best = part.topk(min(max(COIN_CANDIDATES, top_k), part.shape[-1]), -1)
            ids = self._target_ids[best.indices]
            noise = noise_rows([coin for coin in coins if coin is not None], ids.shape[1], ids.flatten(0, 1))
            packed[tossed] = _ranked(_with_noise(best.values, noise.view_as(ids)), ids, top_k)
        flat, pairs = packed.view(torch.int16).flatten(1), self.transitions(packed[..., :top_k].view(torch.int32))
        host = (flat if pairs is None else torch.cat((flat, pairs), 1)).cpu().numpy()
        candidates = np.ascontiguousarray(host[:, : flat.shape[1]]).reshape(len(coins), logits.shape[1], 2, -1)
        best_ids, values = candidates[:, :, 0].view(np.int32), candidates[:, :, 1].view(np.float32)
        scores = host[:, flat.shape[1] :].view(np.uint16)
        return [Proposals(tuple(a), tuple(b), c) for a, b, c in zip(best_ids, values, scores, strict=True)]

    @torch.inference_mode()
    def transitions(self, token_ids: Tensor) -> Tensor | None:
        """Bits of `Proposals.transitions` between candidates [sessions, d, k], target ids: int16 [sessions, (d-1) k k].

        None for a head without a transition score.
        """
        if self.head.transition is None:
            return None
        return self.head.transition.block(self._draft_ids[token_ids.long()]).bfloat16().view(torch.int16).flatten(1)


def _with_noise(logprobs: Tensor, noise: Tensor) -> Tensor:
    """Log-softmax of the sum, over these candidates and the rest of the vocabulary. [..., candidates], float32."""
    total = logprobs.double() + noise
    rest = (1.0 - logprobs.double().exp().sum(-1, keepdim=True)).clamp_min(1e-12).log()
    return (total - torch.logaddexp(total.logsumexp(-1, keepdim=True), rest)).float() + 0.0


def _ranked(logprobs: Tensor, token_ids: Tensor, top_k: int) -> Tensor:
    """The first by (-log-probability, id): ids, as the bits of float32, then log-probabilities, [..., 2 * top_k].

    logprobs float32 [..., candidates]; token_ids of the same shape, or of its last axis.
    """
    token_ids = token_ids.expand_as(logprobs)
    if logprobs.device.type == "cpu" and top_k + _TIES < logprobs.shape[-1]:
        # Values alone sort twice as fast. What falls behind the last of these ties with none that is wanted.
        near = logprobs.topk(top_k + _TIES, -1)
        if bool((near.values[..., -1] < near.values[..., top_k - 1]).all()):
            logprobs, token_ids = near.values, token_ids.gather(-1, near.indices)
    bits = logprobs.view(torch.int32)
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # integers in the order of the floats
    best = torch.topk(order.double() * _ID_RANGE - token_ids, top_k, -1, sorted=True).indices
    ids = token_ids.gather(-1, best)
    return torch.cat((ids.int().view(torch.float32), logprobs.gather(-1, best)), -1)


def _attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of the last rows of a sequence; queries that share a key head are its query rows.

    queries [rows, heads, D]; keys, values [kv_heads, length, D] -> [rows, heads * D]. The queries stand at the last
    `rows` of the `length` positions.
    """
    rows, heads, head_dim = queries.shape
    kv_heads, length, _ = keys.shape
    visible = torch.ones(rows, length, dtype=torch.bool, device=queries.device).tril(length - rows)
    grouped = queries.permute(1, 0, 2).reshape(kv_heads, heads // kv_heads * rows, head_dim)
    mask = visible.repeat(heads // kv_heads, 1)
    mixed = F.scaled_dot_product_attention(grouped[None], keys[None], values[None], attn_mask=mask)[0]
    return mixed.reshape(heads, rows, head_dim).permute(1, 0, 2).reshape(rows, heads * head_dim)
