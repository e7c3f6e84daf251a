"""Movement: the same elements in another shape or order, joined, cut up, repeated or padded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from graft.base.dims import AnyDim, product
from graft.loop.build import Term, cast, equal, maximum, minimum, select
from graft.loop.tensor import Tensor
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses
from graft.ops.expression.shapes import (
    Extents,
    Index,
    Indices,
    by_index,
    extents_of,
    is_known,
    linear,
    present,
    read,
    sizes,
    spread,
    unravelled,
)
from graft.ops.layout import rearrangement
from graft.ops.rules import normalize_axes, normalize_axis

# Of these a concatenation is one expression where it is not known how long they are.
MOST_PIECES = 3


def _moved(name: str, types: Types, element: Any) -> Results:
    return (by_index(name, extents_of(types[0]), element),)


@expresses("reshape", "squeeze", "expand_dims")
def reshape(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The element with the same number in row-major order."""
    data = present(inputs[0])
    shape = extents_of(types[0])
    kept = [axis for axis, extent in enumerate(shape) if extent != 1]
    had = [axis for axis, extent in enumerate(sizes(data)) if extent != 1]
    same = [shape[axis] for axis in kept] == [sizes(data)[axis] for axis in had]

    def element(*indices: Term) -> Term:
        if same:  # only axes of extent 1 come and go
            at: list[Index] = [0] * len(data.shape)
            for source, axis in zip(had, kept, strict=True):
                at[source] = indices[axis]
            return read(data, at)
        return read(data, _renumbered(indices, shape, data))

    return _moved(name, types, element)


def _renumbered(indices: Indices, shape: Extents, data: Tensor) -> list[Term]:
    """Where the data have the element with the same number.

    Runs of axes with equally many elements, as far as extents that are not known show it, need no
    numbers of the axes around them.
    """
    have, found = sizes(data), list[Term]()
    if all(map(is_known, (*have, *shape))):
        return unravelled(linear(indices, shape), have)
    last = first = 0
    for end in range(1, len(have) + 1):
        counts = (product(shape[first:stop]) for stop in range(first, len(shape) + 1))
        whole = product(have[last:end])
        stop = next((first + n for n, count in enumerate(counts) if count == whole), None)
        if end == len(have):
            stop = len(shape)
        if stop is not None:
            place = linear(indices[first:stop], shape[first:stop])
            found += unravelled(place, have[last:end])
            last, first = end, stop
    return found


