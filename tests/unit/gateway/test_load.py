"""`dartspec bench serve` against the gateway itself, over both of its APIs."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from dartspec.cli.load_plan import Job
from dartspec.cli.load_run import run_load
from dartspec.cli.load_sample import Sample
from dartspec.cli.load_target import open_target
from dartspec.cli.prompts import Prompt
from tests.fakes import FakeNgram, FakeVerifier
from tests.unit.gateway.conftest import StackMaker, recorded
from tests.unit.gateway.http_client import HTTP

# Each task in each mode.
JOBS = [Job(0.0, task, Prompt("1", "hello"), 12, mode) for task in ("code", "mt-bench.1") for mode in ("plain", "dart")]


async def load(target: str) -> list[Sample]:
    """The jobs one after the other."""
    async with open_target(target, "", 0.0) as opened:
        return (await run_load(opened, JOBS, 1, (), lambda sample: None)).samples


async def test_both_apis_are_asked_the_same_and_answer_the_same(
    stack: StackMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack([FakeVerifier()], [FakeNgram()], http_listen=HTTP) as s:
        seen = recorded(s, monkeypatch)
        over_grpc = await load(s.gateway.addresses[0])
        over_http = await load(s.gateway.http)
    assert len(over_grpc) == len(over_http) == len(JOBS)
    for sample, job in zip([*over_grpc, *over_http], [*JOBS, *JOBS], strict=True):
        assert (sample.error, sample.problem, sample.finished) == ("", "", True)
        assert (sample.task, sample.mode, sample.mode_used) == (job.task, job.mode, job.mode)
        assert sample.tokens == 12
        assert [at for at, _ in sample.chunks] == sorted(at for at, _ in sample.chunks)
    asked = [(r.route.task, r.mode.name.lower(), r.sampling.max_tokens, r.sampling.temperature) for r in seen]
    assert asked == 2 * [(job.task, job.mode, 12, 0.0) for job in JOBS]


async def test_https_with_the_authority_and_the_key_of_the_environment(
    stack: StackMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key", "client")}
    authority.cert_pem.write_to_path(files["ca"])
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client.example")
    server.private_key_pem.write_to_path(files["key"])
    server.cert_chain_pems[0].write_to_path(files["cert"])
    client.private_key_and_cert_chain_pem.write_to_path(files["client"])
    (tmp_path / "keys").write_text("ann:secret-of-ann-0123456789\n")
    own = {"tls_cert": files["cert"], "tls_key": files["key"], "tls_client_ca": files["ca"]}
    keys = {"api_keys_file": str(tmp_path / "keys")}
    async with stack([FakeVerifier()], [FakeNgram()], http_listen=HTTP, **own, **keys) as s:
        for name, value in (
            ("DARTSPEC_API_KEY", "secret-of-ann-0123456789"),
            ("DARTSPEC_TLS_CA", files["ca"]),
            ("DARTSPEC_TLS_CERT", files["client"]),
            ("DARTSPEC_TLS_KEY", files["client"]),
        ):
            monkeypatch.setenv(name, value)
        assert s.gateway.http.startswith("https://")
        assert [(sample.error, sample.tokens) for sample in await load(s.gateway.http)] == 4 * [("", 12)]
