"""Load for an OpenAI-style API over HTTP. Needs aiohttp, an extra."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp

from dartspec.cli.load_plan import Job
from dartspec.cli.load_sample import CUT_OFF, Sample
from dartspec.services.common.credentials import credentials
from dartspec.services.common.errors import FailedPrecondition, InvalidArgument, Unavailable
from dartspec.services.common.tls import ClientTls

CONNECT_SECONDS = 30.0
LIST_SECONDS = 30.0
SHOWN = 200  # characters of an error's words


@asynccontextmanager
async def open_http(url: str, model: str, temperature: float) -> AsyncIterator[HttpTarget]:
    """The API at ``url``, asked for its only model where none is named. Raises a DartspecError when that cannot be."""
    base = _base(url)
    tls = ClientTls.of_environment()
    # An answer may take as long as over gRPC; aiohttp's own limit would end it after five minutes.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    connector = aiohttp.TCPConnector(limit=0, ssl=tls.context() if tls is not None else True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=dict(credentials())) as session:
        yield HttpTarget(session, base, model or await _only_model(session, base), temperature)


class HttpTarget:
    """Chat completions as streams, with log-probabilities: they tell how many tokens a piece holds."""

    def __init__(self, session: aiohttp.ClientSession, base: str, model: str, temperature: float) -> None:
        self._session = session
        self._base = base
        self._model = model
        self._temperature = temperature

    async def answer(self, job: Job, sample: Sample, due: float) -> None:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": job.prompt.text}],
            "max_tokens": job.max_tokens,
            "temperature": self._temperature,
            "stream": True,
            "logprobs": True,
        }
        if job.mode != "auto":
            body["mode"] = job.mode  # our own field; other servers would refuse it
        headers = {"x-dartspec-task": job.task}
        try:
            async with self._session.post(f"{self._base}/chat/completions", json=body, headers=headers) as response:
                if response.status != 200:
                    sample.fail(f"HTTP_{response.status}", _words(await response.text(errors="replace")))
                    return
                await _read(response.content, sample, due)
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            sample.fail(type(error).__name__, str(error))


async def _read(lines: aiohttp.StreamReader, sample: Sample, due: float) -> None:
    """Take server-sent events to their end."""
    now = asyncio.get_running_loop().time
    text, ended = False, False
    async for line in lines:
        if not line.startswith(b"data:"):  # an empty line, or another field of an event
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            ended = True
            break
        try:
            part = json.loads(data)
            if error := part.get("error"):
                code = error.get("code") or error.get("type") or "ERROR"
                sample.fail(str(code), str(error.get("message", ""))[:SHOWN])
                return
            for choice in part.get("choices") or ():
                count = len((choice.get("logprobs") or {}).get("content") or ())
                if count:
                    sample.chunks.append((now() - due, count))
                text = text or bool((choice.get("delta") or {}).get("content"))
                sample.mode_used = choice.get("dartspec", {}).get("mode", sample.mode_used)
        except (ValueError, TypeError, AttributeError):  # JSON of another shape, or none
            sample.fail("BAD_EVENT", data[:SHOWN].decode(errors="replace"))
            return
    if not ended:
        sample.fail(*CUT_OFF)
    elif text and not sample.chunks:
        sample.fail("NO_LOGPROBS", "the text came without log-probabilities, so its tokens cannot be counted")
    else:
        sample.finished = True


async def _only_model(session: aiohttp.ClientSession, base: str) -> str:
    url = f"{base}/models"
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=LIST_SECONDS)) as response:
            status, text = response.status, await response.text(errors="replace")
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(f"--target: no API answers on {url}: {error or type(error).__name__}") from error
    if status != 200:
        raise FailedPrecondition(f"--target: {url} says HTTP {status}: {_words(text)}")
    try:
        names = [str(model["id"]) for model in json.loads(text)["data"]]
    except (ValueError, TypeError, KeyError) as error:
        raise FailedPrecondition(f"--target: {url} lists no models; name one with --model") from error
    if len(names) != 1:
        some = ", ".join(names[:8]) or "none"
        raise InvalidArgument("--model", f"name one: {url} lists {len(names)} ({some})")
    return names[0]


def _base(url: str) -> str:
    """With /v1 at its end."""
    try:
        parts = urlsplit(url)
        known = bool(parts.hostname) and parts.port != 0  # a port that is no number raises
    except ValueError:
        known = False
    if not known or parts.query or parts.fragment:
        raise InvalidArgument("--target", f"must be http://HOST[:PORT][/PATH], got {url!r}")
    return url.rstrip("/").removesuffix("/v1") + "/v1"


def _words(text: str) -> str:
    """What an error's body says, if it is that API's, else its beginning."""
    try:
        return str(json.loads(text)["error"]["message"])[:SHOWN]
    except (ValueError, TypeError, KeyError):
        return " ".join(text.split())[:SHOWN]
