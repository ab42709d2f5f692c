"""Between the protocol's messages and `messages`."""

from __future__ import annotations

from dartspec.services.common.convert import (
    proposals_to_proto,
    sampling_from_proto,
    top_logprobs_to_proto,
    tree_from_proto,
)
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.verifier.messages import Close, Command, Decode, Event, Failed, Load, Open, Round, Verify
from dartspec.v1 import common_pb2, verifier_pb2


def command_from_proto(message: verifier_pb2.Command) -> Command:
    """Raises InvalidArgument for a command of no known kind or with malformed packed fields."""
    kind = message.WhichOneof("kind")
    if kind == "open":
        order = message.open
        return Open(
            session=message.session,
            token_ids=list(order.token_ids),
            prompt_len=order.prompt_len,
            sampling=sampling_from_proto(order.sampling),
            seed=order.seed,
            time_left_ms=order.time_left_ms,
            request_id=order.request_id,
            draft_after=order.draft_after,
            plain_only=order.plain_only,
            always_draft=order.always_draft,
        )
    if kind == "verify":
        source = message.verify.WhichOneof("candidates")
        if source is None:
            raise InvalidArgument("verify.candidates", "either tree or chain must be set")
        return Verify(
            session=message.session,
            n=message.verify.n,
            tree=tree_from_proto(message.verify.tree) if source == "tree" else None,
            chain_nodes=message.verify.chain.max_nodes,
            draft_after=message.verify.draft_after,
        )
    if kind == "decode":
        credit = message.decode
        return Decode(message.session, credit.n, credit.steps, credit.draft_after, credit.may_offer)
    if kind == "close":
        return Close(message.session)
    raise InvalidArgument("command.kind", "must be one of open, verify, decode, close")


def event_to_proto(event: Event) -> verifier_pb2.Event:
    """One event."""
    if isinstance(event, Failed):
        error = event.error
        return verifier_pb2.Event(
            session=event.session,
            failed=verifier_pb2.FailedEvent(
                code=error.number,
                field=error.field,
                message=error.message,
                retry_after_ms=error.retry_after_ms,
                committed=event.committed,
            ),
        )
    return verifier_pb2.Event(session=event.session, round=_round_to_proto(event))


def load_to_proto(load: Load) -> common_pb2.LoadReport:
    """A load report."""
    return common_pb2.LoadReport(
        sessions=load.sessions,
        queued=load.queued,
        kv_used=load.kv_used,
        kv_capacity=load.kv_capacity,
        committed_tokens=load.committed_tokens,
        rounds=load.rounds,
        accepted_tokens=load.accepted_tokens,
        waiting_sessions=load.waiting_sessions,
        running_sessions=load.running_sessions,
        prompt_tokens_left=load.prompt_tokens_left,
        committed_tokens_per_second=load.committed_tokens_per_second,
        pass_ms=load.pass_ms,
        draft_ms=load.draft_ms,
        accepted_per_round=load.accepted_per_round,
        verified_per_depth=load.verified_per_depth,
        accepted_per_depth=load.accepted_per_depth,
        draining=load.draining,
    )


def _round_to_proto(event: Round) -> verifier_pb2.RoundEvent:
    return verifier_pb2.RoundEvent(
        n=event.n,
        token_ids=event.token_ids,
        logprobs=event.logprobs,
        margins=event.margins,
        top_logprobs=top_logprobs_to_proto(event.top_logprobs),
        accepted=event.accepted,
        nodes_offered=event.nodes_offered,
        nodes_verified=event.nodes_verified,
        proposals=proposals_to_proto(event.proposals) if event.proposals is not None else None,
        search_nodes=event.search_nodes,
        no_draft_reason=f"NO_DRAFT_REASON_{event.no_draft.value if event.no_draft else 'UNSPECIFIED'}",
        timings=common_pb2.Timings(draft_ms=event.draft_ms, verify_ms=event.verify_ms, wait_ms=event.wait_ms),
        finish_reason=f"FINISH_REASON_{event.finish.value if event.finish else 'UNSPECIFIED'}",
    )
