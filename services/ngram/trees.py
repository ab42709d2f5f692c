"""Tree search in this process, for those who simulate rounds instead of serving them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import ngram_index
import numpy as np

from dartspec.services.common.errors import FailedPrecondition, NotFound
from dartspec.services.common.types import Float32, Int32, Proposals
from dartspec.services.ngram.errors import index_errors

# Context, widths of the offsets, token ids, log-probabilities and transition scores: what the extension takes.
Query = tuple[list[int], list[int], Int32, Float32, Float32]


def default_weights(transitions: bool, counts: bool = True) -> tuple[float, float]:
    """Weights of counts and transition scores in searches that name neither; counts: whether those weigh at all."""
    return ngram_index.default_weights(transitions=transitions, counts=counts)


class TreeReader:
    """An open index, searched as the service searches it."""

    def __init__(self, index: ngram_index.Index, threads: int = 1) -> None:
        self._index = index
        self._threads = threads

    @staticmethod
    def open(path: Path, fingerprint: str, vocab_size: int, threads: int = 1) -> TreeReader:
        """Open an index file. Raises NotFound, or FailedPrecondition when it is not one for this tokenizer."""
        if not path.is_file():
            raise NotFound(f"index: {path} does not exist; build it with 'dartspec ngram build', or use --index none")
        with index_errors():
            index = ngram_index.Index.open(path)
        if index.fingerprint != fingerprint or index.vocab_size > vocab_size:
            raise FailedPrecondition(
                f"index: {path} is for tokenizer {index.fingerprint} of {index.vocab_size} ids, the target's is "
                f"{fingerprint} of {vocab_size}; build one for it with 'dartspec ngram build'",
                field="index",
            )
        return TreeReader(index, threads)

    @staticmethod
    def without_counts(vocab_size: int, threads: int = 1) -> TreeReader:
        """For searches that give the counts no weight: an index of a single token."""
        with tempfile.TemporaryDirectory() as directory, index_errors():
            builder = ngram_index.Builder(2, vocab_size)
            builder.add(np.zeros(1, np.uint32), np.array([0, 1], np.int64))
            path = Path(directory) / "none.ngx"
            builder.finish(path, "0" * 32)
            return TreeReader(ngram_index.Index.open(path, "copy"), threads)

    def search(
        self,
        queries: Sequence[tuple[Sequence[int], Proposals]],
        *,
        mode: str,
        node_budget: int,
        score_rule: str = "auto",
        beam_width: int = 20,
        ngram_weight: float | None = None,
        transition_weight: float | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> list[tuple[Int32, Int32]]:
        """Token ids and parents of a tree for each (context, proposals); parameters as in dartspec.v1.SearchParams."""
        packed: list[Query] = [
            (
                list(context),
                [len(ids) for ids in proposals.token_ids],
                np.concatenate(proposals.token_ids),
                np.concatenate(proposals.logprobs),
                proposals.transition_scores,
            )
            for context, proposals in queries
        ]
        with index_errors():
            trees = self._index.search_batch(
                packed,
                threads=self._threads,
                mode=mode,
                score_rule=score_rule,
                node_budget=node_budget,
                beam_width=beam_width,
                ngram_weight=ngram_weight,
                transition_weight=transition_weight,
                stop_token_ids=stop_token_ids,
            )
        return [(np.frombuffer(tree.token_ids, "<i4"), np.frombuffer(tree.parents, "<i4")) for tree in trees]
