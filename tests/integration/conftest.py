from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dartspec.cli.stack import Stack, running_stack
from dartspec.cli.stack_settings import StackSettings

from .tiny_model import TinyModel, make_tiny_model

# What the services of `tiny_stack` have logged, at level debug.
tiny_stack_log: list[str] = []


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tiny_stack(tiny: TinyModel) -> AsyncIterator[Stack]:
    """ngram, verifier and gateway as processes around the tiny model."""
    settings = StackSettings(
        model=str(tiny.model),
        head=str(tiny.head),
        index=str(tiny.index),
        dtype="float32",
        threads=1,
        budget="fixed:16",
        log_level="debug",
    )
    tiny_stack_log.clear()
    async with running_stack(
        settings, on_log=lambda name, line: tiny_stack_log.append(f"{name}: {line}"), http_listen="127.0.0.1:0"
    ) as stack:
        yield stack
