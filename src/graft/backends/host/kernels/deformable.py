"""What the windows of a deformable convolution read: `nn.deformable_windows`.

Where a tap of a window lies between pixels is the same for all channels of its part, and so are the
shares of the four pixels around it. They are computed once, vectors of positions at a time, into
tables that stay in the first cache; then the channels are interpolated. In blocks, each of the four
pixels is a vector of channels, and nothing is gathered: a halo of zeros stands for what is outside.
In rows, vectors of positions gather their pixels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce

from graft.backends.host.cost import element_cost
from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import HELD, Layout, Plan, kernel_template
from graft.backends.host.kernels.image import bands_of, shared_in_bands, vector_lanes
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import channel_count, covers, shape_of
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.loop.build import Term, call, cast, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Buffer, Const, Var
from graft.loop.statements import StatementBuilder, ramp, scratch, spread, store_vector, vector
from graft.rewrite.rule import Refusal
from graft.target.target import Target

WINDOWS = "nn.deformable_windows"
SAMPLED_HALO = (1, 1, 1, 1)  # a position between two pixels may have one of them outside

_FLOATS = frozenset((DType.FLOAT32, DType.FLOAT64))
_CORNERS = range(4)  # above left, above right, below left, below right
_POSITIONS = 64  # of a job on row-major tensors, about
_VECTORS = 4  # side by side, so that what a position has in the tables is loaded once for them


def _layouts(group: Group, block: int) -> Iterable[Mapping[Value, tuple[int, ...]]]:
    """Data in the blocks of the result; what is read per position is row-major."""
    if block:
        data, *others = group.node.args
        yield {**dict.fromkeys(others, (0,)), data: (block,)}


@kernel_template(
    (WINDOWS,), Layout.BLOCKED, alone=True, dtypes=frozenset((DType.FLOAT32,)), layouts=_layouts
)
def blocked_windows(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Windows over images in blocks of channels that are interpolated alike."""
    node, result = group.node, stores[group.node.output]
    if node.args[0] in group.constants:
        return Refusal("the data are constant")
    if not _is_padded_by_numbers(group):
        return Refusal("the padding depends on extents that are not known")
    data = stores[node.args[0]]
    others = [one for one in node.args[1:] if one not in group.constants]
    if data.block != result.block or any(stores[one].block for one in others):
        return Refusal("the data and the windows are not in the same blocks")
    if not covers(data.halo, SAMPLED_HALO) or any(result.halo):
        return Refusal("the data has too narrow a halo, or the windows have one")
    alike = math.lcm(node.attrs.groups, node.attrs.deformable_groups) * result.block
    if channel_count(node.args[0]) % alike:
        return Refusal("a block has channels of several groups, or is not full")
    return node_plan(group, stores, lambda writer: _Blocked(writer, target).write())


