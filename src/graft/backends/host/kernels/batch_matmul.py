"""Products of run-time matrices on row-major tensors, with the epilogue in registers.

Batches broadcast as NumPy's do. The right matrix is read as it lies where its rows are the sum's
steps; a transposed one is transposed back into scratch memory, a block of columns at a time, unless
the rows are few: then both matrices are read along the sum, which is the default schedule of tensor
expressions. Bytes are brought into words of four steps, see `integer_weights.py`. All extents may
be symbolic.
"""

from __future__ import annotations

from functools import reduce
from typing import cast

from graft.backends.host.coordinates import modulo, over, plus, times, where
from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import FLOATS, Layout, Plan, kernel_template
from graft.backends.host.kernels.epilogue import Epilogue, epilogue_of
from graft.backends.host.kernels.integer_weights import (
    QUAD,
    joined_bytes,
    signed,
    signed_byte,
    unsigned,
)
from graft.backends.host.kernels.product import OutputVector, Product, default_schedule
from graft.backends.host.kernels.views import unclear, unflattened
from graft.backends.host.storage import shape_of
from graft.base.dims import Dim
from graft.base.dtypes import DType
from graft.ir.graph import Node, Value
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    Load,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target

INTEGER = "qnn.batch_matmul"
# Rows for which a transposed right matrix is not transposed back: reading both along the sum
# took 0.05 to 0.94 of the time for 1 and 2 rows, 0.09 to 0.82 for 3 to 6 where the sum is long, but
# up to 2.15 where it is 17 (Zen 5, one core).
MOST_ROWS, MOST_ROWS_OF_SHORT_SUMS = 6, 2
LONG_SUM = 64


