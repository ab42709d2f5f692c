"""The HTTP API as a process has it: the ready line, the end, ports in use; and the README's example."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from dartspec.services.common.errors import FailedPrecondition
from tests.fakes import FakeVerifier, scripted_target, serving
from tests.unit.gateway.conftest import StackMaker
from tests.unit.gateway.http_client import MESSAGES, http_stack

README = Path(__file__).resolve().parents[3] / "README.md"
RUN = "from dartspec.gateway.command import gateway; gateway()"
PIPE = asyncio.subprocess.PIPE


async def test_serve_from_start_to_stop() -> None:
    verifier = FakeVerifier()
    verifier.step_seconds = 0.01
    listen = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    async with serving(verifier) as address:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-c", RUN, "serve", *listen, "--verifier", address], stdout=PIPE, stderr=PIPE
        )
        assert process.stdout is not None
        ready = re.fullmatch(
            r"dartspec gateway ready on 127\.0\.0\.1:\d+ (http://127\.0\.0\.1:\d+)\n",
            (await process.stdout.readline()).decode(),
        )
        assert ready is not None
        async with AsyncOpenAI(base_url=f"{ready[1]}/v1", api_key="none", max_retries=0) as client:
            stream = await client.completions.create(model="toy", prompt="hello", max_tokens=30, stream=True)
            parts = [await anext(stream)]
            process.send_signal(signal.SIGTERM)
            parts += [part async for part in stream]  # what is open comes to its end
            assert parts[-1].choices[0].finish_reason == "length"
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out == b""
    assert b"Traceback" not in err


async def test_a_port_in_use_is_said(stack: StackMaker) -> None:
    async with http_stack(stack, [FakeVerifier()]) as (s, client):
        address = s.gateway.http.removeprefix("http://")
        with pytest.raises(FailedPrecondition, match=f"--http-listen: cannot listen on {address}") as failure:
            async with stack([], http_listen=address):
                pass
        assert failure.value.field == "--http-listen"
        assert (await client.completions.create(model="toy", prompt="x")).choices
        assert (await client.chat.completions.create(model="toy", messages=MESSAGES)).choices


async def test_the_example_of_the_readme_runs(stack: StackMaker) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (source,) = (block for block in blocks if "openai" in block)
    verifier = FakeVerifier(model="smollm2-135m-instruct")
    verifier.target = scripted_target(verifier.tokenizer.encode("A number.").ids)
    async with http_stack(stack, [verifier]) as (s, _):
        assert "http://127.0.0.1:8000" in source
        source = source.replace("http://127.0.0.1:8000", s.gateway.http)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", source, stdout=PIPE, stderr=PIPE)
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out.decode().startswith("A number.")
    assert verifier.opens[-1].sampling.max_tokens == 64
