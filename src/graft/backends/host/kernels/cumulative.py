"""Prefix sums and products in one pass: `cumsum`, `cumprod` along an axis that is not very short.

A line is the elements along the axis at fixed indices of the other axes. Threads share the lines,
whatever the sizes; neighbouring lines are the lanes of a vector, and lines that do not fill one are
computed one by one. Lines accumulate in the widest dtype of their kind (float64, int64 or uint64)
and are rounded when they are stored, as the reference does.
"""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.loop.build import Term, cast, equal, load, maximum, select, term
from graft.loop.ir import INDEX, Buffer, Const, Scope
from graft.loop.statements import ramp, spread, store
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Up to so many vectors along the axis, summing each result from scratch takes fewer cycles than
# waiting for the previous result: as many vectors as an addition has cycles of latency.
_SHORT_VECTORS = 4


@node_kernel("cumsum", "cumprod")
def cumulative(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Running sums or products along an axis."""
    node = group.node
    shape, axis = shape_of(node.args[0]), node.attrs.axis
    if len(node.inputs) == 1 and axis is not None:
        lanes, axis = target.lanes(node.output.dtype), axis % len(shape)
        extent, inner = shape[axis], product(shape[axis + 1 :])
        is_short = isinstance(extent, int) and extent <= _SHORT_VECTORS * lanes
        if is_short and isinstance(inner, int) and inner < lanes:
            return Refusal("the axis is short: every result is summed by itself")
    if not node.output.dtype.is_number:
        return Refusal(f"{node.op.name} of {node.output.dtype}")
    return node_plan(group, stores, lambda writer: _CumulativeWriter(writer, target).write())


class _CumulativeWriter:
    """Writes the loops over lines and along a line."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self._writer, self._code, node = writer, writer.code, writer.group.node
        self._attrs, self._shape = node.attrs, shape_of(node.args[0])
        self._is_sum = node.op.name == "cumsum"
        self._data, self._axis_operand = writer.present_operand(0), writer.operand(1)
        self._result = writer.result(0)
        self._dtype = _widest(node.output.dtype)
        self._lanes = target.lanes(node.output.dtype)

    def write(self) -> None:
        """Whole vectors of neighbouring lines, then the lines that are left."""
        code, (extent, inner) = self._code, self._along()
        outer = self._writer.dim(product(self._shape)) // maximum(extent * inner, 1)
        whole = code.let("whole", inner // self._lanes)
        rest = code.let("rest", inner - inner // self._lanes * self._lanes)
        wide, single = (term(0), self._lanes), (whole * self._lanes, 1)
        for count, (first, lanes) in ((whole, wide), (rest, single)):
            with code.parallel(f"job{lanes}", outer * count) as job:
                start = job // count * extent * inner + first + job % count * lanes
                self._line(code.let(f"start{lanes}", start), extent, inner, lanes)

    def _along(self) -> tuple[Term, Term]:
        """The extent of the axis, which may be negative, and the stride along it in elements."""
        code, rank = self._code, len(self._shape)
        if self._axis_operand is None:
            axis = term(self._attrs.axis % rank)
        else:
            axis = code.let("axis", cast(INDEX, load(self._axis_operand, 0)))
        extent, inner = term(1), term(1)
        for number, dim in enumerate(self._shape):
            here = equal(axis, number) | equal(axis, number - rank)
            behind = self._writer.dim(product(self._shape[number + 1 :]))
            extent = select(here, self._writer.dim(dim), extent)
            inner = select(here, behind, inner)
        return code.let("extent", extent), code.let("inner", inner)

    def _line(self, start: Term, extent: Term, inner: Term, lanes: int) -> None:
        """The running sums or products of `lanes` neighbouring lines."""
        code = self._code
        accumulator = Buffer(f"accumulator{lanes}", self._dtype, (Const(lanes),), Scope.REGISTER)
        every = ramp(term(0), lanes)
        with code.memory(accumulator):
            code.store(
                accumulator, every, spread(term(0 if self._is_sum else 1, self._dtype), lanes)
            )
            with code.loop(f"iteration{lanes}", extent) as iteration:
                offset = extent - 1 - iteration if self._attrs.reverse else iteration
                at = ramp(code.let(f"index{lanes}", start + offset * inner), lanes)
                running, value = load(accumulator, every), cast(self._dtype, load(self._data, at))
                update = store(
                    accumulator, every, running + value if self._is_sum else running * value
                )
                result = store(self._result, at, cast(self._result.dtype, running))
                code.emit(*((result, update) if self._attrs.exclusive else (update, result)))


def _widest(dtype: DType) -> DType:
    if dtype.is_float:
        return DType.FLOAT64
    return DType.UINT64 if dtype.is_unsigned_integer else DType.INT64
