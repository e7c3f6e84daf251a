"""Checks that a graph keeps the rules of the IR; errors carry the node's source location.

Every value defined once and before use, operand counts, attribute classes, declared types that the
type rules do not contradict, symbols in attributes bound by the inputs, and closed nested graphs;
and, apart from that, no tensor with too many axes or larger than this machine's memory: a few bytes
of a model can ask for any amount. Sizes that depend on data are checked when they are known.
"""

from __future__ import annotations

from graft.base import capacity
from graft.base.errors import GraftError, Location, ModelError, UnsupportedError
from graft.ir.attrs import symbols_in_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType, compatible

MOST_AXES = 64  # NumPy's limit


class VerifyError(ModelError):
    """A graph that breaks a rule of the IR."""


def verify(graph: Graph, around: frozenset[str] = frozenset()) -> Graph:
    """Raise `VerifyError` at the first broken rule; otherwise return the graph.

    `around` are symbols that are bound outside of the graph."""
    defined: set[Value] = set()
    names: set[str] = set()
    for value in graph.inputs:
        _define(value, defined, names, None)
    symbols = graph.input_symbols | around
    for node in graph.nodes:
        try:
            _verify_node(node, defined, symbols)
        except GraftError as error:
            raise VerifyError(error.message, error.location or node.location, error.hint) from error
        for value in node.outputs:
            _define(value, defined, names, node)
    if len(graph.output_names) != len(graph.outputs):
        counts = f"{len(graph.outputs)} outputs but {len(graph.output_names)} names for them"
        raise VerifyError(f"graph '{graph.name}' has {counts}")
    for value in graph.outputs:
        if value not in defined:
            raise VerifyError(f"output %{value.name} of graph '{graph.name}' is not defined")
    return graph


def _define(value: Value, defined: set[Value], names: set[str], node: Node | None) -> None:
    if value in defined or value.name in names:
        raise VerifyError(f"%{value.name} is defined twice", node.location if node else None)
    defined.add(value)
    names.add(value.name)


def _verify_node(node: Node, defined: set[Value], symbols: frozenset[str]) -> None:
    op = node.op
    for value in node.inputs:
        if value is not None and value not in defined:
            raise VerifyError(f"{op.name} reads %{value.name} before it is defined")
    op.check_operands(node.inputs)
    if type(node.attrs) is not op.attrs:
        raise VerifyError(f"{op.name} wants {op.attrs.__name__}, has {type(node.attrs).__name__}")
    unbound = symbols_in_attrs(node.attrs) - symbols
    if unbound:
        raise VerifyError(f"{op.name}: no input's shape binds the symbol '{min(unbound)}'")
    for _, nested in node.graphs():
        verify(nested)
    types = tuple([None if value is None else value.type for value in node.inputs])
    results = op.result_types(node.attrs, types)
    if len(results) != len(node.outputs):
        raise VerifyError(f"{op.name} gives {len(results)} results, not {len(node.outputs)}")
    for value, inferred in zip(node.outputs, results, strict=True):
        if value.type is not inferred and not compatible(value.type, inferred):
            raise VerifyError(
                f"%{value.name} is declared {value.type} but {op.name} gives {inferred}"
            )


def check_sizes(graph: Graph) -> Graph:
    """Return the graph, or raise an error that names the tensor; nested graphs included."""
    for value in graph.inputs:
        _check_size(value, Location(kind="input", node=value.name))
    for node in graph.walk():
        for value in node.outputs:
            _check_size(value, node.location)
    return graph


def _check_size(value: Value, location: Location | None) -> None:
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        return
    if len(type_.shape) > MOST_AXES:
        raise UnsupportedError(
            f"%{value.name} has {len(type_.shape)} axes, and arrays have at most {MOST_AXES}",
            location,
            hint="merge axes by a Reshape",
        )
    count = type_.size
    if isinstance(count, int) and count * type_.dtype.numpy.itemsize > capacity.MOST_BYTES:
        gigabytes = count * type_.dtype.numpy.itemsize >> 30
        raise UnsupportedError(
            f"%{value.name} would take {gigabytes} GiB, more than this machine's memory",
            location,
            hint="check the sizes, pads and repetitions that make it; they may be damaged",
        )
