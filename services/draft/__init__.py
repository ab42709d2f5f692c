"""The draft head: loading, caching, proposing, and (under `train`) making one.

How a verifier uses it:

    target = TargetInfo.from_model(model)                      # a transformers causal language model
    head = load_head("models/smollm2-135m", target)            # dtype and device follow the target's embedding
    proposer = Proposer(head)
    layers = head.config.feature_layers or target.feature_layers   # features: outputs of these decoder layers, from 0
    cache = proposer.new_cache()                               # one HeadCache a session

    # after prefill of x[0..n-1] with x[n] chosen, and after every round: what cache.length .. n-1 lacks
    entry = DraftInput(cache, features[cache.length : n], tokens[cache.length + 1 : n + 1])
    (proposals,) = proposer.propose([entry], top_k=25)         # cache.length is now n
    proposer.append([entry])                                   # instead of propose: catch up without drafting
    cache.truncate(length); cache.copy_prefix(other, length)   # rewind; reuse a prefix

`features` is [m, feature layers * H_target] and `tokens` int64; a session's entry needs m >= 1. Submodules: config,
head, cache, checkpoint, target_info, propose, convert_gguf (`resolve_model`).
"""
