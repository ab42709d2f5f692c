"""One frame of `dartspec top`, made of what a gateway says of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dartspec.v1 import gateway_pb2

STAGES = ("draft", "search", "verify", "wait", "other")
STATE_STYLES = {"ready": "green", "trial": "yellow", "draining": "yellow", "resting": "red", "down": "red"}

# Value by name and labels, as in Prometheus' text: ("rounds_total",) or ("ledger_seconds_total", "draft").
Metrics = Mapping[tuple[str, ...], float]


@dataclass(frozen=True)
class View:
    """What was read at a time (a clock in seconds). metrics: None where they could not be."""

    at: float
    status: gateway_pb2.GetStatusResponse
    replicas: tuple[gateway_pb2.Replica, ...]
    metrics: Metrics | None = field(default=None)


def frame(view: View, before: View | None) -> Group:
    """Tables of replicas and of the ledger; rates are those since ``before``, without it since the gateway started."""
    parts: list[Table | Text] = [_head(view), _replicas(view.replicas)]
    if view.metrics is None:
        parts.append(Text("no metrics: give --metrics URL for modes and the ledger", style="dim"))
    else:
        parts.append(_ledger(view, before))
    return Group(*parts)


def _head(view: View) -> Text:
    status = view.status
    registry = gateway_pb2.RegistryState.Name(status.registry_state).removeprefix("REGISTRY_STATE_").lower()
    return Text(
        f"dartspec {status.version}  up {_duration(status.uptime_seconds)}  models {', '.join(status.models) or '-'}  "
        f"requests {status.open_requests}  replicas {status.ready_replicas}/{status.replicas}  "
        f"ngram {status.ngram_services}  routing {status.routing}  registry {registry}",
        style="bold",
    )


def _replicas(replicas: tuple[gateway_pb2.Replica, ...]) -> Table:
    table = Table(expand=False, pad_edge=False)
    table.add_column("replica")
    table.add_column("state")
    for name in ("sessions", "auto", "plain", "dart", "kv", "tokens/s", "pass ms", "draft ms", "accepted", "failures"):
        table.add_column(name, justify="right")
    for replica in replicas:
        load, own = replica.load, replica.open
        state = gateway_pb2.ReplicaState.Name(replica.state).removeprefix("REPLICA_STATE_").lower()
        table.add_row(
            replica.address,
            Text(state, style=STATE_STYLES.get(state, "")),
            f"{load.sessions}/{replica.max_sessions}" if replica.max_sessions else str(load.sessions),
            str(own.auto),
            str(own.plain),
            str(own.dart),
            f"{load.kv_used / load.kv_capacity:.0%}" if load.kv_capacity else "-",
            _number(load.committed_tokens_per_second),
            _number(load.pass_ms),
            _number(load.draft_ms),
            _number(load.accepted_per_round, 2),
            str(replica.failures),
        )
    return table


def _ledger(view: View, before: View | None) -> Table:
    """Where time went and what rounds did, per second or per round."""
    then: Metrics = before.metrics if before is not None and before.metrics is not None else {}
    seconds = view.at - before.at if then and before is not None else view.status.uptime_seconds
    now = view.metrics or {}

    def grown(*name: str) -> float:
        return now.get(name, 0.0) - then.get(name, 0.0)

    def rate(*name: str) -> str:
        return _number(grown(*name) / seconds) if seconds > 0 else "-"

    rounds, drafted = grown("rounds_total"), grown("draft_tokens_total")
    parts = {stage: grown("ledger_seconds_total", stage) for stage in STAGES}
    whole = sum(parts.values())
    table = Table(show_header=False, pad_edge=False)
    table.add_row("tokens/s", rate("committed_tokens_total"), "rounds/s", rate("rounds_total"))
    table.add_row("plain steps/s", rate("plain_steps_total"), "failovers/s", rate("failovers_total"))
    accepted = grown("accepted_tokens_total")
    share = f"{accepted / drafted:.0%}" if drafted else "-"
    table.add_row("accepted a round", _number(accepted / rounds, 2) if rounds else "-", "of the verified", share)
    modes = {mode: sum(grown("requests_total", mode, why) for why in ("stop", "length")) for mode in _MODES}
    table.add_row("answers", "  ".join(f"{mode} {count:.0f}" for mode, count in modes.items()), "", "")
    shares = "  ".join(f"{stage} {part / whole:.0%}" for stage, part in parts.items()) if whole else "-"
    table.add_row("time of answers", shares, "", "")
    kept = now.get(("policy_plain_classes",), 0.0)
    table.add_row("kept plain", f"{kept:.0f} kinds", "heads that drift", f"{now.get(('drifting_replicas',), 0.0):.0f}")
    return table


_MODES = ("auto", "plain", "dart")


def _number(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}" if value else "-"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
