"""The process: one ready line, clean stops, errors that name the setting, nothing heavy imported."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dartspec.gateway.command import gateway
from dartspec.services.common.channel import open_channel
from dartspec.services.common.errors import FailedPrecondition
from dartspec.v1 import gateway_pb2_grpc
from tests.fakes import FakeVerifier, serving
from tests.unit.gateway.conftest import Stack, StackMaker

RUN = "from dartspec.gateway.command import gateway; gateway()"


async def test_serve_from_start_to_stop() -> None:
    verifier = FakeVerifier()
    async with serving(verifier) as address:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-c", RUN, "serve", "--listen", "127.0.0.1:0", "--verifier", address],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("dartspec gateway ready on 127.0.0.1:")
        async with open_channel(line.split()[-1]) as channel:
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            reply = await Stack(None, stub, None).generate()  # type: ignore[arg-type]
            assert len(reply.ids) == 24
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(service="dartspec.v1.GatewayService"))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            listing = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            )
            names = [service.name for service in (await listing.read()).list_services_response.service]
            assert {"dartspec.v1.GatewayService", "dartspec.v1.RegistryService"} <= set(names)
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
        assert process.returncode == 0
        assert out == b""
        assert b"Traceback" not in err
        assert b"serves toy" in err


async def test_a_port_in_use_is_said(stack: StackMaker) -> None:
    async with stack([FakeVerifier()]) as s:
        address = s.gateway.addresses[0]
        with pytest.raises(FailedPrecondition, match=f"cannot listen on {address}"):
            async with stack([], listen=(address,)):
                pass
        await s.generate()


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--http-listen", "8000"),
        ("--max-requests-per-key", "-1"),
        ("--node-budget", "0"),
        ("--mode", "fast"),
        ("--search-timeout-ms", "x"),
        ("--stall-seconds", "nan"),
    ],
)
def test_bad_settings_name_the_flag(flag: str, value: str) -> None:
    result = CliRunner().invoke(gateway, ["serve", flag, value])
    assert result.exit_code == 2
    assert flag in result.output


def test_the_gateway_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, pkgutil, importlib, dartspec.gateway as g\n"
        "names = [m.name for m in pkgutil.iter_modules(g.__path__) if m.name != 'relay']\n"
        "for name in names: importlib.import_module('dartspec.gateway.' + name)\n"
        "bad = {'torch', 'transformers', 'redis', 'ngram_index'} & set(sys.modules)\n"
        "bad |= {m for m in sys.modules if m.startswith(('dartspec.services.verifier', 'dartspec.services.draft'))}\n"
        "print(sorted(bad))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from dartspec.gateway.command import gateway\n"
        "try: gateway(['serve', '--help'])\n"
        "except SystemExit: print(sorted({'tokenizers', 'jinja2', 'grpc'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
