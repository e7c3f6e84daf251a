"""What kernels that read or write blocked images share.

A fusion group enters, cut at its anchor into what comes before and after it; loops over the rows of
the result, operands at a coordinate and stores of finished vectors leave.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from graft.backends.host.coordinates import (
    BlockedCoordinate,
    Coordinate,
    Reader,
    computed,
    minus,
    over,
    plus,
    times,
    where,
)
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernels.border import Bordered
from graft.backends.host.kernels.tile import runs
from graft.backends.host.kernels.vectors import mask_of
from graft.backends.host.kernels.views import shared_loop
from graft.backends.host.storage import Storage, index, shape_of
from graft.base.dims import Dim
from graft.base.dtypes import DType
from graft.ir.graph import Node, Value
from graft.loop.ir import (
    Block,
    Broadcast,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    If,
    Let,
    Ramp,
    Stmt,
    Store,
    Var,
)
from graft.loop.statements import bound
from graft.loop.traverse import has_chain, map_expr, map_stmt, walk_all
from graft.ops.integer import BYTES
from graft.ops.mixed import HALVES
from graft.ops.pointwise import SCALAR_DTYPES
from graft.target.target import Target

# Dtypes of images, and of intermediate values of their kernels.
_IMAGES = SCALAR_DTYPES.union(BYTES, HALVES)
_COMPUTED = SCALAR_DTYPES.union(BYTES, {DType.BOOL, DType.INT32})

WITHIN = Var("within")  # the position of a job within its band
_BAND_ROWS, _MOST_BANDS = 7, 16  # rows of a band, where an image has several bands of so many


def vector_lanes(target: Target, dtype: DType, block: int) -> int:
    """The vectors that a block of channels is best made of: powers of two where they divide it."""
    most = min(target.lanes(dtype), block)
    divisors = [lanes for lanes in range(1, most + 1) if block % lanes == 0]
    powers = [lanes for lanes in divisors if lanes >= 4 and lanes & (lanes - 1) == 0]
    return max(powers or divisors)


def group_lanes(target: Target, group: Group, block: int) -> int:
    """The same for all that a group computes: its widest numbers decide."""
    values = (value for node in group.nodes for value in (*node.args, *node.outputs))
    widest = max((value.dtype for value in values), key=lambda dtype: dtype.bits)
    return vector_lanes(target, widest, block)


@dataclass(frozen=True, slots=True)
class ImageSchedule:
    """What a search may vary: lanes of a vector and pixels side by side."""

    lanes: int
    pixels: int

    @staticmethod
    def of(target: Target, group: Group, block: int) -> ImageSchedule:
        """A few vectors side by side keep enough loads in flight; more gain nothing."""
        lanes = group_lanes(target, group, block)
        return ImageSchedule(lanes, max(1, 4 * lanes // block))


def shared(parts: Sequence[tuple[Var, Expr | int]], body: Stmt) -> Stmt:
    """A shared loop whose body may have vectors of one lane, as of images with one channel."""
    if any(isinstance(one, (Ramp, Broadcast)) and one.lanes == 1 for one in walk_all(body)):
        body = map_stmt(body, partial(map_expr, _without_single_lanes))
    return shared_loop(parts, body)


def bands_of(height: Expr) -> int:
    """How many bands the rows of an image are divided into among threads: few enough that most rows
    shared by neighbouring windows are still in L1."""
    rows = int(height.value) if isinstance(height, Const) else _MOST_BANDS * _BAND_ROWS
    return min(_MOST_BANDS, max(1, rows // _BAND_ROWS))


def shared_in_bands(
    batch: tuple[Var, Expr | int],
    axis: tuple[Var, Expr | int],
    bands: int,
    between: Sequence[tuple[Var, Expr | int]],
    body: Stmt,
) -> Stmt:
    """The same loop over a batch, an axis of its images in so many bands, and what lies `between`:
    all of that for one band, its part of the axis fastest, before the next band.

    Threads take equal ranges of the jobs, so that each works on the same part of an image in
    consecutive kernels and reads what it wrote itself. Lines that another core has written arrive
    slowly: at a seventh of the rate on a Zen 5 whose cores have a last-level cache each."""
    position, extent = axis
    (total,) = index(extent)
    bands = min(bands, int(total.value)) if isinstance(total, Const) else bands
    band = Var("band")
    first, end = (over(times(at, total), bands) for at in (band, plus(band, 1)))
    longest = over(plus(total, bands - 1), bands)
    if not (isinstance(total, Const) and int(total.value) % bands == 0):
        body = If(Compare(CompareKind.LESS, position, end), body)
    body = Let(position, plus(first, WITHIN), body)
    return shared((batch, (band, bands), *between, (WITHIN, longest)), body)


def _without_single_lanes(expr: Expr) -> Expr:
    """Vectors of one lane, which blocks of one channel are made of, are numbers."""
    match expr:
        case Ramp(base, _, 1) | Broadcast(base, 1):
            return base
    return expr


def operands(nodes: Sequence[Node], known: Collection[Value]) -> list[Value]:
    """What nodes read from memory."""
    inside = {*known, *(node.output for node in nodes)}
    return list(dict.fromkeys(v for node in nodes for v in node.args if v not in inside))


def source_block(group: Group, stores: Stores, value: Value) -> int:
    """The blocks of the images that a value is, or is computed from; 0 if there is no one size."""
    nodes = group.leading_to(value)
    read = operands(nodes, ()) if nodes else [value]
    sizes = {stores[group.outer(v)].block for v in read if v not in group.constants} - {0}
    return sizes.pop() if len(sizes) == 1 else 0


def no_image(storage: Storage) -> str | None:
    """Why a result cannot be written as a blocked image, if it cannot."""
    if not storage.block or 0 in storage.shape:
        return "the result is no blocked image, or empty"
    return None if storage.dtype in _IMAGES else f"the result is {storage.dtype}"


def not_pointwise(nodes: Sequence[Node], rank: int = 4) -> str | None:
    """Why nodes cannot be computed at a coordinate of a tensor of that rank, if they cannot."""
    inside = {node.output for node in nodes}
    for node in nodes:
        if node.op.scalar is None:
            return f"{node.op.name} has no formula"
        if node.op.name == "nn.bias_add" and node.args[1] in inside:
            return "the bias is computed at other coordinates than the result"
        allowed = _COMPUTED.union(HALVES) if node.op.name == "cast" else _COMPUTED
        if any(value.dtype not in allowed for value in (*node.args, node.output)):
            return f"{node.op.name} is not on float32, float64 or small integers"
        if node.op.name == "nn.bias_add" and len(shape_of(node.output)) != rank:
            return "the bias runs along an axis of something else than the result"
    return None


def not_readable(
    group: Group, stores: Stores, values: Sequence[Value], shape: Sequence[Dim], block: int
) -> str | None:
    """Why operands cannot be read at coordinates of an image with such blocks, if they cannot."""
    for value in values:
        storage = None if value in group.constants else stores[group.outer(value)]
        if storage is None:
            continue
        if storage.block and (storage.block != block or storage.shape[1] != shape[1]):
            return f"%{value.name} is in other blocks than the image it is read for"
        if not reads_at(storage.shape, shape):
            return f"%{value.name} may or may not be repeated along the image"
    return None


def reads_at(operand: Sequence[Dim], shape: Sequence[Dim]) -> bool:
    """Whether it is known along which axes of a shape an operand is repeated, and which it has."""
    pairs = zip(reversed(operand), reversed(shape), strict=False)
    return all(
        mine in (1, other) or (isinstance(mine, int) and isinstance(other, int))
        for mine, other in pairs
    )


def unfit_prologue(group: Group, stores: Stores, source: Value, block: int) -> str | None:
    """Why an image, or what it is computed from, cannot be read at coordinates of such blocks, if
    it cannot."""
    before = group.leading_to(source)
    read = operands(before, ()) if before else [source]
    return not_pointwise(before) or not_readable(group, stores, read, shape_of(source), block)


def unfit_epilogue(group: Group, stores: Stores, anchor: Node) -> str | None:
    """Why what follows the anchor cannot be computed on its vectors, if it cannot."""
    after = group.leading_to(group.nodes[-1].output, {anchor.output})
    shape, block = stores[group.output].shape, stores[group.output].block
    values = operands(after, {anchor.output})
    return not_pointwise(after) or not_readable(group, stores, values, shape, block)


def unfit_weights(group: Group, stores: Stores, anchor: Node) -> str | None:
    """Why an anchor's weights cannot be packed, if they cannot: as data they have to be in rows."""
    weight = anchor.args[1]
    is_blocked = weight not in group.constants and stores[group.outer(weight)].block
    return "the weights are in blocks" if is_blocked else None


