"""Chooses how the anchor of a fusion group is computed, where there are several algorithms.

The choice is made before layouts are: how wide a halo an image needs follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from graft.backends.host.choose_convolutions import choose_convolution
from graft.backends.host.choose_products import choose_product
from graft.backends.host.group import Algorithm, Group
from graft.backends.host.options import Accuracy
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_CHOICES: Mapping[str, Callable[[Group, Target], Algorithm | Refusal]] = {
    "nn.conv2d": choose_convolution,
    "nn.dense": choose_product,
}


def choose_algorithm(group: Group, target: Target, accuracy: Accuracy) -> Group:
    """The group with the algorithm of its anchor; strict accuracy keeps to the definition."""
    choose = _CHOICES.get(group.anchor.op.name) if group.anchor else None
    if choose is None or accuracy is Accuracy.STRICT:
        return group
    algorithm = choose(group, target)
    return group if isinstance(algorithm, Refusal) else replace(group, algorithm=algorithm)
