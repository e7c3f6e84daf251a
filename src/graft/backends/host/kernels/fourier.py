"""Fourier transforms of symbolic lengths, or too long for matrices of their factors.

Signals lie side by side in the lanes of vectors, or one by one where there are few; the threads
share them. The plan is made when the kernel runs: Stockham's algorithm takes a factor of the length
after the other, four, two, or the least odd one. A length with a large prime factor is transformed
by Bluestein's algorithm, a convolution with a chirp, for which a power of two is long enough. An
inverse transform is one of numbers with exchanged parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.fourier_stages import Complex, Stages
from graft.backends.host.kernels.writing import Writer
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.loop.build import Term, call, cast, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Ramp, Stmt
from graft.loop.statements import (
    Cell,
    as_long_as,
    let,
    loop,
    parallel,
    scratch,
    spread,
    store,
    vector,
    when,
    with_memory,
)
from graft.loop.traverse import block
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# The largest factor that is summed directly: of one signal in 16, a stage of Bluestein's three
# transforms of twice to four times the length takes about as long.
_LARGEST_FACTOR = 61
# Signals that are transformed one by one, by a thread each, instead of in lanes.
_FEW_SIGNALS = 2


@node_kernel("dft")
def fourier(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Transforms along a known axis."""
    node = group.node
    shape, result = shape_of(node.args[0]), shape_of(node.output)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        return Refusal("the axis is data")
    if not isinstance(shape[-1], int) or not isinstance(result[-1], int) or shape[-1] == 0:
        return Refusal("it is not known whether numbers are complex")
    return lambda: _Transforms(Writer(group, stores), target).kernel()


@dataclass
class _Signals:
    """Where the signals of a tensor begin, and what lies between two samples."""

    extent: Term
    inner: Term
    parts: int

    def start(self, signal: Term) -> Term:
        outer = signal // self.inner * self.extent * self.inner
        return (outer + signal % self.inner) * self.parts

    @property
    def stride(self) -> Term:
        return self.inner * self.parts


