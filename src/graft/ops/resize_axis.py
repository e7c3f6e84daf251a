"""One axis of a resize: which elements of the operand an index of the result reads, with weights.

How an axis is resized enters, and an index of the result as a term; the coordinate in the operand
leaves, the elements around it and their weights. Coordinates are float32, as in other
implementations: what rounds to which neighbour depends on it. What does not depend on the index is
computed in float64 and rounded once. Where all extents are numbers, the same formulas, evaluated
for all indices at once, give tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import AnyDim
from graft.base.dtypes import Array, DType
from graft.loop.build import Term, call, cast, equal, maximum, select, term
from graft.loop.evaluate_expr import evaluate_arrays
from graft.loop.ir import Var
from graft.ops import expression as te

_SINGLE, _DOUBLE = DType.FLOAT32, DType.FLOAT64


# How near to halfway between two elements counts as halfway; float32 may just have missed it.
_HALFWAY = 1e-6

# How far around a coordinate, in elements, the interpolation reaches.
RADII = {"linear": 1, "cubic": 2}


@dataclass(frozen=True, slots=True)
class AxisResize:
    """How one axis is resized; `scale` is None where sizes are given.

    Numbers that are operands are terms."""

    axis: int
    extent: AnyDim
    resized: AnyDim
    scale: float | Term | None
    start: float | Term = 0.0
    end: float | Term = 1.0

    @property
    def is_idle(self) -> bool:
        """Whether the axis surely stays as it is."""
        same = self.extent == self.resized and self.scale in (None, 1)
        return same and (self.start, self.end) == (0.0, 1.0)

    @property
    def is_static(self) -> bool:
        """Whether all that decides what is read is known."""
        terms = any(isinstance(one, Term) for one in (self.scale, self.start, self.end))
        return isinstance(self.extent, int) and isinstance(self.resized, int) and not terms

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


def _half_pixel(step: AxisResize, x: Term) -> Term:
    return (x + 0.5) / step.factor - 0.5


def _half_pixel_symmetric(step: AxisResize, x: Term) -> Term:
    offset = step.before / 2.0 * (1.0 - step.after / step.width)
    return cast(_SINGLE, offset) + _half_pixel(step, x)


def _pytorch_half_pixel(step: AxisResize, x: Term) -> Term:
    return select(term(step.resized) > 1, _half_pixel(step, x), te.number(0, _SINGLE))


def _half_pixel_for_nn(step: AxisResize, x: Term) -> Term:
    moved = (x + 0.5) / step.factor
    # An axis that stays as it is looks at itself, which this rule alone would not give.
    same = equal(term(step.extent), step.resized)
    return moved if step.scale is not None else select(same, x, moved)


def _align_corners(step: AxisResize, x: Term) -> Term:
    last, width = cast(_SINGLE, step.before - 1.0), cast(_SINGLE, step.width - 1.0)
    return select(equal(width, 0.0), te.number(0, _SINGLE), x * last / width)


def _crop(step: AxisResize, x: Term) -> Term:
    last = step.before - 1.0
    centre = cast(_SINGLE, last * ((step.start + step.end) * 0.5))
    span = single(step.end - step.start)
    spread = x * span * cast(_SINGLE, last) / cast(_SINGLE, step.after - 1.0)
    moved = cast(_SINGLE, last * step.start) + spread
    return select(term(step.resized) < 2, centre, moved)


COORDINATES: dict[str, Callable[[AxisResize, Term], Term]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": lambda step, x: x / step.factor,
    "tf_half_pixel_for_nn": _half_pixel_for_nn,
    "tf_crop_and_resize": _crop,
}


def coordinate(attrs: Any, step: AxisResize, index: Term) -> Term:
    """The coordinate in the operand that an index of the result maps to."""
    return COORDINATES[attrs.coordinate_transformation_mode](step, cast(_SINGLE, index))


_HALF = te.number(0.5 + _HALFWAY, _SINGLE)

# "simple" is the rule of the times when there was no choice: down when growing, up when shrinking.
ROUNDINGS: dict[str, Callable[[AxisResize, Term], Term]] = {
    "round_prefer_floor": lambda _, x: call("ceil", x - _HALF),
    "round_prefer_ceil": lambda _, x: call("floor", x + _HALF),
    "floor": lambda _, x: call("floor", x),
    "ceil": lambda _, x: call("ceil", x),
    "simple": lambda step, x: select(step.factor < 1.0, call("ceil", x), call("floor", x)),
}


def nearest(attrs: Any, step: AxisResize, index: Term) -> Term:
    """The operand's element that an element of the result is a copy of."""
    rounded = ROUNDINGS[attrs.rounding_method](step, coordinate(attrs, step, index))
    return te.clamped(cast(DType.INT64, rounded), step.extent)


