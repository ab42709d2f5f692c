"""Text into token ids, on all cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dartspec.services.ngram.batch import Batch
from dartspec.services.ngram.text import Document

# Characters tokenised at a time: enough for all cores, few enough to stay small beside the counts.
_CHARACTERS = 1 << 20


class Tokeniser:
    """A tokenizer.json; adds no special tokens and cuts nothing off."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def batches(self, documents: Iterable[Document]) -> Iterator[Batch]:
        """The documents as batches of ids."""
        held: list[Document] = []
        characters = 0
        for document in documents:
            held.append(document)
            characters += sum(map(len, document.texts))
            if characters >= _CHARACTERS:
                yield self._encode(held)
                held, characters = [], 0
        if held:
            yield self._encode(held)

    def _encode(self, documents: list[Document]) -> Batch:
        texts = [text for document in documents for text in document.texts]
        # The tokenizer works on many texts in parallel and outside the interpreter's lock.
        encoded: list[Any] = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        arrays = [np.array(one.ids, np.uint32) for one in encoded]
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        tokens = np.concatenate(arrays) if arrays else np.zeros(0, np.uint32)
        return Batch(tokens, offsets, documents[-1].number + 1, documents[-1].done)
