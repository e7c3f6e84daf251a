"""Branches that differ in rank: what reads their results knows it, or one may not be taken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.passes.checking import operators

import graft
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.module import Module
from graft.passes.pipeline import optimize

FLOAT = TensorProto.FLOAT
RANDOM = np.random.default_rng(3)


def info(name: str, *shape: int | str, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def unranked(name: str) -> onnx.ValueInfoProto:
    return helper.make_value_info(name, helper.make_tensor_type_proto(FLOAT, None))


def numbers(name: str, *items: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(items, np.int64), name)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    data = RANDOM.standard_normal(shape).astype(np.float32) * np.float32(0.3)
    return numpy_helper.from_array(data, name)


def branch(name: str, *nodes: onnx.NodeProto, gives: str) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [unranked(gives)])


def squeezed_or_not(data: str, condition: str, result: str, axis: str = "last") -> onnx.NodeProto:
    """What exporters make of `squeeze(-1)`."""
    squeeze = helper.make_node("Squeeze", [data, axis], [f"{result}_squeezed"])
    same = helper.make_node("Identity", [data], [f"{result}_same"])
    return helper.make_node(
        "If",
        [condition],
        [result],
        then_branch=branch("then", squeeze, gives=f"{result}_squeezed"),
        else_branch=branch("else", same, gives=f"{result}_same"),
    )


def last_is_one(data: str, result: str) -> list[onnx.NodeProto]:
    """Whether the last extent of a tensor is 1."""
    return [
        helper.make_node("Shape", [data], [f"{result}_shape"]),
        helper.make_node("Gather", [f"{result}_shape", "last"], [f"{result}_extent"]),
        helper.make_node("Equal", [f"{result}_extent", "one"], [result]),
    ]


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    *constants: onnx.TensorProto,
) -> onnx.ModelProto:
    shared = [numbers("last", -1), numbers("one", 1), numbers("first", 0)]
    graph = helper.make_graph(nodes, "net", inputs, outputs, [*shared, *constants])
    opset = [helper.make_opsetid("", 16)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def agree(module: Module, session: onnxruntime.InferenceSession, **feeds: Array) -> None:
    found, wanted = module.run(None, feeds), session.run(None, feeds)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def both(proto: onnx.ModelProto) -> tuple[Module, onnxruntime.InferenceSession]:
    """The model in native code alone, and in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    bytes_ = proto.SerializeToString()
    session = onnxruntime.InferenceSession(bytes_, options, providers=["CPUExecutionProvider"])
    return graft.compile(proto, strict=True), session


def speech() -> onnx.ModelProto:
    """A convolution, an `if` on the length that is left, and a layer that wants rank 3."""
    hidden = 5
    nodes = [
        helper.make_node("Conv", ["x", "filter"], ["windows"], strides=[4]),
        *last_is_one("windows", "single"),
        squeezed_or_not("windows", "single", "frame"),
        helper.make_node("Unsqueeze", ["frame", "first"], ["sequence"]),
        helper.make_node("Gather", ["state", "zero"], ["h"], axis=0),
        helper.make_node("Gather", ["state", "unit"], ["c"], axis=0),
        helper.make_node("Unsqueeze", ["h", "first"], ["h3"]),
        helper.make_node("Unsqueeze", ["c", "first"], ["c3"]),
        helper.make_node(
            "LSTM",
            ["sequence", "w", "r", "b", "", "h3", "c3"],
            ["", "hn", "cn"],
            hidden_size=hidden,
        ),
        helper.make_node("Concat", ["hn", "cn"], ["next"], axis=0),
        helper.make_node("Sigmoid", ["hn"], ["y"]),
    ]
    return model(
        nodes,
        [info("x", "n", 1, "t"), info("state", 2, "n", hidden)],
        [info("y", 1, "n", hidden), info("next", 2, "n", hidden)],
        weights("filter", 3, 1, 6),
        weights("w", 1, 4 * hidden, 3),
        weights("r", 1, 4 * hidden, hidden),
        weights("b", 1, 8 * hidden),
        numpy_helper.from_array(np.array(0, np.int64), "zero"),
        numpy_helper.from_array(np.array(1, np.int64), "unit"),
    )


