"""If and Loop, against ONNX Runtime and plain Python, and the types they give."""

from __future__ import annotations

import signal
from itertools import pairwise
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import pytest
from tests.ops.model_text import agree, by_graft, imported, model_of, names_of, result_types, same

from graft.base.dims import UNKNOWN, symbol
from graft.base.errors import EvaluationError, ModelError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import OptionalType, TensorType, tensor
from graft.ops import get_op

N = symbol("n")
TRUE, FALSE = np.array(True), np.array(False)


def ramp(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def turns(number: int) -> Any:
    return np.array(number, np.int64)


BOTH_BRANCHES = """g (bool c, float[n] x, float[n] y) => (float[n] p, float[n] q)
    <float[1] w = {2.5}> {
    h = Add(x, w)
    p, q = If(c) <
        then_branch = t () => (float[n] a, float[n] b) { a = Mul(h, w) b = Neg(y) },
        else_branch = e () => (float[n] d, float[n] f) { d = Identity(x) f = Sub(x, h) }>
}"""


@pytest.mark.parametrize("condition", [TRUE, FALSE])
def test_if_captures_values_and_initialisers(condition: Any) -> None:
    agree(BOTH_BRANCHES, [condition, ramp(3), ramp(3) - 1])
    agree(BOTH_BRANCHES, [condition, ramp(0), ramp(0)])


def test_both_branches_take_the_captures_of_either() -> None:
    graph = imported(BOTH_BRANCHES)
    node = graph.nodes[-1]
    assert [value.name for value in node.args] == ["c", "h", "y", "x"]
    for _, branch in node.graphs():
        assert [value.name for value in branch.inputs] == ["h", "y", "x"]
    assert result_types(graph) == ["float32[n]", "float32[n]"]


def test_branches_that_only_hand_captures_on() -> None:
    text = """g (bool c, float[n] x, float[m] y) => (float[k] z) <float[2] w = {1.0, 2.0}> {
        z = If(c) <then_branch = t () => (float[k] x) {},
                   else_branch = e () => (float[k] w) {}> }"""
    same(by_graft(text, [TRUE, ramp(3), ramp(1)]), [ramp(3)])
    same(by_graft(text, [FALSE, ramp(3), ramp(1)]), [np.array([1, 2], np.float32)])


IF_TYPES = [
    ("Relu(x)", "Neg(x)", "float32[n, 3]"),
    ("Relu(x)", "Transpose(x)", "float32[d0, d1]"),
    ("Concat<axis=0>(x, x)", "Concat<axis=0>(x, x)", "float32[2*n, 3]"),
    ("Concat<axis=0>(x, x)", "Concat<axis=1>(x, x)", "float32[d0, d1]"),
    ("Relu(x)", "ReduceSum<keepdims=0>(x)", "float32[*]"),
    ("Compress<axis=1>(x, b)", "Compress<axis=1>(x, b)", "float32[n, d2]"),
]


@pytest.mark.parametrize(("first", "second", "expected"), IF_TYPES)
def test_type_of_if(first: str, second: str, expected: str) -> None:
    text = f"""g (bool[1] c, bool[3] b, float[n, 3] x) => (float[] y) {{ y = If(c) <
        then_branch = t () => (float[] r) {{ r = {first} }},
        else_branch = e () => (float[] s) {{ s = {second} }}> }}"""
    assert result_types(imported(text)) == [expected]
    for condition in (True, False):
        agree(text, [np.array([condition]), np.array([True, False, True]), ramp(4, 3)])


def test_known_condition_leaves_one_branch() -> None:
    text = """g (float[2, 3] x) => (float[k] y) <float[2] w = {4.0, 5.0}> {
        s = Shape(x)
        one = Constant<value_ints = [1]>()
        three = Constant<value_ints = [3]>()
        columns = Gather(s, one)
        c = Equal(columns, three)
        y = If(c) <then_branch = t () => (float[k] w) {},
                   else_branch = e () => (float[k] r) { r = MatMul(x, x) }>
        z = Add(y, w) }"""
    graph = imported(text)
    assert "if" not in names_of(graph)
    same(evaluate(graph, [ramp(2, 3)]), [np.array([4, 5], np.float32)])


def loop(body: str, takes: str = "float[k] v", gives: str = "float[k] w") -> str:
    """A model that loops with x as the initial value and counts, with w as the result."""
    outputs = "y, z" if "," in gives else "y"
    declared = ", ".join(f"float[] {name}" for name in outputs.split(", "))
    return f"""g (int64 m, bool c, float[n] x) => ({declared}) {{
        {outputs} = Loop(m, c, x) <body = b (int64 i, bool ci, {takes}) => (bool co, {gives}) {{
            {body} }}> }}"""


LOOPS = {
    "for": loop("co = Identity(ci) w = Add(v, x)"),
    "while": loop(
        "w = Add(v, x) t = ReduceSum<keepdims=0>(w) h = Constant<value_float=9.0>() co = Less(t, h)"
    ),
    "counts": loop("co = Identity(ci) f = Cast<to=1>(i) w = Add(v, f)"),
    "grows": loop("co = Identity(ci) w = Concat<axis=0>(v, x)"),
    "gains axes": loop(
        "co = Identity(ci) a = Constant<value_ints=[0]>() w = Unsqueeze(v, a)", gives="float[] w"
    ),
    "stacks": loop("co = Identity(ci) w = Add(v, x) s = Mul(x, x)", gives="float[k] w, float[k] s"),
    "hands on": loop("co = Identity(ci) w = Identity(v)"),
    "nested": loop(
        """co = Identity(ci) j = Constant<value_int=2>()
           w = Loop(j, , v) <body = inner (int64 ii, bool d, float[k] u) => (bool e, float[k] t) {
               e = Identity(d) f = Cast<to=1>(i) g = Add(u, f) t = Add(g, x) }>"""
    ),
}


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS.keys())
@pytest.mark.parametrize(("count", "length"), [(1, 3), (4, 2), (2, 0)])
def test_loop(text: str, count: int, length: int) -> None:
    agree(text, [turns(count), TRUE, ramp(length) + 1])


