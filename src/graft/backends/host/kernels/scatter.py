"""Changed copies of tensors: `scatter_elements` and `scatter_nd`, whatever the sizes; unpooling.

The threads copy the data together and then share what the updates leave independent of each other:
all places along the axes that are not named by positions. Updates that may meet come in order. A
position outside the tensor changes nothing, since a loop cannot raise an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer, clear_run, copy_run
from graft.backends.host.storage import shape_of
from graft.base.dims import Dim, product
from graft.base.dtypes import DType
from graft.llvm.types import SMALL_FLOATS
from graft.loop.build import Term, binary, cast, load, minimum, select, term
from graft.loop.ir import INDEX, Barrier, BinaryKind, Stmt
from graft.loop.statements import let, loop, parallel, scratch, store, when, with_memory
from graft.loop.traverse import block
from graft.ops.window import RANKS
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_CHUNK = 256  # neighbouring elements that a thread updates at a time

_KINDS = {
    "add": BinaryKind.ADD,
    "mul": BinaryKind.MULTIPLY,
    "max": BinaryKind.MAXIMUM,
    "min": BinaryKind.MINIMUM,
}
# The same of truth values.
_LOGICAL = {
    "add": BinaryKind.OR,
    "mul": BinaryKind.AND,
    "max": BinaryKind.OR,
    "min": BinaryKind.AND,
}


@node_kernel("scatter_elements", "scatter_nd")
def scatter(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A copy of a tensor with updates at indices that are data."""
    node = group.node
    if node.op.name == "scatter_nd" and not isinstance(shape_of(node.args[1])[-1], int):
        return Refusal("how many axes a position names is known only from data")
    return lambda: _Scatter(Writer(group, stores), target).kernel()


@node_kernel(*(f"nn.max_unpool{rank}d" for rank in RANKS))
def max_unpool(group: Group, stores: Stores, target: Target) -> Plan:
    """Zeros with values at indices into the flattened result.

    One thread writes the values: where windows overlap, several may have one index."""
    return lambda: _max_unpool(Writer(group, stores), target)


def _max_unpool(writer: Writer, target: Target) -> Kernel:
    data, indices = map(writer.present_operand, range(2))
    result, node = writer.result(0), writer.group.node
    size, count = (writer.dim(product(shape_of(one))) for one in (node.output, node.args[0]))

    def written(number: Term) -> Stmt:
        def at(place: Term) -> Stmt:
            inside = (place >= 0) & (place < size)
            return when(inside, store(result, place, load(data, number)))

        return let("place", cast(INDEX, load(indices, number)), at)

    cleared = clear_run(result, size, target.lanes(result.dtype))
    values = parallel("only", 1, lambda _only: loop("value", count, written))
    return writer.kernel(block(cleared, Barrier(), values))


