"""Which index a stack uses, and that the shipped corpus is counted once."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest

from dartspec.cli import index as index_module
from dartspec.cli import stack as stack_module
from dartspec.cli.index import FILE_FORMAT, IndexChoice, choose_index
from dartspec.cli.progress import Progress
from dartspec.cli.stack import running_stack
from dartspec.cli.stack_settings import StackSettings
from dartspec.services.common.errors import FailedPrecondition, InternalError
from dartspec.services.common.fingerprint import digest
from tests.unit.cli.fake_stack import fake_programs


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A corpus that ships for the model "m": two documents."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shipped = tmp_path / "models" / "m"
    shipped.mkdir(parents=True)
    path = shipped / "corpus.npz"
    np.savez(path, tokens=np.array([1, 2, 3, 1, 2], np.uint16), offsets=np.array([0, 3, 5], np.int64))
    monkeypatch.setattr(index_module, "shipped_directory", lambda model: shipped if model == "m" else None)
    return path


@pytest.fixture
def fake_services(monkeypatch):
    for name, function in fake_programs().items():
        monkeypatch.setattr(stack_module, name, function)


def test_choices(corpus, tmp_path):
    assert choose_index("none", "m") is None
    assert choose_index("/a/file.ngx", "m") == IndexChoice(Path("/a/file.ngx"))
    assert choose_index(None, "another") is None
    choice = choose_index(None, "m")
    expected = tmp_path / "cache" / "dartspec" / "index" / f"m-{digest(corpus.read_bytes())}.v{FILE_FORMAT}.ngx"
    assert choice == IndexChoice(expected, corpus)
    assert choice.missing


def test_another_corpus_is_another_file(corpus):
    before = choose_index(None, "m").path
    corpus.write_bytes(corpus.read_bytes() + b"x")
    assert choose_index(None, "m").path != before


def test_cached_indexes_carry_the_version_of_their_files() -> None:
    ngram_index = pytest.importorskip("ngram_index")
    assert FILE_FORMAT == ngram_index.FILE_FORMAT


async def test_the_corpus_is_counted_at_the_first_start_only(corpus, fake_services):
    pytest.importorskip("ngram_index")
    settings = StackSettings(model="m", head="none")
    output = io.StringIO()
    async with running_stack(settings, progress=Progress(output)) as stack:
        assert stack.ngram is not None
        assert stack.index == choose_index(None, "m").path
        assert stack.index.is_file()
    assert f"index: counting {corpus}" in output.getvalue()
    output = io.StringIO()
    async with running_stack(settings, progress=Progress(output)) as stack:
        assert stack.ngram is not None
    assert "counting" not in output.getvalue()


async def test_a_corpus_that_cannot_be_counted_says_why(corpus, fake_services):
    pytest.importorskip("ngram_index")
    np.savez(corpus, tokens=np.array([60000], np.uint16), offsets=np.array([0, 1], np.int64))
    with pytest.raises((FailedPrecondition, InternalError), match=r"index stopped .* id 60000"):
        async with running_stack(StackSettings(model="m", head="none"), progress=Progress(io.StringIO())):
            pytest.fail("the stack must not start")
    assert not choose_index(None, "m").path.exists()


async def test_an_index_for_another_tokenizer_is_refused(corpus, fake_services, monkeypatch):
    pytest.importorskip("ngram_index")
    settings = StackSettings(model="m", head="none")
    async with running_stack(settings, progress=Progress(io.StringIO())) as stack:
        file = stack.index
    other = dataclasses.replace(settings, index=str(file))
    monkeypatch.setenv("FAKE_VERIFIER", "serve:ffffffffffffffff")
    with pytest.raises(FailedPrecondition, match="but the tokenizer of fake is ffffffffffffffff"):
        async with running_stack(other, progress=Progress(io.StringIO())):
            pytest.fail("the stack must not start")
