"""Cheap branches that cannot fail both run, and a choice stands in the place of the `if`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from tests.passes.checking import data_for, graph_of, node_of, operators, run_pass

import graft
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.parser import from_text
from graft.ir.types import TensorType, tensor
from graft.ir.verify import verify
from graft.module import Module
from graft.passes.select_branches import select_branches
from graft.program.instructions import If

X = tensor("float32", 2, 3)
FLAG = tensor("bool")


def branch(build: Any, *types: TensorType) -> Graph:
    return graph_of(build, *types)


def chosen(then: Graph, other: Graph, *types: TensorType, flag: TensorType = FLAG) -> Graph:
    """An `if` on its first input; the others are captures of both branches."""
    return graph_of(
        lambda g, on, *values: g.call("if", on, *values, then_branch=then, else_branch=other),
        flag,
        *types,
    )


def both_ways(graph: Graph, extents: dict[str, int] | None = None) -> Graph:
    """The graph after the pass, which gives the same whatever the condition."""
    for flag in (True, False):
        first, *others = data_for(graph, extents)
        after = run_pass(select_branches, graph, [np.full(first.shape, flag), *others])
    return after


def absolute(g: Builder, x: Value) -> Value:
    return g("abs", x)


def negative(g: Builder, x: Value) -> Value:
    return g("negative", x)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_conditions_of_any_rank_leave_the_shape_alone(shape: tuple[int, ...], rank: int) -> None:
    one = tensor("float32", *(1,) * rank)
    graph = chosen(branch(absolute, one), branch(negative, one), one, flag=tensor("bool", *shape))
    after = both_ways(graph)
    assert operators(after) == [*(["squeeze"] if shape else []), "abs", "negative", "where"]
    assert after.outputs[0].type == one
    assert after.output_names == graph.output_names


def test_what_is_chosen_is_the_same_bit_for_bit() -> None:
    """NaN and infinity in the other branch leave no trace, and signs of zeros stay."""
    graph = chosen(branch(lambda _, x, y: x, X, X), branch(lambda _, x, y: y, X, X), X, X)
    after = verify(select_branches(graph))
    assert operators(after) == ["where"]
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0, 0x7F800000, 1], np.uint32)
    strange, plain = bits.view(np.float32).reshape(2, 3), np.zeros((2, 3), np.float32)
    for flag, wanted in ((True, strange), (False, plain)):
        (found,) = evaluate(after, [np.array(flag), strange, plain])
        np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_the_other_branch_overflows_and_divides_nothing() -> None:
    def squared(g: Builder, x: Value) -> Value:
        return g("cast", g("multiply", x, x), dtype="int32")

    graph = chosen(
        branch(squared, X), branch(lambda g, x: g("cast", g("sign", x), dtype="int32"), X), X
    )
    after = verify(select_branches(graph))
    huge = np.array([[1e30, -1e30, np.nan], [np.inf, -np.inf, 3]], np.float32)
    with np.errstate(all="ignore"):
        (found,) = evaluate(after, [np.array(True), np.ones((2, 3), np.float32)])
        assert (found == 1).all()
        run_pass(select_branches, graph, [np.array(False), huge])


HARMLESS: dict[str, Any] = {
    "arithmetic": lambda g, x: g("add", g("subtract", x, g("multiply", x, x)), g("maximum", x, x)),
    "order": lambda g, x: g("where", g("less_equal", x, g("minimum", x, x)), x, g("negative", x)),
    "logic": lambda g, x: g(
        "cast",
        g("logical_xor", g("isnan", x), g("logical_not", g("isinf", x))),
        dtype="float32",
    ),
    "totals": lambda g, x: g(
        "add", x, g("expand_dims", g("sum", g("max", x, axes=[0])), axes=[0, 1])
    ),
    "views": lambda g, x: g("reshape", g("squeeze", g("expand_dims", x, axes=[0])), shape=[2, 3]),
    "constants": lambda g, x: g("add", x, g.constant(np.ones((2, 1), np.float32))),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_may_run_in_vain(name: str) -> None:
    after = both_ways(chosen(branch(HARMLESS[name], X), branch(absolute, X), X))
    assert "where" in operators(after)
    assert "if" not in operators(after)


HARMFUL: dict[str, Any] = {
    "division": lambda g, x: g("divide", x, x),
    "remainder": lambda g, x: g("mod", x, x),
    "costly": lambda g, x: g("exp", x),
}


@pytest.mark.parametrize("name", HARMFUL)
@pytest.mark.parametrize("swapped", [False, True])
def test_what_may_not(name: str, swapped: bool) -> None:
    pair = [branch(HARMFUL[name], X), branch(absolute, X)]
    graph = chosen(*(reversed(pair) if swapped else pair), X)
    assert select_branches(graph) is graph


def test_indexing_and_products_stay_where_they_are() -> None:
    row = tensor("int64", 3)
    looked_up = branch(lambda g, x: g("take", x, x), row)
    graph = chosen(looked_up, branch(absolute, row), row)
    assert select_branches(graph) is graph
    square = tensor("float32", 3, 3)
    product = branch(lambda g, x: g("nn.dense", x, x), square)
    graph = chosen(product, branch(absolute, square), square)
    assert select_branches(graph) is graph


def test_random_numbers_are_not_drawn_in_vain() -> None:
    def noise(g: Builder, x: Value) -> Value:
        return g("add", x, g("random.uniform", shape=[2, 3], dtype="float32"))

    graph = chosen(branch(noise, X), branch(absolute, X), X)
    assert select_branches(graph) is graph


def chain(length: int) -> Any:
    def build(g: Builder, x: Value) -> Value:
        for _ in range(length):
            x = g("negative", x)
        return x

    return build


@pytest.mark.parametrize(("lengths", "selects"), [((8, 8), True), ((9, 8), False)])
def test_few_nodes_only(lengths: tuple[int, int], selects: bool) -> None:
    one, other = (branch(chain(length), X) for length in lengths)
    graph = chosen(one, other, X)
    after = both_ways(graph)
    assert ("where" in operators(after)) == selects


@pytest.mark.parametrize(("extent", "selects"), [(4096, True), (4097, False)])
def test_few_elements_only(extent: int, selects: bool) -> None:
    line = tensor("float32", extent)
    after = both_ways(chosen(branch(absolute, line), branch(negative, line), line))
    assert ("where" in operators(after)) == selects
    # What is read counts as well as what is given.
    total = branch(lambda g, x: g("sum", x), line)
    after = both_ways(chosen(total, branch(lambda g, x: g("max", x), line), line))
    assert ("where" in operators(after)) == selects


N, M = symbol("n"), symbol("m")


@pytest.mark.parametrize(
    ("shape", "selects"), [((N,), True), ((N, 1), False), ((2, N), False), ((), True)]
)
def test_totals_of_tensors_of_any_length(shape: tuple[Any, ...], selects: bool) -> None:
    given = tensor("int64", *shape)
    pair = [branch(lambda g, x, op=op: g(op, x), given) for op in ("sum", "max")]
    for count in (0, 1, 5):
        after = both_ways(chosen(*pair, given), {"n": count})
        assert ("where" in operators(after)) == selects


def test_results_of_any_length_are_not_chosen_from() -> None:
    line = tensor("float32", N)
    graph = chosen(branch(absolute, line), branch(negative, line), line)
    assert select_branches(graph) is graph


def test_extents_that_may_not_broadcast_can_fail() -> None:
    """Rows of n and of m elements: only one branch wants them to be alike."""
    lines = tensor("float32", N), tensor("float32", M)
    joined = branch(lambda g, x, y: g("sum", g("add", x, y)), *lines)
    apart = branch(lambda g, x, y: g("add", g("sum", x), g("max", y)), *lines)
    graph = chosen(joined, apart, *lines)
    assert select_branches(graph) is graph
    same = tensor("float32", N), tensor("float32", N)
    joined = branch(lambda g, x, y: g("sum", g("add", x, y)), *same)
    after = both_ways(chosen(joined, branch(lambda g, x, y: g("sum", x), *same), *same), {"n": 4})
    assert "where" in operators(after)


def test_views_that_may_fail() -> None:
    line = tensor("float32", N)
    alone = branch(lambda g, x: g("squeeze", x, axes=[0]), line)
    graph = chosen(alone, branch(lambda g, x: g("sum", x), line), line)
    assert select_branches(graph) is graph


def test_branches_that_give_other_shapes_or_sizes() -> None:
    wide = branch(lambda g, x: g("reshape", x, shape=[6]), X)
    graph = chosen(wide, branch(absolute, X), X)
    assert select_branches(graph) is graph


def test_numbers_of_half_a_byte_stay() -> None:
    small = tensor("int4", 3)
    graph = chosen(
        branch(lambda _, x, y: x, small, small),
        branch(lambda _, x, y: y, small, small),
        small,
        small,
    )
    assert select_branches(graph) is graph


def test_strings_stay() -> None:
    text = tensor("string")
    first, second = branch(lambda _, x, y: x, text, text), branch(lambda _, x, y: y, text, text)
    graph = chosen(first, second, text, text)
    assert select_branches(graph) is graph
    counted = branch(lambda g, x: g("cast", x, dtype="float32"), text)
    graph = chosen(counted, branch(lambda g, x: g.constant(np.float32(1)), text), text)
    assert select_branches(graph) is graph


def test_a_branch_that_wants_more_than_its_operand_says() -> None:
    """It takes two rows only, and fails with others."""
    two = tensor("float32", 2)
    one, other = (branch(lambda g, x, op=op: g(op, x), two) for op in ("sum", "max"))
    graph = chosen(one, other, tensor("float32", N))
    assert select_branches(graph) is graph


def test_symbols_of_branches_mean_the_operands_extents() -> None:
    """One branch calls n what outside is m; the other calls it k."""
    text = """graph @main(%on: bool[], %x: float32[m], %y: float32[n]) {
      %z: float32[] = if(%on, %x) {then_branch=graph @yes(%a: float32[n]) {
        %b: float32[n] = abs(%a)
        %c: float32[] = sum(%b)
        return %c
      }, else_branch=graph @no(%a: float32[k]) {
        %b: float32[k] = negative(%a)
        %c: float32[] = max(%b)
        return %c
      }}
      %w: float32[n] = multiply(%y, %z)
      return %w
    }"""
    graph = verify(from_text(text))
    after = both_ways(graph, {"n": 2, "m": 5})
    assert operators(after) == ["abs", "sum", "negative", "max", "where", "multiply"]
    assert node_of(after, "abs").output.shape == (M,)


def test_attributes_that_name_extents_stay() -> None:
    line = tensor("float32", N)

    def spread(g: Builder, x: Value) -> Value:
        filled = g("full", g.constant(np.ones(1, np.float32)), shape=[N])
        return g("sum", g("add", x, filled))

    graph = chosen(branch(spread, line), branch(lambda g, x: g("sum", x), line), line)
    assert select_branches(graph) is graph


def test_branches_within_branches_and_names_that_clash() -> None:
    """`a and b and c`, as exporters write it."""
    number = tensor("int64")
    no = branch(lambda g, *_: g.constant(np.array(False)), number, number)
    last = branch(lambda g, x, y: g("less", x, y), number, number)

    def inner(g: Builder, x: Value, y: Value) -> Value:
        return g("if", g("greater", x, y), x, y, then_branch=no, else_branch=last)

    def outer(g: Builder, x: Value, y: Value) -> Value:
        on = g("equal", x, g.constant(np.array(3)))
        return g("if", on, x, y, then_branch=branch(inner, number, number), else_branch=no)

    graph = graph_of(outer, number, number)
    for x in (2, 3):
        for y in (2, 3, 4):
            after = run_pass(select_branches, graph, [np.array(x), np.array(y)])
    assert operators(after) == ["equal", "greater", "less", "where", "where"]


def test_inside_the_body_of_a_loop() -> None:
    number = tensor("int64")

    def small(g: Builder, x: Value) -> Value:
        return g("less", x, g.constant(np.array(10)))

    def body(g: Builder, turn: Value, on: Value, x: Value) -> tuple[Value, ...]:
        more = g("add", x, turn)
        odd = g("not_equal", more, g.constant(np.array(6)))
        no = branch(lambda g, _: g.constant(np.array(False)), number)
        again = g("if", odd, more, then_branch=branch(small, number), else_branch=no)
        return again, more

    graph = graph_of(
        lambda g, n, x: g("loop", n, None, x, body=branch(body, number, FLAG, number), carried=1),
        number,
        number,
    )
    for start in (-5, 0, 5, 100):
        after = run_pass(select_branches, graph, [np.array(20), np.array(start)])
    assert "where" in [node.op.name for node in after.walk()]
    assert "if" not in [node.op.name for node in after.walk()]


def test_what_both_hand_on_is_that_value() -> None:
    """However costly the branches are, and whatever the value is."""
    costly = branch(lambda g, x, y: (g("exp", x), y), X, X)

    def build(g: Builder, on: Value, x: Value, y: Value) -> tuple[Value, ...]:
        other = branch(lambda g, x, y: (g("exp", g("abs", x)), y), X, X)
        made, kept = g.call("if", on, x, y, then_branch=costly, else_branch=other)
        return made, g("tanh", kept)

    graph = graph_of(build, FLAG, X, X)
    after = both_ways(graph)
    decision = node_of(after, "if")
    assert len(decision.outputs) == 1
    assert [value.name for value in decision.args] == ["x0", "x1"]
    assert node_of(after, "tanh").args == (after.inputs[2],)


def test_a_capture_that_tells_extents_stays() -> None:
    line = tensor("float32", N)

    def filled(op: str) -> Graph:
        def build(g: Builder, x: Value) -> tuple[Value, ...]:
            one = g.constant(np.ones(1, np.float32))
            return g(op, g("full", one, shape=[N])), x

        return branch(build, line)

    after = both_ways(chosen(filled("exp"), filled("tanh"), line), {"n": 3})
    assert len(node_of(after, "if").args) == 2
    assert len(node_of(after, "if").outputs) == 1
    assert after.outputs[1] is after.inputs[1]


def test_equal_constants_are_one() -> None:
    def given(number: float, op: str) -> Graph:
        def build(g: Builder, x: Value) -> tuple[Value, ...]:
            return g(op, x), g.constant(np.array([number, np.nan], np.float32))

        return branch(build, X)

    after = both_ways(chosen(given(2, "exp"), given(2, "tanh"), X))
    assert len(node_of(after, "if").outputs) == 1
    assert after.producers[after.outputs[1]].op.name == "constant"
    for other in (3, -2):
        graph = chosen(given(2, "exp"), given(other, "tanh"), X)
        assert select_branches(graph) is graph
    # A zero is not its negative.
    zeros = chosen(given(0.0, "exp"), given(-0.0, "tanh"), X)
    assert select_branches(zeros) is zeros


def test_lists_are_handed_on_but_not_chosen_from() -> None:
    text = """graph @main(%on: bool[], %s: sequence<float32[*]>, %t: sequence<float32[*]>) {
      %a: sequence<float32[*]>, %b: sequence<float32[*]> = if(%on, %s, %t) {
        then_branch=graph @yes(%s: sequence<float32[*]>, %t: sequence<float32[*]>) {
        return %s, %s
      }, else_branch=graph @no(%s: sequence<float32[*]>, %t: sequence<float32[*]>) {
        return %s, %t
      }}
      return %a, %b
    }"""
    graph = verify(from_text(text))
    after = verify(select_branches(graph))
    assert after.outputs[0] is after.inputs[1]
    assert len(node_of(after, "if").outputs) == 1


def test_an_operand_that_becomes_optional_stays() -> None:
    text = """graph @main(%on: bool[], %x: float32[]) {
      %a: optional<float32[]> = if(%on, %x) {
        then_branch=graph @yes(%x: optional<float32[]>) {
        return %x
      }, else_branch=graph @no(%x: optional<float32[]>) {
        return %x
      }}
      %b: bool[] = optional.has_element(%a)
      return %b
    }"""
    graph = verify(from_text(text))
    assert operators(both_ways(graph)) == ["if", "optional.has_element"]


WHOLE = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[n] x, int64 most) => (float[n] y, int64 turns) {
        zero = Constant <value = int64 {0}> ()
        y, turns = Loop ("", "", x, zero) <
            body = one (int64 i, bool c, float[n] v, int64 k)
                    => (bool again, float[n] w, int64 l) {
                half = Constant <value = float {0.5}> ()
                w = Mul (v, half)
                unit = Constant <value = int64 {1}> ()
                l = Add (k, unit)
                size = Abs (w)
                largest = ReduceMax <keepdims = 0> (size)
                limit = Constant <value = float {0.1}> ()
                large = Greater (largest, limit)
                again = If (large) <
                    then_branch = yes () => (bool few) { few = Less (l, most) },
                    else_branch = no () => (bool never) { never = Constant <value = bool {0}> () }
                >
            }
        >
    }
"""


