"""What a gateway knows of a verifier's load: the last report, and what it sent since."""

from __future__ import annotations

import math

from dartspec.gateway.router import Load
from dartspec.gateway.types import Opening
from dartspec.v1 import common_pb2

BATCH_SECONDS = 10.0  # as verifiers measure their speed over


class ReplicaLoad:
    """Reports in, `Load` for the router out. Times in seconds of any one clock."""

    def __init__(self) -> None:
        self.report = common_pb2.LoadReport()
        self._sent = self._prompt_tokens = self._positions = 0
        self._batch = self._reported_at = 0.0

    def reported(self, report: common_pb2.LoadReport, now: float) -> None:
        """Take a report."""
        was_idle = not self.report.running_sessions
        self.report = report
        self._sent = self._prompt_tokens = self._positions = 0
        running = report.running_sessions
        # Speed is a mean over the time with work, so the number of sessions that shared it must be one too.
        if running and report.committed_tokens_per_second > 0:
            seconds = 0.0 if was_idle else now - self._reported_at
            share = 1.0 - math.exp(-max(seconds, 0.0) / BATCH_SECONDS)
            self._batch += (running - self._batch) * (share if self._batch else 1.0)
        self._reported_at = now

    def sent(self, opening: Opening) -> None:
        """A session was opened; the next report will hold it."""
        self._sent += 1
        self._prompt_tokens += len(opening.token_ids)
        self._positions += opening.prompt_len + opening.sampling.max_tokens

    def load(self, own: int) -> Load:
        """For the router; ``own`` sessions are this gateway's."""
        report = self.report
        used = report.kv_used + self._positions
        return Load(
            reported=report.sessions,
            own=own,
            sent=self._sent,
            prompt_tokens=report.prompt_tokens_left + self._prompt_tokens,
            kv_share=min(1.0, used / report.kv_capacity) if report.kv_capacity else 0.0,
            tokens_per_second=report.committed_tokens_per_second,
            batch=self._batch,
        )
