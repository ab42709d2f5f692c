"""Comparisons and answers as text."""

from __future__ import annotations

from collections.abc import Sequence

from dartspec.cli.answer import Answer
from dartspec.cli.compare import Difference, Summary, decode_speed, median_ttft_ms, request_speed


def identity_line(differences: Sequence[Difference]) -> str:
    """ "identical: yes", or the first difference of each answer that has one."""
    if not differences:
        return "identical: yes"
    return "\n  ".join(["identical: no", *(_difference(item) for item in differences)])


def comparison(summary: Summary) -> str:
    """A table of both modes, then A, M and the times of a pass."""
    header = f"{'':<8}{'tokens':>8}{'tokens/s':>12}{'decode/s':>12}{'TTFT ms':>10}"
    plain = _row(
        "plain",
        summary.plain_tokens,
        summary.plain_tokens_per_s,
        summary.plain_decode_tokens_per_s,
        summary.plain_ttft_ms,
    )
    dart = _row(
        "DART", summary.dart_tokens, summary.dart_tokens_per_s, summary.dart_decode_tokens_per_s, summary.dart_ttft_ms
    )
    lines = [
        header,
        plain,
        dart,
        f"speed-up {_times(summary.speedup)} of whole requests, {_times(summary.decode_speedup)} of decoding alone "
        f"(ratios of sums over {_count(summary.prompts, 'answer')}; median of whole requests "
        f"{_times(summary.median_speedup)})",
        f"M {_number(summary.mean_committed)} tokens committed, A {_number(summary.mean_accepted)} accepted a round; "
        f"{_count(summary.dart_rounds, 'round')}, {_count(summary.plain_steps, 'plain step')}",
        f"a pass, ms: draft {_number(summary.t_draft_ms)}, search {_number(summary.t_search_ms)}, "
        f"verify {_number(summary.t_verify_ms)}, wait {_number(summary.t_wait_ms)}, "
        f"other {_number(summary.t_other_ms)}; a token in plain mode {_number(summary.t_plain_step_ms)}",
    ]
    if summary.chain_fallbacks:
        lines.append(f"{_count(summary.chain_fallbacks, 'search', 'searches')} replaced by the verifier's own chain")
    lines.append(identity_line(summary.differences))
    return "\n".join(lines)


def speeds(answers: Sequence[Answer]) -> str:
    """One line about answers in one mode."""
    tokens = sum(len(answer.token_ids) for answer in answers)
    ledgers = [answer.ledger for answer in answers]
    rounds = sum(ledger.dart_rounds for ledger in ledgers)
    modes = ", ".join(sorted({"auto (both)" if ledger.mode == "auto" else ledger.mode for ledger in ledgers}))
    seeds = {answer.seed for answer in answers}
    line = (
        f"{tokens} tokens, {_number(request_speed(answers), 1)} tokens/s ({_number(decode_speed(answers), 1)} decoding "
        f"alone), first token after {median_ttft_ms(answers):.0f} ms; mode {modes}"
    )
    if rounds:
        line += f", M {sum(ledger.dart_committed for ledger in ledgers) / rounds:.2f}"
    return line + (f", seed {seeds.pop()}" if len(seeds) == 1 else ", a seed each (--json lists them)")


def _row(name: str, tokens: int, speed: float | None, decode: float | None, ttft_ms: float) -> str:
    return f"{name:<8}{tokens:>8}{_number(speed, 1):>12}{_number(decode, 1):>12}{ttft_ms:>10.0f}"


def _difference(item: Difference) -> str:
    gap = "" if item.gap is None else f"; plain's token was {item.gap:.2g} ahead of the next"
    return (
        f"prompt {item.prompt}: first at token {item.index}: plain {_token(item.plain_token)}, "
        f"DART {_token(item.dart_token)}{gap}"
    )


def _token(token: int | None) -> str:
    return "ended" if token is None else str(token)


def _times(value: float | None) -> str:
    return "-" if value is None else f"x{value:.2f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _count(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
