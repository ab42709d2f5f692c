"""Plans reach a device in one copy, with everything in its place."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from dartspec.services.verifier.attention import Segment, causal_rows, plan
from dartspec.services.verifier.packing import copy_together, replace_tensors, tensors_of, to_device
from dartspec.services.verifier.tree import depths, visible_rows
from tests.unit.verifier.test_target import branching_tree, target_of


def test_copied_tensors_keep_type_shape_and_contents() -> None:
    tensors = [
        torch.arange(7),
        torch.randn(3, 1, 5, 2).bfloat16(),
        torch.empty(0, dtype=torch.int64),
        torch.tensor([True, False, True]),
        torch.randn(4, 6).t(),
        torch.tensor(3.5, dtype=torch.float64),
    ]
    copies = copy_together(tensors, torch.device("cpu"))
    assert [(c.dtype, c.shape) for c in copies] == [(t.dtype, t.shape) for t in tensors]
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(copies, tensors, strict=True))
    assert len({copy.untyped_storage().data_ptr() for copy in copies}) == 1
    assert all(copy.storage_offset() * copy.element_size() % 64 == 0 for copy in copies)


def test_a_plan_keeps_its_structure() -> None:
    target = target_of("llama")
    caches = [target.new_cache(capacity) for capacity in (300, 300, 900)]
    tree = branching_tree(3, 9)
    segments = [
        Segment(caches[0], [5, *tree.token_ids.tolist()], depths(tree), visible_rows(tree)),
        Segment(caches[1], [1], np.zeros(1, np.int32), np.ones((1, 1), bool)),
        Segment(caches[2], [1, 2, 3], np.arange(3, dtype=np.int32), causal_rows(3)),
    ]
    made = plan(segments, False, target.norm)
    found = tensors_of((made, [torch.arange(3)]))
    assert len(found) > 5
    copies = [tensor + 1 for tensor in found]
    replaced, (last,) = replace_tensors((made, [torch.arange(3)]), copies)
    assert torch.equal(last, torch.arange(1, 4))
    for before, after in ((made.stores, replaced.stores), (made.calls, replaced.calls)):
        for one, other in zip(before, after, strict=True):
            for field in dataclasses.fields(one):
                value, moved = getattr(one, field.name), getattr(other, field.name)
                if isinstance(value, torch.Tensor):
                    assert torch.equal(moved, value + 1)
                elif not isinstance(value, tuple):
                    assert moved is value


def test_on_the_processor_nothing_moves() -> None:
    value = (torch.arange(3), [torch.ones(2)])
    assert to_device(value, torch.device("cpu")) is value


def test_too_few_tensors_are_refused() -> None:
    with pytest.raises(StopIteration):
        replace_tensors((torch.ones(1), torch.ones(1)), [torch.ones(1)])
