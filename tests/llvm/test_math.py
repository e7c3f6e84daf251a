"""Math functions keep their stated accuracy, on dense sweeps and at all the odd places."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.llvm.kernels import compiled, elementwise, run, runnable_targets

from graft.base.dtypes import Array, DType
from graft.llvm.math import KERNELS
from graft.loop.intrinsics import INTRINSICS
from graft.loop.ir import Call
from graft.target.target import Target

ODD = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -2.5, 3.0, -3.0, 16777217.0, 1e10)
SMALLEST = {
    DType.FLOAT32: (1e-45, 1.1754942e-38, 3.4e38),
    DType.FLOAT64: (5e-324, 2.2e-308, 1.7e308),
}
COUNT = 30_000

# This machine, one without and one with fused multiply-add.
TARGETS = [one for one in runnable_targets() if one.name in ("host", "x86-64", "x86-64-v3")]
every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _erf(x: Array) -> Array:
    return np.array([math.erf(float(value)) for value in x], x.dtype)


def _gelu(x: Array) -> Array:
    normal = np.array([math.erfc(-float(value) * math.sqrt(0.5)) / 2 for value in x], x.dtype)
    return np.where(np.isneginf(x), 0.0, x) * normal


MEANING: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "gelu": _gelu,
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "pow": np.power,
}


def odd_numbers(dtype: DType) -> Array:
    small = SMALLEST[dtype]
    return np.array([*ODD, *small, *(-value for value in small)], dtype.numpy)


def sweep(dtype: DType) -> Array:
    """Odd numbers, all bit patterns alike, and ranges in which functions do something."""
    random = np.random.default_rng(0)
    width = np.uint32 if dtype is DType.FLOAT32 else np.uint64
    top = np.iinfo(width).max
    patterns = random.integers(0, top, COUNT, width, endpoint=True).view(dtype.numpy)
    ranges = [(-1, 1), (-12, 12), (0.5, 2), (-110, 95), (-750, 715), (-1e8, 1e8)]
    parts = [random.uniform(low, high, COUNT).astype(dtype.numpy) for low, high in ranges]
    # Near multiples of π/2, and where results become subnormal or infinite.
    turns = (random.integers(1, 1 << 20, COUNT) * (np.pi / 2)).astype(dtype.numpy)
    edges = np.concatenate(
        [np.linspace(center - 1e-3, center + 1e-3, 999) for center in (-103.97, -87.33, 88.72)]
    )
    return np.concatenate([odd_numbers(dtype), patterns, *parts, turns, edges.astype(dtype.numpy)])


def error(actual: Array, exact: Array, dtype: DType, measure: Array | None = None) -> float:
    """The largest error in units of the last place; zeros, infinities and NaN have to be equal.

    Those are units of the exact result, or of a measure, in which zeros need not be equal."""
    rounded = exact.astype(dtype.numpy)
    finite = np.isfinite(rounded) & np.isfinite(actual)
    np.testing.assert_array_equal(actual[~finite], rounded[~finite])
    zero = exact == 0 if measure is None else measure == 0
    np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(rounded[zero]))
    scale = rounded if measure is None else measure
    unit = np.abs(np.spacing(scale[finite])).astype(exact.dtype)
    return float(np.max(np.abs(actual[finite].astype(exact.dtype) - exact[finite]) / unit))


def measured(name: str, target: Target, dtype: DType, *inputs: Array, lanes: int = 8) -> float:
    formula = [lambda *loads: Call(name, loads, dtype)]
    kernel = compiled(elementwise([dtype] * len(inputs), formula, [dtype], lanes), target)
    count = len(inputs[0])
    arguments = {f"in{k}": values for k, values in enumerate(inputs)}
    sink = np.zeros(count, dtype.numpy)
    result = run(kernel, arguments | {"out0": sink, "n": count})["out0"]
    with np.errstate(all="ignore"):
        wide = np.float64 if dtype is DType.FLOAT32 else np.longdouble
        exact = MEANING[name](*(values.astype(wide) for values in inputs))
        measure = None
        if KERNELS[name].in_units_of_argument:
            measure = np.nan_to_num(inputs[0], nan=1.0, posinf=1e30, neginf=1e30)
        return error(result, exact, dtype, measure)


def limit(name: str, dtype: DType) -> float:
    kernel = KERNELS[name]
    stated = kernel.float_error if dtype is DType.FLOAT32 else kernel.double_error
    # math.erf is itself only good to about one unit.
    return stated + (1.0 if name == "erf" and dtype is DType.FLOAT64 else 0.0)


@pytest.mark.each_value
@every_target
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"pow"}))
def test_functions_of_one_argument(name: str, dtype: DType, target: Target) -> None:
    values = sweep(dtype)
    if target != runnable_targets()[0]:
        values = np.concatenate([odd_numbers(dtype), values[::9]])
    assert measured(name, target, dtype, values) <= limit(name, dtype)


@pytest.mark.parametrize("lanes", [1, 7])
@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"pow"}))
def test_any_number_of_lanes(name: str, lanes: int) -> None:
    for dtype in (DType.FLOAT32, DType.FLOAT64):
        values = np.concatenate([odd_numbers(dtype), sweep(dtype)[::101]])
        found = measured(name, runnable_targets()[0], dtype, values, lanes=lanes)
        assert found <= limit(name, dtype)


@every_target
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_gelu_far_from_zero(dtype: DType, target: Target) -> None:
    """It is its argument on one side and vanishes on the other, however large numbers are."""
    formula = [lambda x: Call("gelu", (x,), x.dtype)]
    kernel = compiled(elementwise([dtype], formula, [dtype], 8), target)
    sizes = np.array([7.0, 40.0, 1e3, 1e30, np.inf], dtype.numpy)
    values = np.concatenate([sizes, -sizes])
    sink = np.zeros(len(values), dtype.numpy)
    result = run(kernel, {"in0": values, "out0": sink, "n": len(values)})["out0"]
    np.testing.assert_allclose(result[:5], sizes, rtol=1e-11)
    np.testing.assert_allclose(result[5:], 0, atol=1e-11)


@every_target
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_power(dtype: DType, target: Target) -> None:
    odd = odd_numbers(dtype)
    left, right = (grid.ravel() for grid in np.meshgrid(odd, odd))
    assert measured("pow", target, dtype, left.copy(), right.copy()) <= limit("pow", dtype)
    random = np.random.default_rng(1)
    largest = 88 if dtype is DType.FLOAT32 else 709
    logarithms = random.uniform(-largest, largest, COUNT)
    exponents = random.uniform(-largest, largest, COUNT) / logarithms * 1.02
    bases = np.exp(logarithms).astype(dtype.numpy)
    found = measured("pow", target, dtype, bases, exponents.astype(dtype.numpy))
    assert found <= limit("pow", dtype)
    near = (1 + random.uniform(-1e-3, 1e-3, COUNT)).astype(dtype.numpy)
    huge = random.uniform(-9e4, 9e4, COUNT).astype(dtype.numpy)
    assert measured("pow", target, dtype, near, huge) <= limit("pow", dtype)
    whole = random.integers(-40, 40, COUNT).astype(dtype.numpy)
    negative = random.uniform(-9, 0, COUNT).astype(dtype.numpy)
    assert measured("pow", target, dtype, negative, whole) <= limit("pow", dtype)


def test_the_angle_nearest_to_a_multiple_of_a_quarter_turn() -> None:
    """Of all float64 numbers this one's cosine is the smallest."""
    angle = np.array([6381956970095103.0 * 2.0**797])
    kernel = compiled(
        elementwise([DType.FLOAT64], [lambda x: Call("cos", (x,), x.dtype)], [DType.FLOAT64], 1)
    )
    result = run(kernel, {"in0": angle, "out0": np.zeros(1), "n": 1})["out0"]
    np.testing.assert_allclose(result, [-4.687165924254628e-19], rtol=2e-16)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_small_floats_are_computed_in_float32(dtype: DType) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    kernel = compiled(elementwise([dtype], [lambda x: Call("exp", (x,), x.dtype)], [dtype], 8))
    count = len(every)
    result = run(kernel, {"in0": every, "out0": np.zeros(count, dtype.numpy), "n": count})["out0"]
    with np.errstate(all="ignore"):
        exact = np.exp(every.astype(np.float64)).astype(np.float32).astype(dtype.numpy)
    same = (result == exact) | (np.isnan(result) & np.isnan(exact))
    # float32's own error may tip a rounding that is almost a tie.
    assert np.mean(same) > 0.999
    np.testing.assert_allclose(
        result.astype(np.float32), exact.astype(np.float32), rtol=2.0**-7, atol=1e-7
    )


def test_chains_are_what_has_kernels_of_its_own() -> None:
    """Loop IR says of just these functions that they take long chains of instructions."""
    assert {name for name, one in INTRINSICS.items() if one.is_chain} == set(KERNELS)
