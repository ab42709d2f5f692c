"""Shards are the same bytes in whatever order texts are finished and however often the run is killed."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.draft.texts.store import JOURNAL, Record, TextStore, part_paths, read_records
from dartspec.services.draft.train.data import Text, read_texts

COUNT, PER_SHARD = 57, 10


def record(index: int) -> Record:
    """Of three kinds: those that repeat the text before them, those without an answer, and ordinary ones."""
    answer = [] if index % 8 == 5 else [7, index - 1 if index % 8 == 3 else index]
    return {"i": index, "t": 0.0, "p": [1, 2], "o": answer}


EXPECTED = [record(index) for index in range(COUNT) if index % 8 not in (3, 5)]
DUPLICATES = sum(index % 8 == 3 for index in range(COUNT))
TOO_LONG = sum(index % 8 == 5 for index in range(COUNT))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in part_paths(directory)}


def undisturbed(directory: Path) -> dict[str, bytes]:
    with TextStore(directory, PER_SHARD) as store:
        for index in range(COUNT):
            store.add(record(index))
        store.close_shards()
    return contents(directory)


def test_shards_hold_every_text_once_in_order(tmp_path: Path) -> None:
    undisturbed(tmp_path)
    shards = [list(read_records(path)) for path in part_paths(tmp_path)]
    assert [len(shard) for shard in shards] == [10, 10, 10, 10, 2 + len(EXPECTED) - 42]
    assert [text for shard in shards for text in shard] == EXPECTED


@pytest.mark.parametrize("seed", range(8))
def test_kills_and_disorder_change_nothing(tmp_path: Path, seed: int) -> None:
    expected = undisturbed(tmp_path / "whole")
    rng = random.Random(seed)
    directory = tmp_path / "killed"
    added: list[int] = []
    while True:
        with TextStore(directory, PER_SHARD) as store:
            left = [index for index in range(COUNT) if not store.finished(index)]
            assert not set(left) - set(range(COUNT)).difference(added)  # what was finished is never asked for again
            # Texts end nearly in order, as those do that are written side by side.
            left.sort(key=lambda index: index + rng.uniform(0, 12))
            for index in left[: rng.randint(1, 20)]:
                store.add(record(index))
                added.append(index)
            if len(added) == COUNT:
                store.close_shards()
                assert dict(store.dropped) == {"duplicate": DUPLICATES, "too_long": TOO_LONG}
                assert (store.texts, store.tokens) == (len(EXPECTED), 2 * len(EXPECTED))
                break
        with (directory / JOURNAL).open("a") as journal:
            journal.write('{"i":56,"t":0.0,"p":[1,')  # torn by the kill
        (directory / ".part-00009.jsonl.gz.tmp").write_bytes(b"torn")
    assert contents(directory) == expected
    with TextStore(directory, PER_SHARD) as store:
        assert all(store.finished(index) for index in range(COUNT))
        assert dict(store.dropped) == {"duplicate": DUPLICATES, "too_long": TOO_LONG}


def test_a_kill_between_a_shard_and_its_journal_loses_and_repeats_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "killed"
    with TextStore(directory, PER_SHARD) as store:
        for index in range(12):  # 3, 5 and 11 are left out
            store.add(record(index))
        journal = (directory / JOURNAL).read_bytes()
        store.add(record(12))
    assert len(part_paths(directory)) == 1
    (directory / JOURNAL).write_bytes(journal + json.dumps(record(12)).encode() + b"\n")
    with TextStore(directory, PER_SHARD) as store:
        assert [store.finished(index) for index in (12, 13)] == [True, False]
        for index in range(13, COUNT):
            store.add(record(index))
        store.close_shards()
        assert dict(store.dropped) == {"duplicate": DUPLICATES, "too_long": TOO_LONG}
    assert contents(directory) == undisturbed(tmp_path / "whole")


def test_two_runs_do_not_share_a_directory(tmp_path: Path) -> None:
    with TextStore(tmp_path, 2), pytest.raises(FailedPrecondition, match="another process writes there"):
        TextStore(tmp_path, 2)
    with TextStore(tmp_path, 2):
        pass
    assert not list(tmp_path.iterdir())


def test_damage_is_named(tmp_path: Path) -> None:
    undisturbed(tmp_path)
    first, second = part_paths(tmp_path)[:2]
    whole = second.read_bytes()
    second.write_bytes(whole[:-20])
    with pytest.raises(FailedPrecondition, match=r"part-00001\.jsonl\.gz is damaged"):
        TextStore(tmp_path, PER_SHARD)
    second.write_bytes(whole)
    first.unlink()
    with pytest.raises(FailedPrecondition, match=r"part-00000\.jsonl\.gz is missing"):
        TextStore(tmp_path, PER_SHARD)


def test_training_reads_a_directory_as_its_shards(tmp_path: Path) -> None:
    undisturbed(tmp_path / "texts")
    single = tmp_path / "more.jsonl.gz"
    with gzip.open(single, "wt") as file:
        file.write(json.dumps({"p": [5], "o": [6, 7], "t": 1.0}) + "\n")
    texts = read_texts([tmp_path / "texts", single], 100)
    assert texts == [*(Text((1, 2, *text["o"]), 2, 0.0) for text in EXPECTED), Text((5, 6, 7), 1, 1.0)]
    with pytest.raises(ValueError, match="holds no shard"):
        read_texts([tmp_path], 100)
