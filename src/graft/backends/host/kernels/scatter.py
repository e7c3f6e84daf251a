"""Changed tensors: `scatter_elements` and `scatter_nd`, whatever the sizes; unpooling.

The result holds the data when the kernel is called. The threads share what the updates leave
independent of each other: all places along the axes that are not named by positions. Updates that
may meet come in order, whatever the number of threads. A position outside the tensor changes
nothing, since a loop cannot raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer, clear_run, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dims import Dim, product
from graft.base.dtypes import DType
from graft.llvm.types import SMALL_FLOATS
from graft.loop.build import Term, binary, cast, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Barrier, BinaryKind, LoopKind
from graft.loop.statements import scratch, store_vector, vector
from graft.ops.window import RANKS
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_CHUNK = 256  # neighbouring elements that a thread updates at a time
# Bytes of a slice that a job updates with all tuples: each core's share of it in whole cache lines,
# but at least as many as hide the reading of the tuples.
_SLICE_BYTES = 256
_LINE_BYTES = 64

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
    """A tensor with updates at indices that are data."""
    node = group.node
    if node.op.name == "scatter_nd" and not isinstance(shape_of(node.args[1])[-1], int):
        return Refusal("how many axes a position names is known only from data")
    data = node.args[0]
    return node_plan(group, stores, lambda writer: _Scatter(writer, target).write(), data)


@node_kernel(*(f"nn.max_unpool{rank}d" for rank in RANKS))
def max_unpool(group: Group, stores: Stores, target: Target) -> Plan:
    """Zeros with values at indices into the flattened result.

    One thread writes the values: where windows overlap, several may have one index."""
    return node_plan(group, stores, lambda writer: _write_unpool(writer, target))


def _write_unpool(writer: Writer, target: Target) -> None:
    code, node = writer.code, writer.group.node
    data, indices = map(writer.present_operand, range(2))
    result = writer.result(0)
    size, count = (writer.dim(product(shape_of(one))) for one in (node.output, node.args[0]))
    code.emit(clear_run(result, size, target.lanes(result.dtype)), Barrier())
    with code.one_thread(), code.loop("value", count) as number:
        place = code.let("place", cast(INDEX, load(indices, number)))
        with code.when((place >= 0) & (place < size)):
            code.store(result, place, load(data, number))


class _Scatter:
    """Writes the loops over updates."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self._writer, self._code, self._node = writer, writer.code, writer.group.node
        self._indices, self._updates = map(writer.present_operand, (1, 2))
        self._result = writer.result(0)
        self._lanes, self._cores = target.lanes(self._result.dtype), target.machine.cores
        self._reduction = self._node.attrs.reduction
        dtype = self._result.dtype
        # Totals of small floats would lose most of what is added to them.
        self._is_total = dtype in SMALL_FLOATS and self._reduction in ("add", "mul")
        self._size = writer.dim(product(shape_of(self._node.output)))
        self._totals = scratch("totals", DType.FLOAT32, self._size)

    def write(self) -> None:
        along = self._node.op.name == "scatter_elements"
        update = self._along_axis if along else self._at_tuples
        if self._is_total:
            self._in_totals(update)
        else:
            update(LoopKind.PARALLEL)

    def _in_totals(self, update: Callable[[LoopKind], None]) -> None:
        """All by one thread, in float32 until the end."""
        code = self._code
        with code.one_thread(), code.memory(self._totals):
            with code.loop("begun", self._size) as at:
                code.store(self._totals, at, cast(DType.FLOAT32, load(self._result, at)))
            update(LoopKind.SERIAL)
            with code.loop("ended", self._size) as at:
                code.store(self._result, at, cast(self._result.dtype, load(self._totals, at)))

    def _update(self, place: Term, source: Term, lanes: int = 1) -> None:
        """So many elements combined with what is there."""
        code, target = self._code, self._totals if self._is_total else self._result
        value = cast(target.dtype, vector(self._updates, source, lanes))
        at = code.let(f"place{lanes}", place)
        if self._reduction != "none":
            kinds = _LOGICAL if target.dtype is DType.BOOL else _KINDS
            value = binary(kinds[self._reduction], vector(target, at, lanes), value)
        code.emit(store_vector(target, at, value))

    def _along_axis(self, kind: LoopKind) -> None:
        """Updates along the axis, one after the other, for some places side by side in a job."""
        code, writer, node = self._code, self._writer, self._node
        shape, reach = shape_of(node.args[0]), shape_of(node.args[1])
        axis = node.attrs.axis % len(shape)
        inner, count = writer.dim(product(reach[axis + 1 :])), writer.dim(reach[axis])
        chunks = (inner + (_CHUNK - 1)) // _CHUNK
        extent = writer.dim(shape[axis])
        stride = writer.dim(product(shape[axis + 1 :]))
        jobs = writer.dim(product(reach[:axis])) * chunks
        with code.loop("job", jobs, kind=kind) as job:
            line, first = code.let("line", job // chunks), job % chunks * _CHUNK
            start = code.let("start", self._renumbered(line, shape[:axis], reach[:axis]))
            side = minimum(inner - first, _CHUNK)
            with code.loop("iteration", count) as iteration, code.loop("side", side, first) as at:
                source = (line * count + iteration) * inner + at
                column = self._renumbered(at, shape[axis + 1 :], reach[axis + 1 :])
                with self._within("position", source, extent) as position:
                    self._update((start * extent + position) * stride + column, source)

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

    def _at_tuples(self, kind: LoopKind) -> None:
        """Chunks of the slices that tuples name, one tuple after the other in a job."""
        code, writer, node = self._code, self._writer, self._node
        shape, indices = shape_of(node.args[0]), shape_of(node.args[1])
        length = indices[-1]
        assert isinstance(length, int)
        size, tuples = writer.dim(product(shape[length:])), writer.dim(product(indices[:-1]))
        chunk = code.let("chunk", self._chunk(size))
        with (
            code.loop("job", (size + (chunk - 1)) // chunk, kind=kind) as job,
            code.loop("iteration", tuples) as iteration,
            ExitStack() as inside,
        ):
            first, place = job * chunk, term(0)
            for axis in range(length):
                extent, at = writer.dim(shape[axis]), iteration * length + axis
                position = inside.enter_context(self._within(f"position{axis}", at, extent))
                place = place * extent + position
            start = code.let("slice", place * size + first)
            self._update_run(start, iteration * size + first, minimum(size - first, chunk))

    def _chunk(self, size: Term) -> Term:
        """Neighbouring elements of slices of some size that a job updates."""
        least, line = (
            count * 8 // max(self._result.dtype.bits, 8) for count in (_SLICE_BYTES, _LINE_BYTES)
        )
        lines = (size + (self._cores * line - 1)) // (self._cores * line)
        return maximum(lines * line, least)

    def _update_run(self, start: Term, source: Term, count: Term) -> None:
        """Neighbouring elements: vectors, and what is left of them."""
        code, lanes = self._code, 1 if self._is_total else self._lanes
        vectors = code.let("vectors", count // lanes)
        if lanes > 1:
            with code.loop("vector", vectors) as number:
                self._update(start + number * lanes, source + number * lanes, lanes)
        rest = vectors * lanes if lanes > 1 else term(0)
        with code.loop("side", count - rest, rest) as at:
            self._update(start + at, source + at)

    @contextmanager
    def _within(self, name: str, at: Term, extent: Term) -> Iterator[Term]:
        """A position, counted from the front, where it is within the extent."""
        given = self._code.let(f"given_{name}", cast(INDEX, load(self._indices, at)))
        position = self._code.let(name, select(given < 0, given + extent, given))
        with self._code.when((position >= 0) & (position < extent)):
            yield position
