"""Indices that native code has found outside of what they point into: numbers in, an error out.

Kernels cannot raise errors: they read or write nothing that is not there, and go on. Beside them
others look for indices that lie outside. The executor checks what those have found before
results are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from graft.base.dims import AnyDim, Dim
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, Location

# What is found where every index lies inside: no index that is looked for is as small.
INSIDE: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class Guard:
    """The axis that indices have to lie in, and the node that they belong to.

    `count` elements from an index on are meant. Where it `wraps`, a negative one counts from the
    end. `message` says what the mistake is where it is another than a wrong index."""

    axis: int
    extent: Dim
    count: Dim = 1
    wraps: bool = True
    location: Location | None = None
    message: str = ""

    def bound(self, sizes: Mapping[AnyDim, int]) -> Guard:
        """The same with numbers."""
        return replace(self, extent=sizes[self.extent], count=sizes[self.count])

    def refusal(self, index: int) -> EvaluationError:
        """What to raise for an index outside."""
        if self.message:
            return EvaluationError(self.message, self.location)
        axis = f"axis {self.axis} of extent {self.extent}"
        if self.count != 1:
            return EvaluationError(
                f"{self.count} elements from index {index} on do not fit into {axis}", self.location
            )
        first, last = -self.extent if self.wraps else 0, self.extent - 1
        hint = f"indices go from {first} to {last}" if self.extent != 0 else "the axis is empty"
        return EvaluationError(f"index {index} is out of range for {axis}", self.location, hint)


def check_guards(guards: Callable[[], Sequence[Guard]], indices: Array) -> None:
    """Refuse a run in which indices lay outside; `found` has one such index per guard."""
    if (indices == INSIDE).all():
        return
    for guard, index in zip(guards(), indices.tolist(), strict=True):
        if index != INSIDE:
            raise guard.refusal(index)
