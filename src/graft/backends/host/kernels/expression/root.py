"""What all default schedules of a result have in common: its axes, its stages, the target.

A result and the stages inside it enter, with how much may be assumed of extents that are not known;
subclasses answer with directives for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

from graft.backends.host.kernels.expression.loops import (
    SHORT,
    Directives,
    ExpressionSchedule,
    Loops,
)
from graft.backends.host.kernels.expression.stages import (
    Places,
    extent,
    places,
)
from graft.loop.default_schedule import axis_names
from graft.loop.ir import Const
from graft.loop.regions import axis_extents
from graft.loop.schedule import (
    ComputeAt,
)
from graft.loop.stages import loads
from graft.loop.tensor import Tensor
from graft.target.target import Target

# More lanes than this are more code than they save time.
MOST_LANES = 32


class Caution(Enum):
    """What a schedule relies on: extents that are not known may be smaller than its tiles."""

    NONE = 0  # all of them fill tiles
    ROWS = 1  # rows are a few
    ROW = 2  # or one
    VECTORS = 3  # a contiguous axis fills one vector
    LANES = 4  # or half of one
    SHORT = 5  # or a short one
    ALL = 6

    def narrowed(self, lanes: int) -> int:
        """Lanes of vectors along an axis that may not be long."""
        few = {Caution.VECTORS: lanes, Caution.LANES: lanes // 2}.get(self, SHORT)
        return max(min(few, lanes), min(SHORT, lanes))


def is_symbolic(stages: dict[str, Tensor]) -> bool:
    """Whether some extent is known only at run time."""
    computed = (stage for stage in stages.values() if stage.body is not None)
    extents = (axis_extent for stage in computed for axis_extent in axis_extents(stage).values())
    return not all(isinstance(one, Const) for one in extents)


class Root(ABC):
    """A result that is to be scheduled, and the stages inside it."""

    def __init__(
        self, result: Tensor, inner: list[Tensor], target: Target, caution: Caution
    ) -> None:
        self.result, self.inner, self.target = result, inner, target
        self.caution = caution
        self.options = ExpressionSchedule.of(target)
        self.axes = axis_names(result)
        self.extents = [extent(one) for one in result.shape]
        self.where: Places = places(result, inner)
        self.wide = [axis for axis, count in enumerate(self.extents) if count > 1]
        self.lane_axis = self.wide[-1] if self.wide else None
        self.is_symbolic = is_symbolic({one.name: one for one in (result, *inner)})
        self.whole_axes: set[int] = set()  # of the result, that one iteration does all of
        self.loops = Loops(careful=caution is Caution.ALL)

    def lanes(self, *tensors: Tensor) -> int:
        """Lanes that vectors of everything the stages touch can have."""
        dtypes = {tensor.dtype for tensor in tensors}
        dtypes |= {load.dtype for tensor in tensors for load in loads(tensor)}
        return min(MOST_LANES, *(self.target.lanes(dtype) for dtype in dtypes))

    def is_masked(self, *tensors: Tensor) -> bool:
        """Whether vectors of all that the stages touch can be masked by the machine."""
        dtypes = {tensor.dtype for tensor in tensors}
        dtypes |= {load.dtype for tensor in tensors for load in loads(tensor)}
        return all(map(self.target.has_masks, dtypes))

    def is_tiled(self, stage: Tensor) -> bool:
        """Whether a reduction has an element for each of the result's, at the same place, and none
        but the result reads it: a tile of registers has no loops for another reader."""
        followed = [one.axis for one in self.where[stage.name] if one and one.factor == 1]
        reads = {load.buffer.name for one in self.inner for load in loads(one)}
        is_even = all(axis in followed for axis in self.wide)
        return bool(self.axes) and is_even and stage.name not in reads

    def is_known(self, axis: int) -> bool:
        """Whether an axis of the result has a number for an extent."""
        return isinstance(self.result.shape[axis], Const)

    def site(self, loop: str | None) -> list[ComputeAt]:
        return [] if loop is None else [ComputeAt(self.result.name, loop)]

    def dimension(self, stage: Tensor, axis: int) -> int | None:
        """A stage's dimension that follows an axis of the result."""
        pairs = enumerate(self.where[stage.name])
        return next((d for d, one in pairs if one is not None and one.axis == axis), None)

    def variable(self, stage: Tensor, axis: int | None) -> str:
        """What that dimension is called in the stage's expressions; nothing if there is none."""
        dimension = None if axis is None else self.dimension(stage, axis)
        return "" if dimension is None else stage.axes[dimension].name

    @abstractmethod
    def schedule(self) -> dict[str, Directives]:
        """Directives for the result and each stage."""
