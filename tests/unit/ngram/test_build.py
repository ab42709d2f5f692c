"""Indexes hold exactly what the shards say."""

from __future__ import annotations

import gc
import json
import signal
import threading
from pathlib import Path

import ngram_index
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dartspec.services.common.errors import DartspecError, FailedPrecondition, InvalidArgument, NotFound
from dartspec.services.ngram.build import build_index, import_index
from dartspec.services.ngram.describe import description

from .naive import NaiveIndex
from .support import FINGERPRINT, build

VOCAB = 9
documents = st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=10), min_size=1, max_size=8).filter(any)


@settings(max_examples=50, deadline=None)
@given(documents, st.integers(2, 5))
def test_counts_equal_a_naive_count(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], order: int
) -> None:
    index = build(tmp_path_factory.mktemp("build") / "index.ngx", documents, order, VOCAB)
    twin = NaiveIndex.build(documents, order, VOCAB)
    index.verify()
    assert (index.order, index.vocab_size, index.fingerprint) == (order, VOCAB, FINGERPRINT)
    assert index.windows == sum(map(len, documents))
    assert index.nodes == twin.nodes()
    for path, count in twin.counts.items():
        assert index.count(path) == count
        if len(path) < order:
            assert dict(index.successors(path)) == twin.successors(path)


def test_all_kinds_of_shards_give_the_same_counts(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [], [2, 3, 4, 5], [1]]
    text, objects, lists = tmp_path / "docs.txt", tmp_path / "objects.jsonl", tmp_path / "lists.jsonl"
    text.write_text("".join(" ".join(map(str, document)) + "\n" for document in documents))
    objects.write_text("".join(json.dumps({"ids": document, "other": "x"}) + "\n" for document in documents))
    lists.write_text("".join(json.dumps(document) + "\n\n" for document in documents))
    tokens, offsets = (
        np.array([token for document in documents for token in document]),
        np.cumsum([0, *map(len, documents)]),
    )
    narrow, wide = tmp_path / "narrow.npz", tmp_path / "wide.npz"
    np.savez_compressed(narrow, tokens=tokens.astype(np.uint16), offsets=offsets.astype(np.int64))
    np.savez(wide, tokens=tokens.astype(np.uint32), offsets=offsets.astype(np.int64))

    def counts(*shards: Path) -> tuple[int, list[int], list[tuple[int, int]]]:
        build_index(shards, tmp_path / "x.ngx", order=3, vocab_size=9, fingerprint=FINGERPRINT, quiet=True)
        index = ngram_index.Index.open(tmp_path / "x.ngx")
        return index.windows, index.nodes, index.successors([2])

    expected = (8, [5, 4, 3], [(3, 2)])
    for shard in (text, objects, lists, narrow, wide):
        assert counts(shard) == expected
    assert counts(text, narrow) == (16, [5, 4, 3], [(3, 4)])


def test_equal_shards_give_equal_files_and_the_manifest_names_them(tmp_path: Path) -> None:
    shard = tmp_path / "docs.txt"
    shard.write_text("1 2 3\n4 5\n")
    for name in ("a.ngx", "b.ngx"):
        build_index([shard], tmp_path / name, order=4, vocab_size=9, fingerprint=FINGERPRINT, quiet=True)
    assert (tmp_path / "a.ngx").read_bytes() == (tmp_path / "b.ngx").read_bytes()
    manifest = description(ngram_index.Index.open(tmp_path / "a.ngx"))["manifest"]
    assert (manifest["documents"], manifest["tokens"]) == (2, 5)
    assert [(made["name"], made["documents"], made["tokens"]) for made in manifest["shards"]] == [("docs.txt", 2, 5)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "1 2\n3 x\n", r"a\.txt:2 does not hold token ids"),
        ("a.txt", "1 -2\n", r"a\.txt:1 holds ids from -2"),
        ("a.txt", "1 9\n", r"a\.txt.*id 9 at position 1 is not below the vocabulary size 9"),
        ("a.txt", "1 5000000000\n", r"a\.txt:1 holds ids from 1 to 5000000000"),
        ("a.txt", "\n\n", "hold no token"),
        ("a.jsonl", "[1, 2]\n{]\n", r"a\.jsonl:2 is not JSON"),
        ("a.jsonl", '{"tokens": [1]}\n', r"a\.jsonl:1 must hold a list of token ids"),
        ("a.jsonl", "[1, true]\n", r"a\.jsonl:1 must hold a list of token ids"),
        ("a.jsonl", "[1, 2.0]\n", r"a\.jsonl:1 must hold a list of token ids"),
        ("a.npz", "not a zip file", r"a\.npz does not hold arrays"),
    ],
)
def test_bad_shards_are_named_and_leave_nothing(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidArgument, match=message):
        build_index([tmp_path / name], tmp_path / "x.ngx", order=3, vocab_size=9, fingerprint=FINGERPRINT, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"tokens": np.zeros(2, np.uint16)}, "does not hold arrays"),
        ({"tokens": np.zeros(2, np.int64), "offsets": np.array([0, 2])}, "must be uint16 or uint32"),
        ({"tokens": np.zeros(2, np.uint16), "offsets": np.array([0.0, 2.0])}, "must be int64"),
        ({"tokens": np.zeros((2, 2), np.uint16), "offsets": np.array([0, 4])}, "expected numbers in one dimension"),
        ({"tokens": np.zeros(2, np.uint16), "offsets": np.array([0, 3])}, r"a\.npz: `offsets` must go from 0"),
        ({"tokens": np.zeros(2, np.uint16), "offsets": np.array([0, 2, 1, 2])}, "must not decrease, got 1 after 2"),
        ({"tokens": np.zeros(2, np.uint16), "offsets": np.array([], np.int64)}, "one more entry than documents"),
    ],
)
def test_bad_arrays_are_named(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InvalidArgument, match=message):
        build_index(
            [tmp_path / "a.npz"], tmp_path / "x.ngx", order=3, vocab_size=9, fingerprint=FINGERPRINT, quiet=True
        )