def data(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("batch", "length"), [(1, 6), (1, 9), (3, 7)])
def test_a_branch_that_would_fail_becomes_a_demand(batch: int, length: int) -> None:
    module, session = both(speech())
    agree(module, session, x=data(batch, 1, length), state=data(2, batch, 5))
    steps = module.program.body.instructions
    assert [type(step).__name__ for step in steps] == ["Segment", "Assert", "Assert"]


def test_no_samples() -> None:
    """ONNX Runtime does not survive them."""
    module = graft.compile(speech(), strict=True)
    found = module.run(None, {"x": data(0, 1, 6), "state": data(2, 0, 5)})
    assert [one.shape for one in found] == [(1, 0, 5), (2, 0, 5)]


@pytest.mark.parametrize("length", [10, 31])
def test_the_demand_is_not_met(length: int) -> None:
    module, session = both(speech())
    feeds = {"x": data(1, 1, length), "state": data(2, 1, 5)}
    with pytest.raises(EvaluationError, match="not 1"):
        module.run(None, feeds)
    with pytest.raises(Exception, match="LSTM"):
        session.run(None, feeds)


def test_a_demand_on_data() -> None:
    """The sizes fit either way; what is asked is another input."""
    nodes = [
        squeezed_or_not("x", "flag", "row"),
        helper.make_node("Unsqueeze", ["row", "first"], ["image"]),
        helper.make_node("Conv", ["image", "filter"], ["y"]),
    ]
    flag = info("flag", dtype=TensorProto.BOOL)
    proto = model(nodes, [info("x", 2, "t", 1), flag], [unranked("y")], weights("filter", 3, 2, 2))
    module, session = both(proto)
    agree(module, session, x=data(2, 9, 1), flag=np.array(True))
    agree(module, session, x=data(2, 2, 1), flag=np.array(True))
    reference = graft.compile(proto, target="reference")
    for one in (module, reference):
        with pytest.raises(EvaluationError, match="the condition of an if is False"):
            one.run(None, {"x": data(2, 9, 1), "flag": np.array(False)})


