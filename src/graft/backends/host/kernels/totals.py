"""Running totals in one pass: `cumsum` and `cumprod` along an axis that is long, of unknown length,
or named by an operand.

The threads share the lines along the axis, whatever the sizes. Totals are gathered in the widest
type of their kind and rounded when they are stored, as the reference does.
"""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import (
    Cell,
    Writer,
    block,
    let,
    loop,
    parallel,
    store,
    with_memory,
)
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.loop.build import Term, cast, equal, load, maximum, select, term
from graft.loop.ir import INDEX, Stmt
from graft.ops.reduce import LONGEST_RUN
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@node_kernel("cumsum", "cumprod")
def totals(group: Group, stores: Stores, _target: Target) -> Plan | Refusal:
    """Running sums or products along an axis."""
    node = group.node
    shape, axis = shape_of(node.args[0]), node.attrs.axis
    if len(node.inputs) == 1 and axis is not None:
        extent = shape[axis % len(shape)]
        if isinstance(extent, int) and extent <= LONGEST_RUN:
            return Refusal("the axis is short: all totals are computed side by side")
    if not node.output.dtype.is_number:
        return Refusal(f"totals of {node.output.dtype}")
    return lambda: _Totals(Writer(group, stores)).kernel()


class _Totals:
    """Writes the loops over lines and along a line."""

    def __init__(self, writer: Writer) -> None:
        self._writer, node = writer, writer.group.node
        self._attrs, self._shape = node.attrs, shape_of(node.args[0])
        self._is_sum = node.op.name == "cumsum"
        self._data, self._named = writer.present_operand(0), writer.operand(1)
        self._result = writer.result(0)
        self._total = Cell("total", _widest(node.output.dtype))

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
        return let("extent", extent, lambda n: let("inner", inner, lambda m: self._lines(n, m)))

    def _lines(self, extent: Term, inner: Term) -> Stmt:
        size = self._writer.dim(product(self._shape))
        count = size // maximum(extent, 1)

        def line(job: Term) -> Stmt:
            start = job // inner * extent * inner + job % inner
            start_total = self._total.set(term(0 if self._is_sum else 1, self._total.dtype))
            every = let("start", start, lambda at: self._line(at, extent, inner))
            return with_memory(block(start_total, every), self._total)

        return parallel("job", count, line)

    def _line(self, start: Term, extent: Term, inner: Term) -> Stmt:
        def step(iteration: Term) -> Stmt:
            offset = extent - 1 - iteration if self._attrs.reverse else iteration
            return let("place", start + offset * inner, step_at)

        def step_at(offset: Term) -> Stmt:
            value = cast(self._total.dtype, load(self._data, offset))
            before = self._total.value
            update = self._total.set(before + value if self._is_sum else before * value)
            store_total = store(self._result, offset, cast(self._result.dtype, self._total.value))
            return (
                block(store_total, update) if self._attrs.exclusive else block(update, store_total)
            )

        return loop("iteration", extent, step)


def _widest(dtype: DType) -> DType:
    if dtype.is_float:
        return DType.FLOAT64
    return DType.UINT64 if dtype.is_unsigned_integer else DType.INT64