@pytest.mark.parametrize("opset", [7, 10, 11, 13, 19, 21])
def test_every_version(opset: int) -> None:
    agree(LOOPS["stacks"], [turns(2), TRUE, ramp(3)], opset)
    agree(BOTH_BRANCHES, [FALSE, ramp(3), ramp(3)], opset)


LOOP_TYPES = [
    ("for", ["float32[n]"]),
    ("grows", ["float32[d1]"]),
    ("gains axes", ["float32[*]"]),
    ("stacks", ["float32[n]", "float32[d0, n]"]),
    ("nested", ["float32[n]"]),
]


@pytest.mark.parametrize(("name", "expected"), LOOP_TYPES)
def test_type_of_loop(name: str, expected: list[str]) -> None:
    assert result_types(imported(LOOPS[name])) == expected


@pytest.mark.parametrize("inputs", [[turns(0), TRUE], [turns(-2), TRUE], [turns(3), FALSE]])
def test_loop_without_turns(inputs: list[Any]) -> None:
    """Carried values stay; what is stacked has the extents of what would have been stacked."""
    same(by_graft(LOOPS["stacks"], [*inputs, ramp(3)]), [ramp(3), np.zeros((0, 3), np.float32)])
    same(by_graft(LOOPS["grows"], [*inputs, ramp(3)]), [ramp(3)])


def test_shapes_of_nothing_stacked() -> None:
    text = """g (int64 m, float16[n] x, bool[4] b) => (float16[] y, float16[] z, float16[] u) {
        y, z, u = Loop(m, , x) <body = l (int64 i, bool c, float16[n] v)
            => (bool co, float16[n] w, float16[] s, float16[] t) {
            co = Identity(c) w = Concat<axis=0>(v, v) s = Concat<axis=0>(x, x)
            t = Compress(x, b) }> }"""
    found = by_graft(text, [turns(0), ramp(4, dtype=np.float16), np.ones(4, bool)])
    assert [(array.dtype, array.shape) for array in found] == [
        (np.float16, (4,)),
        (np.float16, (0, 8)),
        (np.float16, (0, 0)),  # only a turn could tell how much Compress leaves
    ]


