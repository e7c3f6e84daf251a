"""Where the elements of a moved image come from: found by moving numbers that name them.

A group of movement nodes enters. Its meaning is applied to an image whose elements are numbered,
and the numbers that come out are taken apart into a row, a column and a channel of the source per
element. Slices, rolls, padding of every mode, shuffled channels, depth to space and back need no
rule of their own then: what they have in common is a table of rows, one of columns, and one of
channels and offsets that repeats every few pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from weakref import WeakKeyDictionary

import numpy as np

from graft.backends.host.group import Group
from graft.backends.host.kernels.image import operands
from graft.backends.host.storage import shape_of
from graft.base.dims import substitute, symbols_of
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError
from graft.ir.attrs import bind_attrs
from graft.ir.evaluate import run_op
from graft.ir.graph import Node, Value
from graft.ir.op import Kind
from graft.rewrite.rule import Refusal

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
    found: dict[Value, PixelMap] = {}
    for images in _numbered(moving, sources[0], group):
        if isinstance(images, str):
            return Refusal(images)
        for end in ends:
            mapped = _taken_apart(sources[0], images[sources[0]].shape, images[end])
            if mapped is None:
                return Refusal("rows, columns and channels are not moved by tables")
            found[end] = mapped
    return found


def _no_image(value: Value) -> str | None:
    shape = value.shape
    if value.dtype is not DType.FLOAT32:
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
                given = [None if value is None else values[value] for value in node.inputs]
                results = run_op(node.op, bind_attrs(node.attrs, symbols), given)
                values.update(zip(node.outputs, results, strict=True))
        except (GraftError, ValueError) as error:
            yield f"movement of numbers fails: {error}"
            return
        yield values


def _taken_apart(source: Value, shape: tuple[int, ...], moved: Array) -> PixelMap | None:
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
        if any(_repeated(part[[0, -1]], inside, periods) is None for part in parts):
            continue
        tables = [_repeated(part, inside, periods) for part in parts]
        if all(table is not None for table in tables):
            which, down, right = (table for table in tables if table is not None)
            return PixelMap(source, rows, columns, inside, fill, which, down, right)
    return None


def _repeated(part: Array, inside: tuple[Array, Array], periods: tuple[int, int]) -> Array | None:
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
