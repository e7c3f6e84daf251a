"""The meaning of graphs: runs a graph with NumPy, node by node.

This is the oracle: every result is checked against the type that the graph declares for it, and
symbols are bound as shapes become known. Nothing here is fast on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graft.base.capacity import check_bytes
from graft.base.dims import UNKNOWN, AnyDim, bare_symbol, substitute
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import EvaluationError, GraftError, InternalError, Location, TypeRuleError
from graft.ir.attrs import Attrs, bind_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import Op, bytes_of
from graft.ir.types import OptionalType, SequenceType, TensorType, Type

_FAILURES = (ArithmeticError, TypeError, ValueError, IndexError, KeyError, MemoryError)

# What a value is at run time: an array, a list (sequence), None (empty optional) or a dict (map).
Data = Any
Symbols = dict[str, int]
Revision = Callable[[Node, Sequence[Data]], Sequence[Data]]


def evaluate(graph: Graph, inputs: Sequence[Data], revise: Revision | None = None) -> list[Data]:
    """Run the graph on its inputs, in order; `revise` is given each node with its results, and
    returns what counts as its results from there on."""
    try:
        for value, data in zip(graph.inputs, inputs, strict=False):
            _check_elements(value, value.type, data)
        return run_graph(graph, inputs, revise)
    except GraftError as error:
        sources = (node.location.source for node in graph.nodes if node.location is not None)
        raise error.at(Location(next(sources, ""), graph.name, "graph")) from error.__cause__


def _check_elements(value: Value, type_: Type, data: Data) -> None:
    """Refuse a sequence with an element that is not what the graph was typed for.

    Only inputs of the outermost graph are checked: checking sequences in each iteration of a loop
    that appends to them would take quadratic time.
    """
    if isinstance(type_, OptionalType):
        _check_elements(value, type_.element, data)
    elif isinstance(type_, SequenceType) and isinstance(data, list):
        for position, item in enumerate(data):
            problem, _ = _conform(type_.element, item, {})
            if problem:
                message = f"%{value.name} is declared {value.type}, but its element {position} is"
                raise EvaluationError(f"{message} {problem}")
            _check_elements(value, type_.element, item)


def run_graph(graph: Graph, inputs: Sequence[Data], revise: Revision | None = None) -> list[Data]:
    """As `evaluate`, for a nested graph: inputs that do not fit are its node's mistake."""
    if len(inputs) != len(graph.inputs):
        raise EvaluationError(f"{graph.name} takes {len(graph.inputs)} inputs, has {len(inputs)}")
    symbols: Symbols = {}
    values: dict[Value, Data] = {}
    for value, data in zip(graph.inputs, inputs, strict=True):
        values[value] = _checked(value, data, symbols, EvaluationError)
    with np.errstate(all="ignore"):
        for node, finished in zip(graph.nodes, graph.last_reads, strict=True):
            results: Sequence[Data] = _run_node(node, values, symbols)
            if revise is not None:
                results = revise(node, results)
            values.update(zip(node.outputs, results, strict=True))
            for value in finished:
                values.pop(value, None)
    return [values[value] for value in graph.outputs]


def run_op(op: Op, attrs: Attrs, operands: Sequence[Data]) -> tuple[Data, ...]:
    """One operator on its operands."""
    result = op.evaluate(attrs, *operands, *op.absent(len(operands)))
    return result if isinstance(result, tuple) else (result,)


def _run_node(node: Node, values: dict[Value, Data], symbols: Symbols) -> list[Data]:
    operands = [None if value is None else values[value] for value in node.inputs]
    try:
        refuse_absurd_sizes(node, symbols)
        attrs = bind_attrs(node.attrs, symbols)
        _check_operands(node, attrs, operands)
        results = run_op(node.op, attrs, operands)
    except GraftError as error:
        raise error.at(node.location) from error.__cause__
    except _FAILURES as error:
        raise EvaluationError(f"{node.op.name}: {error}", node.location) from error
    if len(results) != len(node.outputs):
        raise InternalError(f"{node.op.name} gave {len(results)} results", node.location)
    try:
        return [
            _checked(value, data, symbols, InternalError)
            for value, data in zip(node.outputs, results, strict=True)
        ]
    except GraftError as error:
        raise error.at(node.location) from error.__cause__