def native(text: str) -> tuple[Module, onnxruntime.InferenceSession]:
    """The model without an `if` on the host, and in ONNX Runtime."""
    proto = onnx.parser.parse_model(text)
    module = graft.compile(proto, strict=True)
    assert not any(isinstance(step, If) for step in module.program.instructions)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return module, session


def agree(pair: tuple[Module, onnxruntime.InferenceSession], **feeds: Array) -> None:
    found, wanted = (one.run(None, feeds) for one in pair)
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def test_a_loop_with_and_in_its_condition() -> None:
    pair = native(WHOLE)
    for start in (0.01, 1.0, 300.0, -300.0):
        x = np.linspace(start / 3, start, 5, dtype=np.float32)
        for most in (0, 1, 5, 100):
            agree(pair, x=x, most=np.array(most))


CHOICE = """<ir_version: 8, opset_import: ["" : 17]>
    net (bool{axes} on, float[2, 3] x, float[2, 3] y) => (float[2, 3] z, float[2, 3] kept) {{
        z, kept = If (on) <
            then_branch = yes () => (float[2, 3] a, float[2, 3] k) {{
                a = Identity (x)
                k = Identity (y)
            }},
            else_branch = no () => (float[2, 3] b, float[2, 3] l) {{
                b = Neg (y)
                l = Identity (y)
            }}
        >
    }}
"""


@pytest.mark.parametrize("axes", ["", "[1]"])
def test_strange_numbers_natively(axes: str) -> None:
    pair = native(CHOICE.format(axes=axes))
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0, 0x7F800000, 1], np.uint32)
    strange = bits.view(np.float32).reshape(2, 3)
    for flag in (True, False):
        on = np.full((1,) if axes else (), flag)
        for x in (strange, np.full((2, 3), 2, np.float32)):
            agree(pair, on=on, x=x, y=strange)
