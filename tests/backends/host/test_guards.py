"""Indices that are data and lie outside: the run is refused, natively as on the evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.frontends.onnx.small_models import graph as nested
from tests.frontends.onnx.small_models import it, node, tensor, value

import graft
from graft.backends.host.backend import HostBackend
from graft.base.dims import Dim, symbol
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, UserError
from graft.byoc.executable import Settings
from graft.byoc.probe import samples
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor as tensor_type
from graft.ops.indexed import index_limits
from graft.program.instructions import Segment
from graft.program.program import ProgramError
from graft.program.verify import verify_program

DATA = np.arange(60, dtype=np.float32).reshape(5, 4, 3)


def at(*numbers: Any, dtype: Any = np.int64) -> Array:
    return np.array(numbers, dtype)


@dataclass(frozen=True)
class Case:
    """A node, good operands for it, and indices of which some are outside; what is said of them."""

    op: str
    operands: Sequence[Array]
    place: int  # of the indices
    bad: Array
    message: str
    opset: int = 18
    attributes: dict[str, Any] = field(default_factory=dict)
    peer: bool = True  # whether ONNX Runtime refuses them, too


def case(op: str, *operands: Array, bad: Array, message: str, **more: Any) -> Any:
    place = more.pop("place", 1)
    peer, opset = more.pop("peer", True), more.pop("opset", 18)
    made = Case(op, operands, place, bad, message, opset, more, peer)
    return pytest.param(made, id=f"{op}-{message.split(' of ')[0]}".replace(" ", "_"))


ELEMENTS = np.random.default_rng(0).integers(-4, 4, (5, 2, 3))
BEYOND = np.where(np.arange(30).reshape(5, 2, 3) == 17, 4, ELEMENTS)
TUPLES = at([0, 3], [-5, -4], [4, 1])
IMAGES = np.random.default_rng(1).random((2, 3, 6, 6)).astype(np.float32)
BOXES = np.array([[0, 0, 3, 3], [1, 1, 4, 5]], np.float32)
CACHE, NEW = np.zeros((2, 3, 9, 4), np.float32), np.ones((2, 3, 2, 4), np.float32)

CASES = [
    case("Gather", DATA, at(0, -5, 4), bad=at(1, 5, 2), message="index 5 is out of range"),
    case("Gather", DATA, at(0, -5, 4), bad=at(-6, -7, 2), message="index -6 is out of range"),
    case(
        "Gather",
        DATA,
        at([3, -4], [1, 0], dtype=np.int32),
        bad=at([3, 2**31 - 1], [1, 99], dtype=np.int32),
        message="index 2147483647 is out of range for axis 1 of extent 4",
        axis=1,
    ),
    case(
        "Gather",
        DATA,
        np.array(2),
        bad=np.array(-(2**63)),
        message="index -9223372036854775807 is out of range for axis 2 of extent 3",
        axis=-1,
    ),
    case(
        "GatherElements",
        DATA,
        ELEMENTS,
        bad=BEYOND,
        message="index 4 is out of range for axis 1 of extent 4",
        axis=1,
    ),
    case(
        "GatherND",
        DATA,
        TUPLES,
        bad=at([0, 3], [-5, 4], [4, 1]),
        message="index 4 is out of range for axis 1 of extent 4",
    ),
    case(
        "GatherND",
        DATA,
        np.zeros((5, 2, 2), np.int64),
        bad=np.full((5, 2, 2), 3),
        message="index 3 is out of range for axis 2 of extent 3",
        batch_dims=1,
    ),
    case(
        "GatherND",
        DATA,
        at([0], [4]),
        bad=at([0], [5]),
        message="index 5 is out of range for axis 0 of extent 5",
    ),
    case(
        "ScatterElements",
        DATA,
        ELEMENTS,
        np.ones((5, 2, 3), np.float32),
        bad=BEYOND,
        message="index 4 is out of range for axis 1 of extent 4",
        axis=1,
        reduction="add",
    ),
    case(
        "MaxUnpool",
        np.ones((1, 1, 2), np.float32),
        at([[0, 3]]),
        bad=at([[0, -1]]),
        message="index -1 is out of range for axis 0 of extent 4",
        kernel_shape=[2],
        strides=[2],
    ),
    case(
        "ScatterND",
        DATA,
        TUPLES,
        np.ones((3, 3), np.float32),
        bad=at([0, 3], [-6, 3], [4, 1]),
        message="index -6 is out of range for axis 0 of extent 5",
    ),
    case(
        "TensorScatter",
        CACHE,
        NEW,
        at(0, 7),
        place=2,
        bad=at(0, 8),
        message="2 elements from index 8 on do not fit into axis 2 of extent 9",
        opset=24,
        peer=False,
    ),
    case(
        "TensorScatter",
        CACHE,
        NEW[:, :, :1],
        at(0, 8),
        place=2,
        bad=at(0, -1),
        message="index -1 is out of range for axis 2 of extent 9",
        opset=24,
        peer=False,
    ),
    case(
        "RoiAlign",
        IMAGES,
        BOXES,
        at(0, 1),
        place=2,
        bad=at(0, -1),
        message="index -1 is out of range for axis 0 of extent 2",
    ),
    case(
        "ReverseSequence",
        DATA,
        at(0, 5, 1, 2),
        bad=at(0, 6, 1, 2),
        message="a length is not between 0 and the number of steps",
        batch_axis=1,
        time_axis=0,
    ),
]

BINDINGS = ("static", "batch", "symbolic")


def model_of(one: Case, shapes: str) -> onnx.ModelProto:
    """A model of the node; extents of the first axes, or of all, are known only when it runs."""
    inputs = []
    for number, array in enumerate(one.operands):
        dims: list[Any] = list(array.shape)
        unknown = {"static": 0, "batch": 1, "symbolic": len(dims)}[shapes]
        if one.op == "TensorScatter":
            unknown = min(unknown, 1)  # else there may be no room at all
        for axis in range(min(unknown, len(dims))):
            dims[axis] = f"d{dims[axis]}"
        if one.op in ("GatherND", "ScatterND") and number == one.place:
            dims[-1] = array.shape[-1]
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(helper.make_tensor_value_info(f"x{number}", dtype, dims))
    names = [info.name for info in inputs]
    made = it(one.op, names, ["y"], **one.attributes)
    graph = helper.make_graph([made], "one", inputs, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", one.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds_of(one: Case, indices: Array) -> dict[str, Array]:
    operands = [*one.operands]
    operands[one.place] = indices
    return {f"x{number}": array for number, array in enumerate(operands)}


def refused(run: Any, message: str, name: str = "it") -> None:
    with pytest.raises(EvaluationError) as caught:
        run()
    assert isinstance(caught.value, UserError)
    assert caught.value.message.startswith(message)
    assert caught.value.location is not None
    assert caught.value.location.node == name


@pytest.mark.each_value
@pytest.mark.parametrize("shapes", BINDINGS)
@pytest.mark.parametrize("one", CASES)
def test_indices_outside(one: Case, shapes: str, tmp_path: Path) -> None:
    model = model_of(one, shapes)
    good, bad = feeds_of(one, one.operands[one.place]), feeds_of(one, one.bad)
    (wanted,) = evaluate(import_model(model), list(good.values()))
    refused(lambda: evaluate(import_model(model), list(bad.values())), one.message)
    for threads in (1, 2):
        module = graft.compile(model, target=["host"], strict=True, threads=threads)
        for _ in range(2):
            np.testing.assert_allclose(module.run(None, good)[0], wanted, rtol=1e-5)
            refused(lambda module=module: module.run(None, bad), one.message)
    assert [output.name for output in module.get_outputs()] == ["y"]
    module.save(tmp_path / "one.graft")
    stored = graft.load(tmp_path / "one.graft")
    refused(lambda: stored.run(None, bad), one.message)
    (found,) = stored.run(None, good)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert [output.name for output in stored.get_outputs()] == ["y"]


@pytest.mark.parametrize("one", [one for one in CASES if one.values[0].peer])
def test_onnx_runtime_refuses_them_too(one: Case) -> None:
    session = onnxruntime.InferenceSession(model_of(one, "static").SerializeToString())
    session.run(None, feeds_of(one, one.operands[one.place]))
    with pytest.raises(Exception, match=r"(?i)index|indice|batch_indices|sequence length"):
        session.run(None, feeds_of(one, one.bad))


def test_an_axis_that_turns_out_to_be_empty() -> None:
    model = helper.make_model(
        helper.make_graph(
            [it("Gather", ["x", "i"])],
            "one",
            [value("x", shape=["n", 3]), value("i", TensorProto.INT64, ["k"])],
            [onnx.ValueInfoProto(name="y")],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    module = graft.compile(model, target=["host"], strict=True)
    nothing, none = np.zeros((0, 3), np.float32), np.zeros(0, np.int64)
    assert module.run(None, {"x": nothing, "i": none})[0].shape == (0, 3)
    message = "index 0 is out of range for axis 0 of extent 0"
    refused(lambda: module.run(None, {"x": nothing, "i": at(0)}), message)


def model_with(nodes: Sequence[Any], inputs: Sequence[Any], weights: Sequence[Any] = ()) -> Any:
    graph = helper.make_graph(
        list(nodes), "made", list(inputs), [onnx.ValueInfoProto(name="y")], list(weights)
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def in_a_branch() -> Any:
    body = nested([it("Gather", ["x", "i"], ["inner"])], "inner")
    other = nested([node("Identity", "x", "outer")], "outer")
    choice = helper.make_node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=other)
    inputs = [value("x", shape=[4, 3]), value("i", TensorProto.INT64, [4])]
    return model_with([choice], [*inputs, value("c", TensorProto.BOOL, [])])


def test_only_the_branch_that_runs_refuses() -> None:
    module = graft.compile(in_a_branch(), target=["host"], strict=True)
    feeds = {"x": DATA[:4, 0], "i": at(0, 1, 2, 9), "c": np.array(False)}
    np.testing.assert_array_equal(module.run(None, feeds)[0], feeds["x"])
    message = "index 9 is out of range for axis 0 of extent 4"
    where = "if/then_branch/it"
    refused(lambda: module.run(None, {**feeds, "c": np.array(True)}), message, where)
    feeds["i"] = at(0, -4, 3, 1)
    (found,) = module.run(None, {**feeds, "c": np.array(True)})
    np.testing.assert_array_equal(found, feeds["x"][feeds["i"]])


def test_a_turn_of_a_loop_refuses(tmp_path: Path) -> None:
    body = nested(
        [
            it("Gather", ["x", "turn"], ["row"]),
            node("Add", "before row", "after"),
            node("Identity", "going", "still"),
        ],
        "still after",
        [
            value("turn", TensorProto.INT64, []),
            value("going", TensorProto.BOOL, []),
            value("before", shape=[3]),
        ],
    )
    loop = helper.make_node("Loop", ["n", "", "start"], ["y"], name="loop", body=body)
    inputs = [
        value("x", shape=[4, 3]),
        value("n", TensorProto.INT64, []),
        value("start", shape=[3]),
    ]
    graft.compile(model_with([loop], inputs), target=["host"], strict=True).save(
        tmp_path / "loop.graft"
    )
    for module in (
        graft.compile(model_with([loop], inputs), target=["host"], strict=True),
        graft.load(tmp_path / "loop.graft"),
    ):
        feeds = {"x": DATA[:4, 0], "n": np.array(4), "start": np.zeros(3, np.float32)}
        np.testing.assert_array_equal(module.run(None, feeds)[0], feeds["x"].sum(0))
        message = "index 4 is out of range for axis 0 of extent 4"
        feeds["n"] = np.array(5)
        refused(lambda m=module, f=feeds: m.run(None, f), message, "loop/body/it")


def several() -> Any:
    """A table looked up by indices that another one gives; the first mistake is the cause."""
    nodes = [
        it("Gather", ["table", "i"], ["j"]),
        helper.make_node("Gather", ["x", "j"], ["k"], name="second"),
        helper.make_node("GatherND", ["k", "t"], ["y"], name="third"),
    ]
    inputs = [
        value("x", shape=[6, 3]),
        value("i", TensorProto.INT64, [5]),
        value("t", TensorProto.INT64, [2, 2]),
        value("table", TensorProto.INT64, ["m"]),
    ]
    return model_with(nodes, inputs)


def test_the_first_of_several_is_named() -> None:
    module = graft.compile(several(), target=["host"], strict=True)
    feeds = {
        "x": np.arange(18, dtype=np.float32).reshape(6, 3),
        "i": at(0, 1, 2, 1, 0),
        "t": at([0, 2], [-5, -3]),
        "table": at(5, -6, 0),
    }
    np.testing.assert_array_equal(module.run(None, feeds)[0], [17, 15])
    for name, bad, message, where in (
        ("i", at(0, 1, 3, 1, 0), "index 3 is out of range for axis 0 of extent 3", "it"),
        ("table", at(5, 6, 9), "index 9 is out of range for axis 0 of extent 6", "second"),
        ("t", at([0, 2], [4, 3]), "index 3 is out of range for axis 1 of extent 3", "third"),
        ("t", at([7, 9], [4, 3]), "index 7 is out of range for axis 0 of extent 5", "third"),
    ):
        refused(lambda n=name, b=bad: module.run(None, {**feeds, n: b}), message, where)
    everything = {**feeds, "table": at(100, -100, 7), "t": at([7, 9], [4, 3])}
    refused(lambda: module.run(None, everything), "index 100", "second")


def is_guarded(graph: Graph) -> bool:
    built = HostBackend(Settings(threads=1)).build(graph)
    return any(segment.guards for segment in built.program.segments)


SURE: dict[str, list[Any]] = {
    "argmax": [7, symbol("n")],
    "topk": [7, symbol("n")],
    "arange": [7, symbol("n")],
    "mod": [7, symbol("n") + 1],
    "clip": [7],
    "where": [7],
    "constant": [7],
    "nonzero": [7, symbol("n")],
}


@pytest.mark.parametrize(
    ("search", "extent"), [(name, extent) for name, all_ in SURE.items() for extent in all_]
)
def test_what_cannot_be_outside_has_no_guard(search: str, extent: Dim) -> None:
    builder = Builder()
    data = builder.input("x", tensor_type("float32", extent, 3))
    other = builder.input("i", tensor_type("int64", 5))

    def number(of: int) -> Value:
        return builder.constant(np.array(of))

    indices = {
        "argmax": lambda: builder("argmax", data, axis=0),
        "topk": lambda: builder.call("topk", data, k=1, axis=0)[1],
        "arange": lambda: builder("arange", start=0, limit=extent, delta=1),
        "mod": lambda: builder("floor_mod", other, number(1)),
        "clip": lambda: builder("clip", other, a_min=-7, a_max=6),
        "where": lambda: builder("where", builder("less", other, number(0)), number(3), number(-7)),
        "constant": lambda: builder.constant(at(0, 6, -7)),
        "nonzero": lambda: builder(
            "squeeze", builder("nonzero", builder("sum", data, axes=[1])), axes=[0]
        ),
    }[search]()
    moved = builder("reshape", builder("cast", indices, dtype="int32"), shape=[1, -1])
    table = builder("maximum", data, data) if search != "mod" else data
    assert not is_guarded(builder.build(builder("take", table, moved, axis=0)))


@pytest.mark.parametrize("shift", [-8, 1])
def test_what_is_moved_out_of_range_has_one(shift: int) -> None:
    builder = Builder()
    data = builder.input("x", tensor_type("float32", 7, 3))
    found = builder("argmax", data, axis=0)
    indices = builder("add", found, builder.constant(np.array(shift)))
    graph = builder.build(builder("take", data, indices, axis=0))
    assert is_guarded(graph)
    built = HostBackend().build(graph)
    x = np.zeros((7, 3), np.float32)
    x[6 if shift > 0 else 0] = 1
    with pytest.raises(EvaluationError, match=f"index {7 if shift > 0 else -8} is out of range"):
        built([x])


def test_constants_outside() -> None:
    weights = [numpy_helper.from_array(at(0, 7), "i")]
    model = model_with([it("Gather", ["x", "i"])], [value("x", shape=[5, 3])], weights)
    module = graft.compile(model, target=["host"])
    message = "index 7 is out of range for axis 0 of extent 5"
    refused(lambda: module.run(None, {"x": DATA[:, 0]}), message)


def test_guards_are_no_results() -> None:
    built = HostBackend(Settings(threads=1)).build(import_model(several()))
    assert len(built.session.get_outputs()) == len(built.program.output_names)
    model = model_of(CASES[0].values[0], "static")
    static = HostBackend(Settings(threads=1)).build(import_model(model))
    feeds = {"x0": DATA, "x1": at(0, -5, 4)}
    home = np.empty((3, 4, 3), np.float32)
    static.session.run(None, feeds, {"y": home})
    np.testing.assert_array_equal(home, DATA[[0, 0, 4]])
    assert len(static.session.profile(feeds).outputs) == 1
    refused(lambda: static.session.profile({**feeds, "x1": at(0, 0, 5)}), "index 5")
    with pytest.raises(UserError, match="there is no output 'out_of_range'"):
        static.session.run(["out_of_range"], feeds)


def test_programs_with_guards_that_nothing_is_found_for() -> None:
    model = model_of(CASES[0].values[0], "static")
    built = HostBackend().build(import_model(model))
    program = built.program
    verify_program(program)
    (segment,) = program.body.instructions
    assert isinstance(segment, Segment)
    for wrong in (
        replace(segment, guards=segment.guards * 2),
        replace(segment, outputs=(*segment.outputs, segment.guard_indices), guard_indices=None),
    ):
        body = replace(program.body, instructions=(wrong,))
        with pytest.raises(ProgramError, match="no value tells what"):
            verify_program(replace(program, body=body))


def test_drawn_indices_lie_inside() -> None:
    nodes = [
        node("Cast", "i", "j", to=TensorProto.INT64),
        node("Unsqueeze", "j axes", "k"),
        it("Gather", ["x", "k"], ["y"]),
    ]
    inputs = [value("x", shape=[1, 3]), value("i", TensorProto.INT32, [40])]
    graph = import_model(model_with(nodes, inputs, [tensor("axes", [0], np.int64)]))
    assert index_limits(graph) == {graph.inputs[1]: (1,)}
    for seed in range(3):
        assert not samples(graph, seed)[1].any()
