"""What loops only append to becomes what they stack, with the same results after any turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.passes.checking import data_for, graph_of, node_of, operators, run_pass

import graft
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import SequenceType, TensorType, Type, tensor
from graft.ir.verify import verify
from graft.module import Module
from graft.passes.pipeline import optimize
from graft.passes.stack_appended import NOTHING_TO_JOIN, stack_appended
from graft.program.instructions import Loop, Segment
from graft.runtime import lists

COUNT, FLAG = tensor("int64"), tensor("bool")
N, M, K = symbol("n"), symbol("m"), symbol("k")


def body_of(build: Any, *types: Type) -> Graph:
    """A body that goes on; `build` takes the iteration number, carried values and captures."""

    def whole(g: Builder, turn: Value, on: Value, *values: Value) -> tuple[Value, ...]:
        found = build(g, turn, *values)
        return on, *(found if isinstance(found, tuple) else (found,))

    g = Builder("body")
    inputs = [g.input(f"v{i}", type_) for i, type_ in enumerate((COUNT, FLAG, *types))]
    return verify(g.build(*whole(g, *inputs)))


def scaled(g: Builder, piece: Value, turn: Value) -> Value:
    """Another piece in every turn."""
    return g("multiply", piece, g("cast", turn, dtype="float32"))


def growing(rank: int, axis: int) -> TensorType:
    shape: list[Any] = [symbol(f"e{place}") for place in range(rank)]
    shape[axis] = symbol("grown")
    return tensor("float32", *shape)


def appending(first: TensorType, piece: TensorType, axis: int, in_front: bool = False) -> Graph:
    """A loop that joins pieces to a tensor; it is given turns, the tensor and a piece."""

    def turn(g: Builder, number: Value, grown: Value, part: Value) -> Value:
        parts = (scaled(g, part, number), grown)
        return g("concatenate", *(parts if in_front else parts[::-1]), axis=axis)

    formal = growing(len(first.shape or ()), axis)
    body = body_of(turn, formal, piece)
    return graph_of(
        lambda g, n, x, p: g("loop", n, None, x, p, body=body, carried=1), COUNT, first, piece
    )


def agree(graph: Graph, turns: int, extents: dict[str, int] | None = None) -> Graph:
    _, *others = data_for(graph, extents)
    return run_pass(stack_appended, graph, [np.array(turns), *others])


def loop_of(graph: Graph) -> tuple[int, int]:
    """How many values the only loop carries, and how many it stacks."""
    node = node_of(graph, "loop")
    return node.attrs.carried, len(node.outputs) - node.attrs.carried


@pytest.mark.parametrize("in_front", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("first", "piece", "axis"),
    [
        ((0,), (1,), 0),
        ((2,), (3,), -1),
        ((0, 4), (1, 4), 0),
        ((4, 1), (4, 3), 1),
        ((2, 3, 4), (2, 2, 4), -2),
        ((2, 3, 4), (1, 3, 4), -3),
        ((2, 3, 4), (5, 3, 4), 0),
        ((2, 0, 4), (2, 0, 4), 1),
        ((2, 3, 0), (2, 3, 0), 1),
        ((2, 3, 0), (1, 3, 0), 0),
        ((0, 3, 2), (2, 3, 2), 0),
    ],
)
def test_tensors(
    first: Sequence[int], piece: Sequence[int], axis: int, turns: int, in_front: bool
) -> None:
    types = tensor("float32", *first), tensor("float32", *piece)
    after = agree(appending(*types, axis, in_front), turns)
    assert loop_of(after) == (0, 1)


SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.data(), SHAPES, st.integers(0, 4), st.booleans(), st.booleans())
def test_tensors_of_any_size(
    data: Any, extents: list[int], turns: int, in_front: bool, symbolic: bool
) -> None:
    """Ranks, axes and sizes at random, known before or not."""
    rank = len(extents)
    axis = data.draw(st.integers(-rank, rank - 1))
    names = {f"n{place}": extent for place, extent in enumerate(extents)}
    names["first"] = data.draw(st.integers(0, 3))
    shape: list[Any] = [symbol(f"n{place}") for place in range(rank)] if symbolic else extents
    start = list(shape)
    start[axis] = symbol("first") if symbolic else names["first"]
    types = tensor("float32", *start), tensor("float32", *shape)
    after = agree(appending(*types, axis, in_front), turns, names)
    assert loop_of(after) == (0, 1)


def test_what_follows_learns_how_large_it_is() -> None:
    after = agree(appending(tensor("float32", 5, 2), tensor("float32", 3, 2), 0), 4)
    shape = after.outputs[0].shape
    assert shape is not None
    assert shape[1] == 2
    assert "3" in str(shape[0])  # times the turns, and five more


def loop_with(build: Any, carried: int, *types: TensorType, formals: Any = None) -> Graph:
    body = body_of(build, *(formals or types))
    return graph_of(
        lambda g, n, *values: g.call("loop", n, None, *values, body=body, carried=carried),
        COUNT,
        *types,
    )


LINE = tensor("float32", symbol("grown"))
ROW = tensor("float32", 3)


def test_a_tensor_that_a_turn_reads_is_carried() -> None:
    def total(g: Builder, turn: Value, grown: Value, x: Value) -> tuple[Value, ...]:
        return g("concatenate", grown, x), g("add", x, g("sum", grown))

    graph = loop_with(total, 2, ROW, ROW, formals=[LINE, ROW])
    assert agree(graph, 3) is graph


def test_what_a_turn_makes_of_it_is_carried() -> None:
    def total(g: Builder, turn: Value, grown: Value, x: Value) -> tuple[Value, ...]:
        more = g("concatenate", grown, x)
        return more, g("add", x, g("sum", more))

    graph = loop_with(total, 2, ROW, ROW, formals=[LINE, ROW])
    assert agree(graph, 3) is graph


def test_a_result_that_goes_two_ways_is_carried() -> None:
    def twice(g: Builder, turn: Value, grown: Value, other: Value, x: Value) -> tuple[Value, ...]:
        more = g("concatenate", grown, x)
        return more, more

    other = tensor("float32", symbol("before"))
    graph = loop_with(twice, 2, ROW, ROW, ROW, formals=[LINE, other, ROW])
    assert agree(graph, 3) is graph


def test_pieces_that_grow_are_carried() -> None:
    """The piece of the first is the second, which is longer in every turn."""

    def longer(g: Builder, turn: Value, grown: Value, x: Value) -> tuple[Value, ...]:
        return g("concatenate", grown, x), g("concatenate", x, x)

    graph = loop_with(longer, 2, ROW, ROW, formals=[LINE, tensor("float32", K)])
    assert agree(graph, 3) is graph


def test_pieces_whose_size_is_data_are_carried() -> None:
    def found(g: Builder, turn: Value, grown: Value, x: Value) -> tuple[Value, ...]:
        return g("concatenate", grown, g("nonzero", scaled(g, x, turn)), axis=1)

    formals = [tensor("int64", 1, symbol("grown")), ROW]
    graph = loop_with(found, 1, tensor("int64", 1, 0), ROW, formals=formals)
    assert agree(graph, 3) is graph


def test_three_parts_are_carried() -> None:
    def three(g: Builder, turn: Value, grown: Value, x: Value) -> Value:
        return g("concatenate", grown, x, x)

    graph = loop_with(three, 1, ROW, ROW, formals=[LINE, ROW])
    assert agree(graph, 3) is graph


def test_a_tensor_joined_to_itself_is_carried() -> None:
    graph = loop_with(lambda g, _, grown: g("concatenate", grown, grown), 1, ROW, formals=[LINE])
    assert agree(graph, 3) is graph


def test_an_initial_tensor_that_may_not_fit_is_carried() -> None:
    """Nothing says that n is m before there is a turn."""
    first, piece = tensor("float32", N, 0), tensor("float32", M, 1)
    graph = appending(first, piece, 1)
    assert agree(graph, 2, {"n": 3, "m": 3}) is graph


def test_extents_that_only_the_tensor_tells() -> None:
    """The body fills as many rows as the tensor has, and nothing else says how many."""

    def filled(g: Builder, turn: Value, grown: Value) -> Value:
        one = g.constant(np.ones(1, np.float32))
        return g("concatenate", grown, g("full", one, shape=[K, 2]), axis=1)

    formal = tensor("float32", K, symbol("grown"))
    graph = loop_with(filled, 1, tensor("float32", 3, 1), formals=[formal])
    assert agree(graph, 2) is graph


def test_extents_that_others_tell() -> None:
    def filled(g: Builder, turn: Value, grown: Value, x: Value) -> Value:
        one = g.constant(np.ones(1, np.float32))
        return g("concatenate", grown, g("full", one, shape=[K, 2]), axis=1)

    formals = [tensor("float32", K, symbol("grown")), tensor("float32", K)]
    graph = loop_with(filled, 1, tensor("float32", N, 0), tensor("float32", N), formals=formals)
    for turns in (0, 1, 3):
        assert loop_of(agree(graph, turns, {"n": 3})) == (0, 1)


def test_an_extent_that_somebody_else_names() -> None:
    """Another input is as long as the tensor has grown, so there is one turn at most."""
    formals = [LINE, LINE, ROW]

    def more(g: Builder, turn: Value, grown: Value, other: Value, x: Value) -> tuple[Value, ...]:
        return g("concatenate", grown, x), other

    graph = loop_with(more, 2, ROW, ROW, ROW, formals=formals)
    assert stack_appended(graph) is graph


def test_several_at_once_beside_others() -> None:
    def several(g: Builder, turn: Value, *values: Value) -> tuple[Value, ...]:
        first, kept, second, x = values
        piece = scaled(g, x, turn)
        rows = g("expand_dims", g("add", piece, kept), axes=[0])
        return (
            g("concatenate", first, piece),
            g("add", kept, x),
            g("concatenate", rows, second, axis=0),
            g("negative", kept),
        )

    second = tensor("float32", symbol("rows"), 3)
    graph = loop_with(
        several, 3, ROW, ROW, tensor("float32", 2, 3), ROW, formals=[LINE, ROW, second, ROW]
    )
    for turns in (0, 1, 4):
        after = agree(graph, turns)
    assert loop_of(after) == (1, 3)


def test_one_that_can_beside_one_that_cannot() -> None:
    def two(g: Builder, turn: Value, first: Value, second: Value, x: Value) -> tuple[Value, ...]:
        found = g("concatenate", second, g("nonzero", scaled(g, x, turn)), axis=1)
        return g("concatenate", first, x), found

    formals = [LINE, tensor("int64", 1, symbol("found")), ROW]
    graph = loop_with(two, 2, ROW, tensor("int64", 1, 0), ROW, formals=formals)
    for turns in (0, 1, 4):
        after = agree(graph, turns)
    assert loop_of(after) == (1, 1)


def test_loops_within_loops() -> None:
    """The inner loop stacks; what it gives is another piece in every turn of the outer one."""
    inner = node_of(appending(tensor("float32", N), ROW, 0, in_front=True), "loop").attrs.body

    def outer(g: Builder, turn: Value, grown: Value, x: Value) -> Value:
        return g("loop", turn, None, grown, x, body=inner, carried=1)

    graph = loop_with(outer, 1, ROW, ROW, formals=[LINE, ROW])
    for turns in (0, 1, 2, 4):
        after = agree(graph, turns)
    assert loop_of(after) == (1, 0)
    assert loop_of(node_of(after, "loop").attrs.body) == (0, 1)


def listing(
    piece: TensorType, axis: int, new_axis: bool, turns: int | None = None, readers: int = 1
) -> Graph:
    """A loop that puts pieces into a list, which is joined then."""
    element = tensor(piece.dtype)
    unranked = TensorType(element.dtype, None)

    def turn(g: Builder, number: Value, found: Value, part: Value) -> Value:
        return g("sequence.insert", found, scaled(g, part, number))

    body = body_of(turn, SequenceType(unranked), piece)

    def build(g: Builder, n: Value, p: Value) -> tuple[Value, ...]:
        count = n if turns is None else g.constant(np.array(turns))
        empty = g("sequence.empty", element=unranked)
        found = g("loop", count, None, empty, p, body=body, carried=1)
        attrs = {"axis": axis, "new_axis": new_axis}
        return tuple(
            g("negative", g("sequence.concatenate", found, **attrs)) for _ in range(readers)
        )

    return graph_of(build, COUNT, piece)


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize(
    ("shape", "axis", "new_axis"),
    [
        ((), 0, True),
        ((), -1, True),
        ((3,), 0, True),
        ((3,), 1, True),
        ((3,), 0, False),
        ((1,), -1, False),
        ((2, 3), 2, True),
        ((2, 3), -3, True),
        ((2, 3), 1, False),
        ((2, 1, 3), -2, False),
        ((2, 0, 3), 0, False),
    ],
)
def test_lists(shape: Sequence[int], axis: int, new_axis: bool, turns: int) -> None:
    graph = listing(tensor("float32", *shape), axis, new_axis)
    after = agree(graph, turns)
    assert loop_of(after) == (0, 1)
    assert after.outputs[0].tensor.rank == len(shape) + new_axis
    assert not any(node.op.name == "sequence.concatenate" for node in after.nodes)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.lists(st.integers(0, 3), max_size=3), st.integers(1, 4), st.booleans())
def test_lists_of_any_size(data: Any, extents: list[int], turns: int, symbolic: bool) -> None:
    new_axis = data.draw(st.booleans()) or not extents
    rank = len(extents) + new_axis
    axis = data.draw(st.integers(-rank, rank - 1))
    names = {f"n{place}": extent for place, extent in enumerate(extents)}
    shape: list[Any] = [symbol(name) for name in names] if symbolic else extents
    after = agree(listing(tensor("float32", *shape), axis, new_axis, readers=2), turns, names)
    assert loop_of(after) == (0, 1)


@pytest.mark.parametrize("new_axis", [False, True])
def test_an_empty_list_has_nothing_to_join(new_axis: bool) -> None:
    graph = listing(ROW, 0, new_axis)
    after = verify(stack_appended(graph))
    assert "demand" in operators(after)
    for one in (graph, after):
        with pytest.raises(EvaluationError, match=NOTHING_TO_JOIN):
            evaluate(one, [np.array(0), np.ones(3, np.float32)])
    with pytest.raises(EvaluationError, match=NOTHING_TO_JOIN):
        lists.concatenate([], 0, True)


def test_a_list_that_is_not_empty_demands_nothing() -> None:
    assert "demand" not in operators(agree(listing(ROW, 0, True, turns=2), 0))
    assert "demand" in operators(verify(stack_appended(listing(ROW, 0, True, turns=0))))


@pytest.mark.parametrize(("axis", "new_axis"), [(2, True), (1, False), (-2, False), (-3, True)])
def test_an_axis_that_is_not_there_fails_when_it_runs(axis: int, new_axis: bool) -> None:
    graph = listing(ROW, axis, new_axis)
    assert stack_appended(graph) is graph


def test_a_list_with_other_readers_stays() -> None:
    def build(g: Builder, n: Value, p: Value) -> tuple[Value, ...]:
        empty = g("sequence.empty", element=TensorType(ROW.dtype, None))
        body = node_of(listing(ROW, 0, True), "loop").attrs.body
        found = g("loop", n, None, empty, p, body=body, carried=1)
        return g("sequence.concatenate", found, axis=0), g("sequence.length", found)

    graph = graph_of(build, COUNT, ROW)
    assert agree(graph, 3) is graph


def test_a_list_that_is_handed_out_stays() -> None:
    def build(g: Builder, n: Value, p: Value) -> tuple[Value, ...]:
        empty = g("sequence.empty", element=TensorType(ROW.dtype, None))
        body = node_of(listing(ROW, 0, True), "loop").attrs.body
        found = g("loop", n, None, empty, p, body=body, carried=1)
        return g("sequence.concatenate", found, axis=0), found

    graph = graph_of(build, COUNT, ROW)
    assert stack_appended(graph) is graph


def test_a_list_that_begins_with_something_stays() -> None:
    def build(g: Builder, n: Value, p: Value) -> Value:
        start = g("sequence.construct", p)
        body = node_of(listing(ROW, 0, True), "loop").attrs.body
        return g("sequence.concatenate", g("loop", n, None, start, p, body=body, carried=1), axis=0)

    graph = graph_of(build, COUNT, ROW)
    assert agree(graph, 3) is graph


def test_positions_and_readers_within_a_turn() -> None:
    unranked = TensorType(ROW.dtype, None)

    def placed(g: Builder, turn: Value, found: Value, p: Value) -> Value:
        return g("sequence.insert", found, scaled(g, p, turn), g.constant(np.array(0)))

    def counted(g: Builder, turn: Value, found: Value, p: Value) -> Value:
        length = g("sequence.length", found)
        return g("sequence.insert", found, scaled(g, p, length))

    for turn in (placed, counted):
        body = body_of(turn, SequenceType(unranked), ROW)

        def build(g: Builder, n: Value, p: Value, body: Graph = body) -> Value:
            empty = g("sequence.empty", element=unranked)
            found = g("loop", n, None, empty, p, body=body, carried=1)
            return g("sequence.concatenate", found, axis=0)

        graph = graph_of(build, COUNT, ROW)
        assert agree(graph, 3) is graph


def native(text: str) -> tuple[Module, onnxruntime.InferenceSession]:
    """The model on the host, where its loops turn natively, and in ONNX Runtime."""
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + text)
    module = graft.compile(proto, strict=True)
    loops = [step for step in module.program.body.instructions if isinstance(step, Loop)]
    assert loops
    assert all(isinstance(one, Segment) for step in loops for one in step.body.instructions)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return module, session


def same(pair: tuple[Module, onnxruntime.InferenceSession], **feeds: Array) -> None:
    found, wanted = (one.run(None, feeds) for one in pair)
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


TENSOR = """
    net (int64 turns, float[n, 3] x) => (float[a, b] y, float[n, 3] last) {{
        start = {start}
        y, last = Loop (turns, "", start, x) <
            body = one (int64 i, bool c, float[p, q] grown, float[r, s] v)
                    => (bool d, float[p, t] more, float[r, s] w) {{
                d = Identity (c)
                w = Tanh (v)
                more = Concat <axis = {axis}> ({parts})
            }}
        >
    }}
