"""Passes on processors with compiled loops between the matrix products.

Rows of static inputs do not depend on their company here, but for the products (see `linear.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from dartspec.services.verifier.attention import WIDE_ROWS, Segment
from dartspec.services.verifier.graphs import TOLERANCE, relative_error
from dartspec.services.verifier.static_inputs import Inputs, Shape, items_needed, representable
from dartspec.services.verifier.static_pass import Kernels, static_pass
from dartspec.services.verifier.target import FastPasses, Pass, Target

log = logging.getLogger(__name__)

# Rows of a piece of a segment at most.
TILE = 8
# A chunk of a prompt whose rows have more keys in all is left to matrix products. (SmolLM2, bfloat16, two AMX cores:
# loops take 0.8 of the time for 128 rows on nothing, 0.9 for 512 rows, 1.5 for 512 rows after 1,500 tokens.)
WIDE_PAIRS = 1 << 17
# Layers of the passes that are compared with plain torch before the loops are trusted.
_PROBED_LAYERS = 2


class CompiledPasses:
    """For one target."""

    def __init__(self, target: Target, kernels: Kernels) -> None:
        self._target = target
        self.kernels = kernels

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment]) -> Pass | None:
        """As `Target.forward`; None when plain torch is faster, or static inputs cannot say what a row sees."""
        if not self._target.invariant and any(_wide(segment) for segment in segments):
            return None
        if not all(representable(segment) for segment in segments):
            return None
        rows = sum(segment.rows for segment in segments)
        taken = self._target.rows_to_take(rows)
        inputs = Inputs(Shape(taken, items_needed(segments, TILE), TILE), self._target.norm)
        inputs.fill(segments)
        out = static_pass(self._target, inputs, self.kernels)
        return Pass(out.hidden[:rows], out.features[:rows])


def _wide(segment: Segment) -> bool:
    return segment.rows > WIDE_ROWS and segment.rows * (segment.cache.length + segment.rows) > WIDE_PAIRS


def compiled(target: Target) -> FastPasses | None:
    """Compiled passes for a target in main memory, if they work there; else None, and the log says why."""
    try:
        from dartspec.services.verifier.cpu_kernels import CpuKernels

        kernels = CpuKernels(target, TILE)
    except (ImportError, ValueError) as error:
        log.info("passes run without compiled loops: %s", error)
        return None
    except Exception as error:  # a compiler that does not know this processor; passes without loops still work
        log.warning("passes run without compiled loops: %s: %s", type(error).__name__, error)
        return None
    c, layers = target.config, target.layers[:_PROBED_LAYERS]
    probed = Target(c, target.embedding, layers, target.norm, target.lm_head, target.rope, (), target.rows)
    difference = relative_error(probed, CompiledPasses(probed, kernels))
    if not difference < TOLERANCE[target.dtype]:
        log.warning("passes run without compiled loops: relative error %.2g", difference)
        return None
    return CompiledPasses(target, kernels)
