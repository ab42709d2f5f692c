"""The compose stack for real: images without network, `up`, an answer, and a stop in the middle of one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dartspec.cli.client import GatewayClient
from dartspec.cli.request_settings import RequestSettings

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "dartspec-test"
PORTS = {"GRPC_PORT": "17000", "HTTP_PORT": "18000"}
IMAGES = [f"dartspec-{name}:0.1.0" for name in ("gateway", "ngram", "verifier")]
REVISION = "org.opencontainers.image.revision"
STARTED_SECONDS = 600

pytestmark = [pytest.mark.docker, pytest.mark.timeout(5400)]


def run(*arguments: str, seconds: float = STARTED_SECONDS) -> str:
    done = subprocess.run(
        arguments, cwd=ROOT, env={**os.environ, **PORTS}, capture_output=True, text=True, check=False, timeout=seconds
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def succeeds(*arguments: str) -> bool:
    return subprocess.run(arguments, capture_output=True, check=False).returncode == 0


def compose(*arguments: str) -> str:
    command = ["docker", "compose"] if succeeds("docker", "compose", "version") else ["docker-compose"]
    return run(*command, "--project-name", PROJECT, *arguments)


def wait_until_healthy(service: str) -> None:
    """`up` ends when the last container has started, which the gateway is."""
    container = compose("ps", "--quiet", service).strip()
    end = time.monotonic() + STARTED_SECONDS
    while (state := run("docker", "inspect", "-f", "{{.State.Health.Status}}", container).strip()) != "healthy":
        assert time.monotonic() < end, f"{service} is {state}"
        time.sleep(1)


def labels(image: str) -> dict[str, str]:
    done = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=False)
    return json.loads(done.stdout)[0]["Config"]["Labels"] if done.returncode == 0 else {}


@pytest.fixture(scope="module")
def images() -> None:
    """Those of this checkout: there already, or built when that is wanted."""
    if not shutil.which("docker") or not succeeds("docker", "info"):
        pytest.skip("needs a Docker engine")
    ours = run("scripts/offline-images", "--revision").strip()
    if {labels(image).get(REVISION) for image in IMAGES} == {ours}:
        return
    if os.environ.get("DARTSPEC_DOCKER_TESTS") != "1":
        pytest.skip(
            "there are no images of this checkout: run scripts/offline-images first, or set DARTSPEC_DOCKER_TESTS=1 to "
            "have it run here (root, debootstrap, 3 GB of packages, 20 GB of disk, up to an hour)"
        )
    run("scripts/offline-images", seconds=5000)


@pytest.fixture(scope="module")
def stack(images: None) -> Iterator[str]:
    """Address of the gateway of a stack that is up."""
    try:
        compose("up", "--detach", "--no-build")
        wait_until_healthy("gateway")
        yield f"127.0.0.1:{PORTS['GRPC_PORT']}"
    finally:
        compose("down", "--volumes", "--timeout", "5")


async def test_it_answers(stack: str) -> None:
    async with GatewayClient(stack) as client:
        answers = [
            await client.answer("What is a prime number?", RequestSettings(max_tokens=32, temperature=0.0, mode=mode))
            for mode in ("plain", "dart")
        ]
    plain, dart = answers
    assert len(plain.token_ids) == 32
    assert dart.token_ids == plain.token_ids
    assert dart.ledger.dart_rounds > 0
    # Trees came through the socket in the shared volume.
    assert dart.ledger.nodes_offered > dart.ledger.dart_rounds
    body = json.dumps(
        {"messages": [{"role": "user", "content": "What is a prime number?"}], "max_tokens": 32, "temperature": 0}
    )
    url = f"http://127.0.0.1:{PORTS['HTTP_PORT']}/v1/chat/completions"
    answer = json.loads(run("curl", "--silent", "--fail", "--show-error", url, "--data", body))
    assert answer["choices"][0]["message"]["content"] == plain.text


@pytest.mark.parametrize("service", ["gateway", "ngram", "verifier-1"])
def test_containers_are_confined(stack: str, service: str) -> None:
    container = compose("ps", "--quiet", service).strip()
    assert run("docker", "exec", container, "id", "-u").strip() == "10001"
    assert not succeeds("docker", "exec", container, "touch", "/opt/dartspec/x")
    for tool in ("cc", "gcc", "pip", "rustc"):
        assert not succeeds("docker", "exec", container, "sh", "-c", f"command -v {tool}"), tool
    has_torch = succeeds("docker", "exec", container, "test", "-d", "/opt/dartspec/lib/python3.11/site-packages/torch")
    assert has_torch == (service == "verifier-1")


async def test_a_stop_lets_open_answers_end(stack: str) -> None:
    settings = RequestSettings(max_tokens=48, temperature=0.0, mode="plain")
    async with GatewayClient(stack) as client:
        begun = asyncio.Event()
        expected = await client.answer("Explain recursion.", settings)
        answer = asyncio.create_task(client.answer("Explain recursion.", settings, lambda text: begun.set()))
        await begun.wait()
        await asyncio.to_thread(compose, "stop")
        assert (await answer).token_ids == expected.token_ids
    states = json.loads(run("docker", "inspect", *compose("ps", "--all", "--quiet").split()))
    assert {each["State"]["ExitCode"] for each in states} == {0}
