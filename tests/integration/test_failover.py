"""Processes that are killed and stopped under answers: `bench.failover`, cut down to a few indices.

Minutes of starting processes, so only with DARTSPEC_FAILOVER_TESTS=1; tests/unit/gateway/test_every_index.py goes
through every index with verifiers that only pretend.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bench.failover import verifier_settings
from bench.failover_scenarios import Outcome, kill_gateways, kill_ngram, kill_verifiers, stop_verifiers
from bench.failover_stack import Stack, failover_stack

from .tiny_model import TinyModel

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        os.environ.get("DARTSPEC_FAILOVER_TESTS") != "1", reason="takes minutes: DARTSPEC_FAILOVER_TESTS=1"
    ),
]

TOKENS = 64


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tiny: TinyModel) -> AsyncIterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="dartspec-") as directory:
        settings = verifier_settings(tiny)
        async with failover_stack(settings, str(tiny.index), Path(directory), gateways=2) as running:
            yield running


def holds(outcome: Outcome, answers: int) -> None:
    assert outcome.faults == []
    assert outcome.answers >= answers


async def test_killed_verifiers(stack: Stack) -> None:
    holds(await kill_verifiers(stack, "plain", (1, 63), TOKENS), 2)
    holds(await kill_verifiers(stack, "dart", (0, 30), TOKENS), 2)


async def test_a_stopped_verifier(stack: Stack) -> None:
    holds(await stop_verifiers(stack, "dart", (20,), TOKENS), 1)


async def test_killed_gateways(stack: Stack) -> None:
    holds(await kill_gateways(stack, "dart", (1, 40), TOKENS), 2)


async def test_a_killed_ngram(stack: Stack) -> None:
    holds(await kill_ngram(stack, 2, TOKENS), 6)