@kernel_template(
    (WINDOWS,), Layout.ROW_MAJOR, alone=True, tensors=HELD, dtypes=_FLOATS, cost=element_cost
)
def windows(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Windows over row-major tensors."""
    if not _is_padded_by_numbers(group) or not isinstance(shape_of(group.node.args[0])[1], int):
        return Refusal("the padding or the channels are not known")
    return node_plan(group, stores, lambda writer: _Rows(writer, target).write())


def _is_padded_by_numbers(group: Group) -> bool:
    return all(isinstance(width, int) for width in group.node.attrs.padding)


@dataclass(frozen=True, slots=True)
class _Near:
    """Along one axis: the pixels before and behind some positions, and what each of them weighs."""

    places: tuple[Term, Term]
    shares: tuple[Term, Term]


class _Windows(ABC):
    """The tables of some positions, and what both kernels know."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self.writer, self.code, self.attrs = writer, writer.code, writer.group.node.attrs
        node = writer.group.node
        self.images, _, self.height, self.width = map(writer.dim, shape_of(node.args[0]))
        self.rows, self.columns = map(writer.dim, shape_of(node.output)[2:])
        self.channels = channel_count(node.args[0])
        self.data, self.offset = writer.present_operand(0), writer.present_operand(1)
        self.mask = writer.operand(2)
        self.result = writer.result(0)
        self.dtype = node.output.dtype
        self.lanes = target.lanes(self.dtype)
        self.area = math.prod(self.attrs.kernel_size)
        self.inside = self.channels // self.attrs.groups
        self.per_part = self.channels // self.attrs.deformable_groups
        self.taps = self.area * self.attrs.deformable_groups

    def tables(self, positions: Term) -> None:
        """Memory for the pixels, shares and factors of so many positions."""
        self.places = [scratch(f"place{n}", DType.INT32, positions) for n in _CORNERS]
        self.shares = [scratch(f"share{n}", self.dtype, positions) for n in _CORNERS]
        self.factors = None if self.mask is None else scratch("factor", self.dtype, positions)

    @property
    def memory(self) -> list[Buffer]:
        return [*self.places, *self.shares, *([self.factors] if self.factors else [])]

    def fill(self, image: Term, entry: Term, row: Term, slot: Term) -> None:
        """Fill the tables from some slot on for a row of the result; `entry`: a tap of a part."""
        pixels = self.rows * self.columns
        tap = entry % self.area
        down, right = tap // self.attrs.kernel_size[1], tap % self.attrs.kernel_size[1]
        (top, left), (dy, dx), (sy, sx) = (
            self.attrs.padding[:2],
            self.attrs.dilation,
            self.attrs.strides,
        )
        start = self.named("start", row * sy - top + down * dy)
        across = self.named("across", right * dx - left)
        line = self.named("line", row * self.columns)
        source = self.named("source", (image * self.taps + entry) * pixels)

        def at(column: Term, lanes: int) -> None:
            steps = ramp(column, lanes)
            plain = spread(cast(self.dtype, start), lanes), steps * sx + across
            moves = (
                vector(self.offset, source * 2 + line + pixels * axis + column, lanes)
                for axis in (0, 1)
            )
            y, x = (cast(self.dtype, one) + by for one, by in zip(plain, moves, strict=True))
            with self.code.scope():
                self._store(y, x, slot + column)
            if self.factors is not None and self.mask is not None:
                factor = vector(self.mask, source + line + column, lanes)
                self.code.emit(store_vector(self.factors, slot + column, factor))

        self.cover("column", self.columns, at)

    def _store(self, y: Term, x: Term, slot: Term) -> None:
        """The pixels around some positions, to the tables; -1 for both axes is outside."""
        is_near = (y > -1.0) & (x > -1.0)
        for position, extent in ((y, self.height), (x, self.width)):
            is_near = is_near & (position < cast(self.dtype, extent))
        rows = self.named("y", select(is_near, y, -1.0))
        columns = self.named("x", select(is_near, x, -1.0))
        vertical, horizontal = (
            self.near(position, extent, axis)
            for axis, (position, extent) in enumerate(((rows, self.height), (columns, self.width)))
        )
        for number in _CORNERS:
            below, beside = divmod(number, 2)
            place = self.place(vertical.places[below], horizontal.places[beside])
            share = vertical.shares[below] * horizontal.shares[beside]
            self.code.emit(store_vector(self.places[number], slot, place))
            self.code.emit(store_vector(self.shares[number], slot, share))

    @abstractmethod
    def near(self, position: Term, extent: Term, axis: int) -> _Near:
        """The pixels around positions along an axis, and their shares."""

    @abstractmethod
    def place(self, row: Term, column: Term) -> Term:
        """The index of a pixel in the data of a channel."""

    def interpolated(
        self, pixels: Sequence[Term], shares: Sequence[Term], factor: Term | None
    ) -> Term:
        """Four pixels by their shares, and that by the mask's factor."""
        (pixel, share), *others = zip(pixels, shares, strict=True)
        total = reduce(lambda sum_, pair: call("fma", *pair, sum_), others, pixel * share)
        return total if factor is None else total * factor

    def first_window(self, image: Term, channel: Term, entry: Term) -> Term:
        """The number of the channel of the windows that a tap of a channel makes."""
        group, inner = channel // self.inside, channel % self.inside
        tap = group * self.area + entry % self.area
        tap += image * self.attrs.groups * self.area
        number: Term = tap * self.inside + inner
        return number

    def cover(self, name: str, count: Term, body: Callable[[Term, int], None]) -> None:
        """The body for so many neighbours, vectors of them at a time where they fill one.

        The last vector may begin before the one before it ends: it finds the same again."""
        code, lanes = self.code, self.lanes
        is_known = isinstance(count.expr, Const)
        if isinstance(count.expr, Const):
            while lanes > 1 and lanes > int(count.expr.value):
                lanes //= 2
        name = self.writer.fresh(name)
        with ExitStack() as inside:
            if not is_known:
                inside.enter_context(code.when(count >= lanes))
            vectors = code.loop(f"{name}_vector", (count + (lanes - 1)) // lanes)
            number = inside.enter_context(vectors)
            body(code.let(f"{name}_at", minimum(number * lanes, count - lanes)), lanes)
        if not is_known:
            with code.otherwise(), code.loop(name, count) as at:
                body(at, 1)

    def named(self, name: str, value: Term) -> Term:
        return self.code.let(self.writer.fresh(name), value)

    def table_entries(self, slot: Term, lanes: int) -> tuple[Term, ...]:
        """What the tables hold for some positions, with names."""
        return tuple(self.named(one.name, vector(one, slot, lanes)) for one in self.memory)


class _Blocked(_Windows):
    """Windows in blocks: vectors of channels of one position after the other."""

    def __init__(self, writer: Writer, target: Target) -> None:
        super().__init__(writer, target)
        data, stores = writer.group.node.args[0], writer.stores
        self.halo, self.block = stores[data].halo, stores[data].block
        self.vector_lanes = vector_lanes(target, self.dtype, self.block)
        above, left, below, right = self.halo
        self.line = self.width + (left + right)
        self.plane = self.line * (self.height + (above + below))

    def write(self) -> None:
        self.tables(self.columns)
        image, row, entry = Var("image"), Var("row"), Var("entry")
        outer, self.code = self.code, StatementBuilder()
        with self.code.memory(*self.memory):
            self.row(*map(Term, (image, row, entry)))
        bands, between = bands_of(self.rows.expr), ((entry, self.taps),)
        axes = (image, self.images.expr), (row, self.rows.expr)
        outer.emit(shared_in_bands(*axes, bands, between, self.code.statement()))

    def row(self, image: Term, row: Term, entry: Term) -> None:
        """A row of what a tap of a part reads."""
        code, blocks = self.code, self.per_part // self.block
        side_by_side = max(n for n in range(1, blocks + 1) if self._fits(blocks, n))
        first, pixels = entry // self.area * blocks, self.rows * self.columns
        with code.scope():
            self.fill(image, entry, row, term(0))
        with code.loop("chunk", blocks // side_by_side) as chunk:
            numbers = [first + chunk * side_by_side + n for n in range(side_by_side)]
            sources = [
                self.named(f"source{n}", (image * (self.channels // self.block) + one) * self.plane)
                for n, one in enumerate(numbers)
            ]
            targets = [
                self.named(
                    f"target{n}",
                    self.first_window(image, one * self.block, entry) // self.block * pixels
                    + row * self.columns,
                )
                for n, one in enumerate(numbers)
            ]
            with code.loop("column", self.columns) as column:
                self.pixel(list(zip(sources, targets, strict=True)), column)

    def _fits(self, blocks: int, count: int) -> bool:
        vectors = count * (self.block // self.vector_lanes)
        return blocks % count == 0 and (count == 1 or vectors <= _VECTORS)

    def pixel(self, ends: list[tuple[Term, Term]], column: Term) -> None:
        """A position in some blocks, each given by where it begins in the data and the result."""
        entries, lanes = self.table_entries(column, 1), self.vector_lanes
        places = [cast(INDEX, place) for place in entries[:4]]
        factors = [spread(one, lanes) for one in entries[4:]]
        for source, target in ends:
            for first in range(0, self.block, lanes):
                pixels = [
                    vector(self.data, (source + at) * self.block + first, lanes) for at in places
                ]
                total = self.interpolated(pixels, factors[:4], (*factors[4:], None)[0])
                at = (target + column) * self.block + first
                self.code.emit(store_vector(self.result, at, total))

    def near(self, position: Term, extent: Term, axis: int) -> _Near:
        """Pixels of the image with its halo; those without a share are in the halo, since others
        may be infinite."""
        low = call("floor", position)
        fraction, halo = position - low, self.halo[axis]
        before = cast(DType.INT32, low) + halo
        return _Near(
            (before, select(fraction > 0.0, before + 1, halo - 1)), (1.0 - fraction, fraction)
        )

    def place(self, row: Term, column: Term) -> Term:
        return row * cast(DType.INT32, self.line) + column


class _Rows(_Windows):
    """Row-major windows: vectors of positions of one channel after the other."""

    def write(self) -> None:
        code, per_job = self.code, maximum(term(_POSITIONS) // maximum(self.columns, 1), 1)
        self.tables(maximum(self.columns, _POSITIONS))
        with code.memory(*self.memory):
            per_job = self.named("per_job", minimum(self.rows, per_job))
            chunks = (self.rows + (per_job - 1)) // per_job
            with code.parallel("job", self.images * chunks * self.taps) as number:
                first = number // self.taps % chunks * per_job
                image = self.named("image", number // self.taps // chunks)
                entry = self.named("entry", number % self.taps)
                first = self.named("first", first)
                count = self.named("count", minimum(self.rows - first, per_job))
                self.rows_of(image, entry, first, count)

    def rows_of(self, image: Term, entry: Term, first: Term, count: Term) -> None:
        """Some rows of what a tap of a part reads."""
        with self.code.loop("row", count) as row:
            self.fill(image, entry, first + row, row * self.columns)
        sample = partial(self.sample, image, entry, first * self.columns)
        self.cover("slot", count * self.columns, sample)

    def sample(self, image: Term, entry: Term, start: Term, slot: Term, lanes: int) -> None:
        """A vector of positions, all channels of a part."""
        entries, first = self.table_entries(slot, lanes), entry // self.area * self.per_part
        with self.code.loop(self.writer.fresh("channel"), self.per_part, first) as channel:
            source = (image * self.channels + channel) * self.height * self.width
            target = self.first_window(image, channel, entry) * self.rows * self.columns
            pixels = [
                select(share > 0.0, self.read(source, place, lanes), 0.0)
                for place, share in zip(entries[:4], entries[4:8], strict=True)
            ]
            total = self.interpolated(pixels, entries[4:8], (*entries[8:], None)[0])
            self.code.emit(store_vector(self.result, target + start + slot, total))

    def read(self, source: Term, place: Term, lanes: int) -> Term:
        return load(self.data, spread(source, lanes) + cast(INDEX, place))

    def near(self, position: Term, extent: Term, axis: int) -> _Near:
        """Pixels of the image; what is outside of it has no share."""
        low = call("floor", position)
        fraction, before = position - low, cast(DType.INT32, low)
        last = cast(DType.INT32, extent) - 1
        zero = Term(Const(0.0, self.dtype))
        return _Near(
            (maximum(before, 0), minimum(before + 1, last)),
            (select(before >= 0, 1.0 - fraction, zero), select(before < last, fraction, zero)),
        )

    def place(self, row: Term, column: Term) -> Term:
        return row * cast(DType.INT32, self.width) + column
