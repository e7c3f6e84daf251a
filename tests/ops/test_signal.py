"""Transforms against the sums that define them and ONNX Runtime; windows and mel filters too."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.types import TensorType, tensor
from graft.ops import get_op
from graft.ops.signal import DftAttrs, MelAttrs, StftAttrs

RANDOM = np.random.default_rng(17)
REAL = RANDOM.normal(size=(2, 7, 5, 1)).astype(np.float32)
COMPLEX = RANDOM.normal(size=(2, 7, 5, 2)).astype(np.float32)


def transformed(data: Array, length: int, axis: int, inverse: bool = False) -> Array:
    """The sum that defines the transform, as a product with a matrix."""
    numbers = data[..., 0] + (1j * data[..., 1] if data.shape[-1] == 2 else 0)
    numbers = np.moveaxis(numbers, axis, -1)[..., :length]
    numbers = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, length - numbers.shape[-1])])
    turns = np.outer(np.arange(length), np.arange(length)) / length
    matrix = np.exp((2j if inverse else -2j) * np.pi * turns) / (length if inverse else 1)
    result = np.moveaxis(numbers @ matrix, -1, axis)
    return np.stack([result.real, result.imag], axis=-1)


@pytest.mark.parametrize("length", [None, 1, 4, 9])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("data", [REAL, COMPLEX], ids=["real", "complex"])
def test_dft(data: Array, axis: int, length: int | None) -> None:
    operand = None if length is None else np.array(length)
    count = length or data.shape[axis]
    for inverse in (0, 1):
        expected = [transformed(data, count, axis, bool(inverse)).astype(np.float32)]
        agree("DFT", [data, operand], 17, expected, axis=axis, inverse=inverse)
        late = [data, operand, np.array(axis - 4)]
        agree("DFT", late, 20, expected, inverse=inverse)


@pytest.mark.parametrize("length", [None, 1, 4, 9])
def test_half_spectra(length: int | None) -> None:
    operand = None if length is None else np.array(length, np.int32)
    count = length or 7
    spectrum = transformed(REAL, count, 1)[:, : count // 2 + 1].astype(np.float32)
    agree("DFT", [REAL, operand], 17, [spectrum], onesided=1)
    again = np.zeros((2, count, 5, 1), np.float32)
    again[:, : min(7, count)] = REAL[:, :count]
    agree("DFT", [spectrum, np.array(count)], 17, [again], onesided=1, inverse=1)


def test_half_spectrum_of_even_length_by_default() -> None:
    signal = REAL[:, :6]
    spectrum = transformed(signal, 6, 1)[:, :4].astype(np.float32)
    agree("DFT", [spectrum], 17, [signal], onesided=1, inverse=1)


def test_dft_default_axes() -> None:
    agree("DFT", [COMPLEX], 17, [transformed(COMPLEX, 7, 1).astype(np.float32)])
    agree("DFT", [COMPLEX], 20, [transformed(COMPLEX, 5, 2).astype(np.float32)])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_dft_of_other_dtypes(dtype: Any) -> None:
    found = get_op("dft").evaluate(DftAttrs(axis=1), COMPLEX.astype(dtype), None, None)
    assert found.dtype == dtype
    tolerance = {2: 5e-2, 8: 1e-12}[np.dtype(dtype).itemsize]
    expected = transformed(COMPLEX.astype(dtype).astype(np.float64), 7, 1)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def test_dft_of_no_signals() -> None:
    agree("DFT", [COMPLEX[:0]], 20, [COMPLEX[:0]])


def test_dft_types() -> None:
    n, m = symbol("n"), symbol("m")
    op = get_op("dft")

    def found(*types: TensorType | None, **attrs: Any) -> str:
        return str(op.result_types(DftAttrs(**attrs), types)[0])

    data, number = tensor("float32", n, m, 1), tensor("int64")
    assert found(data) == "float32[n, m, 2]"
    assert found(data, axis=0, dft_length=m) == "float32[m, m, 2]"
    assert found(data, onesided=True) == "float32[n, m//2 + 1, 2]"
    spectrum = tensor("float32", n, m, 2)
    assert found(spectrum, onesided=True, inverse=True) == "float32[n, 2*m - 2, 1]"
    assert found(data, number) == "float32[n, ?, 2]"
    assert found(data, None, number) == "float32[?, ?, 2]"
    assert found(TensorType(data.dtype)) == "float32[*]"
    refused = [
        (tensor("float32", n, m, 3), {}, "a sample has 1 or 2 numbers, not 3"),
        (tensor("float32", 1), {}, "a signal has an axis of samples and one of numbers"),
        (tensor("int32", n, 1), {}, "wants a floating-point signal, not int32"),
        (data, {"axis": 2}, "axis 2 is that of real and imaginary part"),
        (data, {"axis": -4}, "axis -4 is out of range"),
        (data, {"dft_length": 0}, "a transform of length 0"),
        (data, {"onesided": True, "inverse": True}, "the spectrum is not complex"),
        (tensor("float32", n, m, 2), {"onesided": True}, "the signal is not real"),
    ]
    for type_, attrs, message in refused:
        with pytest.raises(TypeRuleError, match=message):
            found(type_, **attrs)


@pytest.mark.parametrize(
    ("data", "inverse", "message"),
    [(COMPLEX, 0, "the signal is not real"), (REAL, 1, "the spectrum is not complex")],
)
def test_dft_refuses_late_what_it_could_not_see(data: Array, inverse: int, message: str) -> None:
    model = one_node("DFT", [data], 20, "unranked", onesided=1, inverse=inverse)
    with pytest.raises(EvaluationError, match=message):
        by_graft(model, [data])


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("step", [1, 3, 20])
def test_stft(onesided: int, step: int) -> None:
    signal = RANDOM.normal(size=(2, 19, 1)).astype(np.float32)
    window = RANDOM.normal(size=6).astype(np.float32)
    hop, length = np.array(step), np.array(6)
    agree("STFT", [signal, hop, window, length], 17, onesided=onesided)
    agree("STFT", [signal, hop, None, length], 17, onesided=onesided)
    agree("STFT", [signal, hop, window], 17, onesided=onesided)
    whole = transformed(signal, 19, 1).astype(np.float32)[:, None, : 10 if onesided else 19]
    agree("STFT", [signal, hop], 17, [whole], onesided=onesided)


@pytest.mark.parametrize("shapes", ["static", "symbolic"])
def test_stft_of_real_signals_without_an_axis_for_parts(shapes: str) -> None:
    signal = RANDOM.normal(size=(2, 19, 1)).astype(np.float32)
    operands = [signal, np.array(3), RANDOM.normal(size=6).astype(np.float32)]
    expected = by_graft(one_node("STFT", operands, 17), operands)
    flat = [signal[:, :, 0], *operands[1:]]
    found = by_graft(one_node("STFT", flat, 17, shapes), flat)
    np.testing.assert_array_equal(found, expected)


def test_stft_of_complex_signals() -> None:
    signal = RANDOM.normal(size=(1, 11, 2)).astype(np.float32)
    window = RANDOM.normal(size=4).astype(np.float32)
    frames = np.stack([signal[:, i : i + 4] * window[:, None] for i in (0, 3, 6)], axis=1)
    expected = [transformed(frames, 4, 2).astype(np.float32)]
    agree("STFT", [signal, np.array(3, np.int32), window], 17, expected, onesided=0)


def test_stft_too_short() -> None:
    signal = np.zeros((2, 5, 1), np.float32)
    empty = [np.zeros((2, 0, 4, 2), np.float32)]
    agree("STFT", [signal, np.array(2), None, np.array(7)], 17, empty)
    operands = [signal, np.array(2), None, np.array(8)]
    with pytest.raises(TypeRuleError, match="5 samples are too few for frames of 8"):
        by_graft(one_node("STFT", operands, 17, constants=True), operands)
    with pytest.raises(EvaluationError, match="5 samples are too few for frames of 8"):
        by_graft(one_node("STFT", operands, 17), operands)
    operands = [signal, np.array(0), None, np.array(4)]
    with pytest.raises(EvaluationError, match="frames of 4 samples, 0 apart, do not fit"):
        by_graft(one_node("STFT", operands, 17), operands)


def test_stft_types() -> None:
    n, w = symbol("n"), symbol("w")
    op = get_op("stft")

    def found(*types: TensorType | None, **attrs: Any) -> str:
        return str(op.result_types(StftAttrs(**attrs), types)[0])

    data, number, window = tensor("float32", 1, n, 1), tensor("int64"), tensor("float32", w)
    step = {"frame_step": 160}
    framed = "float32[1, (n + 80)//160 - 2, 201, 2]"
    assert found(data, frame_length=400, **step) == framed
    assert found(data, None, window, onesided=False, frame_step=1) == "float32[1, n - w + 1, w, 2]"
    assert found(data, number, None, number) == "float32[1, ?, ?, 2]"
    assert found(TensorType(data.dtype), number, window) == "float32[?, ?, w//2 + 1, 2]"
    refused = [
        ((data,), {}, "the frame step is missing"),
        ((data,), {"frame_step": 0}, "frames cannot lie 0 samples apart"),
        ((data, None, tensor("float32", 5)), {"frame_length": 4, **step}, "of frame and window"),
        ((data, None, tensor("float64", 5)), step, "signal and window differ in dtype"),
        ((tensor("float32", 1, n, 2),), step, "a complex signal has no onesided spectrum"),
    ]
    for types, attrs, message in refused:
        with pytest.raises(TypeRuleError, match=message):
            found(*types, **attrs)


@pytest.mark.parametrize(
    ("bins", "length", "rate", "lower", "upper"),
    [(8, 16, 8192, 0, 4096), (40, 400, 16000, 20, 7600), (80, 64, 8000, 0, 4000), (1, 9, 44, 3, 9)],
)
def test_mel_weight_matrix(bins: int, length: int, rate: int, lower: float, upper: float) -> None:
    operands = [*map(np.array, (bins, length, rate)), np.float32(lower), np.float32(upper)]
    operands = [np.asarray(operand) for operand in operands]
    agree("MelWeightMatrix", operands, 17)
    matrix = get_op("mel_weight_matrix").evaluate(
        MelAttrs(bins, length, rate, lower, upper, DType.FLOAT64), *[None] * 5
    )
    assert matrix.max(axis=0).tolist() == [1] * bins  # every triangle peaks at 1
    assert matrix.min() >= 0


def test_mel_weight_matrix_types() -> None:
    op = get_op("mel_weight_matrix")
    number, hertz = tensor("int64"), tensor("float32")
    all_given = (number, number, number, hertz, hertz)
    assert str(op.result_types(MelAttrs(), all_given)[0]) == "float32[?, ?]"
    known = MelAttrs(symbol("m"), 2 * symbol("n"), dtype=DType.INT8)
    assert str(op.result_types(known, all_given)[0]) == "int8[n + 1, m]"
    with pytest.raises(TypeRuleError, match="sample_rate is given neither as operand nor"):
        op.result_types(MelAttrs(), (number, number))
    assert op.evaluate(MelAttrs(2, 8, 8, 0, 4), *[None] * 5).shape == (5, 2)


WINDOWS = {
    "HannWindow": lambda t: 0.5 - 0.5 * np.cos(t),
    "HammingWindow": lambda t: 25 / 46 - 21 / 46 * np.cos(t),
    "BlackmanWindow": lambda t: 0.42 - 0.5 * np.cos(t) + 0.08 * np.cos(2 * t),
}


@pytest.mark.parametrize("name", sorted(WINDOWS))
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("size", [0, 2, 10, 33])
def test_windows(name: str, periodic: int, size: int) -> None:
    exact = WINDOWS[name](2 * np.pi * np.arange(size) / (size - 1 + periodic))
    kinds = ((1, np.float32, 1e-6), (11, np.float64, 1e-14), (7, np.int64, 1))
    for code, dtype, tolerance in kinds:
        for operand in (np.array(size), np.array(size, np.int32)):
            given = {"periodic": periodic, "output_datatype": code}
            (found,) = by_graft(one_node(name, [operand], 17, **given), [operand])
            assert found.dtype == dtype
            np.testing.assert_allclose(found, exact, rtol=0, atol=tolerance)
    if size:
        agree(name, [np.array(size)], 17, periodic=periodic)


def test_window_of_a_known_size_has_a_known_extent() -> None:
    model = one_node("HannWindow", [np.array(5)], 17)
    del model.graph.input[:]
    constant = one_node("Identity", [np.zeros(1), np.array(5)], 17, constants=True)
    model.graph.initializer.extend(constant.graph.initializer)
    model.graph.node[0].input[0] = "x1"
    assert str(import_model(model).outputs[0].type) == "float32[5]"
