"""Every kind of input gives the counts of its documents, whole or in parts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import ngram_index
import numpy as np
import pytest

from dartspec.cli.main import main
from dartspec.services.common.errors import DartspecError, FailedPrecondition, InvalidArgument
from dartspec.services.ngram import batch, npz, shards, text, tokenise
from dartspec.services.ngram.batch import Batch
from dartspec.services.ngram.build import build_index
from dartspec.services.ngram.corpus import Corpus
from dartspec.services.ngram.inputs import Reading, Source
from dartspec.services.ngram.merge import merge_indexes

from .naive import NaiveIndex
from .support import FINGERPRINT

WORDS = ["the", "cat", "sat", "on", "mat", "dog"]
TEXTS = ["the cat sat", "on the mat", "the dog sat on the mat", "the cat"]
IDS = [[WORDS.index(word) for word in line.split()] for line in TEXTS]


@pytest.fixture
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="dog"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(2)  # a corpus is not cut to a model's length
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


def counts(path: Path) -> dict[tuple[int, ...], int]:
    index = ngram_index.Index.open(path)
    index.verify()
    found: dict[tuple[int, ...], int] = {}
    contexts: list[tuple[int, ...]] = [()]
    for context in contexts:
        for token in range(index.vocab_size):
            if count := index.count([*context, token]):
                found[(*context, token)] = count
                if len(context) + 1 < index.order:
                    contexts.append((*context, token))
    return found


def joined(documents: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(documents))


def build(tmp_path: Path, *inputs: Path, order: int = 3, **reading: Any) -> dict[tuple[int, ...], int]:
    output = tmp_path / "out.ngx"
    settings = Reading(**reading)
    build_index(
        inputs,
        output,
        order=order,
        vocab_size=6,
        fingerprint=FINGERPRINT,
        memory=64 << 20,
        reading=settings,
        quiet=True,
    )
    assert not (tmp_path / "out.ngx.build").exists()
    return counts(output)


def expected(documents: list[list[int]], order: int = 3) -> dict[tuple[int, ...], int]:
    return dict(NaiveIndex.build(documents, order, 6).counts)


def test_text_of_every_kind(tmp_path: Path, tokenizer: str) -> None:
    lines, jsonl, chat = tmp_path / "lines.txt", tmp_path / "a.jsonl", tmp_path / "chat.jsonl"
    lines.write_text("\n".join(TEXTS) + "\n\n")
    jsonl.write_text("".join(json.dumps({"body": line, "ids": 7}) + "\n" for line in TEXTS))
    messages = [
        {"role": "user", "content": TEXTS[0]},
        {"role": "assistant", "content": [{"type": "text", "text": TEXTS[1]}]},
    ]
    rest = [{"content": TEXTS[2]}, {"role": "tool", "content": None}, {"content": TEXTS[3]}]
    chat.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in (messages, rest)))
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    for i, line in enumerate(TEXTS):
        (folder / ("deep" if i % 2 else ".") / f"{i}.txt").write_text(line)
    (folder / ".hidden.txt").write_text("dog dog")
    assert build(tmp_path, lines, tokenizer=tokenizer, lines=True) == expected(IDS)
    assert build(tmp_path, jsonl, tokenizer=tokenizer, format="jsonl", field="body") == expected(IDS)
    assert build(tmp_path, chat, tokenizer=tokenizer) == expected(IDS)
    assert build(tmp_path, folder, tokenizer=tokenizer) == expected(IDS)
    assert build(tmp_path, lines, tokenizer=tokenizer) == expected([joined(IDS)])


def test_packed_files_are_read_like_others(tmp_path: Path, tokenizer: str) -> None:
    contents = {
        "ids.txt": "".join(" ".join(map(str, document)) + "\n" for document in IDS),
        "lists.jsonl": "".join(json.dumps(document) + "\n" for document in IDS),
        "a.jsonl": "".join(json.dumps({"text": line}) + "\n" for line in TEXTS),
    }
    for name, content in contents.items():
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(content.encode()))
        assert build(tmp_path, path, tokenizer=tokenizer) == expected(IDS), name
    whole = tmp_path / "whole.txt.gz"
    whole.write_bytes(gzip.compress(" ".join(TEXTS).encode()))
    assert build(tmp_path, whole, tokenizer=tokenizer) == expected([joined(IDS)])
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "a.jsonl.gz").rename(folder / "a.jsonl.gz")
    assert build(tmp_path, folder, tokenizer=tokenizer) == expected(IDS)


def test_of_texts_to_train_on_the_answers_count(tmp_path: Path) -> None:
    shard = tmp_path / "part-00000.jsonl.gz"
    texts = [{"i": i, "t": 0.0, "p": [5, 5], "o": ids} for i, ids in enumerate(IDS)]
    shard.write_bytes(gzip.compress("".join(json.dumps(text) + "\n" for text in texts).encode()))
    assert build(tmp_path, shard) == expected(IDS)


@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_a_damaged_packed_file_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}.gz"
    rows = np.random.default_rng(4).integers(0, 6, (5000, 3)).tolist()
    lines = [json.dumps(row) if kind == "jsonl" else " ".join(map(str, row)) for row in rows]
    content = gzip.compress("\n".join(lines).encode())
    for damaged in (content[:-500], b"no gzip at all", content[:-8] + bytes(8)):
        path.write_bytes(damaged)
        with pytest.raises(InvalidArgument, match=rf"a\.{kind}\.gz cannot be read to its end"):
            build(tmp_path, path)
        assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_ids_are_told_from_text(tmp_path: Path, tokenizer: str) -> None:
    ids, lists = tmp_path / "ids.txt", tmp_path / "ids.jsonl"
    ids.write_text("".join(" ".join(map(str, document)) + "\n" for document in IDS))
    lists.write_text("".join(json.dumps({"ids": document, "text": "dog"}) + "\n" for document in IDS))
    for path in (ids, lists):
        assert build(tmp_path, path, tokenizer=tokenizer) == expected(IDS)


def test_parquet_columns(tmp_path: Path, tokenizer: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": TEXTS, "ids": IDS}), path)
    assert build(tmp_path, path, tokenizer=tokenizer) == expected(IDS)
    assert build(tmp_path, path, field="ids") == expected(IDS)
    with pytest.raises(InvalidArgument, match="has no column `body`, only text, ids"):
        build(tmp_path, path, field="body")
    with pytest.raises(InvalidArgument, match="--tokenizer: must be given"):
        build(tmp_path, path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InvalidArgument, match=r"a\.parquet is not a Parquet file"):
        build(tmp_path, path, tokenizer=tokenizer)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(FailedPrecondition, match=r"install dartspec\[parquet\]"):
        build(tmp_path, tmp_path / "a.parquet")


@pytest.mark.parametrize("order", [2, 3, 5])
def test_long_documents_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: int) -> None:
    rng = np.random.default_rng(order)
    lengths = [3, 0, 50, 7, 64, 0, 1, 0]
    documents = [rng.integers(0, 6, length).tolist() for length in lengths]
    path = tmp_path / "a.npz"
    tokens = np.array(joined(documents), np.uint16)
    np.savez_compressed(path, tokens=tokens, offsets=np.cumsum([0, *lengths]))
    for size in (1, 4, 7, 16):
        monkeypatch.setattr(npz, "BATCH_TOKENS", size)
        assert build(tmp_path, path, order=order) == expected(documents, order)
        monkeypatch.setattr(npz, "BATCH_TOKENS", 1 << 20)


def write_corpus(folder: Path, kind: str, documents: list[list[int]]) -> None:
    """Three files of one kind, or one file a document, in the order of the documents."""
    folder.mkdir()
    third = len(documents) // 3
    for number in range(3):
        part = documents[number * third : (number + 1) * third]
        lines = [" ".join(WORDS[token] for token in document) for document in part]
        if kind == "npz":
            offsets = np.cumsum([0, *map(len, part)])
            np.savez(folder / f"{number}.npz", tokens=np.array(joined(part), np.uint32), offsets=offsets)
        elif kind == "txt":
            (folder / f"{number}.txt").write_text("".join(" ".join(map(str, ids)) + "\n" for ids in part))
        elif kind == "jsonl":
            (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        elif kind == "jsonl.gz":
            with gzip.open(folder / f"{number}.jsonl.gz", "wt") as packed:
                packed.writelines(json.dumps({"text": line}) + "\n" for line in lines)
        elif kind == "lines":
            (folder / f"{number}.txt").write_text("\n".join(lines))
        elif kind == "parquet":
            pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            parquet.write_table(pyarrow.table({"text": lines}), folder / f"{number}.parquet")
        else:
            for i, line in enumerate(lines):
                (folder / f"{number}-{i:04}.txt").write_text(line)


KINDS = ["npz", "txt", "jsonl", "jsonl.gz", "text", "lines", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_build_goes_on_in_the_middle_of_any_file(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(npz, "BATCH_TOKENS", 700)
    monkeypatch.setattr(shards, "BATCH_TOKENS", 700)
    monkeypatch.setattr(tokenise, "_CHARACTERS", 3000)
    rng = np.random.default_rng(5)
    documents = [rng.integers(0, 6, rng.integers(0, 900)).tolist() for _ in range(60)]
    corpus, output = tmp_path / "corpus", tmp_path / "out.ngx"
    write_corpus(corpus, kind, documents)
    reading = Reading(tokenizer="" if kind in ("npz", "txt") else tokenizer, lines=kind == "lines")
    settings: dict[str, Any] = {"order": 3, "vocab_size": 6, "fingerprint": FINGERPRINT, "reading": reading}
    build_index([corpus], output, **settings, quiet=True)
    whole = output.read_bytes()
    output.unlink()

    skips: list[tuple[int, int]] = []
    batches = Corpus.batches
    budget = 0

    def stopped(self: Corpus, source: Source, skip: int) -> Iterator[Batch]:
        nonlocal budget
        skips.append((source.number, skip))
        for made in batches(self, source, skip):
            if budget == 0:
                raise KeyboardInterrupt
            budget -= 1
            yield made

    with monkeypatch.context() as patch:
        patch.setattr(Corpus, "batches", stopped)
        for allowed in (3, 9, 8, 10):
            budget = allowed
            with pytest.raises(KeyboardInterrupt):
                build_index([corpus], output, **settings, memory=1 << 20, quiet=True)
    build_index([corpus], output, **settings, memory=1 << 20, quiet=True)
    assert output.read_bytes() == whole
    assert len(set(skips)) > 2
    if kind != "text":
        assert any(skip for _, skip in skips)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_merge_to_the_whole(tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(npz, "BATCH_TOKENS", 4)
    monkeypatch.setattr(tokenise, "_CHARACTERS", 16)
    documents = IDS * 3
    corpus = tmp_path / "corpus"
    write_corpus(corpus, kind, documents)
    settings: dict[str, Any] = {"tokenizer": "" if kind in ("npz", "txt") else tokenizer, "lines": kind == "lines"}
    whole = build(tmp_path, corpus, **settings)
    assert whole == expected(documents)
    paths = []
    for part in range(3):
        build(tmp_path, corpus, **settings, part=part, parts=3)
        paths.append((tmp_path / "out.ngx").rename(tmp_path / f"part{part}.ngx"))
    assert all(sum(counts(path).values()) < sum(whole.values()) for path in paths)
    merge_indexes(paths, tmp_path / "merged.ngx", quiet=True)
    assert counts(tmp_path / "merged.ngx") == whole


@pytest.mark.parametrize(
    ("name", "content", "reading", "message"),
    [
        ("a.txt", b"the \xff cat", {"tokenizer": True}, r"a\.txt is not text in UTF-8"),
        ("a.txt", b"the\n\n\xff\n", {"tokenizer": True, "lines": True}, r"a\.txt:3 is not text in UTF-8"),
        ("a.jsonl", b'{"text": "the"}\n{]\n', {"tokenizer": True}, r"a\.jsonl:2 is not JSON"),
        ("a.jsonl", b'{"body": "the"}\n', {"tokenizer": True}, r"--field: .*a\.jsonl:1 has no `text`, only body"),
        (
            "a.jsonl",
            b'{"text": 3}\n',
            {"tokenizer": True},
            r"`text` of .*a\.jsonl:1 must be a text or chat messages, got int",
        ),
        ("a.jsonl", b'{"text": "the"}\n', {}, "--tokenizer: must be given to read the text"),
        ("a.txt", b"the cat\n", {"format": "text"}, "--tokenizer: must be given to read the text"),
        ("a.txt", b"", {"tokenizer": True}, "hold no token"),
        ("a.txt", b"the cat", {"tokenizer": True, "part": 1, "parts": 2}, "hold no token"),
    ],
)
def test_bad_text_is_named_and_leaves_nothing(
    tmp_path: Path, tokenizer: str, name: str, content: bytes, reading: dict[str, Any], message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    if "tokenizer" in reading:
        reading = {**reading, "tokenizer": tokenizer}
    with pytest.raises(InvalidArgument, match=message):
        build(tmp_path, tmp_path / name, **reading)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_folders_and_sizes_that_cannot_be_taken(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.py").write_text("the cat")
    with pytest.raises(InvalidArgument, match=r"folder does not hold a \.npz"):
        build(tmp_path, folder, tokenizer=tokenizer)
    assert build(tmp_path, folder, tokenizer=tokenizer, format="text") == expected([[0, 1]])
    monkeypatch.setattr(text, "MAX_FILE_BYTES", 5)
    with pytest.raises(InvalidArgument, match=r"a\.py has more than the 5 bytes of one document; give --lines"):
        build(tmp_path, folder / "a.py", tokenizer=tokenizer)
    with pytest.raises(DartspecError, match="name at least one file"):
        build(tmp_path)


def test_cut_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, tokens=np.zeros(5000, np.uint16), offsets=np.array([0, 5000]))
    content = bytearray(path.read_bytes())
    for change in (content[:-1000], content[:3000] + b"x" * 500 + content[3500:]):
        path.write_bytes(change)
        with pytest.raises(InvalidArgument, match=r"a\.npz does not hold arrays"):
            build(tmp_path, path)
        assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_a_batch_knows_how_many_documents_end_in_it() -> None:
    packed = batch.pack([[1, 2], [], [3]], 3, 10)
    assert (packed.tokens.tolist(), packed.offsets.tolist(), packed.finished) == ([1, 2, 3], [0, 2, 2, 3], 3)


def test_merge_and_prune_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    ids = ["--vocab-size", "40", "--fingerprint", FINGERPRINT, "--quiet"]
    for name in ("a", "b"):
        lines = np.minimum(rng.integers(0, 40, (200, 30)), rng.integers(0, 40, (200, 30)))
        (tmp_path / f"{name}.txt").write_text("".join(" ".join(map(str, line)) + "\n" for line in lines))
        assert main(["ngram", "build", str(tmp_path / f"{name}.txt"), "-o", str(tmp_path / f"{name}.ngx"), *ids]) == 0
    parts = [str(tmp_path / "a.ngx"), str(tmp_path / "b.ngx")]
    output = tmp_path / "ab.ngx"
    assert main(["ngram", "merge", *parts, "-o", str(output), "--weight", "1", "--weight", "0.5", "--quiet"]) == 0
    index = ngram_index.Index.open(output)
    a, b = map(ngram_index.Index.open, parts)
    for ngram in ([x, y, z] for x in range(5) for y in range(5) for z in range(5) if a.count([x, y, z])):
        assert index.count(ngram) == (2 * a.count(ngram) + b.count(ngram) + 1) // 2
    assert [made["weight"] for made in json.loads(index.manifest)["merged"]] == [1, 0.5]
    capsys.readouterr()

    assert main(["ngram", "merge", *parts, "-o", str(output), "--prune", "1,2,3", "--quiet"]) == 0
    assert "without 2-grams seen less than 2 times, 3-grams seen less than 3 times" in capsys.readouterr().out
    assert json.loads(ngram_index.Index.open(output).manifest)["pruned"] == {"min_counts": [1, 2, 3], "totals": "keep"}
    build = ["ngram", "build", str(tmp_path / "a.txt"), "-o", str(output), *ids]
    target = (tmp_path / "a.ngx").stat().st_size * 3 // 4
    assert main([*build, "--target-size", str(target)]) == 0
    assert "3-grams seen less than" in capsys.readouterr().out
    assert output.stat().st_size <= target
    before = output.read_bytes()
    for wrong, message in [
        (["--prune", "1,2"], "prune: must give 3 counts"),
        (["--prune", "2,1,1"], "not decrease with the length"),
        (["--prune", "1,x"], "must be counts by length"),
        (["--target-size", "2K"], "cannot be reached"),
        (["--target-size", "much"], "must be a size such as 512M"),
        (["--memory", "1M"], "must be at least 64M"),
        (["--shard", "3/2"], "must be i/n"),
    ]:
        assert main([*build, *wrong]) != 0
        assert message in capsys.readouterr().err
    assert main(["ngram", "merge", *parts, "-o", str(output), "--weight", "2", "--quiet"]) != 0
    assert "--weight: must be given once for each of 2 indexes" in capsys.readouterr().err
    assert output.read_bytes() == before


def test_renormalised_counts_are_sums_of_what_stays(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 2 3\n" * 3 + "1 2 4\n1 5\n")
    builder = ngram_index.Builder(3, 6)
    builder.add(np.array([1, 2, 3] * 3 + [1, 2, 4, 1, 5], np.uint32), np.array([0, 3, 6, 9, 12, 14]))
    builder.prune([1, 1, 2], True)
    assert builder.finish(tmp_path / "x.ngx", FINGERPRINT)[1] == [1, 1, 2]
    index = ngram_index.Index.open(tmp_path / "x.ngx")
    assert [index.count(ngram) for ngram in ([1, 2, 3], [1, 2, 4], [1, 2], [1, 5], [1])] == [3, 0, 3, 1, 4]
