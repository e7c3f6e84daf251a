"""Pointwise nodes at random: what follows an anchor, comes before it, or is a group by itself.

Each maker adds a node or a few to a value and says how large and how exact the result is.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.backends.host.property.sketch import Shape, Sketch

from graft.backends.host.storage import static_shape
from graft.ir.graph import Value

Maker = Callable[[Sketch, Value], Value]
Other = Callable[[Sketch, Value], Value]  # another operand for a value

MOST_BOUND = 1e4

# Per operator: the steepest slope, and a bound on the result (None: that of the operand).
_SMOOTH: dict[str, tuple[float, float | None]] = {
    "tanh": (1.0, 1.0),
    "sigmoid": (0.25, 1.0),
    "erf": (1.13, 1.0),
    "nn.gelu": (1.13, None),
}
_EXACT = ("nn.relu", "abs", "negative")


def smooth(s: Sketch, value: Value) -> Value:
    name = s.pick(sorted(_SMOOTH))
    slope, bound = _SMOOTH[name]
    info = s.info[value]
    attrs = {"approximate": s.chance(50)} if name == "nn.gelu" else {}
    limit = info.bound if bound is None else bound
    # rounding of the function's argument and result, relative to their magnitudes
    error = slope * info.error + 8 * (limit + min(info.bound, 8.0))
    return s(name, value, bound=limit, error=error, **attrs)


def exact(s: Sketch, value: Value) -> Value:
    info = s.info[value]
    return s(s.pick(_EXACT), value, bound=info.bound, error=info.error)


def leaky(s: Sketch, value: Value) -> Value:
    info = s.info[value]
    alpha = s.pick((0.125, 0.3, -0.25))
    return s("nn.leaky_relu", value, bound=info.bound, error=info.error + info.bound, alpha=alpha)


def clip(s: Sketch, value: Value) -> Value:
    low, high = s.pick(((-1.0, 1.5), (0.0, 6.0), (None, 0.5), (-0.5, None)))
    info = s.info[value]
    return s("clip", value, bound=info.bound + 1, error=info.error, a_min=low, a_max=high)


def other_operand(s: Sketch, value: Value) -> Value:
    """A tensor that broadcasts to the value's shape: all of it, or along some axes."""
    shape = static_shape(value)
    return s.operand(shape if s.chance(40) else narrowed(s, shape), value.dtype.value)


def narrowed(s: Sketch, shape: Shape) -> Shape:
    """The shape with some axes of extent 1 and without some leading ones."""
    kept = shape[s.number(0, len(shape)) :]
    return tuple(n if s.chance(60) else 1 for n in kept)


def combined(s: Sketch, value: Value, other: Value) -> Value:
    """Two operands in some order."""
    name = s.pick(("add", "subtract", "multiply", "maximum", "minimum"))
    pair = [value, other] if s.chance(70) else [other, value]
    one, two = (s.info[v] for v in pair)
    if name == "multiply":
        bound = one.bound * two.bound
        error = one.error * two.bound + two.error * one.bound + bound
    elif name in ("maximum", "minimum"):
        bound, error = max(one.bound, two.bound), max(one.error, two.error)
    else:
        bound = one.bound + two.bound
        error = one.error + two.error + bound
    return s(name, *pair, bound=bound, error=error)


def quotient(s: Sketch, value: Value) -> Value:
    """By numbers that are nowhere near zero."""
    array = s.array(narrowed(s, static_shape(value)), value.dtype.value)
    array[()] = array + 4
    divisor = s.constant(array)
    info = s.info[value]
    return s("divide", value, divisor, bound=info.bound, error=info.error + info.bound)


def swish(s: Sketch, value: Value) -> Value:
    """A value that is read twice."""
    info = s.info[value]
    gate = s("sigmoid", value, bound=1.0, error=info.error + 8)
    error = 2 * info.error + 8 * info.bound + info.bound
    return s("multiply", value, gate, bound=info.bound, error=error)


def bias(axis: int) -> Maker:
    def made(s: Sketch, value: Value) -> Value:
        info = s.info[value]
        amount = s.operand((static_shape(value)[axis],), value.dtype.value)
        bound = info.bound + 2
        return s("nn.bias_add", value, amount, bound=bound, error=info.error + bound, axis=axis)

    return made


def tail(
    s: Sketch, value: Value, other: Other = other_operand, axis: int | None = None, most: int = 3
) -> Value:
    """The value behind some pointwise nodes of its own shape."""

    def joined(s: Sketch, value: Value) -> Value:
        return combined(s, value, other(s, value))

    def chosen(s: Sketch, value: Value) -> Value:
        there = s.operand(narrowed(s, static_shape(value)), "bool")
        alternative = other(s, value)
        one, two = s.info[value], s.info[alternative]
        bound, error = max(one.bound, two.bound), max(one.error, two.error)
        return s("where", there, value, alternative, bound=bound, error=error)

    makers: list[Maker] = [joined, exact, smooth, clip, leaky, swish, quotient, chosen, joined]
    if axis is not None:
        makers.append(bias(axis))
    for _ in range(s.number(0, most)):
        if s.info[value].bound < MOST_BOUND:
            value = s.pick(makers)(s, value)
    return value


def in_blocks(block: int) -> Other:
    """Other operands of a blocked image: images in such blocks, or what is broadcast, in rows."""

    def other(s: Sketch, value: Value) -> Value:
        shape = static_shape(value)
        if s.chance(50):
            found = s.image(shape, block, s.halo())
        else:
            found = s.operand(narrowed(s, shape), value.dtype.value)
        return found

    return other
