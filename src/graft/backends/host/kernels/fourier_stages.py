"""The stages of a Fourier transform in scratch memory, for one signal or as many as lanes.

Stockham's algorithm: a stage goes from one half of the memory to the other, and needs no reversal
of bits. Before a stage with factor p, `left` is what remains of the size and `stride` the product
of the factors so far; with m = left / p,

    y[q + stride (p j + k)] = sum over r of x[q + stride (j + m r)] w^(stride k (j + m r))

for w = exp(-2 pi i / size), whose powers lie in one table for all stages.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, load, select, term
from graft.loop.ir import INDEX, Buffer, Const, Scope
from graft.loop.statements import (
    Cell,
    StatementBuilder,
    ramp,
    scratch,
    spread,
    store_vector,
    vector,
)

Pair = tuple[Term, Term]  # real and imaginary part


@dataclass(frozen=True)
class Complex:
    """A table of complex numbers in scratch memory."""

    code: StatementBuilder
    name: str
    dtype: DType
    count: Term

    @property
    def memory(self) -> tuple[Buffer, Buffer]:
        return (
            scratch(f"{self.name}_real", self.dtype, self.count),
            scratch(f"{self.name}_imaginary", self.dtype, self.count),
        )

    def load(self, at: Term, lanes: int) -> Pair:
        real, imaginary = self.memory
        return vector(real, at, lanes), vector(imaginary, at, lanes)

    def store(self, at: Term, *pair: Term) -> None:
        values = (cast(self.dtype, value) for value in pair)
        both = zip(self.memory, values, strict=True)
        self.code.emit(*(store_vector(buffer, at, value) for buffer, value in both))


@dataclass
class Stages:
    """Writes transforms of `work`, which holds two times as many points as there may be, each the
    real parts of some signals and then their imaginary parts."""

    code: StatementBuilder
    dtype: DType
    lanes: int
    points: Term
    widest: Term  # signals side by side
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.work = scratch("work", self.dtype, self.points * self.widest * 4)
        self.powers = Complex(self.code, "powers", self.dtype, self.points + self.lanes)
        self.origins = scratch("origins", INDEX, self.lanes)
        self.source, self.target = Cell("source"), Cell("target")
        self.left, self.stride = Cell("left"), Cell("stride")

    @property
    def memory(self) -> tuple[Buffer | Cell, ...]:
        cells = self.source, self.target, self.left, self.stride
        return (self.work, *self.powers.memory, self.origins, *cells)

    def table(self, size: Term) -> None:
        """The powers of w."""
        with self.code.loop("power", (size + self.lanes - 1) // self.lanes) as number:
            at = number * self.lanes
            turns = cast(DType.FLOAT64, ramp(at, self.lanes))
            angle = turns * (2 * math.pi / cast(DType.FLOAT64, size))
            self.powers.store(at, call("cos", angle), -call("sin", angle))

    def begin(self, size: Term) -> None:
        """Have points written to the first half."""
        self.code.set(self.source, 0)
        self.code.set(self.target, size)

    def read(self, at: Term, lanes: int) -> Pair:
        return self._point(self.source.value + at, lanes)

    def _point(self, at: Term, lanes: int) -> Pair:
        first = at * (2 * lanes)
        return vector(self.work, first, lanes), vector(self.work, first + lanes, lanes)

    def read_lane(self, at: Term, lane: int, lanes: int) -> Pair:
        first = (self.source.value + at) * (2 * lanes) + lane
        return load(self.work, first), load(self.work, first + lanes)

    def write(self, at: Term, pair: Pair, lanes: int) -> None:
        self._put(self.source.value + at, pair, lanes)

    def _put(self, at: Term, pair: Pair, lanes: int) -> None:
        """Both parts are known before either is written: they may be read from there."""
        with self.code.scope():
            real, imaginary = self._named(pair)
            first = at * (2 * lanes)
            self.code.emit(store_vector(self.work, first, real))
            self.code.emit(store_vector(self.work, first + lanes, imaginary))

    def _named(self, pair: Pair) -> Pair:
        """A complex number with names for its parts."""
        number = next(self._numbers)
        real = self.code.let(f"real{number}", pair[0])
        return real, self.code.let(f"imaginary{number}", pair[1])

    def write_lane(self, at: Term, lane: int, pair: Pair, lanes: int) -> None:
        first = (self.source.value + at) * (2 * lanes) + lane
        self.code.store(self.work, first, pair[0])
        self.code.store(self.work, first + lanes, pair[1])

    def clear(self, at: Term, lanes: int) -> None:
        zero = spread(term(0.0, self.dtype), lanes)
        self.write(at, (zero, zero), lanes)

    def transform(self, size: Term, lanes: int) -> None:
        """All stages."""
        code, tag = self.code, next(self._numbers)
        self._go_on(size, term(1))
        with code.as_long_as(self.left.value > 1):
            left = code.let(f"left{tag}", self.left.value)
            stride = code.let(f"stride{tag}", self.stride.value)
            with code.when(left % 4 < 1):
                self._by_four(left // 4, stride, lanes)
            with code.otherwise():
                with code.when(left % 2 < 1):
                    self._by_two(left // 2, stride, lanes)
                with code.otherwise():
                    self._by_any(left, stride, size, lanes)
            source = code.let(f"source{tag}", self.source.value)
            code.set(self.source, self.target.value)
            code.set(self.target, source)

    def _go_on(self, left: Term, stride: Term) -> None:
        self.code.set(self.left, left)
        self.code.set(self.stride, stride)

    def _by_two(self, half: Term, stride: Term, lanes: int) -> None:
        with self._columns(half, stride, 2) as (j, (power,), q):
            at = self.source.value + q + stride * j
            to = self.target.value + q + stride * j * 2
            one = self._named(self._point(at, lanes))
            two = self._named(self._point(at + stride * half, lanes))
            self._put(to, _plus(one, two), lanes)
            self._put(to + stride, times(_less(one, two), power), lanes)
        self._go_on(half, stride * 2)

    def _by_four(self, quarter: Term, stride: Term, lanes: int) -> None:
        with self._columns(quarter, stride, 4) as (j, (w1, w2, w3), q):
            at = self.source.value + q + stride * j
            to = self.target.value + q + stride * j * 4
            points = (self._point(at + stride * quarter * n, lanes) for n in range(4))
            one, two, three, four = map(self._named, points)
            even, odd = self._named(_plus(one, three)), self._named(_less(one, three))
            others = self._named(_plus(two, four))
            rotated = self._named((two[1] - four[1], four[0] - two[0]))  # by -i
            self._put(to, _plus(even, others), lanes)
            self._put(to + stride, times(_plus(odd, rotated), w1), lanes)
            self._put(to + stride * 2, times(_less(even, others), w2), lanes)
            self._put(to + stride * 3, times(_less(odd, rotated), w3), lanes)
        self._go_on(quarter, stride * 4)

    @contextmanager
    def _columns(
        self, count: Term, stride: Term, factor: int
    ) -> Iterator[tuple[Term, Sequence[Pair], Term]]:
        """What is done for each pair of j and q: j, the powers for it, and q."""
        tag = next(self._numbers)
        with self.code.loop(f"j{tag}", count) as j:
            powers = [self._named(self.powers.load(j * stride * n, 1)) for n in range(1, factor)]
            with self.code.loop(f"q{tag}", stride) as q:
                yield j, powers, q

    def _by_any(self, left: Term, stride: Term, size: Term, lanes: int) -> None:
        """A stage by the least odd factor."""
        code, tag = self.code, next(self._numbers)
        factor, power = Cell(f"factor{tag}"), Cell(f"power{tag}")
        sums = [
            Buffer(f"{name}{tag}", self.dtype, (Const(lanes),), Scope.REGISTER)
            for name in ("sum_real", "sum_imaginary")
        ]
        every, zero = ramp(term(0), lanes), spread(term(0.0, self.dtype), lanes)
        with code.memory(factor, power, *sums):
            code.set(factor, 3)
            with code.as_long_as((left % factor.value) > 0):
                code.set(factor, factor.value + 2)
            p = code.let(f"odd{tag}", factor.value)
            rest = code.let(f"rest{tag}", left // p)
            with (
                code.loop(f"j{tag}", rest) as j,
                code.loop(f"k{tag}", p) as k,
                code.loop(f"q{tag}", stride) as q,
            ):
                code.set(power, stride * k * j)
                for part in sums:
                    code.store(part, every, zero)
                with code.loop(f"r{tag}", p) as r:
                    at = self.source.value + q + stride * (j + rest * r)
                    value = self._named(self._point(at, lanes))
                    product = times(value, self._named(self.powers.load(power.value, 1)))
                    for part, summand in zip(sums, product, strict=True):
                        code.store(part, every, load(part, every) + summand)
                    after = power.value + stride * k * rest
                    code.set(power, after - select(after < size, term(0), size))
                to = self.target.value + q + stride * (p * j + k)
                real, imaginary = (load(part, every) for part in sums)
                self._put(to, (real, imaginary), lanes)
            self._go_on(rest, stride * p)


def _plus(one: Pair, other: Pair) -> Pair:
    return one[0] + other[0], one[1] + other[1]


def _less(one: Pair, other: Pair) -> Pair:
    return one[0] - other[0], one[1] - other[1]


def times(one: Pair, other: Pair) -> Pair:
    """The product of complex numbers."""
    real = one[0] * other[0] - one[1] * other[1]
    return real, one[0] * other[1] + one[1] * other[0]
