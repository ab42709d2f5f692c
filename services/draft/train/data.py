"""Texts to learn from, and the draft vocabulary that they ask for."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Text:
    """One prompt with the target's answer: token ids, how many of them are prompt, and the answer's temperature."""

    tokens: tuple[int, ...]
    prompt_length: int
    temperature: float


def shard_files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and of each directory its `part-*.jsonl.gz` in order. Raises ValueError without any."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("part-*.jsonl.gz")) if path.is_dir() else [path]
        if not found:
            raise ValueError(f"{path} holds no shard, a file part-*.jsonl.gz; 'dartspec draft generate' writes them")
        files += found
    return files


def read_texts(shards: Iterable[Path], max_length: int) -> list[Text]:
    """Texts of JSONL shards (`{"p": prompt ids, "o": answer ids, "t": temperature}`, plain or .gz), duplicates dropped.

    A directory stands for its shards, as `dartspec draft generate` writes them.

    Longer texts are cut to `max_length` tokens; those whose prompt leaves no room for two answer tokens are left out.
    A line that is not such an object is a ValueError naming file and line.
    """
    texts: dict[tuple[int, ...], Text] = {}
    for shard in shard_files(shards):
        with gzip.open(shard, "rt") if shard.suffix == ".gz" else shard.open() as lines:
            for number, line in enumerate(lines, 1):
                try:
                    record = json.loads(line)
                    prompt, answer = record["p"], record["o"]
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(f"{shard}:{number}: not a JSON object with 'p' and 'o': {error}") from error
                tokens = tuple(prompt + answer)[:max_length]
                if len(prompt) >= 1 and len(tokens) >= len(prompt) + 2:
                    texts.setdefault(tokens, Text(tokens, len(prompt), float(record.get("t", 0.6))))
    return list(texts.values())


def split_held_out(texts: Sequence[Text], every: int) -> tuple[list[Text], list[Text]]:
    """(training, held-out): one prompt in `every` is held out with all its answers."""
    prompts = {text: hash_tokens(text.tokens[: text.prompt_length]) % every == 0 for text in texts}
    return [text for text in texts if not prompts[text]], [text for text in texts if prompts[text]]


def hash_tokens(tokens: Sequence[int]) -> int:
    """A hash of token ids that is the same in every process (FNV-1a, 64 bits)."""
    value = 0xCBF29CE484222325
    for token in tokens:
        value = ((value ^ token) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 32)


def choose_vocabulary(texts: Iterable[Text], size: int, vocab_size: int) -> NDArray[np.int64]:
    """The `size` target ids most worth drafting, ascending.

    Answer tokens count fully and prompt tokens a third, since they resemble answers to other prompts. Ids never seen
    follow in ascending order: byte-pair ids are given in order of merging, so low ids are the more frequent ones.
    """
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update({token: 3 * seen for token, seen in Counter(text.tokens[text.prompt_length :]).items()})
        counts.update(text.tokens[: text.prompt_length])
    prior = 2.0 * 5000 / (np.arange(vocab_size) + 5000)
    for token, seen in counts.items():
        prior[token] += seen
    return np.sort(np.argsort(-prior, kind="stable")[: min(size, vocab_size)]).astype(np.int64)


def save_corpus(texts: Iterable[Text], path: Path) -> None:
    """Write the texts' tokens as one compressed `.npz`: `tokens` uint16 [T] and `offsets` int64 [documents + 1].

    Raises ValueError for token ids beyond 16 bits.
    """
    documents = [text.tokens for text in texts]
    tokens = np.array([token for document in documents for token in document], dtype=np.int64)
    if len(tokens) and tokens.max() > np.iinfo(np.uint16).max:
        raise ValueError(f"token id {tokens.max()} does not fit 16 bits; this format is for smaller vocabularies")
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    temporary = path.with_name(f".{path.name}.tmp.npz")
    np.savez_compressed(temporary, tokens=tokens.astype(np.uint16), offsets=offsets)
    temporary.replace(path)
