"""Draws elementwise nodes of every dtype, and identities that passes are to see through."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tests.property import data
from tests.property.sketch import (
    EXACT,
    FUZZY,
    LARGEST_BOUND,
    STRICT,
    Sketch,
    is_float,
    is_ranked,
    is_small,
)

from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.ir.types import Shape

REAL = (*data.WIDE_FLOATS, *data.INTEGERS)
NUMBERS = (*REAL, *data.COMPLEX, *data.NARROW_FLOATS)

# Operators that are right to the last bit on every machine, with the level of their results.
_EXACT_UNARY = {"abs": STRICT, "negative": STRICT, "sign": EXACT, "nn.relu": EXACT}
_ROUNDING = {"ceil": STRICT, "floor": STRICT, "round": STRICT}
# Smooth functions that stay within a bound wherever they are defined.
_BOUNDED = {"tanh": 1.0, "erf": 1.0, "sigmoid": 1.0, "sin": 1.0, "cos": 1.0, "atan": 1.6}
_SMOOTH = {"nn.gelu": 1.0, "asinh": 1.0, "nn.leaky_relu": 1.0}
# Functions with poles or edges, which fuzzy operands could cross.
_STEEP = ("exp", "sinh", "cosh", "tan", "log", "asin", "acos", "acosh", "atanh", "sqrt")


def any_value(s: Sketch, dtypes: Sequence[DType], test: Callable[[Value], bool]) -> Value:
    """A value of one of the dtypes that passes the test, made anew if there is none."""
    found = s.find(lambda v: is_ranked(v) and v.dtype in dtypes and test(v))
    if found is not None and not s.chance(6):
        return found
    return s.source(s.pick(dtypes), s.shape(), bounded=True)


def always(_value: Value) -> bool:
    return True


def partner(s: Sketch, value: Value, bounded: bool = False) -> Value:
    """A value of the same dtype that broadcasts with this one."""

    def fits(other: Value) -> bool:
        return (
            is_ranked(other)
            and other.dtype == value.dtype
            and broadcasts(value.shape or (), other.shape or ())
            and not (bounded and s.bound(other) > LARGEST_BOUND)
        )

    found = s.find(fits)
    if found is not None and not s.chance(3):
        return found
    shape = value.shape or ()
    kept = shape[s.number(0, len(shape)) :]
    extents = [dim if isinstance(dim, int) and not s.chance(3) else 1 for dim in kept]
    return s.source(value.dtype, tuple(extents), bounded)


def broadcasts(one: Shape, other: Shape) -> bool:
    """Whether two shapes broadcast for certain."""
    return all(a == b or 1 in (a, b) for a, b in zip(one[::-1], other[::-1], strict=False))


def unary(s: Sketch) -> None:
    x = any_value(s, NUMBERS, always)
    if x.dtype in data.COMPLEX:
        s.add("negative", x)
    elif x.dtype.is_integer or x.dtype in data.NARROW_FLOATS:
        s.add(s.pick(("negative", "abs")), x)
    elif s.level(x) == FUZZY or s.chance(2):
        _fuzzy_unary(s, x)
    else:
        table = {**_EXACT_UNARY, **_ROUNDING}
        name = s.pick(tuple(table))
        s.add(name, x, level=table[name], bound=s.bound(x) + 1)


def _fuzzy_unary(s: Sketch, x: Value) -> None:
    options = ["negative", "abs", "nn.relu", *_BOUNDED, *_SMOOTH]
    if s.level(x) > FUZZY:
        options += _STEEP
    name = s.pick(options)
    if name in _BOUNDED:
        s.add(name, x, level=FUZZY, bound=_BOUNDED[name])
    elif name in _STEEP:
        s.add(name, x, level=FUZZY, bound=math.inf)
    elif name == "nn.gelu":
        s.add(name, x, level=FUZZY, approximate=s.chance(2))
    else:
        s.add(name, x, level=EXACT if name in ("negative", "abs", "nn.relu") else FUZZY)


def arithmetic(s: Sketch) -> None:
    x = any_value(s, NUMBERS, is_small)
    name = s.pick(("add", "multiply", "subtract", "maximum", "minimum"))
    if x.dtype in data.COMPLEX:
        name = s.pick(("add", "multiply", "subtract"))
    combine(s, name, x, partner(s, x))


def combine(s: Sketch, name: str, x: Value, y: Value) -> Value:
    """Two values by an operator, unless a fuzzy one could leave its bounds; then only the first."""
    bounds = s.bound(x), s.bound(y)
    limit = bounds[0] * bounds[1] if name == "multiply" else sum(bounds)
    fuzzy = is_float(x) and FUZZY in (s.level(x), s.level(y))
    if fuzzy and not limit <= LARGEST_BOUND:
        return x
    pair = (y, x) if s.chance(2) else (x, y)
    level = EXACT if name in ("maximum", "minimum") else STRICT
    return s.add(name, *pair, level=level, bound=limit if limit == limit else math.inf)


def division(s: Sketch) -> None:
    """Quotients and remainders; a fuzzy value is divided by nothing near zero."""
    x = any_value(s, REAL, is_small)
    if is_float(x) and s.level(x) == FUZZY:
        s.add("divide", x, s.number_like(x, s.pick((2.0, 4.0, 1.0, -2.0))))
        return
    y = partner(s, x)
    if is_float(y) and s.level(y) < STRICT:  # the sign of a zero decides on which infinity
        y = s.number_like(x, 0.5)
    s.add(s.pick(("divide", "floor_mod", "mod")), x, y, level=STRICT, bound=math.inf)


def power(s: Sketch) -> None:
    x = any_value(s, (*data.WIDE_FLOATS, *data.SIGNED), lambda v: is_small(v) and s.bound(v) <= 8)
    exponent = s.pick((2, 1, 3, 0))
    dtype = s.pick((x.dtype, x.dtype, DType.FLOAT32, DType.INT64))
    rank = s.number(0, 2)
    constant = s.constant(np.full((1,) * rank, exponent).astype(dtype.numpy))
    s.add("power", x, constant, level=FUZZY if is_float(x) else STRICT, bound=s.bound(x) ** 3 + 1)


def comparison(s: Sketch) -> None:
    dtypes = (*REAL, DType.BOOL, DType.STRING, *data.COMPLEX)
    x = any_value(s, dtypes, lambda v: s.level(v) > FUZZY and is_small(v))
    y = partner(s, x)
    if s.level(y) == FUZZY:
        y = s.source(x.dtype, ())
    names = ["equal", "not_equal"]
    if x.dtype in REAL:
        names += ["greater", "greater_equal", "less", "less_equal"]
    s.add(s.pick(names), x, y, bound=1.0)
    if is_float(x):
        s.add(s.pick(("isnan", "isinf")), x, bound=1.0)


def logic(s: Sketch) -> None:
    x = any_value(s, (DType.BOOL,), is_small)
    name = s.pick(("logical_and", "logical_or", "logical_xor", "logical_not"))
    s.add(name, *(x,) if name == "logical_not" else (x, partner(s, x)))


def bits(s: Sketch) -> None:
    x = any_value(s, data.INTEGERS, is_small)
    options = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "left_shift")
    name = s.pick((*options, "right_shift"))
    if name == "bitwise_not":
        s.add(name, x, bound=math.inf)
    elif "shift" in name:
        most = 1 if x.dtype in data.TINY else 7
        s.add(name, x, s.number_like(x, s.number(0, most)), bound=math.inf)
    else:
        s.add(name, x, partner(s, x), bound=math.inf)


def where(s: Sketch) -> None:
    x = any_value(s, (*NUMBERS, DType.BOOL, DType.STRING), is_small)
    y = partner(s, x)
    condition = s.find(
        lambda v: is_ranked(v) and v.dtype is DType.BOOL and _all_fit(v.shape, x.shape, y.shape)
    )
    if condition is None or s.chance(3):
        mixed = np.array([[True], [False]]) if s.chance(3) else np.array(s.chance(2))
        fits = _all_fit(mixed.shape, x.shape, y.shape)
        condition = s.constant(mixed if fits else np.array(True))
    s.add("where", condition, x, y, bound=s.bound(x, y))


def _all_fit(*shapes: Shape | None) -> bool:
    return all(broadcasts(a or (), b or ()) for a in shapes for b in shapes)


def clip(s: Sketch) -> None:
    x = any_value(s, (*data.WIDE_FLOATS, *data.SIGNED), always)
    low, high = s.pick(((0, None), (0.0, 6.0), (None, 1), (-1, 1), (None, None), (-0.0, None)))
    if s.chance(3) and low is not None:
        high_value = None if high is None else s.source(x.dtype, (), bounded=True)
        s.add("clip", x, s.number_like(x, low), high_value, level=EXACT)
    else:
        s.add("clip", x, a_min=low, a_max=high, level=EXACT)


def cast(s: Sketch) -> None:
    x = any_value(s, (*REAL, *data.NARROW_FLOATS, DType.BOOL), always)
    for _ in range(s.number(1, 2)):
        targets = [x.dtype, *data.WIDE_FLOATS]
        if s.level(x) > FUZZY:
            targets += [DType.BOOL, *data.NARROW_FLOATS]
            if is_float(x) and s.bound(x) <= 100:
                targets += data.SIGNED
            elif not is_float(x):
                targets += data.INTEGERS
        if s.level(x) == STRICT:
            targets += [DType.STRING]
        target = s.pick(targets)
        extra = {"saturate": False} if target in data.NARROW_FLOATS and s.chance(2) else {}
        wide = target in (DType.STRING, *data.UNSIGNED, *data.TINY, *data.NARROW_FLOATS)
        x = s.add("cast", x, dtype=target, bound=math.inf if wide else None, **extra)
        if target is DType.STRING:
            return


def bitcast(s: Sketch) -> None:
    pairs = {DType.FLOAT32: DType.INT32, DType.INT32: DType.FLOAT32, DType.FLOAT16: DType.INT16}
    x = any_value(s, tuple(pairs), lambda v: s.level(v) == STRICT)
    s.add("bitcast", x, dtype=pairs[x.dtype], bound=math.inf)


def strings(s: Sketch) -> None:
    x = any_value(s, (DType.STRING,), is_small)
    s.add("string.concat", x, partner(s, x))


def identity(s: Sketch) -> None:
    """Something that simplification removes, or, for all its looks, must not."""
    dtypes = (*data.WIDE_FLOATS, *data.WIDE_FLOATS, *data.SIGNED, *data.UNSIGNED)
    x = any_value(s, dtypes, lambda v: s.level(v) == STRICT or s.chance(4))
    rank = s.pick((0, 1, len(x.shape or ()), len(x.shape or ()) + 1))
    name, number = s.pick(
        (
            ("multiply", 1.0),
            ("divide", 1.0),
            ("subtract", 0.0),
            ("subtract", -0.0),
            ("add", 0.0),
            ("add", -0.0),
            ("multiply", 0.0),
        )
    )
    if number == 0.0 and s.level(x) == FUZZY and name == "multiply":
        return
    constant = s.number_like(x, number, rank)
    if x.tensor.is_static and s.chance(3):
        constant = s.constant(np.full(x.shape or (), number).astype(x.dtype.numpy))
    operands = (x, constant)
    flip = name in ("multiply", "add") and s.chance(2)
    s.add(name, *operands[:: -1 if flip else 1], bound=s.bound(x))


def twice(s: Sketch) -> None:
    """f(f(x)), which is x or f(x)."""
    x = any_value(s, (*data.WIDE_FLOATS, *data.SIGNED, DType.BOOL), always)
    if x.dtype is DType.BOOL:
        name, level = "logical_not", STRICT
    elif x.dtype.is_integer:
        name, level = s.pick((("negative", STRICT), ("abs", STRICT), ("bitwise_not", STRICT)))
    elif s.level(x) == FUZZY:
        name, level = s.pick((("negative", STRICT), ("abs", STRICT), ("nn.relu", EXACT)))
    else:
        names = ("negative", "abs", "ceil", "floor", "round", "sign", "nn.relu")
        name = s.pick(names)
        level = EXACT if name in ("sign", "nn.relu") else STRICT
    once = s.add(name, x, level=level, bound=s.bound(x) + 1)
    again = s.add(name, once, level=level, bound=s.bound(x) + 1)
    if name == "negative" and s.bound(x) <= 50:
        other = s.add(name, x)
        s.add("multiply", once, other if s.chance(2) else again, bound=s.bound(x) ** 2)


EMITTERS = (
    unary,
    unary,
    arithmetic,
    arithmetic,
    division,
    power,
    comparison,
    logic,
    bits,
    where,
    clip,
    cast,
    bitcast,
    strings,
    identity,
    identity,
    identity,
    identity,
    twice,
)
