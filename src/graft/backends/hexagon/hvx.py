"""Kernels of integer arithmetic on HVX, Hexagon's vectors of 128 bytes, as loop IR.

Images are NHWC: a vector holds channels of one pixel. Products of bytes are summed in words by
`vrmpy` (four products for each of 32 channels), and one multiplication makes codes of the sums.

Vectors are always whole. Where a row is no multiple of 128 bytes, the last store of it runs over
into what follows, which is written later; behind a buffer there is `SLACK` for that. So kernels
write in the order of addresses, and none needs a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from graft.base.dtypes import DType
from graft.loop.build import Operand, Term, call, cast, load, maximum, minimum, term
from graft.loop.ir import Buffer, Const, Function, LoopKind, Scope
from graft.loop.names import unique_names
from graft.loop.statements import StatementBuilder, store_vector, vector
from graft.loop.verify import verify

VECTOR = SLACK = 128  # bytes
WORDS = 32  # of a vector
_SUMS = 16  # vectors of sums that are kept in registers
_MOST_PIXELS = 8  # that are computed side by side
_UNROLLED = 16  # products of a window that are written one by one


def tensor(name: str, dtype: DType, count: int) -> Buffer:
    """A tensor of the region's, with the slack behind it."""
    extent = Const(count + SLACK // dtype.numpy.itemsize)
    return Buffer(name, dtype, (extent,), alignment=VECTOR)


def registers(name: str, count: int) -> Buffer:
    """Words in vector registers."""
    return Buffer(name, DType.INT32, (Const(count),), Scope.REGISTER, alignment=VECTOR)


def kernel(name: str, tensors: Sequence[Buffer], code: StatementBuilder) -> Function:
    """The kernel of some code, which works on tensors."""
    named = unique_names(code.statement(), [one.name for one in tensors])
    return verify(Function(name, tuple(tensors), named))


@contextmanager
def each_vector(code: StatementBuilder, count: int) -> Iterator[Term]:
    """A loop over vectors of so many bytes: where each begins."""
    with code.loop("vector", -(-count // VECTOR)) as number:
        yield number * VECTOR


def scaled(words: Term, left: int, multiplier: Operand) -> Term:
    """Words, shifted left, times a multiplier of 32 bits: the upper half of the product."""
    factor = cast(DType.INT64, term(multiplier, DType.INT32))
    return cast(DType.INT32, cast(DType.INT64, words << left) * factor >> 32)


@dataclass(frozen=True, slots=True)
class Codes:
    """How sums become codes: shifted left, multiplied, shifted right; then what codes may be."""

    dtype: DType
    left: int
    right: int
    zero: int
    low: int
    high: int

    def rounded(self, words: Term) -> Term:
        """Words that hold the codes of what is scaled already: halves are rounded upwards."""
        nearest = words + (1 << self.right - 1) >> self.right
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
    def elements(self) -> int:
        """From the first that is read to the last."""
        extents = zip((*self.result, *self.taps), (*self.steps, *self.reach), strict=True)
        return sum((count - 1) * step for count, step in extents)

    def each_block(
        self,
        code: StatementBuilder,
        channels: int,
        together: int,
        body: Callable[[Term, Term, Term, int], None],
    ) -> None:
        """The body on each block of up to 128 channels of so many pixels: on the first pixel's
        number, where its window begins, the number of the block, and its vectors of words.

        The last block, which runs over into the next pixel, comes first: others repair that."""
        (images, rows, columns), (whole, rest) = self.result, divmod(channels, VECTOR)
        with (
            code.loop("image", images) as image,
            code.loop("row", rows) as row,
            code.loop("tile", -(-columns // together)) as tile,
        ):
            # The last tile overlaps the one before.
            column = minimum(tile * together, columns - together) if together > 1 else tile
            pixel = (image * rows + row) * columns + column
            start = image * self.steps[0] + row * self.steps[1] + column * self.steps[2]
            if rest:
                body(pixel, start, term(whole), -(-rest // WORDS))
            with code.loop("block", whole) as number:
                body(pixel, start, number, VECTOR // WORDS)

    def tap(self, start: Term, down: Term, across: Term) -> Term:
        """Where a window that begins at `start` has one of its taps."""
        return start + down * self.reach[0] + across * self.reach[1]


class _Finish:
    """How the sums of a kernel become its result: scaled, added to, rounded and stored.

    `bias` and `multiplier` are for single channels, and `added` is a tensor like the result."""

    def __init__(
        self,
        code: StatementBuilder,
        count: int,
        channels: int,
        codes: Codes,
        added: Operand8 | None,
    ) -> None:
        self._code, self._codes, self._added = code, codes, added
        self.words = registers("words", VECTOR)
        self.bias = tensor("bias", DType.INT32, channels)
        self._multiplier = tensor("multiplier", DType.INT32, channels)
        others = [tensor("added", added.dtype, count)] if added else []
        self.tensors = [self.bias, self._multiplier, *others, tensor("result", codes.dtype, count)]

    def store(self, index: Term, channel: Term, sums: Sequence[Term]) -> None:
        """Write 128 elements of the result, whose sums are one vector or several."""
        lanes = sums[0].expr.lanes
        for number, total in enumerate(sums):
            factor = vector(self._multiplier, channel + number * lanes, lanes)
            words = scaled(total, self._codes.left, factor)
            words = words if self._added else self._codes.rounded(words)
            self._code.emit(store_vector(self.words, number * lanes, words))
        total = vector(self.words, 0, VECTOR)
        if self._added:
            total = self._codes.rounded(total + self._added.words(self.tensors[2], index))
        self._code.emit(store_vector(self.tensors[-1], index, cast(self._codes.dtype, total)))


def product_kernel(
    window: Window, run: int, channels: int, codes: Codes, added: Operand8 | None = None
) -> Function:
    """Convolutions and products of matrices: each tap of a window is `run` words of data.

    Weights are vectors of 32 channels, four bytes of each: of a block of up to four such vectors
    first all products of a tap, then the next."""
    padded, depth = -(-channels // WORDS) * WORDS, math.prod(window.taps) * run
    data = tensor("data", DType.INT32, window.elements + run)
    weights = tensor("weights", DType.INT32, depth * padded)
    code = StatementBuilder()
    finish = _Finish(code, math.prod(window.result) * channels, padded, codes, added)
    sums = registers("sums", _SUMS * WORDS)
    together = min(window.result[2], _MOST_PIXELS, _SUMS // min(padded // WORDS, 4))

    def channel_block(pixel: Term, start: Term, number: Term, vectors: int) -> None:
        channel = number * VECTOR
        # Of each pixel and vector, where its sums are.
        places = {
            (p, q): (p * vectors + q) * WORDS for p in range(together) for q in range(vectors)
        }
        for (_, q), place in places.items():
            bias = vector(finish.bias, channel + q * WORDS, WORDS)
            code.emit(store_vector(sums, place, bias))
        with (
            code.loop("down", window.taps[0]) as down,
            code.loop("across", window.taps[1]) as across,
            code.loop("word", run) as word,
        ):
            tap = window.tap(start, down, across) + word
            depth_now = (down * window.taps[1] + across) * run + word
            weight = number * (depth * VECTOR) + depth_now * (vectors * WORDS)
            for (p, q), place in places.items():
                four = load(data, tap + p * window.steps[2])
                known = vector(weights, weight + q * WORDS, WORDS)
                total = call("dot4", four, known, vector(sums, place, WORDS))
                code.emit(store_vector(sums, place, total))
        for p in range(together):
            totals = [vector(sums, places[p, q], WORDS) for q in range(vectors)]
            finish.store((pixel + p) * channels + channel, channel, totals)

    with code.memory(finish.words, sums):
        window.each_block(code, channels, together, channel_block)
    return kernel("product", (data, weights, *finish.tensors), code)


def window_kernel(
    window: Window,
    channels: int,
    codes: Codes,
    is_weighted: bool = False,
    is_max: bool = False,
    added: Operand8 | None = None,
) -> Function:
    """Depthwise convolutions and pools: channels have windows of their own."""
    count, padded = math.prod(window.taps), -(-channels // VECTOR) * VECTOR
    data = tensor("data", DType.UINT8, window.elements + channels)
    weights = [tensor("weights", DType.INT8, count * channels)] if is_weighted else []
    code = StatementBuilder()
    finish = _Finish(code, math.prod(window.result) * channels, padded, codes, added)
    kind = LoopKind.UNROLLED if count <= _UNROLLED else LoopKind.SERIAL
    total = vector(finish.words, 0, VECTOR)

    def channel_block(pixel: Term, start: Term, number: Term, _vectors: int) -> None:
        channel = number * VECTOR
        code.emit(store_vector(finish.words, 0, Term(Const(0, DType.INT32, VECTOR))))
        with (
            code.loop("down", window.taps[0], kind=kind) as down,
            code.loop("across", window.taps[1], kind=kind) as across,
        ):
            place = window.tap(start, down, across) + channel
            taken = cast(DType.INT16, vector(data, place, VECTOR))
            weight = (down * window.taps[1] + across) * channels + channel
            for one in weights:  # products of bytes fit into 16 bits
                taken = taken * cast(DType.INT16, vector(one, weight, VECTOR))
            words = cast(DType.INT32, taken)
            collected = maximum(total, words) if is_max else total + words
            code.emit(store_vector(finish.words, 0, collected))
        sums = total + vector(finish.bias, channel, VECTOR)
        finish.store(pixel * channels + channel, channel, [sums])

    with code.memory(finish.words):
        window.each_block(code, channels, 1, channel_block)
    return kernel("window", (data, *weights, *finish.tensors), code)


def pointwise_kernel(
    operands: Sequence[Operand8], count: int, codes: Codes, multiplier: int = 0
) -> Function:
    """Sums of scaled codes, or one multiplied product of codes, element by element.

    Operands with multipliers of their own are added and rounded; others are multiplied."""
    tensors = [tensor(f"data{n}", one.dtype, count) for n, one in enumerate(operands)]
    result = tensor("result", codes.dtype, count)

    code = StatementBuilder()
    with each_vector(code, count) as index:
        total, *others = (one.words(b, index) for one, b in zip(operands, tensors, strict=True))
        for other in others:
            total = total * other if multiplier else total + other
        words = scaled(total, codes.left, multiplier) if multiplier else total
        code.emit(store_vector(result, index, cast(codes.dtype, codes.rounded(words))))
    return kernel("pointwise", (*tensors, result), code)


def _copy(
    code: StatementBuilder, data: Buffer, source: Term, result: Buffer, target: Term, count: int
) -> None:
    """Copy bytes; signed ones become unsigned, 128 above, which inverts their first bit."""
    with each_vector(code, count) as at:
        codes = vector(data, source + at, VECTOR)
        codes = codes if data.dtype is result.dtype else codes ^ -128
        code.emit(store_vector(result, target + at, cast(result.dtype, codes)))


def border_kernel(
    shape: Sequence[int], framed: Sequence[int], corner: Sequence[int], dtype: DType, fill: int
) -> Function:
    """Copies images of codes, NHWC, into larger ones of unsigned bytes, where they begin at a row
    and a column, the `corner`; the rest there is filled up."""
    (images, rows, columns, channels), (top, left) = shape, corner
    _, height, width, wide = framed
    data = tensor("data", dtype, math.prod(shape))
    result = tensor("result", DType.UINT8, math.prod(framed))
    code, filled = StatementBuilder(), Term(Const(fill, DType.UINT8, VECTOR))
    run = columns if wide == channels else 1  # pixels that are neighbours in both

    def fill_up(start: Term, pixels: int) -> None:
        with each_vector(code, pixels * wide) as at:
            code.emit(store_vector(result, start + at, filled))

    with code.loop("image", images) as image:
        first = image * (height * width * wide)
        fill_up(first, top * width)
        with code.loop("row", rows) as row:
            source = (image * rows + row) * (columns * channels)
            target = first + (row + top) * (width * wide)
            fill_up(target, left)
            with code.loop("run", columns // run) as number:
                place, begin = target + (number * run + left) * wide, number * (run * channels)
                _copy(code, data, source + begin, result, place, run * channels)
            fill_up(target + (left + columns) * wide, width - left - columns)
        fill_up(first + (rows + top) * (width * wide), (height - top - rows) * width)
    return kernel("border", (data, result), code)


def join_kernel(dtype: DType, rows: int, widths: tuple[int, ...]) -> Function:
    """Concatenates along the last axis: rows of several tensors side by side."""
    parts = [tensor(f"data{n}", dtype, rows * width) for n, width in enumerate(widths)]
    total, result = sum(widths), tensor("result", dtype, rows * sum(widths))

    code = StatementBuilder()
    with code.loop("row", rows) as row:
        starts = (row * total + sum(widths[:number]) for number in range(len(widths)))
        for one, width, start in zip(parts, widths, starts, strict=True):
            _copy(code, one, row * width, result, start, width)
    return kernel("join", (*parts, result), code)
