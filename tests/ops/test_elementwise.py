"""Arithmetic of every width, division by zero above all: Python's integers as the oracle."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from graft.base.dims import evaluate_dim, symbol
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate, run_op
from graft.ir.types import tensor
from graft.loop.build import Term
from graft.loop.evaluate_expr import evaluate_arrays
from graft.loop.ir import Var
from graft.ops import get_op

INTEGERS = [dtype for dtype in DType if dtype.is_integer]
FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


ORACLES: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
    "divide": lambda a, b: truncated(a, b) if b else 0,
    "mod": lambda a, b: a - b * truncated(a, b) if b else 0,
    "floor_mod": lambda a, b: a % b if b else 0,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
}


def extremes(dtype: DType) -> list[int]:
    """Every number of a narrow dtype, and of a wide one those near zero and near its ends."""
    info = ml_dtypes.iinfo(dtype.numpy)
    low, high = int(info.min), int(info.max)
    near = {low, low + 1, high - 1, high, *range(-9, 10)}
    return sorted(number for number in near if low <= number <= high)


def wrapped(number: int, dtype: DType) -> int:
    low = int(ml_dtypes.iinfo(dtype.numpy).min)
    return (number - low) % (1 << dtype.bits) + low


def run(name: str, *operands: Array) -> Array:
    """The operator alone, where any warning is an error."""
    op = get_op(name)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        return np.asarray(run_op(op, op.attrs(), operands)[0])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ORACLES)
def test_integers_of_every_width(name: str, dtype: DType) -> None:
    numbers = extremes(dtype)
    every = np.array(numbers, dtype=object).astype(dtype.numpy)
    found = run(name, every[:, np.newaxis], every)
    assert found.dtype == dtype.numpy
    wanted = [[wrapped(ORACLES[name](a, b), dtype) for b in numbers] for a in numbers]
    assert found.astype(object).tolist() == wanted


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_alone(dtype: DType) -> None:
    numbers = extremes(dtype)
    every = np.array(numbers, dtype=object).astype(dtype.numpy)
    unary: dict[str, Callable[[int], int]] = {
        "abs": abs,
        "negative": lambda a: -a,
        "bitwise_not": lambda a: ~a,
        "sign": lambda a: (a > 0) - (a < 0),
    }
    for name, oracle in unary.items():
        found = run(name, every).astype(object).tolist()
        assert found == [wrapped(oracle(a), dtype) for a in numbers], name


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ["greater", "greater_equal", "less", "less_equal", "equal"])
def test_integers_compared(name: str, dtype: DType) -> None:
    numbers = extremes(dtype)
    every = np.array(numbers, dtype=object).astype(dtype.numpy)
    plain = np.array(numbers, dtype=object)
    found = run(name, every[:, np.newaxis], every)
    wanted = getattr(np, name)(plain[:, np.newaxis], plain)
    np.testing.assert_array_equal(found, wanted.astype(bool))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_by_zero(dtype: DType) -> None:
    x = np.array([-1.5, -0.0, 0.0, 2.0, np.inf, np.nan]).astype(dtype.numpy)
    zero = np.zeros((), dtype.numpy)
    quotient = run("divide", x, zero).astype(np.float64)
    np.testing.assert_array_equal(quotient, [-np.inf, np.nan, np.nan, np.inf, np.inf, np.nan])
    for name in ("mod", "floor_mod"):
        assert np.isnan(run(name, x, zero).astype(np.float64)).all()


@pytest.mark.parametrize("name", ["acos", "acosh", "asin", "atanh"])
def test_formulas_are_nan_outside_of_the_domain(name: str) -> None:
    x = np.array([-np.inf, -1e300, -3.4e38, -1e10, -3e8, -100, -1.5, 0.5, 1.5, 1e10, 1e300])
    op = get_op(name)
    assert op.scalar is not None
    formula = op.scalar(op.attrs(), Term(Var("x", DType.FLOAT64)))
    with np.errstate(all="ignore"):
        computed = evaluate_arrays(formula.expr, {"x": x})
    np.testing.assert_allclose(computed, run(name, x))


@pytest.mark.parametrize("dtype", ["int4", "uint2", "int32"])
@pytest.mark.parametrize("name", ["divide", "mod", "floor_mod"])
def test_a_graph_divides_by_zero_without_a_word(
    name: str, dtype: str, recwarn: pytest.WarningsRecorder
) -> None:
    builder = Builder()
    x = builder.input("x", tensor(dtype, 2, 2))
    graph = builder.build(builder(name, x, builder.constant(np.zeros(2, x.dtype.numpy))))
    (found,) = evaluate(graph, [np.ones((2, 2), x.dtype.numpy)])
    assert found.astype(int).tolist() == [[0, 0], [0, 0]]
    assert not recwarn.list


@pytest.mark.parametrize(("factor", "offset"), [(1, -1), (1, -7), (2, -5), (-1, 0), (-2, 9)])
@pytest.mark.parametrize("divisor", [1, 2, 3, 5])
def test_extents_that_may_be_negative_are_divided_as_numbers_are(
    factor: int, offset: int, divisor: int
) -> None:
    g = Builder()
    shape = g("shape_of", g.input("x", tensor("float32", symbol("n"))))
    scaled = g("multiply", shape, g.constant(np.array([factor])))
    shifted = g("add", scaled, g.constant(np.array([offset])))
    known = g.knowledge.known(g("divide", shifted, g.constant(np.array([divisor]))))
    assert known is not None
    for n in range(20):
        wanted = truncated(factor * n + offset, divisor)
        assert evaluate_dim(known[0], {"n": n}) == wanted


def test_windows_counted_by_an_exporter_are_those_of_the_convolution() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 4, symbol("n")))
    n = g("take", g("shape_of", x), g.constant(np.array([2])), axis=0)
    less = g("subtract", n, g.constant(np.array([1])))
    count = g("add", g("divide", less, g.constant(np.array([2]))), g.constant(np.array([1])))
    lead = g.constant(np.array([1, 4]))
    weight = g.constant(np.ones((4, 4, 3), np.float32))
    halved = g("nn.conv1d", x, weight, strides=(2,), padding=(1, 1))
    viewed = g("reshape", halved, g("concatenate", lead, count, axis=0))
    assert str(g("add", halved, viewed).type) == "float32[1, 4, (n + 1)//2]"


@pytest.mark.parametrize(
    "dtype", [DType.INT8, DType.UINT8, DType.INT32, DType.INT64, DType.FLOAT16]
)
def test_bounds_of_clip_beyond_a_dtype_do_not_bind(dtype: DType) -> None:
    data = np.array([0, 1, 2, 100], dtype.numpy)
    for low, high in ((-1e30, 1e30), (None, np.inf), (-np.inf, None), (-(2**70), 2**70)):
        builder = Builder("clip")
        x = builder.input("x", tensor(dtype, 4))
        graph = builder.build(builder("clip", x, a_min=low, a_max=high))
        assert np.array_equal(evaluate(graph, [data])[0], data)
