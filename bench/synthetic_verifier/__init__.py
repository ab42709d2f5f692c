"""A verifier without a model: `python -m bench.synthetic_verifier`, a test tool.

One process holds any number of replicas, each with an address, an engine and a speed of its own. They speak the real
Rounds protocol, take as long as a cost table says, accept drafts as often as an acceptance model says, and give tokens
that are a function of prompt and position, so that a client can check every one.
"""