def reader(parameters: Parameters, coordinate: Coordinate) -> Reader:
    """Reads operands at a coordinate; a blocked one with a single row is broadcast along it."""

    def read(value: Value, axis: int | None) -> Expr:
        if not isinstance(coordinate, BlockedCoordinate):
            return coordinate.load(*parameters.value(value), axis)
        channels = _channel_axis(parameters, value, axis)
        if channels is not None and value in parameters.group.constants:
            return coordinate.load(*parameters.whole_blocks(value, channels, coordinate.size), axis)
        storage, buffer = parameters.value(value)
        if not storage.block:
            vector = coordinate.load(storage, buffer, axis)
            count = None if channels is None else storage.shape[channels]
            if not isinstance(count, int) or count % coordinate.size == 0:
                return vector
            remaining = minus(
                Const(count), plus(times(coordinate.block, coordinate.size), coordinate.first)
            )
            condition = mask_of(remaining, coordinate.lanes)
            return vector if condition is None else where(condition, vector)
        at = (coordinate.batch, coordinate.row, coordinate.column)
        extents = (storage.shape[0], *storage.shape[2:])
        parts = [Const(0) if n == 1 else item for n, item in zip(extents, at, strict=True)]
        here = replace(coordinate, batch=parts[0], row=parts[1], column=parts[2])
        return here.load(storage, buffer, axis)

    return read


