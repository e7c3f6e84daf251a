"""Signals and spectra: the discrete Fourier transform, whole or in frames, and mel filters.

A complex number is a pair along the last axis; a real signal has one number there. Lengths, axes
and frequencies may be operands or attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from graft.base.capacity import check_extents
from graft.base.dims import UNKNOWN, AnyDim, Dim, dim_max
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs
from graft.ir.op import Work, traffic
from graft.ir.types import Shape, TensorType
from graft.loop.build import Term, call, cast, equal, maximum, minimum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops import expression as te
from graft.ops.resize import working_dtype
from graft.ops.rules import (
    normalize_axis,
    operator,
    require,
    require_same_dim,
    shape_of,
    unknown_shape,
)

# Levels of a fast transform whose length is not known: that of about a thousand samples.
_USUAL_LEVELS = 10


@dataclass(frozen=True, slots=True)
class DftAttrs(Attrs):
    dft_length: Dim | None = None  # None: what the data are long
    axis: int | None = None  # None: the last axis of the signal
    inverse: bool = False
    onesided: bool = False  # the spectrum of a real signal, without its mirrored half


def _length(attribute: Dim | None, operand: TensorType | None, default: AnyDim) -> AnyDim:
    """An extent: an attribute, an operand, or else the default."""
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


def _numbers(data: Array) -> Array:
    """Real or complex numbers from the last axis, which holds their parts."""
    wide = data.astype(np.float64 if data.dtype == np.float64 else np.float32, copy=False)
    if data.shape[-1] == 1:
        return wide[..., 0]
    return np.asarray(np.add(wide[..., 0], np.multiply(wide[..., 1], 1j)))


def _pairs(numbers: Array) -> Array:
    return np.stack([numbers.real, numbers.imag], axis=-1)


def _transform_flops(samples: AnyDim, length: AnyDim) -> AnyDim:
    levels = length.bit_length() if isinstance(length, int) else _USUAL_LEVELS
    return samples * (5 * levels)


def _dft_work(attrs: DftAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    data = ins[0]
    length: AnyDim = UNKNOWN
    if attrs.dft_length is not None:
        length = attrs.dft_length
    elif data.shape is not None and len(ins) < 3:
        length = data.shape[_signal_axis(attrs.axis, len(data.shape))]
    return Work(0, _transform_flops(data.size, length), traffic(ins, outs))


@operator("dft", "data dft_length? axis?", _dft_type, work=_dft_work)
def _dft(attrs: DftAttrs, data: Array) -> Array:
    """The discrete Fourier transform along an axis, or its inverse."""
    position = _signal_axis(attrs.axis, data.ndim)
    length: Any = attrs.dft_length
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


def _stft_work(attrs: StftAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    result = outs[0]
    length = UNKNOWN if attrs.frame_length is None else attrs.frame_length
    return Work(0, _transform_flops(result.size, length), traffic(ins, outs))


@operator("stft", "data frame_step? window? frame_length?", _stft_type, work=_stft_work)
def _stft(attrs: StftAttrs, data: Array, window: Array | None) -> Array:
    """Fourier transforms of overlapping frames of signals, times a window."""
    samples = data.shape[1]
    step: Any = attrs.frame_step
    length: Any = attrs.frame_length
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
        has_value = operand is not None or getattr(attrs, name) is not None
        require(has_value, f"{name} is given neither as operand nor as attribute")
    require(attrs.dtype.is_float or attrs.dtype.is_integer, f"no matrix of {attrs.dtype}")
    bins = _length(attrs.num_mel_bins, operands[0], UNKNOWN)
    length = _length(attrs.dft_length, operands[1], UNKNOWN)
    return TensorType(attrs.dtype, (length // 2 + 1, bins))


@operator("mel_weight_matrix", " ".join(f"{name}?" for name in _MEL_OPERANDS), _mel_type)
def _mel(attrs: MelAttrs) -> Array:
    """Weights that turn a spectrum into bands of the mel scale."""
    bins, length, rate, lower, upper = (getattr(attrs, name) for name in _MEL_OPERANDS)
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


# Tensor expressions: transforms as sums. Where all lengths are known, the transform is a product
# with a table of its factors, which runs as fast as any product of matrices. Elsewhere the factors
# are computed, and the sums are of float64.


# Transforms up to this length have their factors in a table.
_LONGEST = 1024


_WIDE = DType.FLOAT64


def _length_term(operand: Tensor | None, default: AnyDim) -> Term:
    """A length: the operand, or else an extent."""
    if operand is None:
        return term(default)
    return cast(INDEX, te.read(operand, [0] * len(operand.shape)))


def _factor(at: tuple[Term, Term], length: Term, inverse: bool, parts: tuple[Term, Term]) -> Term:
    """What a part of a sample counts for in a part of a frequency: the cosine or the sine."""
    (sample, frequency), (given, expected) = at, parts
    whole = cast(_WIDE, sample * frequency % maximum(length, 1))
    angle = whole * (2 * math.pi) / cast(_WIDE, length)
    sine = call("sin", angle) * (1.0 if inverse else -1.0)
    crossed = select(equal(given, 0), sine, -sine)
    return select(equal(given, expected), call("cos", angle), crossed)


def fourier_factors(samples: int, frequencies: int, length: int, inverse: bool) -> Any:
    """What samples count for in frequencies: cosines and sines.

    An array [samples, frequencies, part of the sample, part of the result]."""
    cycles = np.outer(np.arange(samples), np.arange(frequencies)) % length
    angles = cycles * (2 * np.pi / length)
    cosine, sine = np.cos(angles), np.sin(angles) * (1 if inverse else -1)
    return np.stack([np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)], 2)


@te.expresses("dft")
def _express_dft(
    attrs: Any, out: te.Out, data: Tensor, length: Tensor | None, axis: Tensor | None
) -> te.Results:
    """Along one axis; what is missing of the length is zero, and what is beyond it is left out."""
    if axis is not None:
        return _along_axis_of_data(attrs, out, data, length, axis)
    at = normalize_axis(-2 if attrs.axis is None else attrs.axis, len(data.shape))
    before, after = te.sizes(data)[at], out.shape[at]
    default = before if attrs.dft_length is None else attrs.dft_length
    if attrs.inverse and attrs.onesided and attrs.dft_length is None:
        default = (before - 1) * 2
    lengths = [n for n in (before, after, default) if isinstance(n, int) and n <= _LONGEST]
    halved = attrs.inverse and attrs.onesided
    if length is None and len(lengths) == 3 and not halved and lengths[2] > 0:
        return _by_table(attrs, out, data, (at, lengths[2]))

    def shape(indices: tuple[Term, ...], sample: Term) -> tuple[list[Term], Term, Term]:
        position = [*indices[:at], sample, *indices[at + 1 : -1]]
        return position, indices[at], term(before)

    return _dft_sum(attrs, out, data, (before, _length_term(length, default), shape))


_Place = Callable[[tuple[Term, ...], Term], tuple[list[Term], Term, Term]]


def _dft_sum(attrs: Any, out: te.Out, data: Tensor, how: tuple[AnyDim, Term, _Place]) -> te.Results:
    """`how` tells how many samples there may be, the length of the transform, and, per element of
    the result and sample, where the sample is, the frequency, and how many samples there are."""
    count, length, position = how
    (parts,) = te.numbers(te.sizes(data)[-1:], "the parts of a sample")
    halved = attrs.inverse and attrs.onesided

    def element(*indices: Term) -> Reduce:
        sample, part = te.reduce_axes([count, parts])
        at, frequency, have = position(indices, sample)
        factor = _factor((sample, frequency), length, attrs.inverse, (part, indices[-1]))
        counted = (sample < have) & (sample < length)
        if halved:  # every frequency but the first and the middle one stands for its mirror image
            counted = (sample < have) & (sample * 2 <= length)
            alone = equal(sample, 0) | equal(sample * 2, length)
            factor = select(alone, factor, factor * 2.0)
        value = cast(_WIDE, te.read(data, [*at, part])) * factor
        return sum_(select(counted, value, te.number(0, _WIDE)), [sample, part])

    total = te.by_index(f"{out.name}_sum", out.shape, element)

    def scaled(*indices: Term) -> Term:
        value = te.read(total, indices)
        return cast(out.dtype, value / cast(_WIDE, length) if attrs.inverse else value)

    return out.of(scaled)


def _by_table(attrs: Any, out: te.Out, data: Tensor, where: tuple[int, int]) -> te.Results:
    (at, length), shape = where, out.shape
    wide = dtype_of(working_dtype(out.dtype.numpy))
    (have, parts) = te.numbers((te.sizes(data)[at], te.sizes(data)[-1]), "extents")
    (frequencies,) = te.numbers(shape[at : at + 1], "extents")
    count = min(have, length)
    values = fourier_factors(count, frequencies, length, attrs.inverse)
    values = values / length if attrs.inverse else values
    factors = te.table(f"{out.name}_factors", values[:, :, :parts].astype(wide.numpy))

    def element(*indices: Term) -> Reduce:
        sample, part = te.reduce_axes([count, parts])
        position = [*indices[:at], sample, *indices[at + 1 : -1], part]
        value = cast(wide, te.read(data, position))
        return sum_(value * factors[sample, indices[at], part, indices[-1]], [sample, part])

    total = te.by_index(f"{out.name}_sum", shape, element)
    return out.of(lambda *at: cast(out.dtype, te.read(total, at)))


def _along_axis_of_data(
    attrs: Any, out: te.Out, data: Tensor, length: Tensor | None, axis: Tensor
) -> te.Results:
    """The transform along an axis that is known only at run time."""
    extents = te.sizes(data)[:-1]
    named = cast(INDEX, te.read(axis, [0] * len(axis.shape)))
    rank = len(data.shape)

    def chosen(of: Callable[[int], Term]) -> Term:
        result = of(0)
        for number_ in range(1, len(extents)):
            here = equal(named, number_) | equal(named, number_ - rank)
            result = select(here, of(number_), result)
        return result

    have = chosen(lambda n: term(extents[n]))
    default: Term | AnyDim = have if attrs.dft_length is None else attrs.dft_length
    if attrs.inverse and attrs.onesided and attrs.dft_length is None:
        default = (have - 1) * 2
    count = default if isinstance(default, Term) else term(default)

    def sample_position(indices: tuple[Term, ...], sample: Term) -> tuple[list[Term], Term, Term]:
        at: list[Term] = []
        for n, extent in enumerate(extents):
            here = equal(named, n) | equal(named, n - rank)
            index = minimum(select(here, sample, indices[n]), term(extent) - 1)
            at.append(maximum(index, 0))
        return at, chosen(lambda n: indices[n]), have

    most = extents[0] if len(extents) == 1 else dim_max(*extents)
    if 0 in extents:
        return te.Unexpressed("there are no samples")
    return _dft_sum(
        attrs,
        out,
        data,
        (most, count if length is None else _length_term(length, 0), sample_position),
    )


@te.expresses("stft")
def _express_stft(
    attrs: Any,
    out: te.Out,
    data: Tensor,
    step: Tensor | None,
    window: Tensor | None,
    frame_length: Tensor | None,
) -> te.Results:
    """The spectra of frames, each times the window."""
    samples = te.sizes(data)[1]
    whole = samples if window is None else te.sizes(window)[0]
    length = attrs.frame_length if attrs.frame_length is not None else whole
    count = whole if frame_length is not None and window is None else length
    if samples == 0:
        return te.Unexpressed("there are no samples")
    (parts,) = te.numbers(te.sizes(data)[-1:], "the parts of a sample")
    frame, apart = _length_term(frame_length, length), _length_term(step, attrs.frame_step or 0)
    factors = _frame_factors(length if frame_length is None else None, parts, out)
    wide = _WIDE if factors is None else factors.dtype

    def element(batch: Term, position: Term, frequency: Term, expected: Term) -> Reduce:
        sample, part = te.reduce_axes([count, parts])
        at = minimum(position * apart + sample, term(samples) - 1)
        value = cast(wide, te.read(data, [batch, maximum(at, 0), part]))
        if window is not None:
            value = value * cast(wide, te.read(window, [sample]))
        if factors is not None:
            return sum_(value * factors[sample, frequency, part, expected], [sample, part])
        factor = _factor((sample, frequency), frame, False, (part, expected))
        return sum_(select(sample < frame, value * factor, te.number(0, wide)), [sample, part])

    total = te.by_index(f"{out.name}_sum", out.shape, element)
    return out.of(lambda *at: cast(out.dtype, te.read(total, at)))


def _frame_factors(length: AnyDim | None, parts: int, out: te.Out) -> Tensor | None:
    """The factors of frames as a table, if their length is known and not too large."""
    bins = out.shape[2]
    if not isinstance(length, int) or not isinstance(bins, int) or not 0 < length <= _LONGEST:
        return None
    values = fourier_factors(length, bins, length, False)[:, :, :parts]
    return te.table(f"{out.name}_factors", values.astype(working_dtype(out.dtype.numpy)))


@te.expresses("mel_weight_matrix")
def _express_mel_weight_matrix(attrs: Any, out: te.Out, *inputs: Tensor | None) -> te.Results:
    """Triangles over the frequencies of a spectrum, between edges that lie evenly in mels."""
    bins = out.shape[1]
    length = _length_term(inputs[1], attrs.dft_length)
    rate, lower, upper = (
        te.number(attribute, _WIDE) if operand is None else cast(_WIDE, te.single(operand))
        for attribute, operand in zip(
            (attrs.sample_rate, attrs.lower_edge_hertz, attrs.upper_edge_hertz),
            inputs[2:],
            strict=True,
        )
    )

    def mels(hertz: Term) -> Term:
        return call("log", hertz / 700.0 + 1.0) * (2595 / math.log(10))

    def edge(at: Term) -> Term:
        """Which frequency of the spectrum an edge belongs to."""
        first = mels(lower)
        step = (mels(upper) - first) / cast(_WIDE, term(bins) + 2)
        position = (first + cast(_WIDE, at) * step) / 2595.0
        hertz = (call("pow", te.number(10, _WIDE), position) - 1.0) * 700.0
        return call("floor", cast(_WIDE, length + 1) * hertz / rate)

    edges = te.by_index(f"{out.name}_edges", [bins + 2], edge)

    def element(row: Term, column: Term) -> Term:
        left, centre, right = (te.read(edges, [column + shift]) for shift in range(3))
        at, one, nothing = cast(_WIDE, row), te.number(1, _WIDE), te.number(0, _WIDE)
        rising = (at - left) / select(centre > left, centre - left, one)
        falling = (right - at) / select(right > centre, right - centre, one)
        slope = select(at < centre, rising, falling)
        value = select((at > left) & (at < right), slope, nothing)
        return cast(out.dtype, select(equal(at, centre), one, value))

    return out.of(element)
