"""Row blocks: nodes that compute each row of a symbolic leading extent by itself.

Many backends compile fixed shapes only. Nodes whose results have rows, as many as are known at run
time only, run there all the same, in blocks of a fixed number of rows, if no row depends on another
one. Whether that is so follows from the operators' tensor expressions: each element in row i reads
operands that have these rows in row i only, and other operands anywhere. A table tells of operators
without an expression.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from graft.base.dims import AnyDim, symbol, symbols_of
from graft.base.errors import GraftError, UserError
from graft.byoc.formats.operands import late_attribute
from graft.byoc.region import region_graph
from graft.byoc.sizes import number
from graft.ir.attrs import symbols_in_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.substitution import Substitution
from graft.ir.types import TensorType
from graft.loop.ir import Const, Expr, Load
from graft.loop.simplify import simplify
from graft.loop.tensor import Reduce, Tensor, in_order, placeholder
from graft.loop.traverse import children
from graft.ops.expression import Table, Unexpressed, express
from graft.runtime.row_blocks import Blocks

# Operators without an expression, or whose expression hides that rows stay rows: the operands that
# may have the rows.
_ROW_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "reshape": (0,),  # of as many elements per row
    "bitcast": (0,),
    "det": (0,),
    "ml.tree_ensemble": (0,),
    "vision.roi_align": (1, 2),
    "vision.roi_pool": (1,),
}
# Numbers of rows on which expressions are compared: what depends on their number differs.
_TRIALS = (97, 101)
_ROWS = "rows"  # the symbol of a region's own
NO_ROWS: Mapping[Node, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rows:
    """The extent along which nodes run in blocks, and the rows of a block."""

    extent: AnyDim
    block: int

    @property
    def calls(self) -> int:
        """The expected calls: an unknown extent is assumed, as all prices do."""
        return math.ceil(number(self.extent) / self.block)


def row_extent(node: Node) -> AnyDim | None:
    """The symbolic leading extent along which a node computes each row by itself; None if there is
    none. All its results have these rows, and at least one of its operands."""
    first = node.output.type
    shape = first.shape if isinstance(first, TensorType) else None
    extent = shape[0] if shape else 1
    if not isinstance(extent, int) and symbols_of(extent) and _is_by_rows(node, extent):
        return extent
    return None


def extent_of(nodes: Sequence[Node], outputs: Sequence[Value]) -> AnyDim:
    """The extent along which a region of these nodes can run in blocks; an error if it cannot.

    Nodes that read constants only may be among them: weights of quantised layers."""
    extents = {node: row_extent(node) for node in nodes}
    found = {extent for extent in extents.values() if extent is not None}
    static = (one for node, extent in extents.items() if extent is None for one in node.outputs)
    if len(found) == 1 and all(has_rows(value, *found) is False for value in static):
        (extent,) = found
        if all(has_rows(value, extent) for value in outputs):
            return extent
    raise UserError(f"a region with %{nodes[-1].output.name} cannot run in blocks of rows")


def has_rows(value: Value, extent: AnyDim) -> bool | None:
    """Whether a tensor has these rows; None if it depends on their number in another way."""
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    if type_.is_static:
        return False
    is_first = type_.shape[0] == extent
    return True if is_first and TensorType(type_.dtype, type_.shape[1:]).is_static else None


def with_rows(region: Graph, extent: AnyDim, rows: AnyDim) -> Graph:
    """A region with so many rows."""
    return _Rows(extent, rows).graph(region)


def own_rows(region: Graph, extent: AnyDim) -> Graph:
    """A region whose rows are a symbol of its own, which its inputs bind: the graph around it may
    know their number as an expression only."""
    return with_rows(region, extent, symbol(_ROWS))


def one_block(body: Graph, rows: int) -> Graph:
    """The body of a region with rows of its own, for one block."""
    return with_rows(body, symbol(_ROWS), rows)


def blocks_of(body: Graph, rows: int) -> Blocks | None:
    """How runs of such a body are cut into blocks; None without rows."""
    whole = (index for index, value in enumerate(body.inputs) if value.tensor.is_static)
    return Blocks(rows, tuple(whole)) if rows else None


def block_of_rows(
    nodes: Sequence[Node], graph: Graph, rows: Rows
) -> tuple[Graph, dict[Node, Node]]:
    """Nodes as a closed graph of one block, and for each node there the one that it stands for."""
    region = region_graph(nodes, graph)
    block = with_rows(region, rows.extent, rows.block)
    places = {node.output: node for node in nodes}
    return block, {
        new: places[old.output]
        for new, old in zip(block.nodes, region.nodes, strict=True)
        if old.output in places
    }


class _Rows(Substitution):
    """Puts a number of rows, or a symbol for it, in the place of an extent."""

    def __init__(self, extent: AnyDim, rows: AnyDim) -> None:
        super().__init__({})
        self._extent, self._rows = extent, rows

    def nested(self, node: Node, inner: Graph) -> Graph:
        return inner  # closed graphs have symbols of their own

    def _dim(self, dim: AnyDim) -> AnyDim:
        return self._rows if dim == self._extent else dim

    def node(self, node: Node) -> Node:
        return self._node(node)


def _is_by_rows(node: Node, extent: AnyDim) -> bool:
    if late_attribute(node) or not node.op.pure or any(node.graphs()):
        return False
    operands = [None if value is None else has_rows(value, extent) for value in node.inputs]
    unsure = any(has is None for has, v in zip(operands, node.inputs, strict=True) if v is not None)
    if unsure or True not in operands or not all(has_rows(v, extent) for v in node.outputs):
        return False
    try:
        trials = [_Rows(extent, rows).node(node) for rows in _TRIALS]
        if any(symbols_in_attrs(one.attrs) for one in trials):
            return False
        if node.op.name in _ROW_OPERANDS:
            allowed = _ROW_OPERANDS[node.op.name]
            return all(index in allowed for index, has in enumerate(operands) if has)
        return _are_independent(*map(_stages, trials))
    except GraftError:  # no expression for these types
        return False


def _stages(node: Node) -> tuple[Tensor, ...]:
    """The tensors of a node's expression, operands included; none without an expression."""
    operands = [
        None if value is None else placeholder(f"a{number}", value.tensor.shape or (), value.dtype)
        for number, value in enumerate(node.inputs)
    ]
    results = express(node, operands, "t")
    return () if isinstance(results, Unexpressed) else in_order(results)