# What is stacked of captures whose extents are expressions, and the extents it has for n = 3.
EXPRESSIONS = [
    ("w = Concat<axis=0>(x, x)", "s = Neg(w)", (0, 6)),
    ("w = Concat<axis=0>(x, x)", "s = Concat<axis=0>(w, x, w)", (0, 15)),
    ("w = Einsum<equation=\"i,j->ij\">(x, x)", "s = Flatten<axis=0>(w)", (0, 1, 9)),
    ("k = Constant<value_ints=[2]>() z = Constant<value_ints=[0]>() w = Slice(x, z, x_n, z, k)",
     "s = Concat<axis=0>(w, w)", (0, 4)),
    ("w = Concat<axis=0>(x, x)", "t = Shape(w) s = Expand(o, t)", (0, 6)),
]  # fmt: skip


@pytest.mark.parametrize(("before", "inside", "shape"), EXPRESSIONS)
@pytest.mark.parametrize("opset", [13, 18])
def test_nothing_stacked_of_expression_extents(
    before: str, inside: str, shape: tuple[int, ...], opset: int
) -> None:
    """An operand of `2*n` elements binds no `n`, and yet the type of the result speaks of it."""
    text = f"""g (int64 m, bool go, float[n] x, float[1] o) => (float[] y) {{
        x_n = Shape(x) {before}
        y = Loop(m, go) <body = l (int64 i, bool c) => (bool co, float[] s) {{
            co = Identity(c) {inside} }}> }}"""
    inputs = [TRUE, ramp(3), np.ones(1, np.float32)]
    assert "n" in result_types(imported(text, opset))[0]
    (found,) = by_graft(text, [turns(0), *inputs], opset)
    assert (found.dtype, found.shape) == (np.float32, shape)
    (found,) = by_graft(text, [turns(2), *inputs], opset)
    assert found.shape == (2, *shape[1:])


def test_condition_alone_and_neither() -> None:
    """Without a trip count the condition ends the loop, whether there was one at first or not."""
    body = """<body = b (int64 i, bool ci, float[k] v) => (bool co, float[k] w) {
        w = Add(v, x) t = ReduceMax<keepdims=0>(w) h = Constant<value_float=9.0>()
        co = Less(t, h) }>"""
    for operands in (", c, x", ", , x"):
        text = f"g (bool c, float[n] x) => (float[k] y) {{ y = Loop({operands}) {body} }}"
        agree(text, [TRUE, ramp(3) + 1])


def test_flags_with_an_axis() -> None:
    text = """g (int64[1] m, bool[1] c, int64[2] x) => (int64[2] y) {
        y = Loop(m, c, x) <body = b (int64[1] i, bool[1] ci, int64[2] v)
                => (bool[1] co, int64[2] w) {
            w = Concat<axis=0>(i, i) k = Constant<value_ints=[3]>() co = Less(i, k) }> }"""
    for count in (0, 2, 9):
        agree(text, [np.array([count]), np.array([True]), ramp(2, dtype=np.int64)])


@pytest.mark.parametrize(("names", "kept"), [("opqrstu", ", 2]"), ("fhjopqrstuvw", "]")])
def test_variation_spreads_over_many_carried_values(names: str, kept: str) -> None:
    """Only the first is made longer, but the next turns hand it on to the second and so on."""
    first = names[0]
    takes = ", ".join(f"float[] {n}" for n in names)
    gives = ", ".join(f"float[] {n}{n}" for n in names)
    handed = " ".join(f"{b}{b} = Identity({a})" for a, b in pairwise(names))
    text = f"""g (int64 m, float[n, 2] x) => ({", ".join(f"float[] r{n}" for n in names)}) {{
        {", ".join(f"r{n}" for n in names)} = Loop(m, , {", ".join("x" * len(names))}) <
            body = l (int64 i, bool c, {takes}) => (bool co, {gives}) {{
                co = Identity(c) {first}{first} = Concat<axis=0>({first}, x) {handed} }}> }}"""
    graph = imported(text)
    assert all(value.shape is not None and len(value.shape) == 2 for value in graph.outputs)
    assert all(type_.endswith(kept) for type_ in result_types(graph))
    agree(text, [turns(4), ramp(3, 2)])


