"""Between protobuf messages and `common.types`; packed layouts are little-endian (proto/dartspec/v1/common.proto)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.types import Proposals, Sampling, TopTokens, Tree
from dartspec.v1 import common_pb2

PACKED_REVISION = 1
MAX_TREE_NODES = 1024


def proposals_to_proto(proposals: Proposals) -> common_pb2.Proposals:
    """Pack proposals."""
    return common_pb2.Proposals(
        revision=PACKED_REVISION,
        widths=[len(ids) for ids in proposals.token_ids],
        token_ids=b"".join(ids.astype("<i4").tobytes() for ids in proposals.token_ids),
        logprobs=b"".join(values.astype("<f4").tobytes() for values in proposals.logprobs),
        transitions=proposals.transitions.astype("<u2").tobytes(),
    )


def proposals_from_proto(message: common_pb2.Proposals) -> Proposals:
    """Unpack proposals. Raises InvalidArgument when the packed fields do not fit together."""
    _check_revision("proposals", message.revision)
    total = sum(message.widths)
    ids = _unpack("proposals.token_ids", message.token_ids, "<i4", total)
    logprobs = _unpack("proposals.logprobs", message.logprobs, "<f4", total)
    pairs = sum(before * here for before, here in itertools.pairwise(message.widths)) if message.transitions else 0
    transitions = _unpack("proposals.transitions", message.transitions, "<u2", pairs)
    cuts = np.cumsum(message.widths)[:-1]
    return Proposals(tuple(np.split(ids, cuts)), tuple(np.split(logprobs, cuts)), transitions)


def tree_to_proto(tree: Tree) -> common_pb2.Tree:
    """Pack a tree."""
    return common_pb2.Tree(
        revision=PACKED_REVISION,
        token_ids=tree.token_ids.astype("<i4").tobytes(),
        parents=tree.parents.astype("<i4").tobytes(),
        survival=tree.survival.astype("<f4").tobytes(),
        feature_bins=tree.feature_bins.astype("<u2").tobytes(),
    )


def tree_from_proto(message: common_pb2.Tree) -> Tree:
    """Unpack a tree. Raises InvalidArgument when the packed fields do not fit together or there are too many nodes.

    Whether the tree is sound (parents before children, distinct siblings) is for its user to check.
    """
    _check_revision("tree", message.revision)
    nodes = len(message.token_ids) // 4
    if nodes > MAX_TREE_NODES:
        raise InvalidArgument("tree.token_ids", f"at most {MAX_TREE_NODES} nodes, got {nodes}")
    return Tree(
        _unpack("tree.token_ids", message.token_ids, "<i4", nodes),
        _unpack("tree.parents", message.parents, "<i4", nodes),
        _unpack("tree.survival", message.survival, "<f4", nodes),
        _unpack("tree.feature_bins", message.feature_bins, "<u2", nodes),
    )


def sampling_to_proto(sampling: Sampling) -> common_pb2.Sampling:
    """Every field explicit."""
    return common_pb2.Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        allowed_token_ids=sampling.allowed_token_ids,
        banned_token_ids=sampling.banned_token_ids,
        min_tokens=sampling.min_tokens,
        max_tokens=sampling.max_tokens,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        top_logprobs=sampling.top_logprobs,
    )


def sampling_from_proto(message: common_pb2.Sampling) -> Sampling:
    """A complete message. Raises InvalidArgument when temperature or max_tokens is absent; ranges are not checked."""
    for name in ("temperature", "max_tokens"):
        if not message.HasField(name):
            raise InvalidArgument(f"sampling.{name}", "must be set")
    return Sampling(
        temperature=message.temperature,
        max_tokens=message.max_tokens,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        min_p=message.min_p if message.HasField("min_p") else 0.0,
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=MappingProxyType(dict(message.logit_bias)),
        allowed_token_ids=tuple(message.allowed_token_ids),
        banned_token_ids=tuple(message.banned_token_ids),
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        top_logprobs=message.top_logprobs,
    )


def top_logprobs_to_proto(positions: Sequence[TopTokens]) -> common_pb2.TopLogprobs | None:
    """The likeliest tokens of each position, all as many; None without a position."""
    if not positions:
        return None
    entries = [entry for position in positions for entry in position]
    return common_pb2.TopLogprobs(
        width=len(positions[0]), token_ids=[token for token, _ in entries], logprobs=[value for _, value in entries]
    )


def top_logprobs_from_proto(message: common_pb2.TopLogprobs) -> tuple[TopTokens, ...]:
    """One entry a position. Raises InvalidArgument when the fields do not fit together."""
    width, count = message.width, len(message.token_ids)
    if len(message.logprobs) != count or count % max(width, 1) or (count and not width):
        raise InvalidArgument(
            "top_logprobs", f"{count} tokens with {len(message.logprobs)} log-probabilities, {width} for each position"
        )
    entries = list(zip(message.token_ids, message.logprobs, strict=True))
    return tuple(tuple(entries[start : start + width]) for start in range(0, count, max(width, 1)))


def _check_revision(field: str, revision: int) -> None:
    if revision != PACKED_REVISION:
        raise InvalidArgument(f"{field}.revision", f"this build reads revision {PACKED_REVISION}, got {revision}")


def _unpack(field: str, data: bytes, dtype: str, count: int) -> np.ndarray:
    expected = count * np.dtype(dtype).itemsize
    if len(data) != expected:
        raise InvalidArgument(field, f"expected {expected} bytes for {count} values, got {len(data)}")
    return np.frombuffer(data, dtype).astype(np.dtype(dtype).newbyteorder("="))