def test_missing_files_and_folders(tmp_path: Path) -> None:
    shard = tmp_path / "docs.txt"
    with pytest.raises(NotFound, match=r"docs\.txt does not exist"):
        build_index([shard], tmp_path / "x.ngx", order=3, vocab_size=9, fingerprint=FINGERPRINT, quiet=True)
    shard.write_text("1 2 3\n")
    with pytest.raises(FailedPrecondition, match=r"cannot write .*missing"):
        build_index([shard], tmp_path / "missing/x.ngx", order=3, vocab_size=9, fingerprint=FINGERPRINT, quiet=True)
    with pytest.raises(FailedPrecondition, match=r"cannot open .*none\.trie"):
        import_index(tmp_path / "none.trie", tmp_path / "x.ngx", vocab_size=9, fingerprint=FINGERPRINT, quiet=True)
    shard.write_bytes(b"\x00" * 100)
    with pytest.raises(DartspecError, match="expected order 2 to 5, got 0"):
        import_index(shard, tmp_path / "x.ngx", vocab_size=9, fingerprint=FINGERPRINT, quiet=True)


def test_progress_reports_every_stage_and_may_stop_the_build(tmp_path: Path) -> None:
    def builder() -> ngram_index.Builder:
        made = ngram_index.Builder(3, 10)
        made.add(np.arange(10, dtype=np.uint16), np.array([0, 10]))
        return made

    seen: list[tuple[str, int, int]] = []
    builder().finish(tmp_path / "a.ngx", FINGERPRINT, "{}", lambda *report: seen.append(report))
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == ["sort", "count", "table", "write"]
    assert all(0 <= done <= total for _, done, total in seen)

    def stop(stage: str, done: int, total: int) -> None:
        raise LookupError(stage)

    with pytest.raises(LookupError, match="sort"):
        builder().finish(tmp_path / "b.ngx", FINGERPRINT, "{}", stop)
    assert not (tmp_path / "b.ngx").exists()


def test_ctrl_c_stops_a_build(tmp_path: Path) -> None:
    builder = ngram_index.Builder(3, 10)
    builder.add(np.arange(10, dtype=np.uint16), np.array([0, 10]))
    with pytest.raises(KeyboardInterrupt):
        builder.finish(tmp_path / "a.ngx", FINGERPRINT, "{}", lambda *_: signal.raise_signal(signal.SIGINT))
    assert list(tmp_path.iterdir()) == []


def test_a_finished_builder_is_used_up(tmp_path: Path) -> None:
    builder = ngram_index.Builder(3, 10)
    builder.add(np.arange(10, dtype=np.uint16), np.array([0, 10]))
    builder.finish(tmp_path / "a.ngx", FINGERPRINT)
    with pytest.raises(ngram_index.NgramError, match="builder: is finished"):
        builder.add(np.arange(10, dtype=np.uint16), np.array([0, 10]))


def test_an_index_is_shared_by_threads(tmp_path: Path) -> None:
    index = build(tmp_path / "a.ngx", [[1, 2, 3, 1, 2, 4]] * 5, 3, 10)
    expected = index.score([1, 2], list(range(10)))
    answers: list[object] = []

    def ask(index: ngram_index.Index) -> None:
        answers.extend(index.score([1, 2], list(range(10))) for _ in range(50))

    threads = [threading.Thread(target=ask, args=(index,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    del index
    gc.collect()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 200
