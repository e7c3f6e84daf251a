"""Movement of blocked images: padding, slices, rolls, shuffled channels, depth to space and back.

The meaning of a group of movement nodes is applied to an image whose elements are numbered, and the
numbers that come out are decomposed into a row, a column and a channel of the source per element.
So no operator needs a rule of its own: they all become a table of rows, one of columns, and one of
channels and offsets that repeats every few pixels.

Each vector of channels of the result is read where these tables say: as one vector where its
channels are neighbours in the source, else lane by lane. Pointwise nodes that follow are computed
on it. The threads share the rows of the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from weakref import WeakKeyDictionary

import numpy as np

from graft.backends.host.coordinates import BlockedCoordinate, modulo, plus, times
from graft.backends.host.cost import copied_cost
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Layout, Pattern, Plan, kernel_template, plan_of
from graft.backends.host.kernels.image import (
    ImageSchedule,
    ImageWriter,
    no_image,
    not_pointwise,
    not_readable,
    operands,
)
from graft.backends.host.storage import BLOCKS, Storage, is_image, shape_of
from graft.base.dims import substitute, symbols_of
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError
from graft.ir.attrs import bind_attrs
from graft.ir.evaluate import run_op
from graft.ir.graph import Node, Value
from graft.ir.op import Kind
from graft.loop.build import constant
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    Let,
    Load,
    Ramp,
    Select,
    Stmt,
    Var,
)
from graft.ops.integer import BYTES
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# After so many rows or columns the channels that are read may repeat.
PERIODS = (1, 2, 3, 4, 8)
# Larger images take too long to be moved while compiling.
MOST_ELEMENTS = 1 << 23
# Numbers that name elements begin here: no padding is made of such.
_FIRST = 2.0**40


@dataclass(frozen=True, eq=False)
class PixelMap:
    """An element of the result at (channel, row, column) is the source's at
    `channels[p, q, channel]`, `rows[row] + down[p, q, channel]` and
    `columns[column] + right[p, q, channel]`, where p and q are row and column modulo the periods;
    or `fill`, where its row or its column is not `inside`."""

    source: Value
    rows: Array
    columns: Array
    inside: tuple[Array, Array]
    fill: float
    channels: Array
    down: Array
    right: Array

    @property
    def periods(self) -> tuple[int, int]:
        rows, columns, _ = self.channels.shape
        return rows, columns


# Layout choice asks for the maps of a group several times, and moving the numbers takes long.
_MAPS: WeakKeyDictionary[Group, dict[Value, PixelMap] | Refusal] = WeakKeyDictionary()


def pixel_maps(group: Group) -> dict[Value, PixelMap] | Refusal:
    """The map of each image that movement in a group ends with.

    What the group computes from them has to be pointwise; no pointwise node may come before."""
    if group not in _MAPS:
        _MAPS[group] = _traced(group)
    return _MAPS[group]


def _traced(group: Group) -> dict[Value, PixelMap] | Refusal:
    moving = [node for node in group.nodes if node.op.kind is Kind.INJECTIVE]
    others = [node for node in group.nodes if node not in moving]
    sources = [value for value in operands(moving, ()) if value not in group.constants]
    if len(sources) != 1 or any(sources[0] in node.outputs for node in others):
        return Refusal("what is moved is no single image in memory")
    ends = moving[-1].outputs
    between = {value for node in moving[:-1] for value in node.outputs}
    if any(value in between for node in others for value in node.args):
        return Refusal("what is moved is read on the way")
    reason = next(filter(None, (_no_image(value) for value in (*sources, *ends))), None)
    if reason:
        return Refusal(reason)
    maps: dict[Value, PixelMap] = {}
    for images in _numbered(moving, sources[0], group):
        if isinstance(images, str):
            return Refusal(images)
        for end in ends:
            mapped = _decomposed(sources[0], images[sources[0]].shape, images[end])
            if mapped is None:
                return Refusal("rows, columns and channels are not moved by tables")
            maps[end] = mapped
    return maps


def _no_image(value: Value) -> str | None:
    shape = value.shape
    if value.dtype not in (DType.FLOAT32, *BYTES):
        return f"images of {value.dtype} are not moved in blocks"
    if shape is None or len(shape) != 4 or not all(isinstance(n, int) and n for n in shape[1:]):
        return "what is moved is no image of known size"
    return None


def _numbered(
    moving: Sequence[Node], source: Value, group: Group
) -> Iterator[dict[Value, Array] | str]:
    """What movement makes of numbered elements, for each of the batches to look at.

    A batch that is not known is looked at in two sizes: images have to be moved alike in both."""
    batch = shape_of(source)[0]
    names = sorted(symbols_of(batch))
    for number in (2, 3) if names else (0,):
        symbols = dict.fromkeys(names, number)
        shape = tuple(substitute(dim, symbols) for dim in shape_of(source))
        extents = tuple(dim for dim in shape if isinstance(dim, int))
        if math.prod(extents) > MOST_ELEMENTS:
            yield "the image is too large to be moved while compiling"
            return
        elements = np.arange(math.prod(extents), dtype=np.float64) + _FIRST
        values: dict[Value, Array] = {v: one.array for v, one in group.constants.items()}
        values[source] = elements.reshape(extents)
        try:
            for node in moving:
                arguments = [None if value is None else values[value] for value in node.inputs]
                results = run_op(node.op, bind_attrs(node.attrs, symbols), arguments)
                values.update(zip(node.outputs, results, strict=True))
        except (GraftError, ValueError, IndexError) as error:  # a constant may fix the batch
            yield f"movement of numbers fails: {error}"
            return
        yield values


def _decomposed(source: Value, shape: tuple[int, ...], moved: Array) -> PixelMap | None:
    """The tables that say the same as the numbers of elements, if there are such tables."""
    batches, channels, height, width = shape
    is_inside = (moved >= _FIRST) & (moved < _FIRST + math.prod(shape))
    rows_inside = np.asarray(is_inside.any(axis=(0, 1, 3)))
    columns_inside = np.asarray(is_inside.any(axis=(0, 1, 2)))
    inside = rows_inside, columns_inside
    both = rows_inside[:, None] & columns_inside
    fills = moved[~is_inside]
    signs = np.signbit(fills)  # 0.0 and -0.0 are equal, but not one fill
    one_fill = not fills.size or ((fills == fills[0]) & (signs == signs[0])).all()
    if not both.any() or moved.shape[0] != batches or not one_fill or (is_inside != both).any():
        return None
    numbers = np.where(is_inside, moved - _FIRST, 0).astype(np.int64)
    per_image = channels * height * width
    own = numbers - np.arange(batches)[:, None, None, None] * per_image
    if ((own != own[:1]) & is_inside).any():
        return None
    channel, row, column = np.unravel_index(np.where(is_inside[0], own[0], 0), shape[1:])
    first = [int(np.argmax(flags)) for flags in inside]
    rows = np.where(inside[0], row[0, :, first[1]], row[0, first[0], first[1]])
    columns = np.where(inside[1], column[0, first[0], :], column[0, first[0], first[1]])
    parts = channel, row - rows[:, None], column - columns
    fill = float(fills[0]) if fills.size else 0.0
    for periods in product(PERIODS, PERIODS):
        # Most channels are moved alike, so that two of them refuse most periods at little cost.
        if any(_by_period(part[[0, -1]], inside, periods) is None for part in parts):
            continue
        tables = [_by_period(part, inside, periods) for part in parts]
        if all(table is not None for table in tables):
            which, down, right = (table for table in tables if table is not None)
            return PixelMap(source, rows, columns, inside, fill, which, down, right)
    return None


def _by_period(part: Array, inside: tuple[Array, Array], periods: tuple[int, int]) -> Array | None:
    """Per channel the numbers that an array repeats every few rows and columns, if it does."""
    table = np.zeros((*periods, part.shape[0]), np.int64)
    rows, columns = map(np.flatnonzero, inside)
    for p, q in product(*map(range, periods)):
        own_rows, own_columns = rows[rows % periods[0] == p], columns[columns % periods[1] == q]
        if own_rows.size and own_columns.size:
            places = part[:, own_rows[:, None], own_columns]
            table[p, q] = places[:, 0, 0]
            if (places != places[:, :1, :1]).any():
                return None
    return table


def _layouts(group: Group, block: int) -> Iterator[Mapping[Value, tuple[int, ...]]]:
    """The image that is moved may be in any blocks."""
    source = _moved_image(group) if block else None
    if source is not None and is_image(group.outer(source)):
        yield {source: (block, *(one for one in BLOCKS if one != block))}


@kernel_template(
    Pattern.ANY,
    Layout.BLOCKED,
    schedule=ImageSchedule,
    layouts=_layouts,
    cost=copied_cost,
)
def image_movement(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Movement of one image, with any number of results or pointwise nodes behind it."""
    results = [stores[value] for value in group.node.outputs]
    reason = next(filter(None, map(no_image, results)), None)
    maps = Refusal(reason) if reason else pixel_maps(group)
    if isinstance(maps, Refusal):
        return maps
    source = stores[group.outer(next(iter(maps.values())).source)]
    reason = _unfit(group, stores, source, tuple(maps))
    if reason:
        return Refusal(reason)

    def body(parameters: Parameters) -> Stmt:
        loops: list[Stmt] = []
        for number, (end, map_) in enumerate(maps.items()):
            schedule = ImageSchedule.of(target, group, results[number].block)
            loops.append(_Writer(parameters, schedule, number, end, map_).body())
        return Block(tuple(loops))

    return plan_of(group, stores, body)


