"""What a file holds of nodes on the reference evaluator: a node in, its graph as text out, and the
kinds of its values; a whole model in, a flow of one step out."""

from __future__ import annotations

from graft.base.dims import Unknown
from graft.base.dtypes import DType
from graft.ir.graph import Graph, Node, Value
from graft.ir.names import FreshNames
from graft.ir.op import get_op
from graft.ir.printer import to_text
from graft.ir.types import TensorType, onnx_type
from graft.ops.composite import CompositeAttrs
from graft.runtime.evaluated import EvaluatedGraph
from graft.runtime.flow import Evaluation, Flow, Kind
from graft.runtime.flow_program import FlowProgram
from graft.runtime.program import Target

# The node that a whole model is for the evaluator.
WHOLE = "composite"


def evaluated_graph(node: Node) -> EvaluatedGraph:
    """A node as a graph of its own."""
    graph = Graph(node.op.name, tuple(dict.fromkeys(node.args)), (node,), node.outputs)
    printed = to_text(graph)
    operators = {one.op.name for one in graph.walk()}
    named = sorted(operators - {WHOLE} or operators)  # a model may have no nodes at all
    return EvaluatedGraph(printed.text, tuple(named), printed.constants)


def evaluated_model(graph: Graph) -> FlowProgram:
    """A model that the evaluator runs as a whole, on any machine."""
    fresh = FreshNames(value.name for value in graph.inputs)
    outputs = tuple(Value(fresh("result"), value.type) for value in graph.outputs)
    node = Node(get_op(WHOLE), graph.inputs, CompositeAttrs(graph), outputs)
    kinds = tuple(map(kind_of, (*graph.inputs, *outputs)))
    inputs = tuple(range(len(graph.inputs)))
    results = tuple(range(len(inputs), len(kinds)))
    step = Evaluation("model", inputs, results, evaluated_graph(node), WHOLE)
    flow = Flow(graph.name, kinds, inputs, (), (step,), results)
    return FlowProgram(Target(""), flow, graph.output_names)


def kind_of(value: Value) -> Kind:
    """What a value is at run time."""
    type_ = value.type
    if not isinstance(type_, TensorType):
        return Kind(value.name, type=onnx_type(type_))
    shape = [dim for dim in type_.shape or () if not isinstance(dim, Unknown)]
    known = type_.shape is not None and len(shape) == len(type_.shape)
    extents = tuple(shape) if known else None
    if type_.dtype is DType.STRING:
        return Kind(value.name, None, extents, onnx_type(type_))
    return Kind(value.name, type_.dtype, extents)