@dataclass
class _Transforms:
    """Writes the tables, and the loops over signals."""

    writer: Writer
    target: Target
    stages: Stages = field(init=False)

    def __post_init__(self) -> None:
        writer, node = self.writer, self.writer.group.node
        shape, result = shape_of(node.args[0]), shape_of(node.output)
        axis = (-2 if node.attrs.axis is None else node.attrs.axis) % len(shape)
        inner = maximum(writer.dim(product(shape[axis + 1 : -1])), 1)
        self.data, named = writer.present_operand(0), writer.operand(1)
        self.result = writer.result(0)
        self.read = _Signals(writer.dim(shape[axis]), inner, int(shape[-1]))
        self.written = _Signals(writer.dim(result[axis]), inner, int(result[-1]))
        self.count = writer.dim(product(shape[:axis])) * writer.dim(product(shape[axis + 1 : -1]))
        wide = DType.FLOAT64 if self.data.dtype is DType.FLOAT64 else DType.FLOAT32
        self.inverse, self.onesided = node.attrs.inverse, node.attrs.onesided
        self.length = self.known_length(node) if named is None else load(named, 0)
        self.lanes = self.target.lanes(wide)
        # No length is more than this, and no power of two that Bluestein's algorithm takes is four
        # times as much.
        longest = self.written.extent * (2 if self.onesided and not self.inverse else 1) + 1
        points = longest * 4
        lanes = minimum(maximum((self.count - _FEW_SIGNALS) * self.lanes, 1), self.lanes)
        self.stages = Stages(wide, self.lanes, points, lanes)
        self.chirp = Complex("chirp", wide, longest + self.lanes)
        self.filter = Complex("filter", wide, points)
        self.turns = scratch("turns", INDEX, longest + self.lanes)
        self.size, self.rest = Cell("size"), Cell("rest")

    def known_length(self, node: Node) -> Term:
        if node.attrs.dft_length is not None:
            return self.writer.dim(node.attrs.dft_length)
        if self.inverse and self.onesided:
            return (self.read.extent - 1) * 2
        return self.read.extent

    def kernel(self) -> Kernel:
        memory = (*self.stages.memory, *self.chirp.memory, *self.filter.memory, self.turns)
        length = maximum(cast(INDEX, self.length), 1)
        body = let("length", length, lambda n: block(self.prepare(n), self.transforms(n)))
        return self.writer.kernel(with_memory(body, *memory, self.size, self.rest))

    def prepare(self, length: Term) -> Stmt:
        """The size of the transforms that are done, and tables for it, each thread's own."""
        factor = Cell("factor")
        divided = block(
            as_long_as(
                (self.rest.value % factor.value) < 1,
                self.rest.set(self.rest.value // factor.value),
            ),
            factor.set(factor.value + 1),
        )
        search = as_long_as((self.rest.value > 1) & (factor.value < _LARGEST_FACTOR + 1), divided)
        doubled = as_long_as(self.size.value < length * 2 - 1, self.size.set(self.size.value * 2))
        large = when(self.rest.value > 1, block(self.size.set(1), doubled))
        tables = block(
            self.stages.table(self.size.value),
            when(self.rest.value > 1, self.prepare_chirp(length)),
        )
        begin = block(self.rest.set(length), factor.set(2), self.size.set(length))
        return with_memory(block(begin, search, large, tables), factor)

    def prepare_chirp(self, length: Term) -> Stmt:
        """exp(-i pi t² / n) for each sample, and the spectrum of its conjugate, by the size."""
        square = Cell("square")

        def step(sample: Term) -> Stmt:
            after = square.value + sample * 2 + 1
            wrapped = after - select(after < length * 2, term(0), length * 2)
            return block(store(self.turns, sample, square.value), square.set(wrapped))

        def angles(number: Term) -> Stmt:
            at = number * self.lanes
            turns = cast(DType.FLOAT64, vector(self.turns, at, self.lanes))
            angle = turns * (math.pi / cast(DType.FLOAT64, length))
            return self.chirp.store(at, call("cos", angle), -call("sin", angle))

        def mirrored(sample: Term) -> Stmt:
            real, imaginary = self.chirp.load(sample, 1)
            write = self.stages.write
            behind = (self.size.value - sample) % self.size.value
            return block(write(sample, (real, -imaginary), 1), write(behind, (real, -imaginary), 1))

        def kept(point: Term) -> Stmt:
            real, imaginary = self.stages.read(point, 1)
            return self.filter.store(point, real, imaginary)

        squares = with_memory(block(square.set(0), loop("square_at", length, step)), square)
        return block(
            squares,
            loop("chirp_at", (length + self.lanes - 1) // self.lanes, angles),
            self.stages.begin(self.size.value),
            loop("cleared", self.size.value, lambda at: self.stages.clear(at, 1)),
            loop("mirrored", length, mirrored),
            self.stages.transform(self.size.value, 1),
            loop("kept", self.size.value, kept),
        )

    def transforms(self, length: Term) -> Stmt:
        """Vectors of signals, or single ones."""
        few = self.count < _FEW_SIGNALS + 1
        vectors = (self.count + self.lanes - 1) // self.lanes
        return block(
            parallel(
                "vector",
                select(few, term(0), vectors),
                lambda job: self.signals(length, job * self.lanes, self.lanes),
            ),
            parallel(
                "single", select(few, self.count, term(0)), lambda job: self.signals(length, job, 1)
            ),
        )

    def signals(self, length: Term, first: Term, lanes: int) -> Stmt:
        size, stages = self.size.value, self.stages

        def product_with(table: Complex, count: Term, is_swapped: bool) -> Stmt:
            def point(at: Term) -> Stmt:
                real, imaginary = stages.read(at, lanes)
                cosine, sine = table.load(at, 1)
                pair = real * cosine - imaginary * sine, real * sine + imaginary * cosine
                return stages.write(at, pair[::-1] if is_swapped else pair, lanes)

            return loop(f"{table.name}{lanes}", count, point)

        rest = loop(f"zero{lanes}", size - length, lambda at: stages.clear(at, lanes), start=length)
        convolved = block(
            product_with(self.chirp, length, is_swapped=False),
            rest,
            stages.transform(size, lanes),
            product_with(self.filter, size, is_swapped=True),
            stages.transform(size, lanes),
            self.unswapped(length, lanes),
        )
        directly = stages.transform(size, lanes)
        return block(
            stages.begin(size),
            self.load(length, first, lanes),
            when(self.rest.value > 1, convolved, directly),
            self.store(length, first, lanes),
        )

    def unswapped(self, length: Term, lanes: int) -> Stmt:
        """The convolution's parts in order again, times the chirp, by the size."""

        def point(at: Term) -> Stmt:
            imaginary, real = self.stages.read(at, lanes)
            cosine, sine = self.chirp.load(at, 1)
            scale = 1.0 / cast(cosine.dtype, self.size.value)
            cosine, sine = cosine * scale, sine * scale
            pair = real * cosine - imaginary * sine, real * sine + imaginary * cosine
            return self.stages.write(at, pair, lanes)

        return loop(f"unswapped{lanes}", length, point)

    def load(self, length: Term, first: Term, lanes: int) -> Stmt:
        """The samples that are there, zeros behind them, and frequencies that mirror others."""
        halved = self.inverse and self.onesided
        whole = length // 2 + 1 if halved else length
        have, stages = minimum(self.read.extent, whole), self.stages
        zeros = loop(f"fill{lanes}", whole - have, lambda at: stages.clear(at, lanes), start=have)

        def mirror(at: Term) -> Stmt:
            real, imaginary = stages.read(length - at, lanes)
            return stages.write(at, (-real, imaginary), lanes)  # parts are exchanged

        mirrored = loop(f"mirror{lanes}", length - whole, mirror, start=whole)
        separate = self.load_apart(have, first, lanes)
        if lanes > 1:
            beside = self.load_beside(have, first, lanes)
            separate = when(self.are_beside(first), beside, separate)
        return block(separate, zeros, *((mirrored,) if halved else ()))

    def load_apart(self, have: Term, first: Term, lanes: int) -> Stmt:
        """Signals that lie anywhere; lanes without one get the last."""
        stages, last = self.stages, self.count - 1

        def sample(at: Term) -> Stmt:
            place = at * self.read.stride
            places = [load(stages.origins, lane) + place for lane in range(lanes)]
            pairs = map(self.sample, places)
            return block(
                *(stages.write_lane(at, lane, pair, lanes) for lane, pair in enumerate(pairs))
            )

        starts = (self.read.start(minimum(first + lane, last)) for lane in range(lanes))
        origins = (store(stages.origins, lane, start) for lane, start in enumerate(starts))
        return block(*origins, loop(f"sample{lanes}", have, sample))

    def load_beside(self, have: Term, first: Term, lanes: int) -> Stmt:
        """Signals that lie side by side at each sample."""

        def sample(at: Term) -> Stmt:
            place = self.read.start(first) + at * self.read.stride
            ramp = Term(Ramp(place.expr, self.read.parts, lanes))
            return self.stages.write(at, self.sample(ramp), lanes)

        return loop(f"beside{lanes}", have, sample)

    def sample(self, at: Term) -> tuple[Term, Term]:
        """A number or a vector of them; with exchanged parts where the transform is inverse."""
        dtype = self.stages.dtype
        real = cast(dtype, load(self.data, at))
        if self.read.parts > 1:
            imaginary = cast(dtype, load(self.data, at + 1))
        else:
            imaginary = spread(term(0.0, dtype), real.expr.lanes)
        return (imaginary, real) if self.inverse else (real, imaginary)

    def are_beside(self, first: Term) -> Term:
        """Whether a vector's signals are neighbours at each sample."""
        inner = self.read.inner
        return (first % inner + self.lanes < inner + 1) & (first + self.lanes < self.count + 1)

    def store(self, length: Term, first: Term, lanes: int) -> Stmt:
        """The frequencies, or samples, that are wanted."""
        stages, count = self.stages, minimum(self.written.extent, length)

        def together(at: Term) -> Stmt:
            place = self.written.start(first) + at * self.written.stride
            ramp = Term(Ramp(place.expr, self.written.parts, lanes))
            return self.store_pair(ramp, stages.read(at, lanes), length)

        def apart(at: Term) -> Stmt:
            stores = []
            for lane in range(lanes):
                place = load(stages.origins, lane) + at * self.written.stride
                one = self.store_pair(place, stages.read_lane(at, lane, lanes), length)
                stores.append(when(first + lane < self.count, one) if lane else one)
            return block(*stores)

        starts = (self.written.start(first + lane) for lane in range(lanes))
        origins = (store(stages.origins, lane, start) for lane, start in enumerate(starts))
        separate = block(*origins, loop(f"apart{lanes}", count, apart))
        if lanes == 1:
            return separate
        return when(self.are_beside(first), loop(f"together{lanes}", count, together), separate)

    def store_pair(self, at: Term, pair: tuple[Term, Term], length: Term) -> Stmt:
        """A number or a vector of them, and of an inverse transform by the length."""
        if self.inverse:
            scale = 1.0 / cast(self.stages.dtype, length)
            pair = pair[1] * scale, pair[0] * scale
        dtype = self.result.dtype
        values = enumerate(pair[: self.written.parts])
        return block(*(store(self.result, at + n, cast(dtype, value)) for n, value in values))