def _moved_image(group: Group) -> Value | None:
    """The image that a group moves and can move in blocks, if there is one."""
    if not any(node.op.kind is Kind.INJECTIVE for node in group.nodes):
        return None
    maps = pixel_maps(group)
    if isinstance(maps, Refusal) or not_pointwise(_after(group, tuple(maps))):
        return None
    return next(iter(maps.values())).source


def _after(group: Group, ends: tuple[Value, ...]) -> tuple[Node, ...]:
    """What is computed from moved images."""
    return group.leading_to(group.nodes[-1].output, ends)


def _unfit(group: Group, stores: Stores, source: Storage, ends: tuple[Value, ...]) -> str | None:
    """Why the image or what follows cannot be read, if it cannot."""
    if not source.block:
        return "the data is no blocked image"
    after = _after(group, ends)
    if len(ends) > 1 and after:
        return "several images are computed with"
    result = stores[group.output]
    values = operands(after, ends)
    return not_pointwise(after) or not_readable(group, stores, values, result.shape, result.block)


def offsets(map_: PixelMap, source: Storage, blocks: int, size: int) -> Array:
    """Per period and channel of the result, what it adds to the address of a row and a column.

    Lanes without a channel go on where the last channel is, or stay there at the end of a block."""
    height, width = source.extents[2:4]
    assert isinstance(height, int)
    assert isinstance(width, int)
    lacking = blocks * size - map_.channels.shape[2]
    channels, down, right = (
        np.pad(part, ((0, 0), (0, 0), (0, lacking)), mode="edge")
        for part in (map_.channels, map_.down, map_.right)
    )
    if lacking:
        last = channels[..., -lacking - 1 : -lacking]
        room = source.block - 1 - last % source.block
        channels[..., -lacking:] = last + np.minimum(np.arange(1, lacking + 1), room)
    inner = (channels // source.block) * height * width + down * width + right
    return np.asarray(inner * source.block + channels % source.block)


def in_vectors(table: Array, lanes: int) -> bool:
    """Whether the channels of every vector are neighbours."""
    vectors = table.reshape(-1, lanes)
    return bool((vectors == vectors[:, :1] + np.arange(lanes)).all())


class _Writer(ImageWriter):
    """Writes the loop nest of one moved image."""

    def __init__(
        self,
        parameters: Parameters,
        schedule: ImageSchedule,
        number: int,
        end: Value,
        map_: PixelMap,
    ) -> None:
        super().__init__(parameters, schedule.lanes, number)
        self.pixels, self.end, self.map = schedule.pixels, end, map_
        source = parameters.stores[parameters.group.outer(map_.source)]
        top, left, _, _ = source.halo
        width = source.extents[3]
        assert isinstance(width, int)
        self.data = parameters.flat(map_.source, f"data{number}")
        table = offsets(map_, source, self.result.blocks, self.result.block)
        self.neighbours = in_vectors(table, self.lanes)
        self.offsets = self.packed(table, "offsets")
        self.rows_at = self.packed((map_.rows + top) * width * source.block, "rows")
        self.columns_at = self.packed((map_.columns + left) * source.block, "columns")
        self.inside = [
            None if flags.all() else self.packed(flags.astype(np.int64), f"inside{axis}_")
            for axis, flags in enumerate(map_.inside)
        ]

    def packed(self, table: Array, name: str) -> Buffer:
        return self.parameters.table(table.astype(np.int64), f"{name}{self.output_number}")

    def body(self) -> Stmt:
        return self.rows(self.across(self.pixels, self.tile))

    def tile(self, column: Expr, size: int) -> Stmt:
        """Some pixels, all channels of a block each."""
        pixels = (self.pixel(plus(column, number)) for number in range(size))
        return Block(tuple(pixels))

    def pixel(self, column: Expr) -> Stmt:
        start = Var(self.fresh("start"))
        stores = (self.moved(coordinate, start) for coordinate in self.coordinates(column, 1))
        at = plus(Load(self.rows_at, (self.row,)), Load(self.columns_at, (column,)))
        return Let(start, at, Block(tuple(stores)))

    def moved(self, coordinate: BlockedCoordinate, start: Expr) -> Stmt:
        """A vector of the result, read or filled, through what follows to memory."""
        vector: Expr = Load(self.data, (self.batch, self.places(coordinate, start)))
        flags = [
            Compare(CompareKind.NOT_EQUAL, Load(table, (index,)), Const(0))
            for table, index in zip(self.inside, (coordinate.row, coordinate.column), strict=True)
            if table is not None
        ]
        for flag in flags:
            fill = constant(self.map.fill, vector.dtype, vector.lanes)
            vector = Select(Broadcast(flag, vector.lanes), vector, fill)
        return self.store(coordinate, {self.end: vector})

    def places(self, coordinate: BlockedCoordinate, start: Expr) -> Expr:
        """Where the channels of a vector lie in the image that is moved."""
        rows, columns = self.map.periods
        period = modulo(coordinate.row, rows), modulo(coordinate.column, columns)
        channel = plus(times(coordinate.block, coordinate.size), coordinate.first)
        if self.neighbours:
            return Ramp(plus(start, Load(self.offsets, (*period, channel))), 1, coordinate.lanes)
        lanes = Load(self.offsets, (*period, Ramp(channel, 1, coordinate.lanes)))
        return Binary(BinaryKind.ADD, Broadcast(start, coordinate.lanes), lanes)
