"""Numbers of eight bits and less: every bit pattern read, awkward numbers written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graft
import graft.ops
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType
from graft.llvm.types import NARROW_FLOATS, NARROW_INTEGERS

AWKWARD = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 448, 464, 464.1, 0.5, 1.5, 2.5, 57344]
AWKWARD += [61440, 2.0**-127, 2.0**-126, 1.5 * 2.0**-127, 3e38, 240, 248, 2.0**-10, 2.0**-17, 5, 7]


def numbers() -> Array:
    """All exponents and signs, ties, and the edges of every format."""
    random = np.random.default_rng(0)
    any_bits = random.integers(0, 1 << 32, 2000, dtype=np.uint32).view(np.float32)
    scales = 10.0 ** random.integers(-9, 6, 2000)
    usual = (random.standard_normal(2000) * scales).astype(np.float32)
    return np.concatenate([any_bits, usual, np.array(AWKWARD, np.float32)])


def check(source: str, target: str, data: Array, **attrs: Any) -> None:
    """Exact, but that denormal float32 count as zero unless accuracy is strict; the least power of
    two that an exponent alone holds is one."""
    accuracy = "strict" if DType.FLOAT8E8M0FNU in (source, target) else "default"
    builder = Builder()
    given = builder.input("x", TensorType(DType(source), data.shape))
    graph = builder.build(builder("cast", given, dtype=DType(target), **attrs))
    with np.errstate(all="ignore"):
        (wanted,) = evaluate(graph, [data])
        (found,) = graft.compile(graph, strict=True, accuracy=accuracy).run(None, {"x": data})
        both_nan = np.isnan(wanted.astype(np.float32)) & np.isnan(found.astype(np.float32))
    assert found.dtype == wanted.dtype
    bits = f"u{wanted.dtype.itemsize}"
    same = (wanted.view(bits) == found.view(bits)) | both_nan
    assert same.all(), (data[~same][:4], wanted[~same][:4], found[~same][:4])


def patterns(dtype: DType) -> Array:
    return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)


@pytest.mark.parametrize("target", ["float32", "float16"])
@pytest.mark.parametrize("dtype", [*NARROW_FLOATS, *NARROW_INTEGERS], ids=str)
def test_every_bit_pattern_is_read(dtype: DType, target: str) -> None:
    check(dtype, target, patterns(dtype))


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("dtype", NARROW_FLOATS, ids=str)
def test_numbers_are_rounded_as_the_reference_rounds(dtype: DType, saturate: bool) -> None:
    if dtype is DType.FLOAT8E8M0FNU and not saturate:
        return  # such exponents stay with the evaluator
    check("float32", dtype, numbers(), saturate=saturate)


@pytest.mark.parametrize("dtype", NARROW_FLOATS, ids=str)
def test_wider_numbers_are_rounded_once(dtype: DType) -> None:
    with np.errstate(all="ignore"):
        check("float64", dtype, numbers().astype(np.float64) * (1 + 1e-7))


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two_in_every_direction(mode: str) -> None:
    check("float32", "float8_e8m0fnu", numbers(), round_mode=mode)


@pytest.mark.parametrize("dtype", NARROW_INTEGERS, ids=str)
def test_integers_wrap_around(dtype: DType) -> None:
    check("int32", dtype, np.arange(-37, 37, dtype=np.int32))


@pytest.mark.parametrize("dtype", [DType.INT4, DType.UINT2, DType.FLOAT8E5M2], ids=str)
def test_narrow_tensors_move(dtype: DType) -> None:
    builder = Builder()
    given = builder.input("x", TensorType(dtype, (3, 5)))
    turned = builder("transpose", given, axes=[1, 0])
    graph = builder.build(builder("concatenate", turned, turned, axis=1))
    data = np.resize(patterns(dtype), (3, 5))
    (wanted,) = evaluate(graph, [data])
    (found,) = graft.compile(graph, strict=True).run(None, {"x": data})
    np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))
