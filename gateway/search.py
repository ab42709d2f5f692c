"""Trees from the n-gram service: one call for all sessions whose rounds came together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dartspec.gateway.config import Settings
from dartspec.gateway.model import Model
from dartspec.gateway.ngram_client import NgramClient, SearchError
from dartspec.gateway.registry import Record, Registry, ServiceKind
from dartspec.services.common.tls import ClientTls
from dartspec.v1 import common_pb2, ngram_pb2

log = logging.getLogger(__name__)

CONTEXT_TOKENS = 4  # order - 1 of the longest index, order 5

SEARCH_MODES = {"survival": ngram_pb2.SEARCH_MODE_SURVIVAL, "reference": ngram_pb2.SEARCH_MODE_REFERENCE}
SCORE_RULES = {
    "auto": ngram_pb2.SCORE_RULE_UNSPECIFIED,
    "reference": ngram_pb2.SCORE_RULE_REFERENCE,
    "stupid_backoff": ngram_pb2.SCORE_RULE_STUPID_BACKOFF,
    "witten_bell": ngram_pb2.SCORE_RULE_WITTEN_BELL,
    "divided": ngram_pb2.SCORE_RULE_DIVIDED,
}


@dataclass(frozen=True)
class Found:
    """A tree, or None when the verifier's own chain must do. search_ms: the whole batch's time in the service."""

    tree: common_pb2.Tree | None
    search_ms: float = 0.0


class SearchRoute(NamedTuple):
    """Where offers can be searched without asking `TreeSearch`: a serialised request without queries, and how long."""

    address: str
    request: bytes
    timeout_ms: int


@dataclass
class _Batch:
    """Queries that go out together."""

    model: Model
    nodes: int  # of a tree; 0: as many as this gateway likes
    queries: list[ngram_pb2.SearchQuery] = field(default_factory=list)
    answers: list[asyncio.Future[Found]] = field(default_factory=list)
    done: asyncio.Future[None] | None = None


class TreeSearch:
    """Asks this node's n-gram service, else another. Without an answer in time, there is no tree and no error."""

    def __init__(self, registry: Registry, settings: Settings, tls: ClientTls | None = None) -> None:
        self._registry = registry
        self._tls = tls
        self._settings = settings
        self._clients: dict[str, NgramClient] = {}
        self._batches: dict[tuple[tuple[str, ...], int], _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._latest: asyncio.Future[None] | None = None

    async def settled(self) -> None:
        """Wait until the searches that have begun are answered, and the verifiers have been told what they found.

        Writing to a client costs more than all else in a round. Whoever waits here first does not keep a replica idle.
        """
        if self._latest is not None:
            await asyncio.shield(self._latest)
            # Sessions that got their trees run before this, the stream that takes their commands after one turn more.
            await asyncio.sleep(0)

    def begin(
        self, model: Model, context: Sequence[int], proposals: common_pb2.Proposals, nodes: int = 0
    ) -> asyncio.Future[Found]:
        """Search a tree for one session whose last tokens are ``context``, the pending one included.

        nodes: most that the verifier wants; 0: as many as the settings say.
        """
        loop = asyncio.get_running_loop()
        key = model.key, nodes
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(model, nodes)
            self._latest = batch.done = loop.create_future()
            # Runs once whoever asks in this turn of the loop has done so, and before what is woken in it.
            task = asyncio.create_task(self._answer(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        batch.queries.append(ngram_pb2.SearchQuery(context=context, proposals=proposals))
        answer: asyncio.Future[Found] = loop.create_future()
        batch.answers.append(answer)
        return answer

    def route(self, model: Model) -> SearchRoute | None:
        """The way of all searches for a model, as long as the service to ask first has not failed."""
        fingerprint = model.tokenizer_fingerprint
        clients = self._available(fingerprint, asyncio.get_running_loop().time())
        if not clients or not clients[0].relayable:
            return None
        request = ngram_pb2.SearchRequest(tokenizer_fingerprint=fingerprint, params=self._params(model))
        return SearchRoute(clients[0].address, request.SerializeToString(), self._settings.search_timeout_ms)

    def route_failed(self, address: str, model: Model, reason: str, *, late: bool) -> None:
        """A search by a `route` failed; the next one is made here. ``late``: the service had its time."""
        client = self._clients.get(address)
        if client is None:
            return
        client.relayable = False
        if late:
            client.failed(model.tokenizer_fingerprint, asyncio.get_running_loop().time(), reason)

    async def close(self) -> None:
        """Close the channels."""
        for task in self._tasks:
            task.cancel()
        for client in self._clients.values():
            await client.close()

    async def _answer(self, key: tuple[tuple[str, ...], int]) -> None:
        batch = self._batches.pop(key)
        found = [Found(None)] * len(batch.queries)
        try:
            response = await self._search(batch)
            if response is not None:
                found = [Found(tree, response.search_us / 1e3) for tree in response.trees]
        finally:
            for answer, result in zip(batch.answers, found, strict=True):
                if not answer.done():
                    answer.set_result(result)
            if batch.done is not None:
                batch.done.set_result(None)
                if self._latest is batch.done:
                    self._latest = None

    async def _search(self, batch: _Batch) -> ngram_pb2.SearchResponse | None:
        fingerprint = batch.model.tokenizer_fingerprint
        request = ngram_pb2.SearchRequest(
            tokenizer_fingerprint=fingerprint, params=self._params(batch.model, batch.nodes), queries=batch.queries
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.search_timeout_ms / 1e3
        for client in self._available(fingerprint, loop.time()):
            left = deadline - loop.time()
            if left <= 0:  # the services before took it all; this one has not failed
                return None
            try:
                response = await client.search(request, left)
            except SearchError as error:
                if error.refused:
                    log.warning("ngram %s refuses a search: %s", client.address, error)
                    return None
                client.failed(fingerprint, loop.time(), str(error))
                continue
            if len(response.trees) == len(batch.queries):
                client.succeeded(fingerprint)
                return response
            client.failed(fingerprint, loop.time(), f"{len(response.trees)} trees for {len(batch.queries)} queries")
        return None

    def _params(self, model: Model, most: int = 0) -> ngram_pb2.SearchParams:
        settings = self._settings
        # A tree of few nodes needs no wider beam.
        nodes = min(filter(None, (settings.node_budget, model.max_nodes, most)))
        return ngram_pb2.SearchParams(
            mode=SEARCH_MODES[settings.search],
            score_rule=SCORE_RULES[settings.score_rule],
            node_budget=nodes,
            beam_width=min(settings.beam_width, nodes),
            stop_token_ids=model.eos_token_ids,
        )

    def _available(self, fingerprint: str, now: float) -> list[NgramClient]:
        records = {record.address: record for record in self._registry.records(ServiceKind.NGRAM)}
        for address in set(self._clients) - set(records):
            client = self._clients.pop(address)
            task = asyncio.create_task(client.close(grace=1.0))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for address in set(records) - set(self._clients):
            self._clients[address] = NgramClient(address, self._tls)
        fitting = [
            record
            for record in records.values()
            if not record.draining
            and (not record.tokenizer_fingerprints or fingerprint in record.tokenizer_fingerprints)
            and not self._clients[record.address].rests(fingerprint, now)
        ]
        fitting.sort(key=self._distance)
        return [self._clients[record.address] for record in fitting]

    def _distance(self, record: Record) -> int:
        if record.address.startswith("unix:"):
            return 0
        return 1 if record.node and record.node == self._settings.node else 2
