"""Kernels of integer arithmetic on HVX, Hexagon's vectors of 128 bytes, as loop IR.

Images are NHWC: a vector holds channels of one pixel. Products of bytes are summed in words by
`vrmpy` (four products for each of 32 channels), and one multiplication makes codes of the sums.

Vectors are always whole. Where a row is no multiple of 128 bytes, the last store of it runs over
into what follows, which is written later; behind a buffer there is `SLACK` for that. So kernels
write in the order of addresses, and none needs a mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graft.base.dtypes import DType
from graft.loop.build import Operand, Term, binary, call, cast, maximum, minimum, term
from graft.loop.ir import BinaryKind, Buffer, Const, Function
from graft.loop.writer import Writer, vector

VECTOR = SLACK = 128  # bytes
WORDS = 32  # of a vector
_SUMS = 16  # vectors of sums that are kept in registers
_MOST_PIXELS = 8  # that are computed side by side
_UNROLLED = 16  # products of a window that are written one by one


class Kernel(Writer):
    """A kernel while it is written; all buffers are the region's."""

    def tensor(self, name: str, dtype: DType, count: int) -> Buffer:
        """A tensor with the slack behind it."""
        return self.parameter(name, dtype, count + SLACK // dtype.numpy.itemsize, VECTOR)

    def words(self, name: str, count: int) -> Buffer:
        """Words in vector registers."""
        return self.registers(name, DType.INT32, count, VECTOR)

    @contextmanager
    def vectors(self, count: int) -> Iterator[Term]:
        """A loop over so many bytes: where each vector begins."""
        with self.loop(-(-count // VECTOR)) as number:
            yield number * VECTOR


def shifted(words: Term, bits: int) -> Term:
    """Words times a power of two, rounded downwards."""
    kind = BinaryKind.SHIFT_LEFT if bits >= 0 else BinaryKind.SHIFT_RIGHT
    return binary(kind, words, abs(bits)) if bits else words


def scaled(words: Term, left: int, multiplier: Operand) -> Term:
    """Words, shifted left, times a multiplier of 32 bits: the upper half of the product."""
    factor = cast(DType.INT64, term(multiplier, DType.INT32))
    product = cast(DType.INT64, shifted(words, left)) * factor
    return cast(DType.INT32, shifted(product, -32))


@dataclass(frozen=True, slots=True)
class Codes:
    """How sums become codes: shifted left, multiplied, shifted right; then what codes may be."""

    dtype: DType
    left: int
    right: int
    zero: int
    low: int
    high: int

    def of(self, sums: Term, multiplier: Operand) -> Term:
        """Words that hold the codes of sums."""
        return self.rounded(scaled(sums, self.left, multiplier))

    def rounded(self, words: Term) -> Term:
        """Words that hold the codes of what is scaled already: halves are rounded upwards."""
        nearest = shifted(words + (1 << self.right - 1), -self.right)
        return minimum(maximum(nearest + self.zero, self.low), self.high)


@dataclass(frozen=True, slots=True)
class Operand8:
    """Codes of a tensor that is combined with others: what is subtracted, and what multiplies."""

    dtype: DType
    zero: int
    multiplier: int = 0
    left: int = 0

    def words(self, buffer: Buffer, index: Operand) -> Term:
        difference = cast(DType.INT32, vector(buffer, index, VECTOR)) - self.zero
        return scaled(difference, self.left, self.multiplier) if self.left else difference


@dataclass(frozen=True, slots=True)
class Window:
    """Where a kernel reads for each pixel of its result, in elements of what it reads.

    `result` counts images, rows and columns, `steps` is how far their windows are apart, `taps`
    counts rows and columns of a window, and `reach` is how far these are apart."""

    result: tuple[int, int, int]
    steps: tuple[int, int, int]
    taps: tuple[int, int]
    reach: tuple[int, int]

    @property
    def pixels(self) -> int:
        return math.prod(self.result)

    @property
    def elements(self) -> int:
        """From the first that is read to the last."""
        extents = zip((*self.result, *self.taps), (*self.steps, *self.reach), strict=True)
        return sum((count - 1) * step for count, step in extents)


def _channel_blocks(kernel: Kernel, channels: int) -> Iterator[tuple[Term, Term, int]]:
    """Number, first channel and vectors of words of blocks of up to 128 channels.

    The last one, which runs over into the next pixel, comes first: others repair that."""
    whole, rest = divmod(channels, VECTOR)
    if rest:
        yield term(whole), term(whole * VECTOR), -(-rest // WORDS)
    if whole:
        with kernel.loop(whole) as number:
            yield number, number * VECTOR, VECTOR // WORDS


def product_kernel(
    window: Window, run: int, channels: int, codes: Codes, added: Operand8 | None = None
) -> Function:
    """Convolutions and products of matrices: each tap of a window is `run` words of data.

    Weights are vectors of 32 channels, four bytes of each: of a block of up to four such vectors
    first all products of a tap, then the next. `bias` and `multiplier` are for single channels,
    and `added` is a tensor like the result."""
    images, rows, columns = window.result
    kernel = Kernel()
    padded = -(-channels // WORDS) * WORDS
    depth = math.prod(window.taps) * run
    data = kernel.tensor("data", DType.INT32, window.elements + run)
    weights = kernel.tensor("weights", DType.INT32, depth * padded)
    bias, multiplier = (kernel.tensor(name, DType.INT32, padded) for name in ("bias", "multiplier"))
    finish = _Finish(kernel, window.pixels * channels, codes, added)
    sums = kernel.words("sums", _SUMS * WORDS)
    words = kernel.words("words", VECTOR)
    most = min(columns, _MOST_PIXELS, _SUMS // min(-(-channels // WORDS), 4))
    with (
        kernel.loop(images) as image,
        kernel.loop(rows) as row,
        kernel.loop(-(-columns // most)) as tile,
    ):
        column = minimum(tile * most, columns - most)  # the last tile overlaps the one before
        pixel = (image * rows + row) * columns + column
        start = image * window.steps[0] + row * window.steps[1] + column * window.steps[2]
        for block, channel, vectors in _channel_blocks(kernel, channels):
            places = [(p, q) for p in range(most) for q in range(vectors)]
            for p, q in places:
                first = vector(bias, channel + q * WORDS, WORDS)
                kernel.store(sums, (p * vectors + q) * WORDS, first)
            with (
                kernel.loop(window.taps[0]) as down,
                kernel.loop(window.taps[1]) as across,
                kernel.loop(run) as word,
            ):
                tap = start + down * window.reach[0] + across * window.reach[1] + word
                depth_now = (down * window.taps[1] + across) * run + word
                weight = block * (depth * VECTOR) + depth_now * (vectors * WORDS)
                for p, q in places:
                    place = (p * vectors + q) * WORDS
                    four = vector(data, tap + p * window.steps[2], 1)
                    known = vector(weights, weight + q * WORDS, WORDS)
                    total = call("dot4", four, known, vector(sums, place, WORDS))
                    kernel.store(sums, place, total)
            for p in range(most):
                for q in range(vectors):
                    total = vector(sums, (p * vectors + q) * WORDS, WORDS)
                    factor = vector(multiplier, channel + q * WORDS, WORDS)
                    kernel.store(words, q * WORDS, finish.scaled(total, factor))
                finish.store((pixel + p) * channels + channel, words)
    return kernel.function("product")


class _Finish:
    """How the sums of a kernel become its result: scaled, added to, rounded and stored."""

    def __init__(self, kernel: Kernel, count: int, codes: Codes, added: Operand8 | None) -> None:
        self._kernel, self._codes, self._added = kernel, codes, added
        self._other = kernel.tensor("added", added.dtype, count) if added else None
        self._result = kernel.tensor("result", codes.dtype, count)

    def scaled(self, sums: Term, multiplier: Operand) -> Term:
        """Words that hold codes, or what they are made of once something is added."""
        words = scaled(sums, self._codes.left, multiplier)
        return words if self._added else self._codes.rounded(words)

    def store(self, index: Operand, words: Buffer) -> None:
        """The codes of 128 elements."""
        total = vector(words, 0, VECTOR)
        if self._added and self._other:
            total = self._codes.rounded(total + self._added.words(self._other, index))
        self._kernel.store(self._result, index, cast(self._codes.dtype, total))


def window_kernel(
    window: Window,
    channels: int,
    codes: Codes,
    is_weighted: bool = False,
    is_max: bool = False,
    added: Operand8 | None = None,
) -> Function:
    """Depthwise convolutions and pools: channels have windows of their own."""
    images, rows, columns = window.result
    kernel, taps = Kernel(), math.prod(window.taps)
    data = kernel.tensor("data", DType.UINT8, window.elements + channels)
    weights = kernel.tensor("weights", DType.INT8, taps * channels) if is_weighted else None
    padded = -(-channels // VECTOR) * VECTOR
    bias, multiplier = (kernel.tensor(name, DType.INT32, padded) for name in ("bias", "multiplier"))
    finish = _Finish(kernel, window.pixels * channels, codes, added)
    words = kernel.words("words", VECTOR)
    unrolled = taps <= _UNROLLED
    with kernel.loop(images) as image, kernel.loop(rows) as row, kernel.loop(columns) as column:
        pixel = (image * rows + row) * columns + column
        start = image * window.steps[0] + row * window.steps[1] + column * window.steps[2]
        for _, channel, _ in _channel_blocks(kernel, channels):
            kernel.store(words, 0, Term(Const(0, DType.INT32, VECTOR)))
            with (
                kernel.loop(window.taps[0], unrolled) as down,
                kernel.loop(window.taps[1], unrolled) as across,
            ):
                tap = start + down * window.reach[0] + across * window.reach[1] + channel
                number = (down * window.taps[1] + across) * channels
                total, wide = vector(words, 0, VECTOR), cast(DType.INT16, vector(data, tap, VECTOR))
                if weights is not None:  # products of bytes fit into 16 bits
                    wide = wide * cast(DType.INT16, vector(weights, number + channel, VECTOR))
                codes_here = cast(DType.INT32, wide)
                total = maximum(total, codes_here) if is_max else total + codes_here
                kernel.store(words, 0, total)
            total = vector(words, 0, VECTOR) + vector(bias, channel, VECTOR)
            kernel.store(words, 0, finish.scaled(total, vector(multiplier, channel, VECTOR)))
            finish.store(pixel * channels + channel, words)
    return kernel.function("window")


def pointwise_kernel(
    operands: tuple[Operand8, ...], count: int, codes: Codes, multiplier: int
) -> Function:
    """Sums of scaled codes, or one multiplied product of codes, element by element.

    Operands with multipliers of their own are added and rounded; others are multiplied."""
    kernel = Kernel()
    buffers = [kernel.tensor(f"data{n}", one.dtype, count) for n, one in enumerate(operands)]
    result = kernel.tensor("result", codes.dtype, count)
    with kernel.vectors(count) as index:
        words = [one.words(b, index) for one, b in zip(operands, buffers, strict=True)]
        total = words[0]
        for other in words[1:]:
            total = total * other if multiplier else total + other
        total = codes.of(total, multiplier) if multiplier else codes.rounded(total)
        kernel.store(result, index, cast(codes.dtype, total))
    return kernel.function("pointwise")


@dataclass(frozen=True, slots=True)
class Border:
    """Images and what surrounds them: images, rows, columns, channels, and pads as TOSA has them:
    above, to the left, below, to the right."""

    shape: tuple[int, int, int, int]
    pads: tuple[int, int, int, int]
    channels: int  # with those that fill up words

    @property
    def extents(self) -> tuple[int, int, int, int]:
        images, rows, columns, _ = self.shape
        top, left, bottom, right = self.pads
        return images, rows + top + bottom, columns + left + right, self.channels


def border_kernel(border: Border, dtype: DType, fill: int) -> Function:
    """Copies images of codes into larger ones of unsigned bytes."""
    images, rows, columns, channels = border.shape
    top, left, bottom, right = border.pads
    wide, kernel = border.channels, Kernel()
    row_bytes = (columns + left + right) * wide
    data = kernel.tensor("data", dtype, math.prod(border.shape))
    result = kernel.tensor("result", DType.UINT8, math.prod(border.extents))
    filled = Term(Const(fill, DType.UINT8, VECTOR))

    def fill_up(start: Term, count: int) -> None:
        with kernel.vectors(count) as at:
            kernel.store(result, start + at, filled)

    def copy(target: Term, source: Term, count: int) -> None:
        with kernel.vectors(count) as at:
            codes = vector(data, source + at, VECTOR)
            # Signed codes are 128 above, which inverts their first bit.
            flipped = codes ^ -128 if dtype is DType.INT8 else codes
            kernel.store(result, target + at, cast(DType.UINT8, flipped))

    with kernel.loop(images) as image:
        first = image * (border.extents[1] * row_bytes)
        fill_up(first, top * row_bytes)
        with kernel.loop(rows) as row:
            target = first + (row + top) * row_bytes
            source = (image * rows + row) * (columns * channels)
            fill_up(target, left * wide)
            if wide == channels:
                copy(target + left * wide, source, columns * wide)
            else:
                with kernel.loop(columns) as column:
                    copy(target + (column + left) * wide, source + column * channels, channels)
            fill_up(target + (left + columns) * wide, right * wide)
        fill_up(first + (rows + top) * row_bytes, bottom * row_bytes)
    return kernel.function("border")


def join_kernel(dtype: DType, rows: int, widths: tuple[int, ...]) -> Function:
    """Concatenates along the last axis: rows of several tensors side by side."""
    kernel, total = Kernel(), sum(widths)
    parts = [kernel.tensor(f"data{n}", dtype, rows * one) for n, one in enumerate(widths)]
    result = kernel.tensor("result", dtype, rows * total)
    with kernel.loop(rows) as row:
        for number, (part, width) in enumerate(zip(parts, widths, strict=True)):
            start = row * total + sum(widths[:number])
            with kernel.vectors(width) as at:
                kernel.store(result, start + at, vector(part, row * width + at, VECTOR))
    return kernel.function("join")
