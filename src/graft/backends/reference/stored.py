"""What a file holds of nodes on the reference evaluator: a node in, its graph as text out, and the
values of a program that its values are; a whole model in, a program of one instruction out."""

from __future__ import annotations

from graft.base.dims import Unknown
from graft.base.dtypes import DType
from graft.ir.graph import Graph, Node, Value
from graft.ir.names import FreshNames
from graft.ir.printer import to_text
from graft.ir.types import SequenceType, TensorType, Type, onnx_type
from graft.ops import get_op
from graft.ops.control import CompositeAttrs
from graft.program.instructions import Block, Evaluate, EvaluatedGraph
from graft.program.program import Program, Target
from graft.program.program import Value as ProgramValue

# The node that a whole model is for the evaluator, and what the function that runs it is called.
WHOLE, MODEL = "composite", "model"


def evaluated_graph(node: Node) -> EvaluatedGraph:
    """A node as a graph of its own."""
    graph = Graph(node.op.name, tuple(dict.fromkeys(node.args)), (node,), node.outputs)
    printed = to_text(graph)
    operators = {one.op.name for one in graph.walk()}
    named = sorted(operators - {WHOLE} or operators)  # a model may have no nodes at all
    return EvaluatedGraph(printed.text, tuple(named), printed.constants)


def evaluated_model(graph: Graph) -> Program:
    """A model that the evaluator runs as a whole, on any machine."""
    fresh = FreshNames(value.name for value in graph.inputs)
    outputs = tuple(Value(fresh("result"), value.type) for value in graph.outputs)
    node = Node(get_op(WHOLE), graph.inputs, CompositeAttrs(graph), outputs)
    values = tuple(map(value_of, (*graph.inputs, *outputs)))
    inputs = tuple(range(len(graph.inputs)))
    results = tuple(range(len(inputs), len(values)))
    step = Evaluate(MODEL, inputs, results, evaluated_graph(node), WHOLE)
    body = Block(inputs, (step,), results)
    return Program(Target(""), values, (), body, graph.output_names)


def value_of(value: Value) -> ProgramValue:
    """What a value is at run time."""
    type_ = value.type
    if not isinstance(type_, TensorType):
        return ProgramValue(value.name, type=onnx_type(type_), element=_element(type_))
    shape = [dim for dim in type_.shape or () if not isinstance(dim, Unknown)]
    has_rank = type_.shape is not None and len(shape) == len(type_.shape)
    extents = tuple(shape) if has_rank else None
    if type_.dtype is DType.STRING:
        return ProgramValue(value.name, None, extents, onnx_type(type_))
    return ProgramValue(value.name, type_.dtype, extents, alignment=type_.dtype.numpy.itemsize)


def _element(type_: Type) -> tuple[DType, int] | None:
    """The dtype and rank of a list's tensors, where all are alike and of numbers."""
    tensor = type_.element if isinstance(type_, SequenceType) else None
    if not isinstance(tensor, TensorType) or tensor.shape is None or tensor.dtype is DType.STRING:
        return None
    return tensor.dtype, len(tensor.shape)