def test_carried_sequence_and_optional() -> None:
    """Starts with nothing and appends pieces of different length."""
    text = """g (int64 m, optional(seq(float[k])) s, float[n] x) => (seq(float[]) y) {
        y = Loop(m, , s) <body = b (int64 i, bool c, optional(seq(float[k])) v)
                => (bool co, seq(float[k]) w) {
            co = Identity(c)
            h = OptionalHasElement(v)
            q = If(h) <then_branch = t () => (seq(float[k]) e) { e = OptionalGetElement(v) },
                       else_branch = o () => (seq(float[k]) f) { f = SequenceConstruct(x) }>
            zero = Constant<value_ints=[0]>() a = Constant<value_ints=[0]>()
            end = Unsqueeze(i, a)
            piece = Slice(x, zero, end)
            w = SequenceInsert(q, piece) }> }"""
    graph = imported(text)
    assert result_types(graph) == ["sequence<float32[?]>"]
    same(evaluate(graph, [turns(3), None, ramp(4)]), [[ramp(4), ramp(0), ramp(1), ramp(2)]])
    same(evaluate(graph, [turns(1), [ramp(2)], ramp(4)]), [[ramp(2), ramp(0)]])
    with pytest.raises(EvaluationError, match="no iteration ran, and the initial %w is empty"):
        evaluate(graph, [turns(0), None, ramp(4)])


def test_loop_heeds_an_interrupt() -> None:
    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    text = """g (float[n] x) => (float[n] y) { c = Constant<value_int=1>() t = Cast<to=9>(c)
        y = Loop(, t, x) <body = b (int64 i, bool ci, float[n] v) => (bool co, float[n] w) {
            co = Identity(ci) w = Neg(v) }> }"""
    graph = imported(text)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            evaluate(graph, [ramp(3)])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


