"""Progress reports of long computations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the work, and how far it has come where that can be counted: the first of `steps`
    is 1. As text it is a line for people."""

    name: str
    step: int = 0
    steps: int = 0
    detail: str = ""

    @property
    def heading(self) -> str:
        """The stage and how far it has come."""
        return f"{self.name} {self.step} of {self.steps}" if self.steps else self.name

    def __str__(self) -> str:
        return f"{self.heading}: {self.detail}" if self.detail else self.heading


Progress = Callable[[Stage], None]


def quietly(_stage: Stage) -> None:
    """Ignore progress."""
