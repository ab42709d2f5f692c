"""What a draft head and an index would commit, simulated: target, head and search in one process, not a service.

    recordings = record(decoder, admission, [Ask(prompt, sampling, seed, share_noise=(True, False))])
    hits = hit_rates(recordings, True, 10)
    committed = committed_by_budget(recordings, True, search, budgets, reader)

`record` answers each prompt once and keeps what the head proposes at every position; everything else only replays that.
"""
