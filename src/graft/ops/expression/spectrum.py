"""Discrete Fourier transforms as sums: of whole signals and of frames of them; mel filters.

Where all lengths are known, the transform is a product with a table of its factors, which runs as
fast as any product of matrices. Elsewhere the factors are computed, and the sums are of float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from graft.base.dims import AnyDim, dim_max
from graft.base.dtypes import DType, dtype_of
from graft.ir.types import TensorType
from graft.loop.build import Term, call, cast, equal, maximum, minimum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses, table
from graft.ops.expression.shapes import (
    by_index,
    extents_of,
    number,
    numbers,
    present,
    read,
    reduce_axes,
    single,
    sizes,
)
from graft.ops.resize import working_dtype
from graft.ops.rules import normalize_axis

# Transforms up to this length have their factors in a table.
_LONGEST = 1024
_WIDE = DType.FLOAT64


def _given(operand: Tensor | None, default: AnyDim) -> Term:
    """A length that an operand tells, or else an extent."""
    if operand is None:
        return term(default)
    return cast(INDEX, read(operand, [0] * len(operand.shape)))


def _factor(turn: tuple[Term, Term], length: Term, inverse: bool, parts: tuple[Term, Term]) -> Term:
    """What a part of a sample counts for in a part of a frequency: the cosine or the sine."""
    (sample, frequency), (given, wanted) = turn, parts
    whole = cast(_WIDE, sample * frequency % maximum(length, 1))
    angle = whole * (2 * math.pi) / cast(_WIDE, length)
    sine = call("sin", angle) * (1.0 if inverse else -1.0)
    crossed = select(equal(given, 0), sine, -sine)
    return select(equal(given, wanted), call("cos", angle), crossed)


def _factors(samples: int, frequencies: int, length: int, inverse: bool) -> Any:
    """The same as numbers [samples, frequencies, given part, wanted part]."""
    turns = np.outer(np.arange(samples), np.arange(frequencies)) % length
    angles = turns * (2 * np.pi / length)
    cosine, sine = np.cos(angles), np.sin(angles) * (1 if inverse else -1)
    return np.stack([np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)], 2)


@expresses("dft")
def dft(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Along one axis; what is missing of the length is zero, and what is beyond it is left out."""
    data, length, axis = present(inputs[0]), inputs[1], inputs[2]
    if axis is not None:
        return _along_axis_of_data(attrs, inputs, types, name)
    at = normalize_axis(-2 if attrs.axis is None else attrs.axis, len(data.shape))
    before, after = sizes(data)[at], extents_of(types[0])[at]
    default = before if attrs.dft_length is None else attrs.dft_length
    if attrs.inverse and attrs.onesided and attrs.dft_length is None:
        default = (before - 1) * 2
    known = [n for n in (before, after, default) if isinstance(n, int) and n <= _LONGEST]
    halved = attrs.inverse and attrs.onesided
    if length is None and len(known) == 3 and not halved and known[2] > 0:
        return _by_table(attrs, data, types, name, (at, known[2]))

    def shape(indices: tuple[Term, ...], sample: Term) -> tuple[list[Term], Term, Term]:
        place = [*indices[:at], sample, *indices[at + 1 : -1]]
        return place, indices[at], term(before)

    return _summed(attrs, data, types, name, (before, _given(length, default), shape))


_Place = Callable[[tuple[Term, ...], Term], tuple[list[Term], Term, Term]]


def _summed(
    attrs: Any,
    data: Tensor,
    types: Types,
    name: str,
    how: tuple[AnyDim, Term, _Place],
) -> Results:
    """`how` tells how many samples there may be, the length of the transform, and, per element of
    the result and sample, where the sample is, the frequency, and how many samples there are."""
    count, length, place = how
    (parts,) = numbers(sizes(data)[-1:], "the parts of a sample")
    halved = attrs.inverse and attrs.onesided

    def element(*indices: Term) -> Reduce:
        sample, part = reduce_axes([count, parts])
        at, frequency, have = place(indices, sample)
        factor = _factor((sample, frequency), length, attrs.inverse, (part, indices[-1]))
        counted = (sample < have) & (sample < length)
        if halved:  # every frequency but the first and the middle one stands for its mirror image
            counted = (sample < have) & (sample * 2 <= length)
            alone = equal(sample, 0) | equal(sample * 2, length)
            factor = select(alone, factor, factor * 2.0)
        value = cast(_WIDE, read(data, [*at, part])) * factor
        return sum_(select(counted, value, number(0, _WIDE)), [sample, part])

    total = by_index(f"{name}_sum", extents_of(types[0]), element)

    def scaled(*indices: Term) -> Term:
        value = read(total, indices)
        return cast(types[0].dtype, value / cast(_WIDE, length) if attrs.inverse else value)

    return (by_index(name, extents_of(types[0]), scaled),)


