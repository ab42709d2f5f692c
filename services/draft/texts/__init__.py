"""Texts to train on: prompts, who writes the answers, what is left out, and the shards that they go to. No torch."""