def _are_independent(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether rows of the tensors are independent: these are a node's, with two numbers of rows."""
    if not first or len(first) != len(second):
        return False
    having: set[str] = set()
    for one, other in zip(first, second, strict=True):
        has = _has_trial_rows(one, other)
        if has is None:
            return False
        if has:
            having.add(one.name)
    return all(
        _signature(one, having) == _signature(other, having) is not None
        for one, other in zip(first, second, strict=True)
    )


def _has_trial_rows(one: Tensor, other: Tensor) -> bool | None:
    """Whether a tensor has the rows; None if its shape depends on their number otherwise."""
    if one.name != other.name or len(one.shape) != len(other.shape):
        return None
    if one.shape == other.shape:
        return False
    trial = tuple(map(Const, _TRIALS))
    same = one.shape[1:] == other.shape[1:] and (one.shape[0], other.shape[0]) == trial
    return True if same else None


def _signature(tensor: Tensor, having: set[str]) -> list[object] | None:
    """What a tensor computes, in a form that is equal for any number of rows; None where a row
    depends on others, or on its number."""
    if isinstance(tensor, Table):
        return None if tensor.name in having else [tensor.name, tensor.array.tobytes()]
    body, roots = tensor.body, list[Expr]()
    result: list[object] = [tensor.name]
    if isinstance(body, Reduce):
        roots += [body.body, body.initial, *(extent for _, extent in body.axes)]
        result += [body.kind, *(axis for axis, _ in body.axes)]
    elif body is not None:
        roots.append(body)
    row = tensor.axes[0] if tensor.axes and tensor.name in having else None
    for expr in _walk(roots, having, row):
        if expr is None or expr == row:
            return None
        result.append(_shallow(expr))
    return result


def _walk(roots: Sequence[Expr], having: set[str], row: Expr | None) -> Iterator[Expr | None]:
    """All expressions, each object once, without the row indices of reads in the same row; None for
    a read in another row."""
    waiting, visited = list(roots), set[int]()
    while waiting:
        expr = waiting.pop()
        if id(expr) in visited:
            continue
        visited.add(id(expr))
        yield expr
        inner = children(expr)
        if isinstance(expr, Load) and expr.buffer.name in having:
            if row is None or simplify(inner[0]) != row:
                yield None
            inner = inner[1:]
        waiting += inner


def _shallow(expr: Expr) -> object:
    """An expression apart from its operands."""
    if isinstance(expr, Load):
        return expr.buffer.name
    fields = (getattr(expr, name, None) for name in ("kind", "value", "name", "stride", "dtype"))
    return type(expr), tuple(None if isinstance(field, Expr) else field for field in fields)
