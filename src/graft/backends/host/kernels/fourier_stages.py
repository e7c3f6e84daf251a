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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, load, select, term
from graft.loop.ir import INDEX, Buffer, Const, Scope, Stmt
from graft.loop.statements import (
    Cell,
    as_long_as,
    let,
    lets,
    loop,
    loops,
    ramp,
    scratch,
    spread,
    store,
    store_vector,
    vector,
    when,
    with_memory,
)
from graft.loop.traverse import block

Pair = tuple[Term, Term]  # real and imaginary part


@dataclass(frozen=True)
class Complex:
    """A table of complex numbers in scratch memory."""

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

    def store(self, at: Term, *pair: Term) -> Stmt:
        values = (cast(self.dtype, value) for value in pair)
        both = zip(self.memory, values, strict=True)
        return block(*(store_vector(buffer, at, value) for buffer, value in both))


@dataclass
class Stages:
    """Writes transforms of `work`, which holds two times as many points as there may be, each the
    real parts of some signals and then their imaginary parts."""

    dtype: DType
    lanes: int
    points: Term
    widest: Term  # signals side by side
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.work = scratch("work", self.dtype, self.points * self.widest * 4)
        self.powers = Complex("powers", self.dtype, self.points + self.lanes)
        self.origins = scratch("origins", INDEX, self.lanes)
        self.source, self.target = Cell("source"), Cell("target")
        self.left, self.stride = Cell("left"), Cell("stride")

    @property
    def memory(self) -> tuple[Buffer | Cell, ...]:
        cells = self.source, self.target, self.left, self.stride
        return (self.work, *self.powers.memory, self.origins, *cells)

    def table(self, size: Term) -> Stmt:
        """The powers of w."""

        def powers(number: Term) -> Stmt:
            at = number * self.lanes
            turns = cast(DType.FLOAT64, ramp(at, self.lanes))
            angle = turns * (2 * math.pi / cast(DType.FLOAT64, size))
            return self.powers.store(at, call("cos", angle), -call("sin", angle))

        return loop("power", (size + self.lanes - 1) // self.lanes, powers)

    def begin(self, size: Term) -> Stmt:
        """Have points written to the first half."""
        return block(self.source.set(0), self.target.set(size))

    def read(self, at: Term, lanes: int) -> Pair:
        return self._point(self.source.value + at, lanes)

    def _point(self, at: Term, lanes: int) -> Pair:
        first = at * (2 * lanes)
        return vector(self.work, first, lanes), vector(self.work, first + lanes, lanes)

    def read_lane(self, at: Term, lane: int, lanes: int) -> Pair:
        first = (self.source.value + at) * (2 * lanes) + lane
        return load(self.work, first), load(self.work, first + lanes)

    def write(self, at: Term, pair: Pair, lanes: int) -> Stmt:
        return self._put(self.source.value + at, pair, lanes)

    def _put(self, at: Term, pair: Pair, lanes: int) -> Stmt:
        """Both parts are known before either is written: they may be read from there."""

        def stored(real: Term, imaginary: Term) -> Stmt:
            first = at * (2 * lanes)
            return block(
                store_vector(self.work, first, real),
                store_vector(self.work, first + lanes, imaginary),
            )

        return self._named((pair,), lambda one: stored(*one))

    def _named(self, pairs: Sequence[Pair], body: Callable[..., Stmt]) -> Stmt:
        """Names for complex numbers, which the body takes."""
        parts: dict[str, Term] = {}
        for (real, imaginary), number in zip(pairs, self._numbers, strict=False):
            parts |= {f"real{number}": real, f"imaginary{number}": imaginary}
        return lets(parts, lambda *terms: body(*zip(terms[::2], terms[1::2], strict=True)))

    def write_lane(self, at: Term, lane: int, pair: Pair, lanes: int) -> Stmt:
        first = (self.source.value + at) * (2 * lanes) + lane
        return block(store(self.work, first, pair[0]), store(self.work, first + lanes, pair[1]))

    def clear(self, at: Term, lanes: int) -> Stmt:
        zero = spread(term(0.0, self.dtype), lanes)
        return self.write(at, (zero, zero), lanes)

    def transform(self, size: Term, lanes: int) -> Stmt:
        """All stages."""
        tag = next(self._numbers)

        def stage(left: Term, stride: Term) -> Stmt:
            odd = self._by_any(left, stride, size, lanes)
            by_two = when(left % 2 < 1, self._by_two(left // 2, stride, lanes), odd)
            by_four = when(left % 4 < 1, self._by_four(left // 4, stride, lanes), by_two)
            return block(by_four, self._exchange())

        def begun(left: Term) -> Stmt:
            return let(f"stride{tag}", self.stride.value, lambda stride: stage(left, stride))

        every = as_long_as(self.left.value > 1, let(f"left{tag}", self.left.value, begun))
        return block(self._go_on(size, term(1)), every)

    def _exchange(self) -> Stmt:
        def swapped(source: Term) -> Stmt:
            return block(self.source.set(self.target.value), self.target.set(source))

        return let(f"source{next(self._numbers)}", self.source.value, swapped)

    def _go_on(self, left: Term, stride: Term) -> Stmt:
        return block(self.left.set(left), self.stride.set(stride))

    def _by_two(self, half: Term, stride: Term, lanes: int) -> Stmt:
        def butterfly(j: Term, power: Pair, q: Term) -> Stmt:
            at = self.source.value + q + stride * j
            to = self.target.value + q + stride * j * 2

            def results(one: Pair, two: Pair) -> Stmt:
                difference = _times(_less(one, two), power)
                return block(
                    self._put(to, _plus(one, two), lanes),
                    self._put(to + stride, difference, lanes),
                )

            return self._named(
                (self._point(at, lanes), self._point(at + stride * half, lanes)), results
            )

        return block(self._columns(half, stride, 2, butterfly), self._go_on(half, stride * 2))

    def _by_four(self, quarter: Term, stride: Term, lanes: int) -> Stmt:
        def butterfly(j: Term, w1: Pair, w2: Pair, w3: Pair, q: Term) -> Stmt:
            at = self.source.value + q + stride * j
            to = self.target.value + q + stride * j * 4

            def halves(one: Pair, two: Pair, three: Pair, four: Pair) -> Stmt:
                rotated = two[1] - four[1], four[0] - two[0]  # by -i
                pairs = _plus(one, three), _less(one, three), _plus(two, four), rotated
                return self._named(pairs, results)

            def results(even: Pair, odd: Pair, others: Pair, rotated: Pair) -> Stmt:
                return block(
                    self._put(to, _plus(even, others), lanes),
                    self._put(to + stride, _times(_plus(odd, rotated), w1), lanes),
                    self._put(to + stride * 2, _times(_less(even, others), w2), lanes),
                    self._put(to + stride * 3, _times(_less(odd, rotated), w3), lanes),
                )

            points = [self._point(at + stride * quarter * n, lanes) for n in range(4)]
            return self._named(points, halves)

        return block(self._columns(quarter, stride, 4, butterfly), self._go_on(quarter, stride * 4))

    def _columns(
        self, count: Term, stride: Term, factor: int, butterfly: Callable[..., Stmt]
    ) -> Stmt:
        """A butterfly for each pair of j and q; it takes j, the powers for it, and q."""
        tag = next(self._numbers)

        def column(j: Term) -> Stmt:
            powers = [self.powers.load(j * stride * n, 1) for n in range(1, factor)]
            return self._named(
                powers, lambda *w: loop(f"q{tag}", stride, lambda q: butterfly(j, *w, q))
            )

        return loop(f"j{tag}", count, column)

    def _by_any(self, left: Term, stride: Term, size: Term, lanes: int) -> Stmt:
        """A stage by the least odd factor."""
        tag = next(self._numbers)
        factor, power = Cell(f"factor{tag}"), Cell(f"power{tag}")
        real, imaginary = (
            Buffer(f"{name}{tag}", self.dtype, (Const(lanes),), Scope.REGISTER)
            for name in ("sum_real", "sum_imaginary")
        )
        every = ramp(term(0), lanes)

        def summed(j: Term, q: Term, step: Term, rest: Term) -> Callable[[Term], Stmt]:
            def point(r: Term) -> Stmt:
                at = self.source.value + q + stride * (j + rest * r)
                after = power.value + step
                wrapped = power.set(after - select(after < size, term(0), size))

                def added(value: Pair, w: Pair) -> Stmt:
                    product = _times(value, w)
                    return block(
                        store(real, every, load(real, every) + product[0]),
                        store(imaginary, every, load(imaginary, every) + product[1]),
                        wrapped,
                    )

                pairs = self._point(at, lanes), self.powers.load(power.value, 1)
                return self._named(pairs, added)

            return point

        def result(p: Term, rest: Term, j: Term, k: Term, q: Term) -> Stmt:
            zero = spread(term(0.0, self.dtype), lanes)
            to = self.target.value + q + stride * (p * j + k)
            return block(
                power.set(stride * k * j),
                store(real, every, zero),
                store(imaginary, every, zero),
                loop(f"r{tag}", p, summed(j, q, stride * k * rest, rest)),
                self._put(to, (load(real, every), load(imaginary, every)), lanes),
            )

        def stage(p: Term, rest: Term) -> Stmt:
            axes = {f"j{tag}": rest, f"k{tag}": p, f"q{tag}": stride}
            all_points = loops(axes, lambda j, k, q: result(p, rest, j, k, q))
            return block(all_points, self._go_on(rest, stride * p))

        def of_factor(p: Term) -> Stmt:
            return let(f"rest{tag}", left // p, lambda rest: stage(p, rest))

        search = as_long_as((left % factor.value) > 0, factor.set(factor.value + 2))
        by_factor = let(f"odd{tag}", factor.value, of_factor)
        return with_memory(block(factor.set(3), search, by_factor), factor, power, real, imaginary)


def _plus(one: Pair, other: Pair) -> Pair:
    return one[0] + other[0], one[1] + other[1]


def _less(one: Pair, other: Pair) -> Pair:
    return one[0] - other[0], one[1] - other[1]


def _times(one: Pair, other: Pair) -> Pair:
    real = one[0] * other[0] - one[1] * other[1]
    return real, one[0] * other[1] + one[1] * other[0]
