"""Bounds inference: which part of a stage an iteration of another stage's loop needs.

The stages inside a loop and the spans of the axes of the stage that owns it enter; the box of each
stage inside leaves, found by walking from readers to what they read. A box is the hull of what all
reads touch, cut to the tensor's own extents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graft.loop.errors import ScheduleError
from graft.loop.index import add
from graft.loop.ir import BinaryKind, Const, Expr
from graft.loop.nest import short
from graft.loop.position import Position, binary
from graft.loop.ranges import Context, Range, constant_upper_bound, hull, interval
from graft.loop.simplify import simplify
from graft.loop.stages import loads
from graft.loop.tensor import Reduce, Tensor
from graft.loop.traverse import reads_memory, variables

Spans = Mapping[str, Range]  # of a stage's axes, those it reduces over too


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: where it starts and how far it goes, per dimension."""

    starts: tuple[Expr, ...]
    extents: tuple[Expr, ...]


def axis_extents(tensor: Tensor) -> dict[str, Expr]:
    """The extents of all axes, those reduced over too, by the axes' full names."""
    extents = {axis.name: extent for axis, extent in zip(tensor.axes, tensor.shape, strict=True)}
    if isinstance(tensor.body, Reduce):
        extents |= {axis.name: extent for axis, extent in tensor.body.axes}
    return extents


def spans_at(tensor: Tensor, position: Position, context: Context) -> Spans:
    """Bounds of a stage's axes in the rest of an iteration."""
    spans = {}
    for name in axis_extents(tensor):
        low, high = position.span(short(name), context)
        start = position.starts.get(short(name), Const(0))
        spans[name] = Range(
            None if low is None else add(start, low), None if high is None else add(start, high)
        )
    return spans


def spans_of_box(tensor: Tensor, box: Box) -> Spans:
    """The spans of a stage's axes when it computes a box."""
    spans = {
        axis.name: Range(start, add(add(start, extent), Const(-1)))
        for axis, start, extent in zip(tensor.axes, box.starts, box.extents, strict=True)
    }
    if isinstance(tensor.body, Reduce):
        for axis, extent in tensor.body.axes:
            spans[axis.name] = Range(Const(0), add(extent, Const(-1)))
    return spans


def infer_boxes(
    owner: Tensor, position: Position, inside: Iterable[Tensor], context: Context
) -> dict[str, Box]:
    """The box of each stage computed inside; `inside` is in topological order."""
    spans: dict[str, tuple[Tensor, Spans]] = {
        owner.name: (owner, spans_at(owner, position, context))
    }
    boxes = {}
    for tensor in reversed(list(inside)):
        box = _needed(tensor, spans.values(), context)
        _check_coverage(tensor, box, spans.values(), context)
        boxes[tensor.name] = box
        spans[tensor.name] = (tensor, spans_of_box(tensor, box))
    return boxes


def _check_coverage(
    tensor: Tensor, box: Box, readers: Iterable[tuple[Tensor, Spans]], context: Context
) -> None:
    """Refuse what is needed of a stage beyond what the stages compute that it is computed with.

    Along axes that these reduce over they compute all of it."""
    own = [(reader, spans) for reader, spans in readers if tensor.name in reader.computes]
    if not own:
        return
    part, whole = _needed(tensor, own, context), own[0][0].computes[tensor.name]
    for dimension, ends in enumerate(zip(box.starts, box.extents, strict=True)):
        if dimension not in whole and ends != (part.starts[dimension], part.extents[dimension]):
            message = f"cannot compute {tensor.name} with {own[0][0].name}"
            raise ScheduleError(f"{message}: more of it is read than that computes at a time")


def _needed(tensor: Tensor, readers: Iterable[tuple[Tensor, Spans]], context: Context) -> Box:
    total: list[Range] | None = None
    for reader, spans in readers:
        for load in loads(reader):
            if load.buffer.name != tensor.name:
                continue
            part = [_reached(index, spans, context) for index in load.indices]
            total = part if total is None else list(map(hull, total, part))
    whole = [Range(Const(0), add(extent, Const(-1))) for extent in tensor.shape]
    return _box([_cut(*pair, context) for pair in zip(total or whole, whole, strict=True)], context)


def _reached(index: Expr, spans: Spans, context: Context) -> Range:
    """Bounds of an index; none if it is read from memory."""
    if reads_memory(index):
        return Range(None, None)
    return interval(simplify(index, context), spans, context)


def _cut(part: Range, whole: Range, context: Context) -> Range:
    """The part within the whole: its own ends, as readers know them, where they are inside."""
    low, high = part
    if low is None or whole.low is None:
        low = whole.low
    elif not context.at_most(whole.low, low):
        low = binary(BinaryKind.MAXIMUM, simplify(low, context), whole.low, context)
    if high is None or whole.high is None:
        high = whole.high
    elif not context.at_most(high, whole.high):
        high = binary(BinaryKind.MINIMUM, simplify(high, context), whole.high, context)
    return Range(*(None if end is None else simplify(end, context) for end in (low, high)))


def _box(ranges: list[Range], context: Context) -> Box:
    starts, extents = [], []
    for low, high in ranges:
        if low is None or high is None:
            raise ValueError("a cut range is bounded")
        starts.append(low)
        # Where the reader has nothing to do the ends may be far apart the wrong way round.
        extent = simplify(add(add(high, low, -1), Const(1)), context)
        extents.append(binary(BinaryKind.MAXIMUM, extent, Const(0), context))
    return Box(tuple(starts), tuple(extents))


def allocation(box: Box, tensor: Tensor, loops: Spans, context: Context) -> tuple[Expr, ...]:
    """Extents that suffice in every iteration of the surrounding loops."""
    sizes: list[Expr] = []
    for extent, whole in zip(box.extents, tensor.shape, strict=True):
        bound = constant_upper_bound(extent, context)
        if bound is not None:
            sizes.append(Const(max(bound, 0)))
            continue
        high = interval(extent, loops, context).high
        size = whole if high is None else simplify(high, context)
        # no loop's variable has a value where memory is set aside
        names = {name for one in tensor.shape for name in variables(one)}
        sizes.append(size if variables(size) <= names else whole)
    return tuple(sizes)
