"""What tests of the service share: documents, requests, channels."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dartspec.v1 import common_pb2, ngram_pb2

from .support import AUTHORITY, FINGERPRINT

DOCUMENTS = [[(i * i + 3 * j) % 20 for i in range(30)] for j in range(20)]
OFFSETS = [([3, 7, 12, 19], [-0.5, -1.5, -2.5, -3.5]), ([1, 4], [-1.0, -0.7]), ([6, 2, 9], [-1.0, -1.0, -2.0])]


def open_channel(address: str) -> grpc.Channel:
    """A channel without limits on the client's side."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1), *AUTHORITY]
    return grpc.insecure_channel(address, options)


def proposals(offsets: Any = OFFSETS) -> common_pb2.Proposals:
    """Proposals from (tokens, log-probabilities) by offset."""
    return common_pb2.Proposals(
        revision=1,
        widths=[len(tokens) for tokens, _ in offsets],
        token_ids=np.array([token for tokens, _ in offsets for token in tokens], "<i4").tobytes(),
        logprobs=np.array([value for _, values in offsets for value in values], "<f4").tobytes(),
    )


def request(count: int = 1, first: int = 0, **params: object) -> ngram_pb2.SearchRequest:
    """A request of ``count`` queries with different contexts."""
    queries = [
        ngram_pb2.SearchQuery(context=[i % 20, (i * 7) % 20], proposals=proposals())
        for i in range(first, first + count)
    ]
    return ngram_pb2.SearchRequest(
        tokenizer_fingerprint=FINGERPRINT, params=ngram_pb2.SearchParams(**params), queries=queries
    )


def slow_request(count: int) -> ngram_pb2.SearchRequest:
    """A request whose queries take milliseconds each."""
    offsets = [(list(range(1024)), np.linspace(-9, -5, 1024).tolist())] * 16
    wanted = request(count, mode=ngram_pb2.SEARCH_MODE_REFERENCE, beam_width=64)
    for query in wanted.queries:
        query.proposals.CopyFrom(proposals(offsets))
    return wanted


def assert_refused(call: Any, code: grpc.StatusCode, field: str) -> str:
    """The call failed with the code and names the field; returns the message."""
    error = call.exception()
    assert error.code() == code, error
    assert field in error.details()
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        bad = error_details_pb2.BadRequest()
        assert rpc_status.from_call(error).details[0].Unpack(bad)
        assert [violation.field for violation in bad.field_violations] == [field]
    return str(error.details())
