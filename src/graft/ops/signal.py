"""Signals and spectra: the discrete Fourier transform, whole or in frames, and mel filters.

A complex number is a pair along the last axis; a real signal has one number there. Lengths, axes
and frequencies may be operands or attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from graft.base.capacity import check_extents
from graft.base.dims import UNKNOWN, AnyDim, Dim
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs
from graft.ir.op import Work, define, traffic
from graft.ir.types import Shape, TensorType, Type
from graft.ops.rules import normalize_axis, require, require_same_dim, shape_of, unknown_shape

# Levels of a fast transform whose length is not known: that of about a thousand samples.
_USUAL_LEVELS = 10


@dataclass(frozen=True, slots=True)
class DftAttrs(Attrs):
    dft_length: Dim | None = None  # None: what the data are long
    axis: int | None = None  # None: the last axis of the signal
    inverse: bool = False
    onesided: bool = False  # the spectrum of a real signal, without its mirrored half


def _length(attribute: Dim | None, operand: TensorType | None, default: AnyDim) -> AnyDim:
    """An extent given as an attribute or an operand, or else the default."""
    if attribute is not None:
        return attribute
    if operand is None:
        return default
    require(operand.dtype.is_integer, f"a length is {operand.dtype}, not an integer")
    return UNKNOWN


def _dft_type(
    attrs: DftAttrs, data: TensorType, dft_length: TensorType | None, axis: TensorType | None
) -> TensorType:
    require(data.dtype.is_float, f"wants a floating-point signal, not {data.dtype}")
    if data.shape is None:
        return TensorType(data.dtype, None)
    shape = _signal_shape(data)
    if attrs.onesided:
        pair, what = (2, "spectrum is not complex") if attrs.inverse else (1, "signal is not real")
        require(shape[-1] in (pair, UNKNOWN) or not isinstance(shape[-1], int), f"the {what}")
    numbers = 1 if attrs.onesided and attrs.inverse else 2
    if attrs.axis is None and axis is not None:
        return TensorType(data.dtype, (*unknown_shape(len(shape) - 1), numbers))
    position = _signal_axis(attrs.axis, len(shape))
    length = _length(attrs.dft_length, dft_length, _default_length(attrs, shape[position]))
    require(not isinstance(length, int) or length > 0, f"a transform of length {length}")
    extents = list(shape[:-1])
    extents[position] = length // 2 + 1 if attrs.onesided and not attrs.inverse else length
    return TensorType(data.dtype, (*extents, numbers))


def _signal_shape(data: TensorType) -> Shape:
    shape = shape_of(data)
    require(len(shape) >= 2, f"a signal has an axis of samples and one of numbers, not {data}")
    last = shape[-1]
    require(last in (1, 2) or not isinstance(last, int), f"a sample has 1 or 2 numbers, not {last}")
    return shape


def _signal_axis(axis: int | None, rank: int) -> int:
    position = normalize_axis(-2 if axis is None else axis, rank)
    require(position < rank - 1, f"axis {axis} is that of real and imaginary part")
    return position


def _default_length(attrs: DftAttrs, extent: AnyDim) -> AnyDim:
    return (extent - 1) * 2 if attrs.inverse and attrs.onesided else extent


def _dft(attrs: DftAttrs, data: Array, dft_length: Array | None, axis: Array | None) -> Array:
    position = _signal_axis(attrs.axis if axis is None else int(axis.item()), data.ndim)
    length: Any = attrs.dft_length if dft_length is None else int(dft_length.item())
    if length is None:
        length = _default_length(attrs, data.shape[position])
    if length < 1:
        raise ValueError(f"a transform of length {length}")
    extents = [*data.shape[:position], length, *data.shape[position + 1 : -1]]
    check_extents(extents, np.dtype(np.complex128), "dft")
    signal = _numbers(data)
    if attrs.onesided and attrs.inverse:
        if data.shape[-1] != 2:
            raise ValueError("the spectrum is not complex")
        result = np.fft.irfft(signal, length, position)[..., None]
        return result.astype(data.dtype)
    if attrs.onesided and data.shape[-1] != 1:
        raise ValueError("the signal is not real")
    transform: Any = np.fft.ifft if attrs.inverse else np.fft.fft
    if attrs.onesided:
        transform = np.fft.rfft
    return _pairs(transform(signal, length, position)).astype(data.dtype)


def _numbers(data: Array) -> Array:
    """Real or complex numbers from what stands along the last axis."""
    wide = data.astype(np.float64 if data.dtype == np.float64 else np.float32, copy=False)
    if data.shape[-1] == 1:
        return wide[..., 0]
    return np.asarray(np.add(wide[..., 0], np.multiply(wide[..., 1], 1j)))


def _pairs(numbers: Array) -> Array:
    return np.stack([numbers.real, numbers.imag], axis=-1)


def _transform_flops(samples: AnyDim, length: AnyDim) -> AnyDim:
    levels = length.bit_length() if isinstance(length, int) else _USUAL_LEVELS
    return samples * (5 * levels)


def _dft_work(attrs: DftAttrs, ins: Sequence[Type | None], outs: Sequence[Type]) -> Work:
    data = ins[0]
    assert isinstance(data, TensorType)
    length: AnyDim = UNKNOWN
    if attrs.dft_length is not None:
        length = attrs.dft_length
    elif data.shape is not None and len(ins) < 3:
        length = data.shape[_signal_axis(attrs.axis, len(data.shape))]
    return Work(0, _transform_flops(data.size, length), traffic(ins, outs))


define(
    "dft",
    "data dft_length? axis?",
    _dft_type,
    _dft,
    attrs=DftAttrs,
    work=_dft_work,
    summary="the discrete Fourier transform along an axis, or its inverse",
)


@dataclass(frozen=True, slots=True)
class StftAttrs(Attrs):
    frame_step: Dim | None = None
    frame_length: Dim | None = None  # None: the window's, or else the signal's
    onesided: bool = True


def _stft_type(
    attrs: StftAttrs,
    data: TensorType,
    frame_step: TensorType | None,
    window: TensorType | None,
    frame_length: TensorType | None,
) -> TensorType:
    require(data.dtype.is_float, f"wants a floating-point signal, not {data.dtype}")
    require(window is None or window.dtype == data.dtype, "signal and window differ in dtype")
    require(data.rank in (None, 3), f"a batch of signals has rank 3, not {data.rank}")
    require(window is None or window.rank in (None, 1), f"the window is {window}, not a list")
    batch, samples, numbers = unknown_shape(3) if data.shape is None else _signal_shape(data)
    require(not attrs.onesided or numbers != 2, "a complex signal has no onesided spectrum")
    step = _length(attrs.frame_step, frame_step, UNKNOWN)
    require(attrs.frame_step is not None or frame_step is not None, "the frame step is missing")
    require(not isinstance(step, int) or step > 0, f"frames cannot lie {step} samples apart")
    default = samples
    if window is not None:
        (default,) = unknown_shape(1) if window.shape is None else window.shape
    length = _length(attrs.frame_length, frame_length, default)
    if window is not None:
        require_same_dim(length, default, "the lengths of frame and window")
    require(not isinstance(length, int) or length > 0, f"a frame of {length} samples")
    frames = (samples - length) // step + 1
    enough = not isinstance(frames, int) or frames >= 0
    require(enough, f"{samples} samples are too few for frames of {length}")
    bins = length // 2 + 1 if attrs.onesided else length
    return TensorType(data.dtype, (batch, frames, bins, 2))


def _stft(
    attrs: StftAttrs,
    data: Array,
    frame_step: Array | None,
    window: Array | None,
    frame_length: Array | None,
) -> Array:
    samples = data.shape[1]
    step: Any = attrs.frame_step if frame_step is None else int(frame_step.item())
    length: Any = attrs.frame_length if frame_length is None else int(frame_length.item())
    if length is None:
        length = samples if window is None else window.shape[0]
    if step < 1 or length < 1 or (window is not None and window.shape[0] != length):
        raise ValueError(f"frames of {length} samples, {step} apart, do not fit the window")
    count = (samples - length) // step + 1
    if count < 0:
        raise ValueError(f"{samples} samples are too few for frames of {length}")
    if attrs.onesided and data.shape[2] != 1:
        raise ValueError("a complex signal has no onesided spectrum")
    signal = _numbers(data)
    if count == 0:
        frames = np.zeros((len(signal), 0, length), signal.dtype)
    else:
        frames = sliding_window_view(signal, length, axis=1)[:, ::step]
    if window is not None:
        frames = frames * window.astype(signal.real.dtype)
    transform: Any = np.fft.rfft if attrs.onesided else np.fft.fft
    return _pairs(transform(frames, axis=2)).astype(data.dtype)


def _stft_work(attrs: StftAttrs, ins: Sequence[Type | None], outs: Sequence[Type]) -> Work:
    result = outs[0]
    assert isinstance(result, TensorType)
    length = UNKNOWN if attrs.frame_length is None else attrs.frame_length
    return Work(0, _transform_flops(result.size, length), traffic(ins, outs))


define(
    "stft",
    "data frame_step? window? frame_length?",
    _stft_type,
    _stft,
    attrs=StftAttrs,
    work=_stft_work,
    summary="Fourier transforms of overlapping frames of signals, times a window",
)


@dataclass(frozen=True, slots=True)
class MelAttrs(Attrs):
    num_mel_bins: Dim | None = None
    dft_length: Dim | None = None
    sample_rate: int | None = None
    lower_edge_hertz: float | None = None
    upper_edge_hertz: float | None = None
    dtype: DType = DType.FLOAT32


_MEL_OPERANDS = (
    "num_mel_bins",
    "dft_length",
    "sample_rate",
    "lower_edge_hertz",
    "upper_edge_hertz",
)


def _mel_type(attrs: MelAttrs, *operands: TensorType | None) -> TensorType:
    for name, operand in zip(_MEL_OPERANDS, operands, strict=True):
        given = operand is not None or getattr(attrs, name) is not None
        require(given, f"{name} is given neither as operand nor as attribute")
    require(attrs.dtype.is_float or attrs.dtype.is_integer, f"no matrix of {attrs.dtype}")
    bins = _length(attrs.num_mel_bins, operands[0], UNKNOWN)
    length = _length(attrs.dft_length, operands[1], UNKNOWN)
    return TensorType(attrs.dtype, (length // 2 + 1, bins))


def _mel(attrs: MelAttrs, *operands: Array | None) -> Array:
    bins, length, rate, lower, upper = (
        getattr(attrs, name) if operand is None else operand.item()
        for name, operand in zip(_MEL_OPERANDS, operands, strict=True)
    )
    check_extents((length // 2 + 1, bins), np.dtype(np.float64), "mel_weight_matrix")
    low, high = (2595 * np.log10(1 + float(hertz) / 700) for hertz in (lower, upper))
    edges = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    hertz = 700 * (10 ** (edges / 2595) - 1)
    left, centre, right = sliding_window_view(np.floor((length + 1) * hertz / rate), bins)
    at = np.arange(length // 2 + 1)[:, None]
    rising = (at - left) / np.where(centre > left, centre - left, 1)
    falling = (right - at) / np.where(right > centre, right - centre, 1)
    slope = np.where(at < centre, rising, falling)
    triangles = np.where((at > left) & (at < right), slope, 0)
    return np.where(at == centre, 1, triangles).astype(attrs.dtype.numpy)


define(
    "mel_weight_matrix",
    " ".join(f"{name}?" for name in _MEL_OPERANDS),
    _mel_type,
    _mel,
    attrs=MelAttrs,
    summary="weights that turn a spectrum into bands of the mel scale",
)