def _by_table(attrs: Any, data: Tensor, types: Types, name: str, where: tuple[int, int]) -> Results:
    (at, length), shape = where, extents_of(types[0])
    wide = dtype_of(working_dtype(types[0].dtype.numpy))
    (have, parts) = numbers((sizes(data)[at], sizes(data)[-1]), "extents")
    (frequencies,) = numbers(shape[at : at + 1], "extents")
    count = min(have, length)
    values = _factors(count, frequencies, length, attrs.inverse)
    values = values / length if attrs.inverse else values
    factors = table(f"{name}_factors", values[:, :, :parts].astype(wide.numpy))

    def element(*indices: Term) -> Reduce:
        sample, part = reduce_axes([count, parts])
        place = [*indices[:at], sample, *indices[at + 1 : -1], part]
        value = cast(wide, read(data, place))
        return sum_(value * factors[sample, indices[at], part, indices[-1]], [sample, part])

    total = by_index(f"{name}_sum", shape, element)
    return (by_index(name, shape, lambda *at: cast(types[0].dtype, read(total, at))),)


def _along_axis_of_data(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Along the axis that an operand names."""
    data, length, axis = present(inputs[0]), inputs[1], present(inputs[2])
    extents = sizes(data)[:-1]
    named = cast(INDEX, read(axis, [0] * len(axis.shape)))
    rank = len(data.shape)

    def chosen(of: Callable[[int], Term]) -> Term:
        found = of(0)
        for number_ in range(1, len(extents)):
            here = equal(named, number_) | equal(named, number_ - rank)
            found = select(here, of(number_), found)
        return found

    have = chosen(lambda n: term(extents[n]))
    default: Term | AnyDim = have if attrs.dft_length is None else attrs.dft_length
    if attrs.inverse and attrs.onesided and attrs.dft_length is None:
        default = (have - 1) * 2
    wanted = default if isinstance(default, Term) else term(default)

    def place(indices: tuple[Term, ...], sample: Term) -> tuple[list[Term], Term, Term]:
        at: list[Term] = []
        for n, extent in enumerate(extents):
            here = equal(named, n) | equal(named, n - rank)
            index = minimum(select(here, sample, indices[n]), term(extent) - 1)
            at.append(maximum(index, 0))
        return at, chosen(lambda n: indices[n]), have

    most = extents[0] if len(extents) == 1 else dim_max(*extents)
    if 0 in extents:
        return Unexpressed("there are no samples")
    told = wanted if length is None else _given(length, 0)
    return _summed(attrs, data, types, name, (most, told, place))


@expresses("stft")
def stft(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The spectra of frames, each times the window."""
    data, step, window, frame_length = present(inputs[0]), inputs[1], inputs[2], inputs[3]
    samples = sizes(data)[1]
    whole = samples if window is None else sizes(window)[0]
    length = attrs.frame_length if attrs.frame_length is not None else whole
    count = whole if frame_length is not None and window is None else length
    if samples == 0:
        return Unexpressed("there are no samples")
    (parts,) = numbers(sizes(data)[-1:], "the parts of a sample")
    frame, apart = _given(frame_length, length), _given(step, attrs.frame_step or 0)
    factors = _frame_factors(length if frame_length is None else None, parts, types[0], name)
    wide = _WIDE if factors is None else factors.dtype

    def element(batch: Term, position: Term, frequency: Term, wanted: Term) -> Reduce:
        sample, part = reduce_axes([count, parts])
        at = minimum(position * apart + sample, term(samples) - 1)
        value = cast(wide, read(data, [batch, maximum(at, 0), part]))
        if window is not None:
            value = value * cast(wide, read(window, [sample]))
        if factors is not None:
            return sum_(value * factors[sample, frequency, part, wanted], [sample, part])
        factor = _factor((sample, frequency), frame, False, (part, wanted))
        return sum_(select(sample < frame, value * factor, number(0, wide)), [sample, part])

    total = by_index(f"{name}_sum", extents_of(types[0]), element)
    shape = extents_of(types[0])
    return (by_index(name, shape, lambda *at: cast(types[0].dtype, read(total, at))),)


def _frame_factors(
    length: AnyDim | None, parts: int, type_: TensorType, name: str
) -> Tensor | None:
    """The factors of frames as a table, if their length is known and not too large."""
    bins = extents_of(type_)[2]
    if not isinstance(length, int) or not isinstance(bins, int) or not 0 < length <= _LONGEST:
        return None
    values = _factors(length, bins, length, False)[:, :, :parts]
    return table(f"{name}_factors", values.astype(working_dtype(type_.dtype.numpy)))


@expresses("mel_weight_matrix")
def mel_weight_matrix(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Triangles over the frequencies of a spectrum, between edges that lie evenly in mels."""
    rows, bins = extents_of(types[0])
    length = _given(inputs[1], attrs.dft_length)
    rate, lower, upper = (
        number(attribute, _WIDE) if operand is None else cast(_WIDE, single(operand))
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
        place = (first + cast(_WIDE, at) * step) / 2595.0
        hertz = (call("pow", number(10, _WIDE), place) - 1.0) * 700.0
        return call("floor", cast(_WIDE, length + 1) * hertz / rate)

    edges = by_index(f"{name}_edges", [bins + 2], edge)

    def element(row: Term, column: Term) -> Term:
        left, centre, right = (read(edges, [column + shift]) for shift in range(3))
        at, one, nothing = cast(_WIDE, row), number(1, _WIDE), number(0, _WIDE)
        rising = (at - left) / select(centre > left, centre - left, one)
        falling = (right - at) / select(right > centre, right - centre, one)
        slope = select(at < centre, rising, falling)
        value = select((at > left) & (at < right), slope, nothing)
        return cast(types[0].dtype, select(equal(at, centre), one, value))

    return (by_index(name, [rows, bins], element),)