def _channel_axis(parameters: Parameters, value: Value, axis: int | None) -> int | None:
    """The axis along which a row-major operand has channels, if it has any of its own."""
    literal = parameters.group.constants.get(value)
    storage = None if literal else parameters.stores[parameters.group.outer(value)]
    if storage is not None and storage.block:
        return None
    shape = literal.array.shape if literal else storage.shape if storage else ()
    own = 0 if axis is not None else len(shape) - 3
    return own if own >= 0 and shape[own] != 1 else None


@dataclass
class Evaluator:
    """Computes values of a group at coordinates, each once, under names of their own."""

    parameters: Parameters

    def at(
        self,
        coordinate: Coordinate,
        value: Value,
        known: Mapping[Value, Expr],
        use: Callable[[Expr], Stmt],
    ) -> Stmt:
        """A statement that uses what a value of the group is at a coordinate."""
        bindings: list[tuple[Var, Expr]] = []
        vectors: dict[Value, Expr] = {}

        def bound_to(this: Value, expr: Expr) -> Expr:
            var = Var(self.parameters.fresh("at"), expr.dtype, expr.lanes)
            bindings.append((var, expr))
            vectors[this] = var
            return var

        read = reader(self.parameters, coordinate)
        for this, expr in known.items():
            bound_to(this, expr)
        for node in self.parameters.group.leading_to(value, known):
            bound_to(node.output, computed((node,), vectors, read)[node.output])
        return bound(bindings, use(vectors[value] if value in vectors else read(value, None)))


