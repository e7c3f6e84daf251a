"""Reductions on row-major tensors."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from tests.backends.host.row_kernels import Case, check

import graft
from graft.backends.host.kernels.expression.template import expression

OPS = ["sum", "mean", "max", "min", "prod"]


@pytest.mark.each_value
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axes", [None, (0,), (1,), (-1,), (0, 2), (1, 3), (0, 1), (2, 3)])
def test_any_axes(op: str, axes: tuple[int, ...] | None) -> None:
    case = Case()
    keepdims = op in ("sum", "max")
    check(expression, case, case(op, case.input(3, 2, 5, 21), axes=axes, keepdims=keepdims))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_long_axes(axes: tuple[int, ...]) -> None:
    case = Case()
    check(expression, case, case("sum", case.input(150, 149), axes=axes), tolerance=1e-4)


@pytest.mark.parametrize("axes", [(1,), (2,), (1, 2)])
def test_pointwise_nodes_around_it(axes: tuple[int, ...]) -> None:
    case = Case()
    x = case.input(3, 7, 20)
    y = case("mean", case("multiply", case("subtract", x, case.constant(20)), x), axes=axes)
    extents = [int(dim) for dim in y.tensor.shape or () if isinstance(dim, int)]
    y = case("add", y, case.constant(*extents[-1:]))
    check(expression, case, case("sqrt", case("abs", y)))


def test_nan_wins() -> None:
    case = Case()
    x = case.array(3, 40)
    x[1, 39] = np.nan
    check(expression, case, case("max", case.given(x), axes=(1,)))


def test_axes_of_extent_one() -> None:
    case = Case()
    check(expression, case, case("sum", case.input(4, 1, 9), axes=(1,)))


@pytest.mark.each_value
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint8", "int64"])
@pytest.mark.parametrize("axes", [(1,), (0, 2)])
def test_other_dtypes(op: str, dtype: str, axes: tuple[int, ...]) -> None:
    case = Case()
    x = (case.array(5, 19, 21) * 2).astype(dtype)
    x = np.abs(x) if dtype == "uint8" else x
    tolerance = {"float16": 2e-2, "float64": 1e-12}.get(dtype, 0.0)
    check(expression, case, case(op, case.given(x), axes=axes), tolerance=tolerance)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_truth_values(op: str, axes: tuple[int, ...]) -> None:
    case = Case()
    x = case.array(7, 45) < 0
    check(expression, case, case(op, case.given(x), axes=axes))


@pytest.mark.each_value
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "shape", [(1, 5), (1000, 7), (1000, 1), (40, 200), (3, 64, 100), (2, 9, 3)]
)
def test_tiles_and_rests(op: str, shape: tuple[int, ...]) -> None:
    for axes in ((0,), (1,), (0, len(shape) - 1)):
        case = Case()
        x = case.array(*shape)
        x = 1 + x / 1000 if op == "prod" else x
        y = case(op, case.given(x.astype("float32")), axes=axes)
        check(expression, case, y, tolerance=1e-4)


@pytest.mark.parametrize("op", ["mean", "min"])
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_nan_and_infinities(op: str, axes: tuple[int, ...]) -> None:
    case = Case()
    x = case.array(50, 51)
    x[3, 5], x[49, 50], x[10, :], x[:, 48] = np.nan, np.nan, np.inf, -np.inf
    check(expression, case, case(op, case.given(x), axes=axes))


@pytest.mark.parametrize("op", ["sum", "min"])
@pytest.mark.parametrize(("shape", "axes"), [((0, 3), (0,)), ((3, 0), (1,))])
def test_nothing(op: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    case = Case()
    check(expression, case, case(op, case.input(*shape), axes=axes))


def test_sums_are_accurate() -> None:
    case = Case()
    x = case.random.random((3, 100000), np.float32)
    check(expression, case, case("sum", case.given(x), axes=(1,)), tolerance=1e-6)
    case = Case()
    x = case.random.random((100000, 3), np.float32)
    check(expression, case, case("sum", case.given(x), axes=(0,)), tolerance=1e-5)


def test_what_leads_to_it_is_read_after_it() -> None:
    case = Case()
    size = case("abs", case.input())
    total = case("log", case("sum", size))
    check(expression, case, case("divide", total, size))


@pytest.mark.parametrize("machine", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("channels", [2, 4])
def test_several_totals_of_an_unknown_count(machine: str, channels: int) -> None:
    """What is left has one total where elements are not counted, without an axis of parts."""
    text = f"""
        <ir_version: 8, opset_import: ["": 18]>
        lengths (float[1,{channels},n,2] x) => (float[a,b,c,d] z) {{
            y = HardSigmoid (x)
            z = GlobalLpPool (y)
        }}"""
    graft.compile(onnx.parser.parse_model(text), strict=True, machine=machine)
