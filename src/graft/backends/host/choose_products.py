"""Chooses the algorithm of a dense layer: plain sums, or Strassen's."""

from __future__ import annotations

import math

from graft.backends.host.group import Group, Strassen
from graft.backends.host.kernels.strassen import chunk_depth
from graft.backends.host.storage import static_shape
from graft.rewrite.rule import Refusal
from graft.target.target import Target


def choose_product(group: Group, target: Target) -> Strassen | Refusal:
    """Strassen's algorithm where it is possible and pays."""
    data, weight = group.sole_anchor.args
    literal = group.constants.get(weight)
    if literal is None or not data.tensor.is_static:
        return Refusal("the weights are not constant, or the rows not counted")
    units, inputs = literal.array.shape
    *items, rows, _ = (1, *static_shape(data))
    if len(items) < 2 or math.prod(items) != 1:
        # Strassen's sums mix rows, so that a NaN in one spoils another
        return Refusal("the rows may belong to several items of a batch")
    chunk = chunk_depth(target, data.dtype, rows, units, inputs)
    return Strassen(chunk) if chunk else Refusal("plain sums are cheaper")
