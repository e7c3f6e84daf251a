"""Segmentation networks of torchvision: all of them, and modules with their inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torchvision import models
from torchvision.models import segmentation

GROUP = "segmentation"
PIXELS = 224


def names() -> Iterator[str]:
    """Every builder of the package."""
    yield from models.list_models(module=segmentation)


def build(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A network with random weights, without its auxiliary head, and one image."""
    model = models.get_model(name, weights=None, weights_backbone=None)
    return _Masks(model), {"x": torch.randn(1, 3, PIXELS, PIXELS)}


class _Masks(nn.Module):
    """A segmentation network with its masks as the only output."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        masks: torch.Tensor = self.network(x)["out"]
        return masks