def test_a_known_condition_demands_nothing() -> None:
    proto = speech()
    module = graft.compile(proto, strict=True, shapes={"t": [8], "n": [1]})
    feeds = {"x": data(1, 1, 8), "state": data(2, 1, 5)}
    assert module.variant(feeds)
    general = graft.compile(proto, strict=True)
    for one, other in zip(module.run(None, feeds), general.run(None, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    bound = optimize(import_model(_static(proto)))
    assert "demand" not in operators(bound)


def _static(proto: onnx.ModelProto) -> onnx.ModelProto:
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    for one in fixed.graph.input:
        for dim in one.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = {"t": 8, "n": 1}[dim.dim_param]
    return fixed


def test_demands_survive_as_text_and_in_files(tmp_path: object) -> None:
    graph = optimize(import_model(speech()))
    text = to_text(graph)
    assert operators(from_text(text.text, text.constants)).count("demand") == 2
    path = f"{tmp_path}/speech.graft"
    module = graft.compile(speech(), strict=True)
    module.save(path)
    loaded = graft.load(path)
    feeds = {"x": data(2, 1, 6), "state": data(2, 2, 5)}
    for one, other in zip(loaded.run(None, feeds), module.run(None, feeds), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(EvaluationError, match="not 1"):
        loaded.run(None, {"x": data(2, 1, 17), "state": data(2, 2, 5)})


def either_way(tail: Callable[[], list[onnx.NodeProto]]) -> onnx.ModelProto:
    nodes = [*last_is_one("x", "single"), squeezed_or_not("x", "single", "row"), *tail()]
    return model(
        nodes,
        [info("x", "n", 3, "t"), info("z", "n")],
        [info("y", dtype=FLOAT)],
        numbers("flat", -1),
    )


def sums() -> list[onnx.NodeProto]:
    """Of results of either rank: the number of axes, and the sum of all elements."""
    return [
        helper.make_node("Shape", ["row"], ["extents"]),
        helper.make_node("Size", ["extents"], ["rank"]),
        helper.make_node("Cast", ["rank"], ["rank_float"], to=FLOAT),
        helper.make_node("Exp", ["row"], ["raised"]),
        helper.make_node("ReduceSum", ["raised"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["z"], ["aside"], keepdims=0),
        helper.make_node("Mul", ["rank_float", "total"], ["product"]),
        helper.make_node("Add", ["product", "aside"], ["y"]),
    ]


def nested(graph: Graph) -> list[list[str]]:
    return [operators(inner) for node in graph.nodes for _, inner in node.graphs()]


@pytest.mark.parametrize("shape", [(2, 3, 1), (2, 3, 4), (1, 3, 7), (0, 3, 1), (2, 3, 0)])
def test_readers_move_into_both_branches(shape: tuple[int, ...]) -> None:
    proto = either_way(sums)
    module, session = both(proto)
    agree(module, session, x=data(*shape), z=data(shape[0]))
    graph = optimize(import_model(proto))
    # The rank is a number in each branch; what does not depend on it stays where it was.
    assert all("shape_of" not in ops and "exp" in ops for ops in nested(graph))
    assert all("add" not in ops for ops in nested(graph))


def chained() -> list[onnx.NodeProto]:
    """The result of unknown rank decides another `if`, which drops an axis again."""
    return [
        *last_is_one("row", "again"),
        squeezed_or_not("row", "again", "less"),
        helper.make_node("Neg", ["less"], ["negated"]),
        helper.make_node("ReduceSum", ["negated"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["z"], ["aside"], keepdims=0),
        helper.make_node("Add", ["total", "aside"], ["y"]),
    ]


@pytest.mark.parametrize("shape", [(2, 3, 1), (2, 3, 4), (2, 3, 0)])
def test_one_after_another(shape: tuple[int, ...]) -> None:
    module, session = both(either_way(chained))
    agree(module, session, x=data(*shape), z=data(shape[0]))


def test_results_of_unknown_rank_are_handed_out() -> None:
    """Nothing reads them: the graph stays as it is."""
    proto = model(
        [*last_is_one("x", "single"), squeezed_or_not("x", "single", "y")],
        [info("x", 2, "t")],
        [unranked("y")],
    )
    module, session = both(proto)
    agree(module, session, x=data(2, 1))
    agree(module, session, x=data(2, 5))


def test_what_fails_either_way_is_left_alone() -> None:
    """It says so when it runs."""
    nodes = [
        squeezed_or_not("x", "flag", "row"),
        helper.make_node("Conv", ["row", "filter"], ["y"]),
    ]
    flag = info("flag", dtype=TensorProto.BOOL)
    proto = model(nodes, [info("x", 2, 1), flag], [unranked("y")], weights("filter", 3, 2, 2))
    module = graft.compile(proto)
    for value in (True, False):
        with pytest.raises(EvaluationError):
            module.run(None, {"x": data(2, 1), "flag": np.array(value)})


def test_a_branch_that_names_extents_of_what_it_captures() -> None:
    """What reads the result moves into the branch, where its inputs bind the extent."""
    column = helper.make_node("Unsqueeze", ["filled", "last"], ["column"])
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"]),
        helper.make_node("Squeeze", ["where", "first"], ["chosen"]),
        helper.make_node("ReduceMax", ["x"], ["highest"], keepdims=0),
        helper.make_node("Greater", ["highest", "limit"], ["high"]),
        helper.make_node(
            "If",
            ["high"],
            ["result"],
            then_branch=branch(
                "then",
                helper.make_node("Shape", ["chosen"], ["extent"]),
                helper.make_node("Expand", ["limit", "extent"], ["filled"]),
                column,
                gives="column",
            ),
            else_branch=branch(
                "else", helper.make_node("Gather", ["x", "chosen"], ["row"]), gives="row"
            ),
        ),
        helper.make_node("Exp", ["result"], ["power"]),
        helper.make_node("ReduceSum", ["power"], ["y"], keepdims=0),
    ]
    limit = numpy_helper.from_array(np.array(2, np.float32), "limit")
    module, session = both(model(nodes, [info("x", "n")], [info("y")], limit))
    for x in ([0, 1, 0, 1.5], [3, 0, 0, 1, 2], [0, 0]):
        agree(module, session, x=np.array(x, np.float32))
