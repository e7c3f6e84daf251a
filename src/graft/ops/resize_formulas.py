"""Where a resized axis looks, as formulas: for extents that are known only at run time.

How an axis is resized enters, and an index of the result as a term; the coordinate in the operand
leaves, the elements around it and their weights. They are the formulas of `ops/resize`, rounded as
there: coordinates are float32, and what does not depend on the index is rounded to it once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graft.base.dims import AnyDim
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, equal, maximum, minimum, select, term
from graft.ops import expression as te
from graft.ops.resize import HALFWAY, RADII

_SINGLE, _DOUBLE = DType.FLOAT32, DType.FLOAT64


@dataclass(frozen=True, slots=True)
class SymbolicResize:
    """How an axis of unknown extents is resized; `scale` is None where sizes are given.

    Numbers that are operands are terms."""

    axis: int
    extent: AnyDim
    resized: AnyDim
    scale: float | Term | None
    start: float | Term = 0.0
    end: float | Term = 1.0

    @property
    def before(self) -> Term:
        return cast(_DOUBLE, self.extent)

    @property
    def after(self) -> Term:
        return cast(_DOUBLE, self.resized)

    @property
    def factor(self) -> Term:
        """How much larger the axis becomes."""
        if self.scale is not None:
            return single(self.scale)
        return cast(_SINGLE, self.after / maximum(self.before, 1.0))

    @property
    def width(self) -> Term:
        """The extent before it was cut to a whole number."""
        if self.scale is None:
            return self.after
        return cast(_DOUBLE, single(self.scale) * cast(_SINGLE, self.extent))


def single(value: float | Term) -> Term:
    """A number as float32."""
    return cast(_SINGLE, value) if isinstance(value, Term) else te.number(value, _SINGLE)


def _half_pixel(step: SymbolicResize, x: Term) -> Term:
    return (x + 0.5) / step.factor - 0.5


def _half_pixel_symmetric(step: SymbolicResize, x: Term) -> Term:
    offset = step.before / 2.0 * (1.0 - step.after / step.width)
    return cast(_SINGLE, offset) + _half_pixel(step, x)


def _pytorch_half_pixel(step: SymbolicResize, x: Term) -> Term:
    return select(term(step.resized) > 1, _half_pixel(step, x), te.number(0, _SINGLE))


def _half_pixel_for_nn(step: SymbolicResize, x: Term) -> Term:
    moved = (x + 0.5) / step.factor
    # An axis that stays as it is looks at itself, which this rule alone would not give.
    same = equal(term(step.extent), step.resized)
    return moved if step.scale is not None else select(same, x, moved)


def _align_corners(step: SymbolicResize, x: Term) -> Term:
    last, width = cast(_SINGLE, step.before - 1.0), cast(_SINGLE, step.width - 1.0)
    return select(equal(width, 0.0), te.number(0, _SINGLE), x * last / width)


def _crop(step: SymbolicResize, x: Term) -> Term:
    last = step.before - 1.0
    centre = cast(_SINGLE, last * ((step.start + step.end) * 0.5))
    span = single(step.end - step.start)
    spread = x * span * cast(_SINGLE, last) / cast(_SINGLE, step.after - 1.0)
    moved = cast(_SINGLE, last * step.start) + spread
    return select(term(step.resized) < 2, centre, moved)


_COORDINATES: dict[str, Callable[[SymbolicResize, Term], Term]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": lambda step, x: x / step.factor,
    "tf_half_pixel_for_nn": _half_pixel_for_nn,
    "tf_crop_and_resize": _crop,
}


def coordinate(attrs: Any, step: SymbolicResize, index: Term) -> Term:
    """Where in the operand an element of the result looks."""
    return _COORDINATES[attrs.coordinate_transformation_mode](step, cast(_SINGLE, index))


def _rounded(attrs: Any, step: SymbolicResize, x: Term) -> Term:
    half = te.number(0.5 + HALFWAY, _SINGLE)
    match attrs.rounding_method:
        case "round_prefer_floor":
            return call("ceil", x - half)
        case "round_prefer_ceil":
            return call("floor", x + half)
        case "floor" | "ceil" as name:
            return call(name, x)
        case _:
            return select(step.factor < 1.0, call("ceil", x), call("floor", x))


def _inside(place: Term, extent: AnyDim) -> Term:
    return maximum(minimum(cast(DType.INT64, place), extent - 1), 0)


def nearest(attrs: Any, step: SymbolicResize, index: Term) -> Term:
    """The operand's element that an element of the result is a copy of."""
    return _inside(_rounded(attrs, step, coordinate(attrs, step, index)), step.extent)


def tap_count(attrs: Any) -> int:
    """How many of the operand's elements an element of the result averages."""
    if attrs.antialias:
        raise te.NumbersNeededError(
            "the extents that antialiasing goes by are known only at run time"
        )
    return 2 * RADII[attrs.method]


def _element(attrs: Any, step: SymbolicResize, index: Term, tap: Term) -> Term:
    x = coordinate(attrs, step, index)
    return call("floor", x - float(RADII[attrs.method])) + 1.0 + cast(_SINGLE, tap)


def place(attrs: Any, step: SymbolicResize, index: Term, tap: Term) -> Term:
    """The element of that number among those that are averaged."""
    return _inside(_element(attrs, step, index, tap), step.extent)


def weight(attrs: Any, step: SymbolicResize, index: Term, tap: Term, wide: DType) -> Term:
    """Its weight."""
    own = _plain_weight(attrs, step, index, tap, wide)
    if not attrs.exclude_outside:
        return own
    every = [_plain_weight(attrs, step, index, term(n), wide) for n in range(tap_count(attrs))]
    total = every[0]
    for other in every[1:]:
        total = total + other
    return own / select(equal(total, 0.0), te.number(1, wide), total)


def _plain_weight(attrs: Any, step: SymbolicResize, index: Term, tap: Term, wide: DType) -> Term:
    element = _element(attrs, step, index, tap)
    far = call("abs", cast(wide, element) - cast(wide, coordinate(attrs, step, index)))
    if attrs.method == "linear":
        found = maximum(1.0 - far, 0.0)
    else:
        found = _cubic(far, attrs.cubic_alpha, wide)
    if not attrs.exclude_outside:
        return found
    inside = (element >= 0.0) & (element < cast(_SINGLE, step.extent))
    return select(inside, found, te.number(0, wide))


def _cubic(far: Term, alpha: float, wide: DType) -> Term:
    near = ((alpha + 2) * far - (alpha + 3)) * far * far + 1.0
    beyond = ((alpha * far - 5 * alpha) * far + 8 * alpha) * far - 4 * alpha
    return select(far <= 1.0, near, select(far < 2.0, beyond, te.number(0, wide)))


def is_outside(attrs: Any, step: SymbolicResize, index: Term) -> Term:
    """Whether an element of the result looks past the operand's edge."""
    x = coordinate(attrs, step, index)
    return (x < 0.0) | (x > cast(_SINGLE, step.before - 1.0))
