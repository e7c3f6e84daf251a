"""Linear attention: `nn.linear_attention`, a memory that every step decays, writes and asks.

The columns of the memory do not know of each other: the threads share them, and each column goes
through all steps while it lies in the thread's own memory.
"""

from __future__ import annotations

import math

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, load, term
from graft.loop.ir import Buffer
from graft.loop.statements import Cell, scratch
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@node_kernel("nn.linear_attention")
def linear_attention(group: Group, stores: Stores, _target: Target) -> Plan | Refusal:
    """Linear attention, one column of the state at a time."""
    heads, own = (shape_of(value)[1] for value in group.node.args[:2])
    if not isinstance(heads, int) or not isinstance(own, int) or own == 0:
        return Refusal("the numbers of heads are known only at run time")
    if not isinstance(shape_of(group.node.args[0])[3], int):
        return Refusal("the size of queries is known only at run time")
    return node_plan(group, stores, lambda writer: _Columns(writer, heads // own).write())


class _Columns:
    """Writes the loops over columns, steps and the elements of a column."""

    def __init__(self, writer: Writer, share: int) -> None:
        node = writer.group.node
        self._writer, self._code = writer, writer.code
        self._share, self._inputs = share, node.inputs
        self._query, self._key, self._value = (writer.present_operand(n) for n in range(3))
        self._state, self._decay, self._beta = (writer.operand(n) for n in (3, 4, 5))
        self._result, self._after = writer.result(0), writer.result(1)
        wide = self._query.dtype is DType.FLOAT64
        self._dtype = DType.FLOAT64 if wide else DType.FLOAT32
        size = shape_of(node.args[0])[3]
        assert isinstance(size, int)
        self._size = size
        usual = 1 / math.sqrt(size) if size else 1.0
        self._scale = usual if node.attrs.scale is None else node.attrs.scale
        self._memory = scratch("memory", self._dtype, size)
        self._sum = Cell("sum", self._dtype)

    def write(self) -> None:
        code, value = self._code, self._writer.group.node.args[2]
        batch, heads, _, columns = (self._writer.dim(dim) for dim in shape_of(value))
        with code.parallel("job", batch * heads * columns) as job:
            item = code.let("batch", job // (columns * heads))
            head = code.let("head", job // columns % heads)
            column = code.let("column", job % columns)
            with code.memory(self._memory, self._sum):
                self._column(item, head, column)

    def _read(self, number: int, buffer: Buffer, *at: Term) -> Term:
        """An element of an operand, whose axes may have one element for all."""
        value = self._inputs[number]
        assert value is not None
        offset = term(0)
        for dim, index in zip(shape_of(value), at, strict=True):
            offset = offset * self._writer.dim(dim) + (term(0) if dim == 1 else index)
        return cast(self._dtype, load(buffer, offset))

    def _column(self, batch: Term, head: Term, column: Term) -> None:
        code, shape = self._code, shape_of(self._writer.group.node.outputs[1])
        columns = self._writer.dim(shape[3])
        first = (batch * self._writer.dim(shape[1]) + head) * self._size
        length = self._writer.dim(shape_of(self._writer.group.node.args[0])[2])
        with code.loop("begun", self._size) as row:
            initial = term(0.0, self._dtype)
            if self._state is not None:
                initial = self._read(3, self._state, batch, head, row, column)
            code.store(self._memory, row, initial)
        with code.loop("step", length) as step:
            self._step(batch, head, column, step)
        with code.loop("ended", self._size) as row:
            value = cast(self._after.dtype, load(self._memory, row))
            code.store(self._after, (first + row) * columns + column, value)

    def _step(self, batch: Term, head: Term, column: Term, step: Term) -> None:
        def key(row: Term) -> Term:
            return self._read(1, self._key, batch, head, step, row)

        code = self._code
        code.set(self._sum, term(0.0, self._dtype))
        with code.loop("past", self._size) as row:
            state = load(self._memory, row)
            if self._decay is not None:
                state = state * call("exp", self._read(4, self._decay, batch, head, step, row))
            held = code.let("held", state)
            code.store(self._memory, row, held)
            code.set(self._sum, self._sum.value + key(row) * held)
        value = self._read(2, self._value, batch, head, step, column)
        if self._beta is not None:
            rate = self._read(5, self._beta, batch, head, step, term(0))
            value = rate * (value - self._sum.value)
        written = code.let("written", value)
        with code.loop("row", self._size) as row:
            code.store(self._memory, row, load(self._memory, row) + key(row) * written)
        for number in range(self._share):
            self._ask(batch, head * self._share + number, column, step)

    def _ask(self, batch: Term, own: Term, column: Term, step: Term) -> None:
        """The result of one of the query heads that share the memory."""
        code = self._code
        code.set(self._sum, term(0.0, self._dtype))
        with code.loop("asked", self._size) as row:
            query = self._read(0, self._query, batch, own, step, row)
            code.set(self._sum, self._sum.value + query * load(self._memory, row))
        offset, shape = batch, shape_of(self._writer.group.node.outputs[0])
        for dim, index in zip(shape[1:], (own, step, column), strict=True):
            offset = offset * self._writer.dim(dim) + index
        code.store(self._result, offset, cast(self._result.dtype, self._sum.value * self._scale))
