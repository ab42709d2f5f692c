"""Fills in what a request leaves open about sampling."""

from __future__ import annotations

import secrets

from dartspec.services.common.convert import sampling_from_proto
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.types import Sampling
from dartspec.v1 import common_pb2

TEMPERATURE = 1.0
OPTIONAL_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
SEED_BITS = 53  # survives a client that reads numbers as doubles


def complete_sampling(
    asked: common_pb2.Sampling, model: common_pb2.Sampling, *, room: int, default_max_tokens: int
) -> Sampling:
    """The request's sampling, completed from the model's generation config.

    ``room`` is the number of tokens that an answer can have before the context is full.
    """
    merged = common_pb2.Sampling()
    merged.CopyFrom(asked)
    for name in OPTIONAL_FIELDS:
        if not merged.HasField(name) and model.HasField(name):
            setattr(merged, name, getattr(model, name))
    if not merged.HasField("temperature"):
        merged.temperature = TEMPERATURE
    if not merged.HasField("max_tokens"):
        merged.max_tokens = min(room, max(default_max_tokens, merged.min_tokens))
    return sampling_from_proto(merged)


def choose_seed() -> int:
    """A seed for a request that has none."""
    return secrets.randbits(SEED_BITS)


def choice_seed(seed: int, index: int) -> int:
    """The seed of one of several answers to a request: the first has the request's own.

    The others take the outputs of SplitMix64 started at the request's seed, cut to SEED_BITS.
    """
    if index == 0:
        return seed
    mask = 2**64 - 1
    mixed = (seed + index * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return (mixed ^ (mixed >> 31)) >> (64 - SEED_BITS)


def check_stop_strings(stops: tuple[str, ...], *, most: int = 16, longest: int = 256) -> None:
    """Raise InvalidArgument for too many, empty or overlong stop strings."""
    if len(stops) > most:
        raise InvalidArgument("stop", f"at most {most} strings, got {len(stops)}")
    for index, stop in enumerate(stops):
        if not stop:
            raise InvalidArgument(f"stop[{index}]", "must not be empty")
        if len(stop) > longest:
            raise InvalidArgument(f"stop[{index}]", f"at most {longest} characters, got {len(stop)}")
