"""A tiny random model on disk, with tokenizer, draft head and n-gram index: everything that a real stack loads."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import ngram_index  # noqa: F401 - without the extension these tests could not say what they skip
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dartspec.services.common.fingerprint import tokenizer_fingerprint
from dartspec.services.draft.checkpoint import save_head
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.ngram.build import build_index
from tests.toy import CHAT_TEMPLATE, byte_tokenizer

EOS = "<eos>"
CONTEXT = 256


@dataclass(frozen=True)
class TinyModel:
    """Paths of what was made."""

    model: Path
    head: Path
    index: Path
    fingerprint: str
    vocab_size: int


def make_tiny_model(directory: Path, seed: int = 0) -> TinyModel:
    """Write all files below ``directory``. Equal seeds give equal files."""
    torch.manual_seed(seed)
    backend = byte_tokenizer()
    vocab_size = backend.get_vocab_size(with_added_tokens=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS)
    tokenizer.chat_template = CHAT_TEMPLATE
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        eos_token_id=backend.token_to_id(EOS),
        bos_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(directory / "model")
    tokenizer.save_pretrained(directory / "model")
    info = TargetInfo.from_model(model, "tiny")
    save_head(make_head(info, vocab_size), directory / "head")
    fingerprint = tokenizer_fingerprint(backend.get_vocab(with_added_tokens=True))
    index = make_index(directory, fingerprint, vocab_size)
    return TinyModel(directory / "model", directory / "head", index, fingerprint, vocab_size)


def make_head(info: TargetInfo, vocab_size: int) -> DraftHead:
    """A random head for a target, with transition scores, so that proposals hold all that they can."""
    config = HeadConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        draft_length=7,
        draft_vocab_size=vocab_size,
        target_hidden_size=32,
        target_fingerprint=info.fingerprint,
        transition_rank=4,
    )
    head = DraftHead(config, info.embedding)
    for name, parameter in head.named_parameters():
        torch.nn.init.normal_(parameter, std=1.0 if name.startswith("transition") else 0.2)
    return head


def make_index(directory: Path, fingerprint: str, vocab_size: int) -> Path:
    """Trigram counts of random documents."""
    rng = random.Random(1)
    shard = directory / "documents.jsonl"
    documents = [[rng.randrange(vocab_size) for _ in range(50)] for _ in range(20)]
    shard.write_text("".join(json.dumps(document) + "\n" for document in documents))
    index = directory / f"index-{fingerprint}.ngx"
    build_index([shard], index, order=3, vocab_size=vocab_size, fingerprint=fingerprint, quiet=True)
    return index
