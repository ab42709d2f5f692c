"""The first passes, made before readiness so that no request pays for them."""

from __future__ import annotations

import numpy as np

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.messages import Open

_PROMPT_TOKENS = 16


def warm_up(decoder: Decoder, admission: Admission) -> None:
    """Prefill, draft, decode one token and verify a tree of the largest size, once each."""
    vocab_size = decoder.target.config.vocab_size
    prompt = [token % vocab_size for token in range(_PROMPT_TOKENS)]
    sampling = Sampling(temperature=0.0, max_tokens=_PROMPT_TOKENS, ignore_eos=True)
    session = admission.open(Open(0, prompt, len(prompt), sampling, 0, 0, "warm-up", True, False), decoder)
    try:
        decoder.prefill(session)
        decoder.verify(session, Tree.empty())
        if decoder.proposer is not None:
            decoder.draft(session)
        nodes = min(admission.max_nodes, vocab_size)
        star = Tree(
            np.arange(nodes, dtype=np.int32),
            np.zeros(nodes, dtype=np.int32),
            np.zeros(nodes, dtype=np.float32),
            np.zeros(nodes, dtype=np.uint16),
        )
        decoder.verify(session, star)
    finally:
        admission.release(session)
