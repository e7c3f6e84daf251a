"""Image classifiers of timm: names by a rule, and modules with their inputs.

The rule: every family (timm's module of definitions) gives the first few of its architectures in a
seeded order that are within the limits on parameters and image size, at their own image size.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import timm
import torch
from timm.models import model_entrypoint

GROUP = "timm"
PER_FAMILY = 2
MOST_PARAMETERS = 50e6
MOST_PIXELS = 300


def names() -> Iterator[str]:
    """Architectures, one of each family before the second of any."""
    families: dict[str, list[str]] = {}
    for name in timm.list_models(exclude_filters="test_*"):
        families.setdefault(model_entrypoint(name).__module__, []).append(name)
    chosen = {family: _within_limits(family, members) for family, members in families.items()}
    for rank in range(PER_FAMILY):
        for _, members in sorted(chosen.items()):
            yield from members[rank : rank + 1]


def _within_limits(family: str, members: list[str]) -> list[str]:
    order = random.Random(family).sample(sorted(members), len(members))
    small: list[str] = []
    for name in order:
        if len(small) < PER_FAMILY and _is_small(name):
            small.append(name)
    return small


def _is_small(name: str) -> bool:
    """Whether an architecture is within the limits; it is made without memory for its weights.

    One that cannot be made this way is taken, so that its export fails for all to see."""
    try:
        with torch.device("meta"):
            model = timm.create_model(name)
    except Exception:  # noqa: BLE001
        return True
    parameters = sum(parameter.numel() for parameter in model.parameters())
    pixels = max(_input_size(model)[1:])
    return parameters <= MOST_PARAMETERS and pixels <= MOST_PIXELS


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A classifier with random weights, and one image."""
    model = timm.create_model(name)
    return model, {"x": torch.randn(1, *_input_size(model))}


def _input_size(model: Any) -> tuple[int, int, int]:
    channels, height, width = model.pretrained_cfg["input_size"]
    return channels, height, width
