"""The service applies the wanted score rule and says which one it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import ngram_index
import pytest

from dartspec.v1 import ngram_pb2, ngram_pb2_grpc

from .served import DOCUMENTS, OFFSETS, assert_refused, open_channel, request
from .support import build, search

MODES = {"survival": ngram_pb2.SEARCH_MODE_SURVIVAL, "reference": ngram_pb2.SEARCH_MODE_REFERENCE}
RULES = {
    "reference": ngram_pb2.SCORE_RULE_REFERENCE,
    "stupid_backoff": ngram_pb2.SCORE_RULE_STUPID_BACKOFF,
    "witten_bell": ngram_pb2.SCORE_RULE_WITTEN_BELL,
    "divided": ngram_pb2.SCORE_RULE_DIVIDED,
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> ngram_index.Index:
    path: Path = tmp_path_factory.mktemp("rules") / "index.ngx"
    return build(path, DOCUMENTS, 3, 20)


@pytest.fixture(scope="module")
def stub(index: ngram_index.Index) -> Iterator[ngram_pb2_grpc.NgramServiceStub]:
    with ngram_index.Server([index], ["127.0.0.1:0"]) as server, open_channel(server.addresses[0]) as channel:
        yield ngram_pb2_grpc.NgramServiceStub(channel)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", RULES)
def test_the_rule_is_applied_and_recorded(
    stub: ngram_pb2_grpc.NgramServiceStub, index: ngram_index.Index, mode: str, rule: str
) -> None:
    wanted = request(mode=MODES[mode], score_rule=RULES[rule], backoff_factor=0.25, node_budget=12)
    answer = stub.Search(wanted)
    assert (answer.mode, answer.score_rule) == (MODES[mode], RULES[rule])
    params = {"mode": mode, "score_rule": rule, "backoff_factor": 0.25, "node_budget": 12}
    expected = search(index, wanted.queries[0].context, OFFSETS, **params)
    tree = answer.trees[0]
    assert (tree.token_ids, tree.parents, tree.survival) == (expected.token_ids, expected.parents, expected.survival)


def test_rules_differ(stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    answers = [stub.Search(request(score_rule=rule)).trees[0].survival for rule in RULES.values()]
    assert len(set(answers)) == len(RULES)


def test_what_is_not_given_is_recorded_too(stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    answer = stub.Search(request())
    assert (answer.mode, answer.score_rule) == (MODES["survival"], RULES["divided"])
    answer = stub.Search(request(mode=MODES["reference"]))
    assert (answer.mode, answer.score_rule) == (MODES["reference"], RULES["reference"])


def test_wrong_values_are_refused(stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert_refused(stub.Search.future(request(score_rule=9)), invalid, "params.score_rule")
    for factor in (0.0, 1.5, float("nan")):
        assert_refused(stub.Search.future(request(backoff_factor=factor)), invalid, "params.backoff_factor")