def takes_chains(nodes: Iterable[Node]) -> bool:
    """Whether elements of pointwise nodes take long chains of dependent instructions."""

    def read(value: Value, _axis: int | None) -> Expr:
        return Var("operand", value.dtype)

    return any(has_chain(computed((node,), {}, read)[node.output]) for node in nodes)


class ImageWriter:
    """Writes a blocked image row by row; subclasses say how a row's vectors are made."""

    def __init__(self, parameters: Parameters, lanes: int, number: int = 0) -> None:
        self.parameters = parameters
        self.group = parameters.group
        self.lanes = lanes
        self.output_number = number  # among the results of the group
        self.output = self.group.node.outputs[number]
        self.result: Storage = parameters.stores[self.output]
        self.batch, self.block, self.row = Var("batch"), Var("block"), Var("row")
        batches, _, height, width = map(parameters.extent, self.result.shape)
        self.batches, self.height, self.width = batches, height, width
        self.evaluator = Evaluator(parameters)

    @property
    def vectors(self) -> range:
        """The first channel of each vector of a block."""
        return range(0, self.result.block, self.lanes)

    @property
    def buffer(self) -> Buffer:
        """Where the result goes."""
        return self.parameters.value(self.output, f"result{self.output_number or ''}")[1]

    def fresh(self, hint: str) -> str:
        return self.parameters.fresh(hint)

    def coordinate(self, column: Expr, first: int, lanes: int = 0) -> BlockedCoordinate:
        """A vector of the result."""
        size = self.result.block
        return BlockedCoordinate(
            self.batch, self.block, self.row, column, first, lanes or self.lanes, size
        )

    def coordinates(
        self, column: Expr, pixels: int, channels: range | None = None, lanes: int = 0
    ) -> list[BlockedCoordinate]:
        """The vectors of some pixels: of all channels of the block, or of some."""
        firsts = self.vectors if channels is None else channels
        places = [plus(column, pixel) for pixel in range(pixels)]
        return [self.coordinate(place, first, lanes) for place in places for first in firsts]

    def store(self, coordinate: BlockedCoordinate, known: Mapping[Value, Expr]) -> Stmt:
        """The result at a coordinate, computed from what is known, to memory."""
        buffer, at = self.buffer, self.address(coordinate)
        result = self.group.nodes[-1].outputs[self.output_number]
        return self.evaluator.at(coordinate, result, known, lambda value: Store(buffer, at, value))

    def address(self, coordinate: BlockedCoordinate) -> tuple[Expr, ...]:
        """Where the result has a vector."""
        top, left, _, _ = self.result.halo
        pixel = plus(coordinate.row, top), plus(coordinate.column, left)
        lanes = Ramp(Const(coordinate.first), 1, coordinate.lanes)
        return coordinate.batch, coordinate.block, *pixel, lanes

    def across(self, most: int, pixels: Callable[[Expr, int], Stmt]) -> list[Stmt]:
        """A row in tiles of at most so many pixels, each made from its first column and size."""

        def tile(size: int, column: Expr) -> Stmt:
            return pixels(column, size)

        return [
            run.loop(Var(self.fresh("tile")), partial(tile, run.size))
            for run in runs(self.width, most)
        ]

    def border(self, row: Expr, tag: str = "") -> list[Stmt]:
        """What fills the result's halo beside a row."""
        image = Bordered(self.result, self.buffer, self.height, self.width)
        return image.filled(self.batch, self.block, row, tag)

    def rows(self, line: Sequence[Stmt]) -> Stmt:
        """The statements of a row for each row of each block, and the border."""
        body = Block((*line, *self.border(self.row)))
        blocks = ((self.block, self.result.blocks),)
        batch, rows = (self.batch, self.batches), (self.row, self.height)
        return shared_in_bands(batch, rows, bands_of(self.height), blocks, body)