"""


@pytest.mark.parametrize(
    ("axis", "parts", "start"),
    [
        (0, "grown, w", "Neg (x)"),
        (0, "w, grown", "Neg (x)"),
        (1, "w, grown", "Neg (x)"),
        (-1, "w, grown", "Abs (x)"),
        (-2, "grown, w", "Abs (x)"),
        (1, "grown, w", "Neg (x)"),
        (-1, "grown, w", "Abs (x)"),
    ],
)
def test_models_that_join_tensors(axis: int, parts: str, start: str) -> None:
    pair = native(TENSOR.format(axis=axis, parts=parts, start=start))
    for turns in (0, 1, 2, 7):
        for rows in (1, 4):
            x = np.linspace(-2, 2, rows * 3, dtype=np.float32).reshape(rows, 3)
            same(pair, turns=np.array(turns), x=x)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("parts", ["grown, w", "w, grown"])
def test_models_that_begin_with_nothing(axis: int, parts: str) -> None:
    start = "Slice (x, zeros, zeros, axes)"
    text = TENSOR.format(axis=axis, parts=parts, start=start)
    numbers = f"""zeros = Constant <value_ints = [0]> ()
        axes = Constant <value_ints = [{axis}]> ()
        start ="""
    pair = native(text.replace("start =", numbers))
    for turns in (0, 1, 2, 7):
        x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)
        same(pair, turns=np.array(turns), x=x)


LIST = """
    net (int64 turns, float[n, 3] x) => (float[a, b{more}] y, float[n, 3] last) {{
        empty = SequenceEmpty <dtype = 1> ()
        all, last = Loop (turns, "", empty, x) <
            body = one (int64 i, bool c, seq(float) found, float[n, 3] v)
                    => (bool d, seq(float) more, float[n, 3] w) {{
                d = Identity (c)
                w = Tanh (v)
                piece = Neg (w)
                more = SequenceInsert (found, piece)
            }}
        >
        joined = ConcatFromSequence <axis = {axis}, new_axis = {new_axis}> (all)
        y = Exp (joined)
    }}
"""


@pytest.mark.parametrize(("axis", "new_axis"), [(0, 0), (1, 0), (0, 1), (1, 1), (-1, 1), (-2, 0)])
def test_models_that_join_lists(axis: int, new_axis: int) -> None:
    text = LIST.format(axis=axis, new_axis=new_axis, more=", e" if new_axis else "")
    pair = native(text)
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    for turns in (1, 2, 7):
        same(pair, turns=np.array(turns), x=x)
    for one in pair:
        with pytest.raises(Exception, match="ConcatFromSequence"):
            one.run(None, {"turns": np.array(0), "x": x})


def test_ranks_behind_a_list_are_known() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>' + LIST.format(axis=0, new_axis=1, more=", e")
    )
    graph = optimize(import_model(proto))
    assert graph.outputs[0].tensor.rank == 3
    assert "sequence.empty" not in operators(graph)
