"""One line in the log for each request: its id, what it cost and how it ended. Never what it says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from dartspec.gateway.types import Finish, Start
from dartspec.services.common.errors import DartspecError

log = logging.getLogger(__name__)

KEPT_ID = 128  # of an id that was refused for its length


class Line:
    """What is known of a request by now; ``facts`` are numbers and names."""

    def __init__(self, request_id: str, client: str) -> None:
        self.request_id = request_id[:KEPT_ID] if request_id.isprintable() else ""
        self.facts: dict[str, str | int | float] = {"client": client} if client else {}

    def began(self, start: Start) -> None:
        """Its start is known."""
        self.request_id = start.request_id
        self.facts |= {"model": start.model, "prompt_tokens": len(start.prompt_token_ids)}

    def ended(self, finish: Finish) -> None:
        """It came to its end."""
        ledger = finish.ledger
        self.facts |= {
            "tokens": finish.completion_tokens,
            "mode_used": finish.mode_used.name.lower(),
            "reason": finish.reason.name.lower(),
            "failovers": ledger.failovers,
            "ttft_ms": round(ledger.ttft_ms, 1),
            "total_ms": round(ledger.total_ms, 1),
        }


@contextmanager
def logged(request_id: str, client: str) -> Iterator[Line]:
    """Around everything that is done for a request."""
    line = Line(request_id, client)
    code = "OK"
    try:
        yield line
    except DartspecError as error:
        code = error.code.name
        raise
    except (asyncio.CancelledError, GeneratorExit):
        # A client that has its answer closes the stream before the last message was taken from us.
        code = "OK" if "reason" in line.facts else "CANCELLED"
        raise
    except Exception:
        code = "INTERNAL"
        raise
    finally:
        facts = {"code": code, **line.facts}
        said = ", ".join(f"{name} {value}" for name, value in facts.items())
        log.info("request %s: %s", line.request_id, said, extra={"request_id": line.request_id, **facts})
