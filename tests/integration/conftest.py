from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dartspec.cli.stack import Stack, running_stack
from dartspec.cli.stack_settings import StackSettings

from .tiny_model import TinyModel, make_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tiny_stack(tiny: TinyModel) -> AsyncIterator[Stack]:
    """ngram, verifier and gateway as processes around the tiny model."""
    settings = StackSettings(
        model=str(tiny.model), head=str(tiny.head), index=str(tiny.index), dtype="float32", threads=1, budget="fixed:16"
    )
    async with running_stack(settings) as stack:
        yield stack
