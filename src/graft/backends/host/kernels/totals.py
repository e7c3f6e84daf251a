"""Running totals in one pass: `cumsum` and `cumprod` along an axis that is not very short.

The threads share the lines along the axis, whatever the sizes; neighbouring lines go side by side
in the lanes of vectors, and those that fill none one by one. Totals are gathered in the widest type
of their kind and rounded when they are stored, as the reference does.
"""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.loop.build import Term, cast, equal, load, maximum, select, term
from graft.loop.ir import INDEX, Buffer, Const, Scope, Stmt
from graft.loop.statements import let, lets, loop, parallel, ramp, spread, store, with_memory
from graft.loop.traverse import block
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Of an axis along which each total is summed anew in fewer cycles than it waits for the one before:
# as many vectors as the latency of an addition has cycles.
_SHORT_VECTORS = 4


@node_kernel("cumsum", "cumprod")
def totals(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Running sums or products along an axis."""
    node = group.node
    shape, axis = shape_of(node.args[0]), node.attrs.axis
    if len(node.inputs) == 1 and axis is not None:
        lanes, axis = target.lanes(node.output.dtype), axis % len(shape)
        extent, inner = shape[axis], product(shape[axis + 1 :])
        is_short = isinstance(extent, int) and extent <= _SHORT_VECTORS * lanes
        if is_short and isinstance(inner, int) and inner < lanes:
            return Refusal("the axis is short: all totals are computed side by side")
    if not node.output.dtype.is_number:
        return Refusal(f"totals of {node.output.dtype}")
    return lambda: _Totals(Writer(group, stores), target).kernel()


class _Totals:
    """Writes the loops over lines and along a line."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self._writer, node = writer, writer.group.node
        self._attrs, self._shape = node.attrs, shape_of(node.args[0])
        self._is_sum = node.op.name == "cumsum"
        self._data, self._named = writer.present_operand(0), writer.operand(1)
        self._result = writer.result(0)
        self._dtype = _widest(node.output.dtype)
        self._lanes = target.lanes(node.output.dtype)

    def kernel(self) -> Kernel:
        if self._named is None:
            return self._writer.kernel(self._along(term(self._attrs.axis % len(self._shape))))
        axis = cast(INDEX, load(self._named, 0))
        return self._writer.kernel(let("axis", axis, self._along))

    def _along(self, axis: Term) -> Stmt:
        """The lines along an axis, which may be counted from the last."""
        rank, extent, inner = len(self._shape), term(1), term(1)
        for number, dim in enumerate(self._shape):
            here = equal(axis, number) | equal(axis, number - rank)
            behind = self._writer.dim(product(self._shape[number + 1 :]))
            extent = select(here, self._writer.dim(dim), extent)
            inner = select(here, behind, inner)
        return lets({"extent": extent, "inner": inner}, self._lines)

    def _lines(self, extent: Term, inner: Term) -> Stmt:
        """Whole vectors of neighbouring lines, then the lines that are left."""
        size = self._writer.dim(product(self._shape))
        outer = size // maximum(extent * inner, 1)
        whole = inner // self._lanes
        rest = inner - whole * self._lanes

        def jobs(count: Term, first: Term, lanes: int) -> Stmt:
            def lines(job: Term) -> Stmt:
                start = job // count * extent * inner + first + job % count * lanes
                return let(f"start{lanes}", start, lambda at: self._line(at, extent, inner, lanes))

            return parallel(f"job{lanes}", outer * count, lines)

        def both(vectors: Term, lines: Term) -> Stmt:
            wide, single = (term(0), self._lanes), (vectors * self._lanes, 1)
            return block(jobs(vectors, *wide), jobs(lines, *single))

        return lets({"whole": whole, "rest": rest}, both)

    def _line(self, start: Term, extent: Term, inner: Term, lanes: int) -> Stmt:
        """The totals of one line, or of as many as a vector has lanes."""
        total = Buffer(f"total{lanes}", self._dtype, (Const(lanes),), Scope.REGISTER)
        every = ramp(term(0), lanes)

        def step(iteration: Term) -> Stmt:
            offset = extent - 1 - iteration if self._attrs.reverse else iteration
            return let(f"place{lanes}", start + offset * inner, step_at)

        def step_at(offset: Term) -> Stmt:
            at, before = ramp(offset, lanes), load(total, every)
            value = cast(self._dtype, load(self._data, at))
            update = store(total, every, before + value if self._is_sum else before * value)
            store_total = store(self._result, at, cast(self._result.dtype, load(total, every)))
            return (
                block(store_total, update) if self._attrs.exclusive else block(update, store_total)
            )

        first = spread(term(0 if self._is_sum else 1, self._dtype), lanes)
        steps = loop(f"iteration{lanes}", extent, step)
        return with_memory(block(store(total, every, first), steps), total)


def _widest(dtype: DType) -> DType:
    if dtype.is_float:
        return DType.FLOAT64
    return DType.UINT64 if dtype.is_unsigned_integer else DType.INT64
