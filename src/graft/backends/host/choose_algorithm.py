"""Chooses how the anchor of a fusion group is computed, where there are several algorithms.

The choice is made before layouts are: how wide a halo an image needs follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from graft.backends.host.choose_convolutions import choose_convolution
from graft.backends.host.group import Algorithm, Group, Strassen
from graft.backends.host.kernels.strassen import chunk_depth
from graft.backends.host.storage import static_shape
from graft.byoc.executable import Accuracy
from graft.rewrite.rule import Refusal
from graft.target.target import Target


def choose_algorithm(group: Group, target: Target, accuracy: Accuracy) -> Group:
    """The group with the algorithm of its anchor; strict accuracy keeps to the definition."""
    choose = _CHOICES.get(group.anchor.op.name) if group.anchor else None
    if choose is None or accuracy is Accuracy.STRICT:
        return group
    algorithm = choose(group, target)
    return group if isinstance(algorithm, Refusal) else replace(group, algorithm=algorithm)


def choose_product(group: Group, target: Target) -> Strassen | Refusal:
    """Strassen's algorithm for a dense layer where it is possible and pays."""
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


_CHOICES: Mapping[str, Callable[[Group, Target], Algorithm | Refusal]] = {
    "nn.conv2d": choose_convolution,
    "nn.dense": choose_product,
}
