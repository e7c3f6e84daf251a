"""Kernels of integer arithmetic on HVX, Hexagon's vectors of 128 bytes, as loop IR.

Images are NHWC: a vector holds channels of one pixel. Products of bytes are summed in words by
`vrmpy` (four products for each of 32 channels), and one multiplication makes codes of the sums.

Vectors are always whole. Where a row is no multiple of 128 bytes, the last store of it runs over
into what follows, which is written later; behind a buffer there is `SLACK` for that. So kernels
write in the order of addresses, and none needs a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graft.base.dtypes import DType
from graft.loop.build import Operand, Term, call, cast, load, maximum, minimum, term
from graft.loop.ir import Buffer, Const, Function, LoopKind, Scope, Stmt
from graft.loop.names import unique_names
from graft.loop.statements import loop, loops, store_vector, vector, with_memory
from graft.loop.traverse import block
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


def kernel(name: str, tensors: Sequence[Buffer], body: Stmt, *words: Buffer) -> Function:
    """The kernel of a body, which works on tensors and in registers."""
    named = unique_names(with_memory(body, *words), [one.name for one in tensors])
    return verify(Function(name, tuple(tensors), named))


def each_vector(count: int, body: Callable[[Term], Stmt]) -> Stmt:
    """The body where each vector of so many bytes begins."""
    return loop("vector", -(-count // VECTOR), lambda number: body(number * VECTOR))


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
        self, channels: int, together: int, body: Callable[[Term, Term, Term, int], Stmt]
    ) -> Stmt:
        """The body on each block of up to 128 channels of so many pixels: on the first pixel's
        number, where its window begins, the number of the block, and its vectors of words.

        The last block, which runs over into the next pixel, comes first: others repair that."""
        (images, rows, columns), (whole, rest) = self.result, divmod(channels, VECTOR)

        def pixels(image: Term, row: Term, tile: Term) -> Stmt:
            # The last tile overlaps the one before.
            column = minimum(tile * together, columns - together) if together > 1 else tile
            pixel = (image * rows + row) * columns + column
            start = image * self.steps[0] + row * self.steps[1] + column * self.steps[2]
            last = [body(pixel, start, term(whole), -(-rest // WORDS))] if rest else []
            others = loop("block", whole, lambda n: body(pixel, start, n, VECTOR // WORDS))
            return block(*last, others)

        return loops({"image": images, "row": rows, "tile": -(-columns // together)}, pixels)

    def tap(self, start: Term, down: Term, across: Term) -> Term:
        """Where a window that begins at `start` has one of its taps."""
        return start + down * self.reach[0] + across * self.reach[1]


class _Finish:
    """How the sums of a kernel become its result: scaled, added to, rounded and stored.

    `bias` and `multiplier` are for single channels, and `added` is a tensor like the result."""

    def __init__(self, count: int, channels: int, codes: Codes, added: Operand8 | None) -> None:
        self._codes, self._added, self.words = codes, added, registers("words", VECTOR)
        self.bias = tensor("bias", DType.INT32, channels)
        self._multiplier = tensor("multiplier", DType.INT32, channels)
        others = [tensor("added", added.dtype, count)] if added else []
        self.tensors = [self.bias, self._multiplier, *others, tensor("result", codes.dtype, count)]

    def store(self, index: Term, channel: Term, sums: Sequence[Term]) -> Stmt:
        """Write 128 elements of the result, whose sums are one vector or several."""
        statements, lanes = list[Stmt](), sums[0].expr.lanes
        for number, total in enumerate(sums):
            factor = vector(self._multiplier, channel + number * lanes, lanes)
            words = scaled(total, self._codes.left, factor)
            words = words if self._added else self._codes.rounded(words)
            statements.append(store_vector(self.words, number * lanes, words))
        total = vector(self.words, 0, VECTOR)
        if self._added:
            total = self._codes.rounded(total + self._added.words(self.tensors[2], index))
        codes = cast(self._codes.dtype, total)
        return block(*statements, store_vector(self.tensors[-1], index, codes))


def product_kernel(
    window: Window, run: int, channels: int, codes: Codes, added: Operand8 | None = None
) -> Function:
    """Convolutions and products of matrices: each tap of a window is `run` words of data.

    Weights are vectors of 32 channels, four bytes of each: of a block of up to four such vectors
    first all products of a tap, then the next."""
    padded, depth = -(-channels // WORDS) * WORDS, math.prod(window.taps) * run
    data = tensor("data", DType.INT32, window.elements + run)
    weights = tensor("weights", DType.INT32, depth * padded)
    finish = _Finish(math.prod(window.result) * channels, padded, codes, added)
    sums = registers("sums", _SUMS * WORDS)
    together = min(window.result[2], _MOST_PIXELS, _SUMS // min(padded // WORDS, 4))

    def channel_block(pixel: Term, start: Term, number: Term, vectors: int) -> Stmt:
        channel = number * VECTOR
        # Of each pixel and vector, where its sums are.
        places = {
            (p, q): (p * vectors + q) * WORDS for p in range(together) for q in range(vectors)
        }

        def multiply(down: Term, across: Term, word: Term) -> Stmt:
            tap = window.tap(start, down, across) + word
            depth_now = (down * window.taps[1] + across) * run + word
            weight = number * (depth * VECTOR) + depth_now * (vectors * WORDS)
            products = []
            for (p, q), place in places.items():
                four = load(data, tap + p * window.steps[2])
                known = vector(weights, weight + q * WORDS, WORDS)
                total = call("dot4", four, known, vector(sums, place, WORDS))
                products.append(store_vector(sums, place, total))
            return block(*products)

        begin, end = list[Stmt](), list[Stmt]()
        for (_, q), place in places.items():
            bias = vector(finish.bias, channel + q * WORDS, WORDS)
            begin.append(store_vector(sums, place, bias))
        for p in range(together):
            totals = [vector(sums, places[p, q], WORDS) for q in range(vectors)]
            end.append(finish.store((pixel + p) * channels + channel, channel, totals))
        taps = {"down": window.taps[0], "across": window.taps[1], "word": run}
        return block(*begin, loops(taps, multiply), *end)

    body = window.each_block(channels, together, channel_block)
    return kernel("product", (data, weights, *finish.tensors), body, finish.words, sums)


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
    finish = _Finish(math.prod(window.result) * channels, padded, codes, added)
    kind = LoopKind.UNROLLED if count <= _UNROLLED else LoopKind.SERIAL
    total = vector(finish.words, 0, VECTOR)

    def channel_block(pixel: Term, start: Term, number: Term, _vectors: int) -> Stmt:
        channel = number * VECTOR

        def collect(down: Term, across: Term) -> Stmt:
            codes = cast(
                DType.INT16, vector(data, window.tap(start, down, across) + channel, VECTOR)
            )
            weight = (down * window.taps[1] + across) * channels + channel
            for one in weights:  # products of bytes fit into 16 bits
                codes = codes * cast(DType.INT16, vector(one, weight, VECTOR))
            words = cast(DType.INT32, codes)
            collected = maximum(total, words) if is_max else total + words
            return store_vector(finish.words, 0, collected)

        begin = store_vector(finish.words, 0, Term(Const(0, DType.INT32, VECTOR)))
        taps = {"down": window.taps[0], "across": window.taps[1]}
        sums = total + vector(finish.bias, channel, VECTOR)
        end = finish.store(pixel * channels + channel, channel, [sums])
        return block(begin, loops(taps, collect, kind), end)

    body = window.each_block(channels, 1, channel_block)
    return kernel("window", (data, *weights, *finish.tensors), body, finish.words)


def pointwise_kernel(
    operands: Sequence[Operand8], count: int, codes: Codes, multiplier: int = 0
) -> Function:
    """Sums of scaled codes, or one multiplied product of codes, element by element.

    Operands with multipliers of their own are added and rounded; others are multiplied."""
    tensors = [tensor(f"data{n}", one.dtype, count) for n, one in enumerate(operands)]
    result = tensor("result", codes.dtype, count)

    def combine(index: Term) -> Stmt:
        total, *others = (one.words(b, index) for one, b in zip(operands, tensors, strict=True))
        for other in others:
            total = total * other if multiplier else total + other
        words = scaled(total, codes.left, multiplier) if multiplier else total
        return store_vector(result, index, cast(codes.dtype, codes.rounded(words)))

    return kernel("pointwise", (*tensors, result), each_vector(count, combine))


def _copy(data: Buffer, source: Term, result: Buffer, target: Term, count: int) -> Stmt:
    """Copy bytes; signed ones become unsigned, 128 above, which inverts their first bit."""

    def copied(at: Term) -> Stmt:
        codes = vector(data, source + at, VECTOR)
        codes = codes if data.dtype is result.dtype else codes ^ -128
        return store_vector(result, target + at, cast(result.dtype, codes))

    return each_vector(count, copied)


def border_kernel(
    shape: Sequence[int], framed: Sequence[int], corner: Sequence[int], dtype: DType, fill: int
) -> Function:
    """Copies images of codes, NHWC, into larger ones of unsigned bytes, where they begin at a row
    and a column, the `corner`; the rest there is filled up."""
    (images, rows, columns, channels), (top, left) = shape, corner
    _, height, width, wide = framed
    data = tensor("data", dtype, math.prod(shape))
    result = tensor("result", DType.UINT8, math.prod(framed))
    filled = Term(Const(fill, DType.UINT8, VECTOR))

    def fill_up(start: Term, pixels: int) -> Stmt:
        return each_vector(pixels * wide, lambda at: store_vector(result, start + at, filled))

    def image_row(first: Term, image: Term, row: Term) -> Stmt:
        source = (image * rows + row) * (columns * channels)
        target = first + (row + top) * (width * wide)
        run = columns if wide == channels else 1  # pixels that are neighbours in both

        def copy_run(number: Term) -> Stmt:
            place = target + (number * run + left) * wide
            return _copy(data, source + number * (run * channels), result, place, run * channels)

        return block(
            fill_up(target, left),
            loop("run", columns // run, copy_run),
            fill_up(target + (left + columns) * wide, width - left - columns),
        )

    def whole_image(image: Term) -> Stmt:
        first = image * (height * width * wide)
        return block(
            fill_up(first, top * width),
            loop("row", rows, lambda row: image_row(first, image, row)),
            fill_up(first + (rows + top) * (width * wide), (height - top - rows) * width),
        )

    return kernel("border", (data, result), loop("image", images, whole_image))


def join_kernel(dtype: DType, rows: int, widths: tuple[int, ...]) -> Function:
    """Concatenates along the last axis: rows of several tensors side by side."""
    parts = [tensor(f"data{n}", dtype, rows * width) for n, width in enumerate(widths)]
    total, result = sum(widths), tensor("result", dtype, rows * sum(widths))

    def join(row: Term) -> Stmt:
        starts = (row * total + sum(widths[:number]) for number in range(len(widths)))
        joined = zip(parts, widths, starts, strict=True)
        return block(*(_copy(one, row * n, result, start, n) for one, n, start in joined))

    return kernel("join", (*parts, result), loop("row", rows, join))