class _Scatter:
    """Writes the copy and the loops over updates."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self._writer, self._node = writer, writer.group.node
        self._data, self._indices, self._updates = map(writer.present_operand, range(3))
        self._result = writer.result(0)
        self._lanes = target.lanes(self._result.dtype)
        self._reduction = self._node.attrs.reduction
        dtype = self._result.dtype
        # Totals of small floats would lose most of what is added to them.
        self._is_total = dtype in SMALL_FLOATS and self._reduction in ("add", "mul")
        self._size = writer.dim(product(shape_of(self._node.output)))
        self._totals = scratch("totals", DType.FLOAT32, self._size)

    def kernel(self) -> Kernel:
        along = self._node.op.name == "scatter_elements"
        updated = self._along_axis if along else self._at_tuples
        if self._is_total:
            return self._writer.kernel(parallel("only", 1, lambda _only: self._in_totals(updated)))
        jobs, job = updated()
        copy = copy_run(self._data, self._result, self._size, self._lanes, tag="_copied")
        return self._writer.kernel(block(copy, Barrier(), parallel("job", jobs, job)))

    def _in_totals(self, updated: Callable[[], tuple[Term, Callable[[Term], Stmt]]]) -> Stmt:
        """All by one thread, in float32 until the end."""
        jobs, job = updated()
        data, dtype = self._data, self._result.dtype
        body = block(
            loop(
                "begun",
                self._size,
                lambda at: store(self._totals, at, cast(DType.FLOAT32, load(data, at))),
            ),
            loop("job", jobs, job),
            loop(
                "ended",
                self._size,
                lambda at: store(self._result, at, cast(dtype, load(self._totals, at))),
            ),
        )
        return with_memory(body, self._totals)

    def _update(self, place: Term, source: Term) -> Stmt:
        """One element combined with what is there."""
        target = self._totals if self._is_total else self._result
        value = cast(target.dtype, load(self._updates, source))
        if self._reduction == "none":
            return store(target, place, value)
        kinds = _LOGICAL if target.dtype is DType.BOOL else _KINDS
        return let(
            "place",
            place,
            lambda at: store(target, at, binary(kinds[self._reduction], load(target, at), value)),
        )

    def _along_axis(self) -> tuple[Term, Callable[[Term], Stmt]]:
        """Jobs of updates along the axis, one after the other, for some places side by side."""
        writer, node = self._writer, self._node
        shape, reach = shape_of(node.args[0]), shape_of(node.args[1])
        axis = node.attrs.axis % len(shape)
        inner, count = writer.dim(product(reach[axis + 1 :])), writer.dim(reach[axis])
        chunks = (inner + (_CHUNK - 1)) // _CHUNK
        extent = writer.dim(shape[axis])
        stride = writer.dim(product(shape[axis + 1 :]))

        def job(number: Term) -> Stmt:
            return let("line", number // chunks, partial(in_line, number % chunks * _CHUNK))

        def in_line(first: Term, line: Term) -> Stmt:
            start = self._renumbered(line, shape[:axis], reach[:axis])
            side = minimum(inner - first, _CHUNK)
            return let("start", start, partial(in_order, first, side, line))

        def in_order(first: Term, side: Term, line: Term, start: Term) -> Stmt:
            return loop(
                "iteration",
                count,
                lambda iteration: loop(
                    "side", side, partial(one, line * count + iteration, start), first
                ),
            )

        def one(iteration: Term, start: Term, at: Term) -> Stmt:
            source = iteration * inner + at
            column = self._renumbered(at, shape[axis + 1 :], reach[axis + 1 :])

            def update_at(position: Term) -> Stmt:
                return self._update((start * extent + position) * stride + column, source)

            return self._within("position", source, extent, update_at)

        return writer.dim(product(reach[:axis])) * chunks, job

    def _renumbered(self, number: Term, shape: tuple[Dim, ...], reach: tuple[Dim, ...]) -> Term:
        """Which element of a tensor is the one with that number of those that are reached."""
        if shape == reach:
            return number
        element, stride = term(0), term(1)
        for extent, part in zip(reversed(shape), reversed(reach), strict=True):
            size = self._writer.dim(part)
            element, number = element + number % size * stride, number // size
            stride = stride * self._writer.dim(extent)
        return element

    def _at_tuples(self) -> tuple[Term, Callable[[Term], Stmt]]:
        """Jobs of chunks of the slices that tuples name, one tuple after the other."""
        writer, node = self._writer, self._node
        shape, indices = shape_of(node.args[0]), shape_of(node.args[1])
        length = indices[-1]
        assert isinstance(length, int)
        size, tuples = writer.dim(product(shape[length:])), writer.dim(product(indices[:-1]))

        def job(number: Term) -> Stmt:
            first = number * _CHUNK
            side = minimum(size - first, _CHUNK)
            return loop(
                "iteration", tuples, lambda iteration: named(first, side, iteration, 0, term(0))
            )

        def named(first: Term, side: Term, iteration: Term, axis: int, place: Term) -> Stmt:
            """The tuple's positions from an axis on, each of which has to be within the data."""
            if axis == length:
                return let("slice", place * size, partial(updated, first, side, iteration))
            extent = writer.dim(shape[axis])
            return self._within(
                f"position{axis}",
                iteration * length + axis,
                extent,
                lambda position: named(first, side, iteration, axis + 1, place * extent + position),
            )

        def updated(first: Term, side: Term, iteration: Term, start: Term) -> Stmt:
            source = iteration * size
            return loop("side", side, lambda at: self._update(start + at, source + at), first)

        return (size + (_CHUNK - 1)) // _CHUNK, job

    def _within(self, name: str, at: Term, extent: Term, body: Callable[[Term], Stmt]) -> Stmt:
        """Run the body on a position, counted from the front, if it is within the extent."""

        def checked(position: Term) -> Stmt:
            return when((position >= 0) & (position < extent), body(position))

        def signed(position: Term) -> Stmt:
            return let(name, select(position < 0, position + extent, position), checked)

        return let(f"given_{name}", cast(INDEX, load(self._indices, at)), signed)
