"""A head to start from: the target's last layer with the top feature passed through, or random numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from dartspec.services.common.errors import FailedPrecondition, InvalidArgument
from dartspec.services.draft.checkpoint import target_output_rows, with_target
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.head import DraftHead, Transition
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train.settings import TrainSettings


def chosen_layers(settings: TrainSettings, target: TargetInfo) -> tuple[int, ...]:
    """The feature layers that `settings` ask for.

    Raises InvalidArgument for layers that the target lacks, and for its last one, whose output serves as its last
    hidden state only after a norm.
    """
    if not settings.feature_layers:
        return target.feature_layers
    layers = tuple(int(part) for part in settings.feature_layers.split(","))
    if max(layers) > target.num_layers - 2 or len(set(layers)) != len(layers):
        raise InvalidArgument(
            "feature_layers",
            f"must be distinct layers from 0 to {target.num_layers - 2} of {target.name!r}, "
            f"got {settings.feature_layers}",
        )
    return layers


def new_head(model: Any, target: TargetInfo, settings: TrainSettings, vocabulary: Tensor) -> DraftHead:
    """The head that training with `settings` starts from. vocabulary: int64, target ids that can be drafted."""
    config = settings_config(model, target, settings, len(vocabulary))
    if settings.init == "random":
        return random_head(target, config, vocabulary, settings.seed)
    return initial_head(model, target, config, vocabulary)


def settings_config(model: Any, target: TargetInfo, settings: TrainSettings, draft_vocab_size: int) -> HeadConfig:
    """The configuration of a head as `settings` describe it."""
    config = head_config(model, target, settings.draft_length, draft_vocab_size)
    return dataclasses.replace(
        config,
        feature_layers=chosen_layers(settings, target),
        shift=settings.shift,
        transition_rank=settings.transition_rank,
        attention_window=settings.attention_window,
    )


def head_config(model: Any, target: TargetInfo, draft_length: int, draft_vocab_size: int) -> HeadConfig:
    """The configuration of a head shaped like one of the target's own layers."""
    config = model.config
    values = {**config.to_dict(), "head_dim": getattr(config, "head_dim", None), "draft_length": draft_length}
    values.update(
        draft_vocab_size=draft_vocab_size, vocab_size=target.vocab_size, target_hidden_size=config.hidden_size
    )
    return with_target(HeadConfig.from_json(values), target)


@torch.no_grad()
def initial_head(model: Any, target: TargetInfo, config: HeadConfig, vocabulary: Tensor) -> DraftHead:
    """A float32 head whose layer is the target's last one, reading the top feature and ignoring the embedding.

    vocabulary: int64 [V_draft], ascending target ids. The final norm is applied twice in this format, so its weight u
    is chosen such that two norms act as one by the target's weight w: u = sqrt(w * mean(w)).
    """
    head = DraftHead(config, target.embedding.float())
    last, layer, hidden = model.model.layers[-1], head.midlayer, config.hidden_size
    if last.self_attn.q_proj.bias is not None:
        raise FailedPrecondition("target layers with attention biases have no counterpart in the head's format")
    # Scaled down, because the top feature foretells x[j+1], which the head is told, and hides what the layer adds.
    head.fc.weight.zero_()[:, -hidden:] = 0.1 * torch.eye(hidden)
    layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
    layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer.self_attn, name).weight.zero_()[:, hidden:] = getattr(last.self_attn, name).weight
    layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    weight = target.norm_weight.float().clamp(min=1e-3)
    head.norm.weight.copy_((weight * weight.mean()).sqrt())
    generator = torch.Generator().manual_seed(0)
    layer.mask_rep.normal_(0.0, 0.02, generator=generator)
    _common(head, target, vocabulary, generator)
    return head


@torch.no_grad()
def random_head(target: TargetInfo, config: HeadConfig, vocabulary: Tensor, seed: int) -> DraftHead:
    """A float32 head of normal weights with standard deviation 0.02, norms 1, and the target's output matrix."""
    head, generator = DraftHead(config, target.embedding.float()), torch.Generator().manual_seed(seed)
    for parameter in [*head.fc.parameters(), *head.midlayer.parameters()]:
        if parameter.dim() > 1 or parameter is head.midlayer.mask_rep:
            parameter.normal_(0.0, 0.02, generator=generator)
    _common(head, target, vocabulary, generator)
    return head


def _common(head: DraftHead, target: TargetInfo, vocabulary: Tensor, generator: torch.Generator) -> None:
    """Draft vocabulary, output matrix and transition score."""
    head.d2t.copy_(vocabulary - torch.arange(len(vocabulary)))
    head.t2d.zero_()[vocabulary] = True
    head.lm_head.weight = torch.nn.Parameter(target_output_rows(target, vocabulary).float(), requires_grad=False)
    head.lm_head_is_target = True
    if head.transition is not None:
        head.transition = new_transition(len(vocabulary), head.config.transition_rank, generator)


def new_transition(draft_vocab_size: int, rank: int, generator: torch.Generator) -> Transition:
    """A transition score on the CPU that is 0 but can learn: one factor normal with standard deviation 0.02, one 0."""
    transition = Transition(draft_vocab_size, rank).requires_grad_(False)
    transition.left.normal_(0.0, 0.02, generator=generator)
    return transition