@expresses("transpose")
def transpose(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Axes in another order."""
    data = present(inputs[0])
    rank = len(data.shape)
    axes = tuple(reversed(range(rank))) if attrs.axes is None else attrs.axes
    order = normalize_axes(axes, rank)

    def element(*indices: Term) -> Term:
        return read(data, [indices[order.index(axis)] for axis in range(rank)])

    return _moved(name, types, element)


@expresses("layout_transform")
def layout_transform(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Axes apart, in another order, and together again."""
    data = present(inputs[0])
    if not all(isinstance(extent, int) for extent in sizes(data)):
        return Unexpressed("the axes are known only at run time")
    way = rearrangement(attrs.src_layout, attrs.dst_layout, sizes(data))
    split, turned, result = way.extents

    def element(*indices: Term) -> Term:
        at = _as(indices, result, turned)
        apart = [at[way.axes.index(axis)] for axis in range(len(split))]
        return read(data, _as(apart, split, sizes(data)))

    return _moved(name, types, element)


def _as(
    indices: Sequence[Term], shape: Sequence[AnyDim], other: Sequence[AnyDim]
) -> Sequence[Term]:
    """The indices of the same element of the same data in another shape."""
    if tuple(shape) == tuple(other):
        return indices
    return unravelled(linear(indices, tuple(shape)), tuple(other))


@expresses("broadcast_to")
def broadcast_to(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The element that NumPy's broadcasting puts there."""
    data = present(inputs[0])
    shape = extents_of(types[0])
    return _moved(name, types, lambda *indices: spread(data, indices, shape))


@expresses("concatenate")
def concatenate(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """One operand after the other along an axis."""
    pieces = [present(one) for one in inputs if one is not None]
    axis = normalize_axis(attrs.axis, len(pieces[0].shape))
    pieces = [piece for piece in pieces if sizes(piece)[axis] != 0] or pieces[:1]
    starts: list[AnyDim] = [0, *accumulate(sizes(piece)[axis] for piece in pieces)]
    if len(pieces) > MOST_PIECES and not all(isinstance(start, int) for start in starts):
        return Unexpressed("too many pieces of unknown sizes, each a branch of its own")

    def element(*indices: Term) -> Term:
        def of(piece: int) -> Term:
            moved = list(indices)
            moved[axis] = indices[axis] - starts[piece]
            return read(pieces[piece], moved)

        found = of(len(pieces) - 1)
        for piece in reversed(range(len(pieces) - 1)):
            found = select(indices[axis] < starts[piece + 1], of(piece), found)
        return found

    return _moved(name, types, element)


@expresses("split")
def split(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Pieces along an axis; their types tell where it is cut."""
    data = present(inputs[0])
    axis = normalize_axis(attrs.axis, len(data.shape))
    lengths = [extents_of(type_)[axis] for type_ in types]
    starts: list[AnyDim] = [0, *accumulate(lengths)]

    def piece(start: AnyDim) -> Any:
        def element(*indices: Term) -> Term:
            return read(data, [*indices[:axis], indices[axis] + start, *indices[axis + 1 :]])

        return element

    return tuple(
        by_index(f"{name}_{count}" if count else name, extents_of(type_), piece(start))
        for count, (type_, start) in enumerate(zip(types, starts, strict=False))
    )


@expresses("tile")
def tile(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The data again and again along each axis."""
    data = present(inputs[0])

    def element(*indices: Term) -> Term:
        pairs = zip(indices, sizes(data), extents_of(types[0]), strict=True)
        return read(data, [i if have == want else i % have for i, have, want in pairs])

    return _moved(name, types, element)


@expresses("depth_to_space")
def depth_to_space(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Blocks of depth as blocks of pixels."""
    data, block = present(inputs[0]), attrs.block_size
    depth = sizes(data)[1] // (block * block)

    def element(batch: Term, channel: Term, row: Term, column: Term) -> Term:
        inside = row % block * block + column % block
        source = inside * depth + channel if attrs.mode == "DCR" else channel * block**2 + inside
        return data[batch, source, row // block, column // block]

    return _moved(name, types, element)


@expresses("space_to_depth")
def space_to_depth(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Blocks of pixels as blocks of depth."""
    data, block = present(inputs[0]), attrs.block_size
    depth = sizes(data)[1]

    def element(batch: Term, channel: Term, row: Term, column: Term) -> Term:
        if attrs.mode == "DCR":
            inside, source = channel // depth, channel % depth
        else:
            inside, source = channel % block**2, channel // block**2
        place = row * block + inside // block, column * block + inside % block
        return data[(batch, source, *place)]

    return _moved(name, types, element)


@expresses("reverse_sequence")
def reverse_sequence(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The first so many steps backwards, per batch."""
    data, lengths = map(present, inputs)
    steps, batch = normalize_axes((attrs.seq_axis, attrs.batch_axis), len(data.shape))
    last = sizes(data)[steps] - 1

    def element(*indices: Term) -> Term:
        length = cast(indices[0].dtype, lengths[indices[batch]])
        turned = maximum(minimum(length - 1 - indices[steps], last), 0)
        at: Indices = [
            select(index < length, turned, index) if axis == steps else index
            for axis, index in enumerate(indices)
        ]
        return read(data, at)

    return _moved(name, types, element)


@expresses("one_hot")
def one_hot(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """One of two values, by whether the index is the position along the new axis."""
    indices_, values = present(inputs[0]), present(inputs[1])
    axis = normalize_axis(attrs.axis, len(indices_.shape) + 1)
    depth = extents_of(types[0])[axis]

    def element(*indices: Term) -> Term:
        given = read(indices_, [*indices[:axis], *indices[axis + 1 :]])
        if given.dtype.is_unsigned_integer and given.dtype.bits == 64:
            given = minimum(given, cast(given.dtype, depth))  # beyond the depth is no position
        wanted = cast(indices[0].dtype, given)
        wanted = select(wanted < 0, wanted + depth, wanted)
        return select(equal(wanted, indices[axis]), values[1], values[0])

    return _moved(name, types, element)