def _shrinkage(attrs: Any, step: AxisResize) -> float:
    """By how much antialiasing narrows the kernel: the scale, if it is below 1."""
    if not attrs.antialias:
        return 1.0
    if not (isinstance(step.extent, int) and isinstance(step.resized, int)):
        raise te.NumbersNeededError(
            "the extents that antialiasing goes by are known only at run time"
        )
    if isinstance(step.scale, Term):
        raise te.NumbersNeededError("the scale that antialiasing goes by is known at run time only")
    scale = step.resized / max(step.extent, 1) if step.scale is None else step.scale
    return min(scale, 1.0)


def _reach(attrs: Any, step: AxisResize) -> float:
    """How far around a coordinate elements count."""
    return RADII[attrs.method] / _shrinkage(attrs, step)


def tap_count(attrs: Any, step: AxisResize) -> int:
    """How many of the operand's elements an element of the result averages."""
    return math.ceil(2 * _reach(attrs, step))


def _element(attrs: Any, step: AxisResize, index: Term, tap: Term) -> Term:
    x = coordinate(attrs, step, index)
    return call("floor", x - _reach(attrs, step)) + 1.0 + cast(_SINGLE, tap)


def place(attrs: Any, step: AxisResize, index: Term, tap: Term) -> Term:
    """The operand's element that tap `tap` of a result's element reads."""
    return te.clamped(cast(DType.INT64, _element(attrs, step, index, tap)), step.extent)


def weight(attrs: Any, step: AxisResize, index: Term, tap: Term, wide: DType) -> Term:
    """The weight of that tap."""
    own = _plain_weight(attrs, step, index, tap, wide)
    if not attrs.exclude_outside:
        return own
    taps = range(tap_count(attrs, step))
    every = [_plain_weight(attrs, step, index, term(n), wide) for n in taps]
    total = every[0]
    for other in every[1:]:
        total = total + other
    return own / select(equal(total, 0.0), te.number(1, wide), total)


def _plain_weight(attrs: Any, step: AxisResize, index: Term, tap: Term, wide: DType) -> Term:
    element = _element(attrs, step, index, tap)
    far = call("abs", cast(wide, element) - cast(wide, coordinate(attrs, step, index)))
    far = far * _shrinkage(attrs, step) if attrs.antialias else far
    if attrs.method == "linear":
        result = maximum(1.0 - far, 0.0)
    else:
        result = select(far < 2.0, cubic_weight(far, attrs.cubic_alpha), te.number(0, wide))
    if not attrs.exclude_outside:
        return result
    inside = (element >= 0.0) & (element < cast(_SINGLE, step.extent))
    return select(inside, result, te.number(0, wide))


def cubic_weight(far: Term, alpha: float) -> Term:
    """What a neighbour at a distance of at most two elements counts in cubic interpolation."""
    near = ((alpha + 2) * far - (alpha + 3)) * far * far + 1.0
    beyond = ((alpha * far - 5 * alpha) * far + 8 * alpha) * far - 4 * alpha
    return select(far <= 1.0, near, beyond)


def is_outside(attrs: Any, step: AxisResize, index: Term) -> Term:
    """Whether an index of the result maps beyond the operand's edge."""
    x = coordinate(attrs, step, index)
    return (x < 0.0) | (x > cast(_SINGLE, step.before - 1.0))


# Tables, for axes that are static.


def _tabulate(formula: Callable[..., Term], *ranges: int) -> Array:
    """The values of a formula for all indices below the extents."""
    names = [f"x{axis}" for axis in range(len(ranges))]
    indices = np.ogrid[tuple(slice(extent) for extent in ranges)]
    terms = [Term(Var(name, DType.INT64)) for name in names]
    with np.errstate(all="ignore"):
        values = evaluate_arrays(formula(*terms).expr, dict(zip(names, indices, strict=True)))
    return np.broadcast_to(values, ranges)


def nearest_table(attrs: Any, step: AxisResize) -> Array:
    """Per index of the result, the operand's element that it is a copy of."""
    assert isinstance(step.resized, int)
    return _tabulate(lambda index: nearest(attrs, step, index), step.resized)


def outside_table(attrs: Any, step: AxisResize) -> Array:
    """Per index of the result, whether it maps beyond the operand's edge."""
    assert isinstance(step.resized, int)
    return _tabulate(lambda index: is_outside(attrs, step, index), step.resized)


def tap_tables(attrs: Any, step: AxisResize) -> tuple[Array, Array]:
    """Per index of the result, the operand's elements that it averages and the weight of each."""
    assert isinstance(step.resized, int)
    extents = step.resized, tap_count(attrs, step)
    positions = _tabulate(lambda index, tap: place(attrs, step, index, tap), *extents)
    weights = _tabulate(
        lambda index, tap: _plain_weight(attrs, step, index, tap, _DOUBLE), *extents
    )
    if attrs.antialias or attrs.exclude_outside:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return positions, weights
