"""Conversions between element types, against ONNX Runtime and exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.frontends.onnx.types import dtype_to_onnx
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType, tensor

FLOAT8 = [DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ]
REAL = [d for d in DType if d.is_float or d.is_integer or d is DType.BOOL]
PLAIN = [d for d in REAL if d.numpy.isbuiltin == 1]


def cast(x: Array, dtype: DType, **attributes: Any) -> Array:
    """Run one cast."""
    builder = Builder()
    from_dtype = DType.STRING if x.dtype == object else DType(str(x.dtype))
    data = builder.input("x", TensorType(from_dtype, x.shape))
    graph = builder.build(builder("cast", data, dtype=dtype, **attributes))
    result = evaluate(graph, [x])[0]
    assert isinstance(result, np.ndarray)
    return result


@pytest.mark.parametrize("target", PLAIN)
def test_plain_types_cast_as_onnx_runtime_does(target: DType) -> None:
    numbers = np.array([[0, 1, 2.5], [99.75, 0.5, 100]])
    for source in PLAIN:
        agree("Cast", [numbers.astype(source.numpy)], 13, to=dtype_to_onnx(target))
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e300, -1e-300])
    if target.is_float or target is DType.BOOL:
        agree("Cast", [special], 9, to=dtype_to_onnx(target))


@pytest.mark.parametrize("source", REAL)
def test_small_numbers_survive_any_pair_of_types(source: DType) -> None:
    for target in REAL:
        wanted = [1] if DType.FLOAT8E8M0FNU in (source, target) else [0, 1]
        found = cast(np.array(wanted, np.float32).astype(source.numpy), target)
        assert found.dtype == target.numpy
        assert found.astype(np.float32).tolist() == wanted, target


@pytest.mark.parametrize("target", [d for d in DType if d.is_integer])
def test_integers_drop_their_high_bits(target: DType) -> None:
    x = np.array([200, -1, 70000, -(2**40) - 3, 2**63 - 1])
    span = 1 << target.bits
    wanted = [int(n) % span for n in x]
    if target.is_signed_integer:
        wanted = [n - span if n >= span // 2 else n for n in wanted]
    found = cast(x, target)
    wide = np.uint64 if target.is_unsigned_integer else np.int64
    assert found.astype(wide).tolist() == wanted


@pytest.mark.parametrize("target", [DType.INT4, DType.UINT4, DType.INT2, DType.UINT2])
def test_floats_are_cut_to_narrow_integers(target: DType) -> None:
    fits = [0, 1] if target.is_signed_integer else [0, 1, 2, 3]
    for source in (np.float16, np.float32, np.float64, DType.BFLOAT16.numpy):
        x = (np.array(fits) + 0.75).astype(source)
        assert cast(x, target).astype(np.int8).tolist() == fits
    if target.is_signed_integer:
        assert cast(np.array([-1.75]), target).astype(np.int8).tolist() == [-1]


LARGEST = {
    "float8_e4m3fn": 448,
    "float8_e4m3fnuz": 240,
    "float8_e5m2": 57344,
    "float8_e5m2fnuz": 57344,
}


@pytest.mark.parametrize("target", FLOAT8)
@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64, DType.BFLOAT16.numpy])
def test_float8_saturates_or_not(target: DType, source: Any) -> None:
    with np.errstate(over="ignore"):
        x = np.array([np.nan, np.inf, -np.inf, 1e5, -1e5, 0.3]).astype(source)
    largest = LARGEST[target]
    kept = cast(x, target).astype(np.float64)
    assert np.isnan(kept[0])
    assert kept[1:5].tolist() == [largest, -largest, largest, -largest]
    lost = cast(x, target, saturate=False).astype(np.float64)
    if target is DType.FLOAT8E5M2:
        assert lost[1:3].tolist() == [np.inf, -np.inf]
    else:
        assert np.isnan(lost[1:5]).all()
    assert kept[5] == lost[5] == pytest.approx(0.3, rel=0.1)
    assert np.signbit(cast(np.array([-0.0]).astype(source), target).astype(np.float32)) == (
        not target.endswith("uz")
    )


def test_integers_saturate_in_float8_too() -> None:
    x = np.array([10**6, -(10**6), 3])
    assert cast(x, DType.FLOAT8E4M3FN).astype(np.float32).tolist() == [448, -448, 3]


def test_float4_saturates_always() -> None:
    x = np.array([np.inf, -np.inf, 9, -8, 1e-7, -3.5, 0.25, 5], np.float32)
    wanted = [6, -6, 6, -6, 0, -4, 0, 4]
    assert cast(x, DType.FLOAT4E2M1FN).astype(np.float32).tolist() == wanted


def power_of_two(number: float, mode: str) -> Fraction:
    """The power of two that float8_e8m0fnu should hold, by exact arithmetic."""
    exact, low = Fraction(number), Fraction(1, 2**200)
    while low * 2 <= exact:
        low *= 2
    if exact == low or mode == "down":
        return low
    return 2 * low if mode == "up" or exact >= low * 3 / 2 else low


@given(st.floats(2.0**-120, 2.0**120, width=32), st.sampled_from(["up", "down", "nearest"]))
def test_e8m0_rounds_to_powers_of_two(number: float, mode: str) -> None:
    found = cast(np.array([number], np.float32), DType.FLOAT8E8M0FNU, round_mode=mode)
    assert Fraction(float(found[0])) == power_of_two(number, mode)


def test_e8m0_beyond_its_range() -> None:
    x = np.array([0, 2.0**-140, 2.0**127, 1.5 * 2.0**127, np.inf, np.nan, -1], np.float32)
    kept = cast(x, DType.FLOAT8E8M0FNU).astype(np.float64)
    assert kept[:5].tolist() == [2.0**-127, 2.0**-127, 2.0**127, 2.0**127, 2.0**127]
    assert np.isnan(kept[5:]).all()
    lost = cast(x, DType.FLOAT8E8M0FNU, saturate=False, round_mode="nearest").astype(np.float64)
    assert lost[2] == 2.0**127
    assert np.isnan(np.delete(lost, 2)).all()


def test_numbers_become_strings() -> None:
    x = np.array([[3, 0.1, -2.5], [np.nan, np.inf, -np.inf]])
    wanted = [["3", "0.1", "-2.5"], ["NaN", "INF", "-INF"]]
    agree("Cast", [x], 13, [np.array(wanted, object)], to=TensorProto.STRING)
    for source in (np.float32, np.float16):
        assert cast(x.astype(source), DType.STRING).tolist() == wanted
    third = np.array([1 / 3])
    assert cast(third.astype(DType.BFLOAT16.numpy), DType.STRING).tolist() == ["0.33398438"]
    assert cast(third.astype(DType.FLOAT8E5M2.numpy), DType.STRING).tolist() == ["0.3125"]
    tiny = np.array([1e-7, 1e17], np.float32)
    assert cast(tiny, DType.STRING).tolist() == ["0.0000001", "100000000000000000"]
    agree("Cast", [np.array([2**63 - 1, -5])], 13, to=TensorProto.STRING)
    agree("Cast", [np.array([True, False])], 13, to=TensorProto.STRING)
    assert cast(np.array([-8, 7]).astype(DType.INT4.numpy), DType.STRING).tolist() == ["-8", "7"]
    assert cast(np.zeros((0, 2), np.float32), DType.STRING).shape == (0, 2)


def test_strings_become_numbers() -> None:
    words = np.array(["nan", "INF", "-inf", "+Inf", "1E8", "-1e-5", "3.14"], object)
    agree("Cast", [words], 13, to=TensorProto.FLOAT)
    agree("Cast", [words], 9, to=TensorProto.DOUBLE)
    whole = np.array([["9223372036854775807", "-7"]], object)
    agree("Cast", [whole], 13, to=TensorProto.INT64)
    assert cast(np.array(["18446744073709551615"], object), DType.UINT64)[0] == 2**64 - 1
    assert cast(np.array(["100.5", "-3"], object), DType.INT8).tolist() == [100, -3]
    assert cast(np.array(["0", "1", "2.5"], object), DType.BOOL).tolist() == [False, True, True]
    assert cast(np.array(["1000"], object), DType.FLOAT8E4M3FN)[0] == 448
    arrays = [np.array(["Hello World!"], object)]
    with pytest.raises(EvaluationError, match=r"the text .Hello World!. is no float32"):
        by_graft(one_node("Cast", arrays, 13, to=TensorProto.FLOAT), arrays)


def test_cast_like() -> None:
    x = np.array([1.75, 1e6, np.nan], np.float32)
    whole = np.array([1, 16960, 0], np.int32)
    agree("CastLike", [whole.astype(np.float32) + 0.5, whole[:0]], 15, [whole])
    like = np.zeros(1, DType.FLOAT8E5M2.numpy)
    for saturate in (0, 1):
        wanted = cast(x, DType.FLOAT8E5M2, saturate=bool(saturate))
        agree("CastLike", [x, like], 19, [wanted], saturate=saturate)


@pytest.mark.parametrize("source", REAL)
def test_bitcast(source: DType) -> None:
    bits = np.array([[0, 1], [1, 3 if source.bits < 8 else 0x41]], f"u{source.numpy.itemsize}")
    for target in REAL:
        builder = Builder()
        data = builder.input("x", tensor(source, 2, 2))
        if source.bits != target.bits:
            message = f"{source} has {source.bits} bits, {target} has {target.bits}"
            with pytest.raises(TypeRuleError, match=message):
                builder("bitcast", data, dtype=target)
            continue
        graph = builder.build(builder("bitcast", data, dtype=target))
        found = evaluate(graph, [bits.view(source.numpy)])[0]
        assert found.dtype == target.numpy
        assert np.array_equal(found.view(bits.dtype), bits)


def test_bitcast_from_onnx() -> None:
    x = np.array(-2.5, np.float32)
    agree("BitCast", [x], 26, [x.view(np.int32)], to=TensorProto.INT32)
    turned = np.arange(6, dtype=np.float64).reshape(2, 3).T
    agree("BitCast", [turned], 26, [turned.view(np.uint64)], to=TensorProto.UINT64)


def test_refusals() -> None:
    builder = Builder()
    x = builder.input("x", tensor("complex64", 2))
    with pytest.raises(TypeRuleError, match="a complex number has no value in float32"):
        builder("cast", x, dtype="float32")
    assert builder("cast", x, dtype="complex128").type == tensor("complex128", 2)
    with pytest.raises(TypeRuleError, match="round_mode is 'odd', not one of up, down, nearest"):
        builder("cast", builder.input("y", tensor("float32")), dtype="int8", round_mode="odd")
    with pytest.raises(TypeRuleError, match="strings have no fixed bits"):
        builder("bitcast", x, dtype="string")


def test_dims_pass_through_integer_casts_only() -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", symbol("n"), 3))
    dims = builder("shape_of", x)
    short = builder.knowledge.known(builder("cast", dims, dtype="int32"))
    assert short is not None
    assert short.tolist() == [symbol("n"), 3]
    assert builder.knowledge.known(builder("cast", dims, dtype="float32")) is None
    assert import_model(one_node("Cast", [np.zeros((), np.int8)], 13, to=1)).outputs[0].shape == ()