def _check_operands(node: Node, attrs: Attrs, operands: Sequence[Data]) -> None:
    """Ask the type rule again where it did not know all extents before."""
    declared = [None if value is None else value.type for value in node.inputs]
    if all(t is None or (isinstance(t, TensorType) and t.is_static) for t in declared):
        return
    pairs = zip(operands, declared, strict=True)
    actual = tuple(_actual_type(data, t) if isinstance(t, TensorType) else t for data, t in pairs)
    try:
        results = node.op.result_types(attrs, actual)
    except TypeRuleError as error:
        raise EvaluationError(error.message, node.location, error.hint) from error
    if len(results) != len(node.outputs):
        raise EvaluationError(
            f"{node.op.name} gives {len(results)} results, not {len(node.outputs)}", node.location
        )


def _actual_type(array: Array, declared: TensorType) -> TensorType:
    return TensorType(declared.dtype, tuple(array.shape))


def function_of(node: Node) -> Callable[[Sequence[Data], Mapping[str, int]], Sequence[Data]]:
    """A node's meaning as a function of its operands, and of what symbols stand for."""

    def run(operands: Sequence[Data], symbols: Mapping[str, int]) -> Sequence[Data]:
        try:
            with np.errstate(all="ignore"):
                return run_op(node.op, bind_attrs(node.attrs, symbols), operands)
        except GraftError:
            raise
        except _FAILURES as error:
            raise EvaluationError(f"{node.op.name}: {error}") from error

    return run


def evaluator_of(node: Node) -> Callable[[Sequence[Data], Mapping[str, int]], Sequence[Data]]:
    """A node's meaning as a function of its present operands, for code that runs it alone; checks
    the sizes of results."""
    meaning = function_of(node)

    def run(operands: Sequence[Data], symbols: Mapping[str, int]) -> Sequence[Data]:
        refuse_absurd_sizes(node, symbols)
        present = iter(operands)
        return meaning([None if v is None else next(present) for v in node.inputs], symbols)

    return run


def refuse_absurd_sizes(node: Node, symbols: Mapping[str, int]) -> None:
    """Raise an error if a result is larger than this machine's memory."""
    for value in node.outputs:
        size = bytes_of(value.type)
        if not isinstance(size, int):
            size = UNKNOWN if size is UNKNOWN else substitute(size, symbols)
        if isinstance(size, int):
            check_bytes(size, f"{node.op.name} would make %{value.name}")


def _checked(value: Value, data: Data, symbols: Symbols, error: type[GraftError]) -> Data:
    """The data as an array of the declared type; binds the type's symbols."""
    problem, data = _conform(value.type, data, symbols)
    if problem:
        raise error(f"%{value.name} is declared {value.type} but is {problem}")
    return data


def _conform(type_: Type, data: Data, symbols: Symbols) -> tuple[str, Data]:
    if isinstance(type_, TensorType):
        return _conform_tensor(type_, data, symbols)
    if isinstance(type_, OptionalType):
        return ("", None) if data is None else _conform(type_.element, data, symbols)
    if isinstance(type_, SequenceType):
        return ("", data) if isinstance(data, list) else (f"a {type(data).__name__}", data)
    return ("", data) if isinstance(data, dict) else (f"a {type(data).__name__}", data)


def _conform_tensor(type_: TensorType, data: Data, symbols: Symbols) -> tuple[str, Data]:
    if not isinstance(data, (np.ndarray, np.generic)):
        return f"a {type(data).__name__}", data
    array = np.asarray(data)
    actual = TensorType(dtype_of(array.dtype), tuple(array.shape))
    if actual.dtype != type_.dtype:
        return str(actual), array
    if array.dtype.kind in "UST" and type_.dtype is DType.STRING:
        array = array.astype(object)
    strange = _no_string(array) if array.dtype == object else ""
    if strange:
        return f"{actual} with an element of type {strange}, not a string", array
    if type_.shape is None:
        return "", array
    if len(type_.shape) != array.ndim:
        return str(actual), array
    for dim, extent in zip(type_.shape, array.shape, strict=True):
        if not _bind_dim(dim, extent, symbols):
            return f"{actual}{_bindings(symbols)}", array
    return "", array


def _no_string(array: Array) -> str:
    """The type of an element that is no string; object arrays hold anything."""
    return next((type(item).__name__ for item in array.flat if not isinstance(item, str)), "")


def _bindings(symbols: Symbols) -> str:
    pairs = ", ".join(f"{name} = {extent}" for name, extent in symbols.items())
    return f" (with {pairs})" if pairs else ""


def _bind_dim(dim: AnyDim, extent: int, symbols: Symbols) -> bool:
    """Check an extent against its dim; a symbol seen for the first time is bound."""
    if isinstance(dim, int):
        return dim == extent
    if dim is UNKNOWN:
        return True
    name = bare_symbol(dim)
    if name is not None:
        return symbols.setdefault(name, extent) == extent
    expected = substitute(dim, symbols)
    return expected == extent if isinstance(expected, int) else True
