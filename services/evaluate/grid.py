"""The searches that an evaluation compares: every combination of what was asked for that makes a difference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dartspec.services.common.config import between, setting
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.ngram.trees import default_weights

MODES = ("survival", "reference", "chain")
RULES = ("auto", "reference", "stupid_backoff", "witten_bell", "divided")


def each_between(low: float, high: float, some: bool = True) -> Callable[[Sequence[float]], str | None]:
    """A check that there are values, unless none will do, and that every one lies in between."""
    check = between(low, high)

    def check_all(values: Sequence[float]) -> str | None:
        if some and not values:
            return "needs a value"
        return next((problem for value in values if (problem := check(value))), None)

    return check_all


@dataclass(frozen=True)
class Search:
    """How trees are found, but for the node budget. Fields that ``mode`` does not look at are None.

    mode: survival, reference, or chain, the verifier's stand-in for an ngram service. k: candidates of each offset. w:
    beam width. rule: what the counts say about a token. weight: of the counts; 0 is a tree without them. transition:
    weight of the head's transition scores; None without any.
    """

    mode: str
    k: int
    w: int | None = None
    rule: str | None = None
    weight: float | None = None
    transition: float | None = None


@dataclass(frozen=True)
class Grid:
    """Values of each parameter; ranges are those of the search."""

    search: tuple[str, ...] = setting(
        ("survival",), "How nodes are selected; chain is the verifier's own chain, without a search.", choices=MODES
    )
    k: tuple[int, ...] = setting((25,), "Candidates of each offset.", check=each_between(1, 256))
    w: tuple[int, ...] = setting((20,), "Beam width of --search reference.", check=each_between(1, 1024))
    theta: tuple[int, ...] = setting((59,), "Nodes of a tree.", check=each_between(1, 1024))
    score_rule: tuple[str, ...] = setting(
        ("auto",), "What n-gram counts say about a token; auto is the rule that goes with --search.", choices=RULES
    )
    ngram_weight: tuple[float, ...] = setting(
        (),
        "Weight of the counts in --search survival; 0: a tree without them.  [default: as served, and 0]",
        check=each_between(0, 2, some=False),
    )
    transition_weight: tuple[float, ...] = setting(
        (),
        "Weight of the head's transition scores, if it has any, in --search survival; 0: a tree without them.  "
        "[default: as served]",
        check=each_between(0, 2, some=False),
    )

    @property
    def budgets(self) -> tuple[int, ...]:
        """Node budgets, each once."""
        return tuple(dict.fromkeys(self.theta))

    def searches(self, counts: bool, transitions: bool) -> list[Search]:
        """All searches, each once.

        counts: there is an index, without which only trees of weight 0 are possible. transitions: the head has
        transition scores. Raises InvalidArgument when a search needs an index that is not there.
        """
        found: list[Search] = []
        for mode in self.search:
            if mode == "survival":
                for k, rule, pair in itertools.product(self.k, self.score_rule, self._weights(counts, transitions)):
                    # Without a weight no rule counts.
                    found.append(Search(mode, k, None, rule if pair[0] else None, *pair))
            elif mode == "reference":
                if not counts:
                    raise InvalidArgument("--search", "reference needs an index, and there is none; give --index FILE")
                found += [Search(mode, *one) for one in itertools.product(self.k, self.w, self.score_rule)]
            else:
                found.append(Search(mode, max(self.k)))  # transition scores may prefer any of them
        return list(dict.fromkeys(found))

    def _weights(self, counts: bool, transitions: bool) -> list[tuple[float, float | None]]:
        """Weights of the counts and of transition scores, None without any; what nobody named is as a search has it."""
        found: list[tuple[float, float | None]] = []
        for weight in (self.ngram_weight or (default_weights(transitions=transitions)[0], 0.0)) if counts else (0.0,):
            default = default_weights(transitions=transitions, counts=weight > 0.0)[1]
            scores = (self.transition_weight or (default,)) if transitions else (None,)
            found += [(weight, score) for score in scores]
        return found
