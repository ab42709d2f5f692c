"""Which sessions a pass holds, and how much of their prompts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dartspec.services.verifier.session import Session

# Rows of prompts in one pass when nobody decodes, and when somebody waits for the next token meanwhile.
PREFILL_ROWS = 512
SHARED_PREFILL_ROWS = 128
# Sessions that decode in one pass; more take turns.
MAX_DECODING = 256
# Waiting for so long counts as much as a deadline that is now.
PATIENCE_SECONDS = 30.0


def urgency(session: Session) -> float:
    """Smaller goes first: the session's deadline, or that of its patience."""
    patience = session.waiting_since + PATIENCE_SECONDS
    return patience if session.deadline is None else min(session.deadline, patience)


def choose(ready: Sequence[Session]) -> tuple[list[Session], list[tuple[Session, int]]]:
    """Of sessions that can go on: those that decode in the next pass, and those that read rows of their prompts.

    Whoever decodes goes along in every pass, so prompts of any length cost it little; prompts are read in order of
    urgency, and what a pass has left after the most urgent prompt goes to the next.
    """
    decoding = sorted((session for session in ready if not session.prefilling), key=urgency)[:MAX_DECODING]
    left = SHARED_PREFILL_ROWS if decoding else PREFILL_ROWS
    reading = []
    for session in sorted((session for session in ready if session.prefilling), key=urgency):
        if left <= 0:
            break
        rows = min(left, session.prompt_left)
        reading.append((session, rows))
        left -= rows
    return decoding, reading
