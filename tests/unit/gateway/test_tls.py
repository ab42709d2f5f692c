"""TLS on every way in and out of a gateway, with certificates of the test's own authority; wrong files are said."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import pytest
import trustme

from dartspec.services.common.announce import announce_forever
from dartspec.services.common.channel import open_channel
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.tls import ClientTls, ServerTls
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc
from tests.fakes import FakeNgram, FakeVerifier, plain_answer, serving
from tests.unit.gateway.conftest import StackMaker, collect, until

REQUEST = gateway_pb2.GenerateRequest(
    token_ids=gateway_pb2.TokenIds(ids=[1, 2, 3]),
    sampling=common_pb2.Sampling(temperature=0.0, max_tokens=12),
    seed=0,
    mode=gateway_pb2.MODE_DART,
)


@dataclass(frozen=True)
class Files:
    """Paths of PEM files: an authority, a server's and a client's certificate with keys."""

    ca: str
    server: tuple[str, str]
    client: tuple[str, str]


def make_files(directory: Path) -> Files:
    directory.mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    pairs = {}
    for name, host in (("server", "127.0.0.1"), ("client", "gateway.example")):
        issued = authority.issue_cert(host)
        pairs[name] = (str(directory / f"{name}.pem"), str(directory / f"{name}.key"))
        issued.private_key_pem.write_to_path(pairs[name][1])
        for blob in issued.cert_chain_pems:
            blob.write_to_path(pairs[name][0], append=True)
    return Files(str(directory / "ca.pem"), pairs["server"], pairs["client"])


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("tls") / "strangers")


async def is_refused(address: str, tls: ClientTls | None) -> None:
    """A client cannot even ask."""
    async with open_channel(address, tls) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await collect(gateway_pb2_grpc.GatewayServiceStub(channel).Generate(REQUEST, timeout=10))
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_answer_over_mutual_tls_all_the_way(stack: StackMaker, ours: Files, strangers: Files) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    server = ServerTls(*ours.server, ours.ca)
    client = ClientTls(ours.ca, *ours.client)
    peers = {"peer_ca": ours.ca, "peer_cert": ours.client[0], "peer_key": ours.client[1]}
    own = {"tls_cert": ours.server[0], "tls_key": ours.server[1], "tls_client_ca": ours.ca}
    async with (
        serving(verifier, tls=server) as first,
        serving(ngram, tls=server) as second,
        stack([first], [second], http_listen="127.0.0.1:0", **peers, **own) as s,
    ):
        address = s.gateway.addresses[0]
        async with open_channel(address, client) as channel:
            reply = await collect(gateway_pb2_grpc.GatewayServiceStub(channel).Generate(REQUEST, timeout=30))
        assert reply.ids == plain_answer(verifier.target, [1, 2, 3], 12)
        assert ngram.trees
        assert reply.finish.ledger.chain_fallbacks == 0
        for other in (None, ClientTls(ours.ca), ClientTls(strangers.ca), ClientTls(ours.ca, *strangers.client)):
            await is_refused(address, other)
        assert s.gateway.http.startswith("https://")
        context = ssl.create_default_context(cafile=ours.ca)
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"{s.gateway.http}/v1/models", ssl=context)
            context.load_cert_chain(*ours.client)
            async with session.get(f"{s.gateway.http}/v1/models", ssl=context) as answer:
                assert [model["id"] for model in (await answer.json())["data"]] == ["toy"]


async def test_a_verifier_of_another_authority_is_not_used(stack: StackMaker, ours: Files, strangers: Files) -> None:
    good, bad = FakeVerifier(), FakeVerifier()
    async with (
        serving(good, tls=ServerTls(*ours.server)) as first,
        serving(bad, tls=ServerTls(*strangers.server)) as second,
        stack([first, second], peer_ca=ours.ca) as s,
    ):
        for _ in range(4):
            await s.generate()
        assert (len(good.opens), bad.streams) == (4, 0)


async def test_services_announce_themselves_over_tls(stack: StackMaker, ours: Files, tmp_path: Path) -> None:
    verifier = FakeVerifier()
    own = {"tls_cert": ours.server[0], "tls_key": ours.server[1], "tls_client_ca": ours.ca}
    # A Unix socket needs no certificates, beside listeners and verifiers that do.
    socket = f"unix:{tmp_path}/v.sock"
    async with serving(verifier, socket), stack([], peer_ca=ours.ca, **own) as s:
        record = gateway_pb2.ServiceRecord(kind=gateway_pb2.SERVICE_KIND_VERIFIER, address=socket)
        tls = ClientTls(ours.ca, *ours.client)
        announcing = asyncio.create_task(announce_forever(s.gateway.addresses, lambda: record, tls=tls))
        await until(lambda: verifier.streams == 1)
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)


def wrong(ours: Files, strangers: Files) -> Iterator[tuple[str, tuple[str, str, str]]]:
    yield "--tls-cert", (ours.server[0], "", "")
    yield "--tls-cert", ("", "", ours.ca)
    yield "--tls-cert", (ours.server[0], strangers.server[1], "")
    yield "--tls-cert", ("/nowhere.pem", ours.server[1], "")
    yield "--tls-client-ca", (*ours.server, ours.server[1])


def test_wrong_files_are_said_with_their_setting(ours: Files, strangers: Files) -> None:
    for setting, files in wrong(ours, strangers):
        with pytest.raises(InvalidArgument) as error:
            ServerTls.chosen(*files)
        assert error.value.field == setting, files
    assert ServerTls.chosen("", "", "") is None
    with pytest.raises(InvalidArgument, match="--peer-ca"):
        ClientTls.chosen("", *ours.client)
    with pytest.raises(InvalidArgument, match="--peer-cert"):
        ClientTls.chosen(ours.ca, ours.client[0], strangers.client[1])


def test_commands_take_theirs_from_the_environment(ours: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ClientTls.of_environment() is None
    monkeypatch.setenv("DARTSPEC_TLS_CA", ours.ca)
    assert ClientTls.of_environment() == ClientTls(ours.ca)
    monkeypatch.setenv("DARTSPEC_TLS_CERT", ours.client[0])
    with pytest.raises(InvalidArgument, match="DARTSPEC_TLS_KEY"):
        ClientTls.of_environment()
