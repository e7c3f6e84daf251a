"""Fourier transforms of symbolic lengths, or too long for matrices of their factors.

Signals lie side by side in the lanes of vectors, or one by one where there are few; the threads
share them. The plan is made when the kernel runs: Stockham's algorithm takes a factor of the length
after the other, four, two, or the least odd one. A length with a large prime factor is transformed
by Bluestein's algorithm, a convolution with a chirp, for which a power of two is long enough. An
inverse transform is one of numbers with exchanged parts.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.fourier_stages import Complex, Stages, times
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.loop.build import Term, call, cast, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Ramp
from graft.loop.statements import Cell, scratch, spread, vector
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
    return node_plan(group, stores, lambda writer: _Transforms(writer, target).write())


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
        writer, node, self.code = self.writer, self.writer.group.node, self.writer.code
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
        self.stages = Stages(self.code, wide, self.lanes, points, lanes)
        self.chirp = Complex(self.code, "chirp", wide, longest + self.lanes)
        self.filter = Complex(self.code, "filter", wide, points)
        self.turns = scratch("turns", INDEX, longest + self.lanes)
        self.size, self.rest = Cell("size"), Cell("rest")

    def known_length(self, node: Node) -> Term:
        if node.attrs.dft_length is not None:
            return self.writer.dim(node.attrs.dft_length)
        if self.inverse and self.onesided:
            return (self.read.extent - 1) * 2
        return self.read.extent

    def write(self) -> None:
        memory = (*self.stages.memory, *self.chirp.memory, *self.filter.memory, self.turns)
        with self.code.memory(*memory, self.size, self.rest):
            length = self.code.let("length", maximum(cast(INDEX, self.length), 1))
            self.prepare(length)
            self.transforms(length)

    def prepare(self, length: Term) -> None:
        """The size of the transforms that are done, and tables for it, each thread's own."""
        code, factor, rest, size = self.code, Cell("factor"), self.rest, self.size
        with code.memory(factor):
            code.set(rest, length)
            code.set(factor, 2)
            code.set(size, length)
            with code.as_long_as((rest.value > 1) & (factor.value < _LARGEST_FACTOR + 1)):
                with code.as_long_as((rest.value % factor.value) < 1):
                    code.set(rest, rest.value // factor.value)
                code.set(factor, factor.value + 1)
            with code.when(rest.value > 1):
                code.set(size, 1)
                with code.as_long_as(size.value < length * 2 - 1):
                    code.set(size, size.value * 2)
            self.stages.table(size.value)
            with code.when(rest.value > 1):
                self.prepare_chirp(length)

    def prepare_chirp(self, length: Term) -> None:
        """exp(-i pi t² / n) for each sample, and the spectrum of its conjugate, by the size."""
        code, stages, size = self.code, self.stages, self.size.value
        square = Cell("square")
        with code.memory(square):
            code.set(square, 0)
            with code.loop("square_at", length) as sample:
                code.store(self.turns, sample, square.value)
                after = square.value + sample * 2 + 1
                code.set(square, after - select(after < length * 2, term(0), length * 2))
        with code.loop("chirp_at", (length + self.lanes - 1) // self.lanes) as number:
            at = number * self.lanes
            turns = cast(DType.FLOAT64, vector(self.turns, at, self.lanes))
            angle = turns * (math.pi / cast(DType.FLOAT64, length))
            self.chirp.store(at, call("cos", angle), -call("sin", angle))
        stages.begin(size)
        with code.loop("cleared", size) as at:
            stages.clear(at, 1)
        with code.loop("mirrored", length) as sample:
            real, imaginary = self.chirp.load(sample, 1)
            for at in (sample, (size - sample) % size):
                stages.write(at, (real, -imaginary), 1)
        stages.transform(size, 1)
        with code.loop("kept", size) as at:
            self.filter.store(at, *stages.read(at, 1))

    def transforms(self, length: Term) -> None:
        """Vectors of signals, or single ones."""
        code, few = self.code, self.count < _FEW_SIGNALS + 1
        vectors = (self.count + self.lanes - 1) // self.lanes
        with code.parallel("vector", select(few, term(0), vectors)) as job:
            self.signals(length, job * self.lanes, self.lanes)
        with code.parallel("single", select(few, self.count, term(0))) as job:
            self.signals(length, job, 1)

    def signals(self, length: Term, first: Term, lanes: int) -> None:
        code, size, stages = self.code, self.size.value, self.stages
        stages.begin(size)
        self.load(length, first, lanes)
        with code.when(self.rest.value > 1):
            self.multiply(self.chirp, length, lanes, is_swapped=False)
            with code.loop(f"zero{lanes}", size - length, length) as at:
                stages.clear(at, lanes)
            stages.transform(size, lanes)
            self.multiply(self.filter, size, lanes, is_swapped=True)
            stages.transform(size, lanes)
            self.unswap(length, lanes)
        with code.otherwise():
            stages.transform(size, lanes)
        self.store(length, first, lanes)

    def multiply(self, table: Complex, count: Term, lanes: int, *, is_swapped: bool) -> None:
        """Each point times a number of a table, its parts perhaps exchanged."""
        with self.code.loop(f"{table.name}{lanes}", count) as at:
            pair = times(self.stages.read(at, lanes), table.load(at, 1))
            self.stages.write(at, pair[::-1] if is_swapped else pair, lanes)

    def unswap(self, length: Term, lanes: int) -> None:
        """The convolution's parts in order again, times the chirp, by the size."""
        with self.code.loop(f"unswapped{lanes}", length) as at:
            imaginary, real = self.stages.read(at, lanes)
            cosine, sine = self.chirp.load(at, 1)
            scale = 1.0 / cast(cosine.dtype, self.size.value)
            pair = times((real, imaginary), (cosine * scale, sine * scale))
            self.stages.write(at, pair, lanes)

    def load(self, length: Term, first: Term, lanes: int) -> None:
        """The samples that are there, zeros behind them, and frequencies that mirror others."""
        code, stages, halved = self.code, self.stages, self.inverse and self.onesided
        whole = length // 2 + 1 if halved else length
        have = minimum(self.read.extent, whole)
        if lanes > 1:
            with code.when(self.are_beside(first)):
                self.load_beside(have, first, lanes)
            with code.otherwise():
                self.load_apart(have, first, lanes)
        else:
            self.load_apart(have, first, lanes)
        with code.loop(f"fill{lanes}", whole - have, have) as at:
            stages.clear(at, lanes)
        if halved:
            with code.loop(f"mirror{lanes}", length - whole, whole) as at:
                real, imaginary = stages.read(length - at, lanes)
                stages.write(at, (-real, imaginary), lanes)  # parts are exchanged

    def load_apart(self, have: Term, first: Term, lanes: int) -> None:
        """Signals that lie anywhere; lanes without one get the last."""
        code, stages = self.code, self.stages
        for lane in range(lanes):
            start = self.read.start(minimum(first + lane, self.count - 1))
            code.store(stages.origins, lane, start)
        with code.loop(f"sample{lanes}", have) as at:
            place = at * self.read.stride
            for lane in range(lanes):
                pair = self.sample(load(stages.origins, lane) + place)
                stages.write_lane(at, lane, pair, lanes)

    def load_beside(self, have: Term, first: Term, lanes: int) -> None:
        """Signals that lie side by side at each sample."""
        with self.code.loop(f"beside{lanes}", have) as at:
            place = self.read.start(first) + at * self.read.stride
            ramp = Term(Ramp(place.expr, self.read.parts, lanes))
            self.stages.write(at, self.sample(ramp), lanes)

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

    def store(self, length: Term, first: Term, lanes: int) -> None:
        """The frequencies, or samples, of the result."""
        code, stages, count = self.code, self.stages, minimum(self.written.extent, length)
        if lanes == 1:
            self.store_apart(length, first, lanes, count)
            return
        with code.when(self.are_beside(first)), code.loop(f"together{lanes}", count) as at:
            place = self.written.start(first) + at * self.written.stride
            ramp = Term(Ramp(place.expr, self.written.parts, lanes))
            self.store_pair(ramp, stages.read(at, lanes), length)
        with code.otherwise():
            self.store_apart(length, first, lanes, count)

    def store_apart(self, length: Term, first: Term, lanes: int, count: Term) -> None:
        code, stages = self.code, self.stages
        for lane in range(lanes):
            code.store(stages.origins, lane, self.written.start(first + lane))
        with code.loop(f"apart{lanes}", count) as at:
            for lane in range(lanes):
                place = load(stages.origins, lane) + at * self.written.stride
                with code.when(first + lane < self.count) if lane else nullcontext():
                    self.store_pair(place, stages.read_lane(at, lane, lanes), length)

    def store_pair(self, at: Term, pair: tuple[Term, Term], length: Term) -> None:
        """A number or a vector of them, and of an inverse transform by the length."""
        if self.inverse:
            scale = 1.0 / cast(self.stages.dtype, length)
            pair = pair[1] * scale, pair[0] * scale
        for number, value in enumerate(pair[: self.written.parts]):
            self.code.store(self.result, at + number, cast(self.result.dtype, value))