@kernel_template(("nn.batch_matmul", INTEGER), Layout.ROW_MAJOR, dtypes=FLOATS | {DType.INT32})
def batch_matmul(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Matrix products over the last two axes, and whatever follows them."""
    anchor = group.sole_anchor
    shape = shape_of(anchor.output)
    refused = unclear(shape[:-2], (shape_of(value)[:-2] for value in anchor.args))
    if anchor.op.name == INTEGER:
        refused = refused or _no_fours(group, anchor)
    elif anchor.output.dtype not in FLOATS:
        refused = Refusal(f"the elements are {anchor.output.dtype}")
    else:
        refused = refused or _few_rows(anchor)
    if refused is not None:
        return refused
    epilogue = epilogue_of(group, stores, anchor, {}, apart=len(shape))
    if isinstance(epilogue, Refusal):
        return epilogue
    writer = _ByteWriter if anchor.op.name == INTEGER else _Writer
    return lambda: epilogue.parameters.kernel(writer(epilogue, target).body())


def _few_rows(anchor: Node) -> Refusal | None:
    """Why a transposed right matrix is better read as it lies, if it is."""
    if not anchor.attrs.transpose_b or anchor.attrs.transpose_a:
        return None
    rows, depth = shape_of(anchor.args[0])[-2:]
    is_long = not isinstance(depth, int) or depth >= LONG_SUM
    most = MOST_ROWS if is_long else MOST_ROWS_OF_SHORT_SUMS
    few = isinstance(rows, int) and rows <= most
    return Refusal(f"{rows} rows are too few to transpose the right matrix for") if few else None


def _no_fours(group: Group, anchor: Node) -> Refusal | None:
    """Why bytes are not multiplied four at a time, if they are not."""
    if anchor.attrs.transpose_a:
        return Refusal("the left matrix of bytes is transposed")
    if any(value in group.constants for value in anchor.args):
        return Refusal("a matrix of bytes is constant")
    depth = shape_of(anchor.args[0])[-1]
    fours = isinstance(depth, int) and depth % QUAD == 0
    return None if fours else Refusal(f"{depth} steps are no fours")


class _Writer:
    """Writes one batch of products."""

    def __init__(self, epilogue: Epilogue, target: Target) -> None:
        anchor = epilogue.anchor
        self.epilogue, self.attrs = epilogue, anchor.attrs
        shape, extent = shape_of(anchor.output), epilogue.parameters.extent
        *self.leading, self.rows, self.columns = map(extent, shape)
        self.left_shape, self.right_shape = map(shape_of, anchor.args)
        self.depth = extent(self.left_shape[-2 if self.attrs.transpose_a else -1])
        self.dtype = anchor.output.dtype
        self.schedule = default_schedule(target, self.dtype, *shape[-2:])
        self.left, self.right = self.operands(*anchor.args)
        self.panel = self.scratch()

    def scratch(self) -> Buffer:
        """Memory for a block of columns."""
        extents = (self.depth, Const(self.schedule.width))
        return Buffer("panel", self.dtype, extents, Scope.HEAP)

    def operands(self, left: Value, right: Value) -> tuple[Buffer, Buffer]:
        parameters = self.epilogue.parameters
        return parameters.value(left, "left")[1], parameters.value(right, "right")[1]

    @property
    def needs_packing(self) -> bool:
        """Whether the right matrix has to be brought into another form."""
        return bool(self.attrs.transpose_b)

    def body(self) -> Stmt:
        is_packed, one = self.needs_packing, cast("Expr", Const(1))
        product = Product(
            reduce(times, self.leading, one),
            self.rows,
            self.columns,
            self.depth,
            self.dtype,
            self.schedule,
            self.element,
            self.packed if is_packed else self.right_vector,
            self.finish,
            self.pack_panel if is_packed else None,
        )
        return Allocate(self.panel, product.body()) if is_packed else product.body()

    def batch(self, shape: tuple[Dim, ...], batch: Expr) -> tuple[Expr, ...]:
        """The leading indices of an operand."""
        own = shape[:-2]
        places = unflattened(batch, self.leading)
        aligned = places[len(places) - len(own) :]
        return tuple(Const(0) if n == 1 else i for i, n in zip(aligned, own, strict=True))

    def element(self, batch: Expr, row: Expr, step: Expr) -> Expr:
        place = (step, row) if self.attrs.transpose_a else (row, step)
        return Load(self.left, (*self.batch(self.left_shape, batch), *place))

    def right_vector(self, batch: Expr, block: Expr, step: Expr, vector: int) -> Expr:
        """A vector of a row of the right matrix; columns that are not there are zero."""
        lanes = self.schedule.lanes
        columns = Ramp(plus(times(block, self.schedule.width), vector * lanes), 1, lanes)
        loaded = Load(self.right, (*self.batch(self.right_shape, batch), step, columns))
        if self.is_whole:
            return loaded
        there = Compare(CompareKind.LESS, columns, Broadcast(self.columns, lanes))
        return where(there, loaded)

    @property
    def is_whole(self) -> bool:
        """Whether blocks of columns are all whole, as far as is known."""
        return modulo(self.columns, self.schedule.width) == Const(0)

    def packed(self, _batch: Expr, _block: Expr, step: Expr, vector: int) -> Expr:
        lanes = self.schedule.lanes
        return Load(self.panel, (step, Ramp(Const(vector * lanes), 1, lanes)))

    def pack_panel(self, batch: Expr, block: Expr) -> Stmt:
        """A block of columns, transposed; the last column stands for those that are not there."""
        place, step = Var("column"), Var("step")
        column = plus(times(block, self.schedule.width), place)
        if not self.is_whole:
            column = Binary(BinaryKind.MINIMUM, column, plus(self.columns, -1))
        value = self.turned(Load(self.right, (*self.batch(self.right_shape, batch), column, step)))
        store = Store(self.panel, (step, place), value)
        steps = For(step, Const(0), self.depth, store)
        return For(place, Const(0), Const(self.schedule.width), steps)

    def turned(self, element: Expr) -> Expr:
        """An element of the transposed matrix as it is multiplied."""
        return element

    def finish(self, output: OutputVector, sums: Expr) -> Stmt:
        at = (*unflattened(output.batch, self.leading), output.row, output.columns)
        return self.epilogue.store(at, sums, output.condition)


class _ByteWriter(_Writer):
    """Writes a batch of products of bytes: steps are of four of them."""

    needs_packing = True

    def __init__(self, epilogue: Epilogue, target: Target) -> None:
        self.dtypes = [value.dtype for value in epilogue.anchor.args]
        super().__init__(epilogue, target)
        self.depth = over(self.depth, QUAD)
        self.panel = self.scratch()

    def operands(self, left: Value, right: Value) -> tuple[Buffer, Buffer]:
        parameters = self.epilogue.parameters
        read = parameters.words if self.attrs.transpose_b else parameters.value
        return parameters.words(left, "left")[1], read(right, "right")[1]

    def element(self, batch: Expr, row: Expr, step: Expr) -> Expr:
        return unsigned(super().element(batch, row, step), self.dtypes[0])

    def turned(self, element: Expr) -> Expr:
        """Four bytes as signed ones: they lie side by side already."""
        return element if self.dtypes[1] is DType.INT8 else signed(element)

    def pack_panel(self, batch: Expr, block: Expr) -> Stmt:
        """A block of columns, four rows of bytes as one of words."""
        if self.attrs.transpose_b:
            return super().pack_panel(batch, block)
        step, lanes = Var("step"), self.schedule.lanes
        stores = []
        for vector in range(self.schedule.vectors):
            rows = (plus(times(step, QUAD), place) for place in range(QUAD))
            parts = (signed_byte(self.right_vector(batch, block, row, vector)) for row in rows)
            at = Ramp(Const(vector * lanes), 1, lanes)
            stores.append(Store(self.panel, (step, at), joined_bytes(parts)))
        return For(step, Const(0), self.depth, Block(tuple(stores)))