REFUSALS = [
    (
        loop("co = Identity(ci) w = Cast<to=7>(v)", gives="int64[k] w"),
        "the carried value 'v' is float32[n], then int64[n]",
    ),
    (
        loop("co = Identity(ci) w = Neg(v)", takes="float[k] v, float[k] u"),
        "the body takes 4 inputs, not 3",
    ),
    (
        "g (int64 m, float[n] x) => (float[n] y) { y = Loop(m, , x) <body = b (int64 i, bool c,"
        " float[n] v) => (bool co) { co = Identity(c) }> }",
        "the body gives 1 results, not 2 or more",
    ),
    (loop("co = Identity(x) w = Neg(v)"), "the condition that the body gives is float32[n]"),
    (
        "g (bool c, float[n] x) => (float[n] y) { y = If(c) <then_branch = t () => (float[n] r) {"
        " r = Neg(x) }, else_branch = e () => (int64[1] s) { s = Shape(x) }> }",
        "result 0 is float32[n] or int64[1]",
    ),
    (
        "g (bool c, float[n] x) => (float[n] y) { y = If(c) <then_branch = t () => (float[n] r) {"
        " r = Neg(x) }, else_branch = e () => () { }> }",
        "the branches give 1 and 0 results",
    ),
    (
        "g (bool[2] c, float[n] x) => (float[n] y) { y = If(c) <then_branch = t () => (float[n] r)"
        " { r = Neg(x) }, else_branch = e () => (float[n] x) { }> }",
        "the condition is bool[2], not one element of bool",
    ),
    (
        "g (bool c, float[n] x) => (float[n] y) { y = If(c) <then_branch = t (float z) =>"
        " (float[n] r) { r = Neg(x) }, else_branch = e () => (float[n] x) { }> }",
        "the then_branch of an If has inputs of its own",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSALS)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises((ModelError, TypeRuleError)) as caught:
        import_model(model_of(text))
    assert message in str(caught.value)
    assert caught.value.location is not None


def test_stacked_results_of_different_shape() -> None:
    body = "co = Identity(ci) w = Concat<axis=0>(v, x) s = Identity(v)"
    text = loop(body, gives="float[k] w, float[j] s")
    with pytest.raises(EvaluationError, match=r"differ in shape: \[\(3,\), \(6,\)\]"):
        by_graft(text, [turns(2), TRUE, ramp(3)])


def body_of(*inputs: TensorType, doubled: bool = False) -> Graph:
    """A loop's body that stacks its first carried value and gives it back, twice if so told."""
    builder = Builder("body")
    builder.input("i", tensor("int64"))
    condition = builder.input("c", tensor("bool"))
    values = [builder.input(f"v{i}", type_) for i, type_ in enumerate(inputs)]
    result = builder("concatenate", values[0], values[0], axis=0) if doubled else values[0]
    return builder.build(condition, result, values[0])


def test_symbols_of_a_body_are_its_own() -> None:
    """A body's `k` means whatever extent the operand has."""
    body = body_of(tensor("float32", symbol("k"), 2), tensor("float32", symbol("j")))
    loop_op = get_op("loop")
    attrs = loop_op.attrs(body=body, carried=1)  # type: ignore[call-arg]
    for extent in (N, 5, 2 * N):
        given = (tensor("int64"), None, tensor("float32", extent, 2), tensor("float32", 7))
        final, stacked = loop_op.result_types(attrs, given)
        assert final == tensor("float32", extent, 2)
        assert stacked == tensor("float32", UNKNOWN, extent, 2)


def test_an_extent_that_changes_is_unknown_outside() -> None:
    body = body_of(tensor("float32", symbol("k")), doubled=True)
    loop_op = get_op("loop")
    attrs = loop_op.attrs(body=body, carried=1)  # type: ignore[call-arg]
    final, stacked = loop_op.result_types(attrs, (None, None, tensor("float32", N)))
    assert final == tensor("float32", UNKNOWN)
    assert stacked == tensor("float32", UNKNOWN, UNKNOWN)


def test_operands_that_a_body_cannot_take() -> None:
    loop_op = get_op("loop")
    attrs = loop_op.attrs(body=body_of(tensor("float32", 3)), carried=1)  # type: ignore[call-arg]
    cases = [
        ((None, None, tensor("float32", 4)), r"wants %v0 as float32\[3\], gets float32\[4\]"),
        ((None, None), "'body' takes 3 inputs, gets 2"),
        ((tensor("int32"), None, tensor("float32", 3)), "the trip count is int32"),
    ]
    for types, message in cases:
        with pytest.raises(TypeRuleError, match=message):
            loop_op.result_types(attrs, types)


def test_an_optional_branch_makes_the_result_optional() -> None:
    plain, empty = Builder("plain"), Builder("empty")
    one = plain.build(plain.input("x", tensor("float32", 3)))
    empty.input("x", tensor("float32", 3))
    other = empty.build(empty("optional.construct", element=tensor("float32", 4)))
    builder = Builder()
    condition = builder.input("c", tensor("bool"))
    data = builder.input("x", tensor("float32", 3))
    result = builder("if", condition, data, then_branch=one, else_branch=other)
    assert isinstance(result.type, OptionalType)
    graph = builder.build(result)
    same(evaluate(graph, [TRUE, ramp(3)]), [ramp(3)])
    assert evaluate(graph, [FALSE, ramp(3)]) == [None]


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, bool]
)
def test_odd_dtypes_are_stacked(dtype: Any) -> None:
    data = np.array([1, 0, 1]).astype(dtype)
    builder = Builder()
    trip_count = builder.input("m", tensor("int64"))
    start = builder.input("x", TensorType(Builder().constant(data).dtype, (3,)))
    final, stacked = builder.call(
        "loop", trip_count, None, start, body=body_of(start.tensor), carried=1
    )
    graph = builder.build(final, stacked)
    for count in (0, 2):
        found = evaluate(graph, [turns(count), data])[1]
        assert (found.dtype, found.shape) == (data.dtype, (count, 3))


def test_work() -> None:
    """A branch's work is the larger one's; how often a loop turns nobody knows."""
    graph = imported(
        """g (bool c, float[4, 5] x, float[5, 6] y) => (float[] p) {
        p = If(c) <then_branch = t () => (float[] a) { a = MatMul(x, y) },
                   else_branch = e () => (float[] b) { b = Neg(x) }> }"""
    )
    node = graph.nodes[-1]
    assert node.op.work(node.attrs, [value.type for value in node.args], []).macs == 120
    looped = imported(LOOPS["for"]).nodes[-1]
    work = looped.op.work(looped.attrs, [value.type for value in looped.args], [])
    assert (work.macs, work.flops) == (0, UNKNOWN)
