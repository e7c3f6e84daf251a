"""Functions, nested graphs and the names in them: local functions, captures, order of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.ops.model_text import agree, by_graft, imported, model_of, names_of, result_types, same

from graft.base.errors import GraftError, ModelError, UnsupportedError
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate
from graft.ir.verify import verify

TRUE, FALSE = np.array(True), np.array(False)


def ramp(*shape: int) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(np.float32)


def with_functions(graph: str, *functions: str, opset: int = 18) -> str:
    """A model whose functions are all of the domain `my`."""
    head = f'<ir_version: 10, opset_import: ["": {opset}, "my": 1]>'
    bodies = (f'<domain: "my", opset_import: ["": {opset}, "my": 1]> {f}' for f in functions)
    return "\n".join([head, graph, *bodies])


SCALE = """scale <factor: float = 2.0> (p) => (r) {
    c = Constant<value_float: float = @factor>() r = Mul(p, c) }"""
TWICE = "twice <by: float> (p) => (r) { q = my.scale<factor: float = @by>(p) r = my.scale(q) }"


def test_attributes_are_passed_down_and_have_defaults() -> None:
    text = with_functions(
        "g (float[n] x) => (float[n] y, float[n] z) { y = my.twice<by = 5.0>(x) z = my.scale(y) }",
        SCALE,
        TWICE,
    )
    graph = imported(text)
    assert names_of(graph) == ["multiply"] * 3
    assert [value.name for value in graph.outputs] == ["y", "z"]
    same(evaluate(graph, [ramp(3)]), [ramp(3) * 10, ramp(3) * 20])
    agree(text, [ramp(3)])


def test_an_attribute_that_is_not_given_is_left_out() -> None:
    """Gemm's own default stands where nobody says what alpha is."""
    function = "product <a, b> (p) => (r) { r = Gemm<alpha: float = @a, transB: int = @b>(p, p) }"
    text = with_functions("g (float[2, 3] x) => (float[] y) { y = my.product<b = 1>(x) }", function)
    same(by_graft(text, [ramp(2, 3)]), [ramp(2, 3) @ ramp(2, 3).T])


def test_attributes_reach_nested_graphs() -> None:
    function = """pick <a: float = 3.0> (c, p) => (r) {
        r = If(c) <then_branch = t () => (float[n] s) { k = Constant<value_float: float = @a>()
                                                        s = Mul(p, k) },
                   else_branch = e () => (float[n] u) { u = my.scale<factor: float = @a>(p) }> }"""
    call = "g (bool c, float[n] x) => (float[n] y) { y = my.pick<a = 4.0>(c, x) }"
    for condition in (TRUE, FALSE):
        same(by_graft(with_functions(call, function, SCALE), [condition, ramp(3)]), [ramp(3) * 4])


def test_operands_that_are_left_out() -> None:
    """Within the function, and within a graph in it, the operand is left out as well."""
    function = """bounded (p, low, high) => (r) {
        c = Constant<value_float = 1.0>() m = ReduceMax<keepdims = 0>(p) b = Greater(m, c)
        r = If(b) <then_branch = t () => (float[n] s) { s = Clip(p, low, high) },
                   else_branch = e () => (float[n] u) { u = Clip(p, high) }> }"""
    text = "g (float[n] x, float h) => (float[n] y) { y = my.bounded(x, , h) }"
    for start in (-2, -5):
        found = by_graft(with_functions(text, function), [ramp(5) + start, np.float32(1)])
        same(found, [np.minimum(ramp(5) - 2, 1) if start == -2 else np.maximum(ramp(5) - 5, 1)])
    text = "g (float[n] x) => (float[n] y) { y = my.bounded(x) }"
    same(by_graft(with_functions(text, function), [ramp(5)]), [ramp(5)])


def test_results_that_are_operands_or_the_same() -> None:
    function = "fork (p) => (r, s, t) { r = Neg(p) s = Identity(r) t = Identity(p) }"
    text = with_functions(
        "g (float[n] x) => (float[n] a, float[n] d) { a, b, c = my.fork(x) d = Add(b, c) }",
        function,
    )
    same(by_graft(text, [ramp(3)]), [-ramp(3), np.zeros(3, np.float32)])


def test_functions_of_different_opsets() -> None:
    """Softmax of opset 11 flattens from its axis on; that of opset 13 does not."""
    model = model_of(
        """<ir_version: 10, opset_import: ["": 13, "my": 1]>
        g (float[2, 3, 4] x) => (float[] y, float[] z) { y = my.old(x) z = Softmax<axis = 1>(x) }
        <domain: "my", opset_import: ["": 11]> old (p) => (r) { r = Softmax<axis = 1>(p) }"""
    )
    x = ramp(2, 3, 4) / 10
    flat, each = np.exp(x).reshape(2, -1), np.exp(x)
    expected = [
        (flat / flat.sum(1, keepdims=True)).reshape(x.shape),
        each / each.sum(1, keepdims=True),
    ]
    same(evaluate(import_model(model), [x]), expected)


def test_overloads() -> None:
    """The same name twice; the call says which."""
    model = model_of(
        with_functions(
            "g (float[n] x) => (float[n] y, float[n] z) { y = my.f(x) z = my.f(x) }",
            "f (p) => (r) { r = Neg(p) }",
            "f (p) => (r) { r = Add(p, p) }",
        )
    )
    model.functions[0].overload, model.functions[1].overload = "minus", "plus"
    model.graph.node[0].overload, model.graph.node[1].overload = "minus", "plus"
    same(evaluate(import_model(model), [ramp(3)]), [-ramp(3), ramp(3) * 2])
    model.graph.node[1].overload = "times"
    with pytest.raises(ModelError, match="the function 'f' has no overload 'times'"):
        import_model(model)


def test_unsorted_function() -> None:
    function = "f (p) => (r) { r = Neg(q) q = Add(p, p) }"
    text = with_functions("g (float[n] x) => (float[n] y) { y = my.f(x) }", function)
    same(by_graft(text, [ramp(3)]), [-2 * ramp(3)])


BAD_FUNCTIONS = [
    (["f (p) => (r) { r = my.f(p) }"], "the function 'f' calls itself: my.f -> my.f"),
    (
        ["f (p) => (r) { r = my.h(p) }", "h (p) => (r) { r = my.f(p) }"],
        "the function 'f' calls itself: my.f -> my.h -> my.f",
    ),
    (["f () => (r) { r = Constant<value_int = 1>() }"], "f takes 0 operands, has 1"),
    (["f (p) => (r) { q = Neg(p) }"], "the function 'f' does not define its output 'r'"),
    (["f (p) => (r) { r = Neg(q) }"], "'q' is neither an input, an initialiser nor any node's"),
    (["f (p) => (r) { r = Neg(x) }"], "'x' is neither an input, an initialiser nor any node's"),
    (["f (p) => (r) { r = Neg(s) s = Neg(r) }"], "the nodes form a cycle"),
    (["f (p) => (r) { r = Neg(p) r = Neg(p) }"], "'r' is defined twice"),
    (["f (p) => (r) { r = my.missing(p) }"], "operator missing belongs to the foreign domain"),
]


@pytest.mark.parametrize(("functions", "message"), BAD_FUNCTIONS)
def test_bad_functions(functions: list[str], message: str) -> None:
    text = with_functions("g (float[n] x) => (float[n] y) { y = my.f(x) }", *functions)
    with pytest.raises(GraftError) as caught:
        import_model(model_of(text))
    assert message in str(caught.value)
    assert isinstance(caught.value, (ModelError, UnsupportedError))
    assert caught.value.location is not None


def test_a_recursion_that_no_name_shows() -> None:
    """Functions may nest deeply, but not without end."""
    chain = [f"f{i} (p) => (r) {{ r = my.f{i + 1}(p) }}" for i in range(60)]
    text = "g (float[n] x) => (float[n] y) { y = my.f0(x) }"
    with pytest.raises(ModelError, match="nested more than 48 deep"):
        import_model(model_of(with_functions(text, *chain, "f60 (p) => (r) { r = Neg(p) }")))
    short = [f"f{i} (p) => (r) {{ r = my.f{i + 1}(p) }}" for i in range(40)]
    text = with_functions(text, *short, "f40 (p) => (r) { r = Neg(p) }")
    same(by_graft(text, [ramp(3)]), [-ramp(3)])


def test_places_name_the_way_to_a_node() -> None:
    text = with_functions(
        "g (float[n] x) => (float[n] y) { [outer] y = my.twice<by = 5.0>(x) }", SCALE, TWICE
    )
    last = imported(text).nodes[-1]
    assert last.location is not None
    assert last.location.node == "outer/scale_1/Mul_1"


def graph_of(nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    def infos(names: list[str]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]

    return helper.make_graph(nodes, "nested", infos(inputs), infos(outputs))


def test_graph_attributes_read_the_callers_names() -> None:
    """The function has a `k` of its own, which the graph that it is given does not mean."""
    node = helper.make_node
    given = graph_of([node("Add", ["x", "k"], ["r"])], [], ["r"])
    call = node("f", ["c", "x"], ["y"], domain="my", body=given)
    body = node(
        "If",
        [
            "p",
        ],
        ["s"],
    )
    for name in ("then_branch", "else_branch"):
        reference = body.attribute.add()
        reference.name, reference.type = name, onnx.AttributeProto.GRAPH
        reference.ref_attr_name = "body"
    nodes = [node("Neg", ["x"], ["k"]), body, node("Mul", ["s", "k"], ["q"])]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    function = helper.make_function("my", "f", ["p", "x"], ["q"], nodes, imports, ["body"])
    graph = graph_of([node("Abs", ["x"], ["k"]), call], ["x"], ["y"])
    graph.input.insert(0, helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model = helper.make_model(graph, opset_imports=imports, functions=[function])
    x = ramp(4) - 2
    same(evaluate(verify(import_model(model)), [TRUE, x]), [(x + abs(x)) * -x])


def test_sequence_map_with_captures() -> None:
    """The body's names may be those that ONNX's definition uses, and it sees those around it."""
    text = """g (seq(float[]) s, float[1] input_sequence) => (seq(float[]) y)
        <float[1] w = {10.0}> {
        u = Add(input_sequence, w)
        y = SequenceMap(s) <body = b (float[] a) => (float[] seqlen) <float[1] v = {2.0}> {
            h = Add(a, u) i = Mul(h, v) j = Mul(i, w) seqlen = Add(j, input_sequence) }> }"""
    found = by_graft(text, [[ramp(3), ramp(2, 1)], np.array([5], np.float32)])
    same(found, [[(a + 15) * 20 + 5 for a in (ramp(3), ramp(2, 1))]])
    assert by_graft(text, [[], np.array([5], np.float32)]) == [[]]


def test_sequence_map_of_two_sequences_and_a_tensor() -> None:
    text = """g (seq(float[]) s, seq(int64[]) t, float[n] x) => (seq(float[]) y, seq(int64[]) z) {
        y, z = SequenceMap(s, t, x) <body = b (float[] a, int64[] i, float[n] e)
            => (float[] p, int64[] q) { p = Add(a, e) q = Neg(i) }> }"""
    inputs = [[ramp(3), ramp(1)], [np.array([7]), np.array(8)], ramp(3)]
    same(by_graft(text, inputs), [[ramp(3) * 2, ramp(3)], [np.array([-7]), np.array(-8)]])


def test_captures_through_two_levels() -> None:
    """A value and an initialiser of the outermost graph, read in the innermost."""
    text = """g (bool c, int64 m, float[n] x) => (float[n] y) <float[1] w = {3.0}> {
        u = Add(x, w)
        y = If(c) <
            then_branch = t () => (float[n] r) {
                r = Loop(m, , x) <body = b (int64 i, bool d, float[n] v) => (bool e, float[n] z) {
                    e = Identity(d) a = Add(v, u) z = Mul(a, w) }> },
            else_branch = o () => (float[n] s) { s = Identity(u) }> }"""
    graph = imported(text)
    assert result_types(graph) == ["float32[n]"]
    agree(text, [TRUE, np.array(2), ramp(3)])
    agree(text, [FALSE, np.array(2), ramp(3)])
    branch = dict(graph.nodes[-1].graphs())["then_branch"]
    loop = branch.nodes[-1]
    assert [value.name for value in loop.args] == ["m", "x", "u"]


def test_a_constant_that_two_names_stand_for() -> None:
    """The If is known to give k, which the loop's body has not met before and reads once more."""
    text = """g (int64 m, float[n] x) => (float[n] y) {
        k = Constant<value_float = 2.0>()
        y = Loop(m, , x) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] z) {
            d = Identity(c) t = Constant<value = bool {1}>()
            r = If(t) <then_branch = p () => (float k) {}, else_branch = q () => (float k) {}>
            s = Mul(v, r) z = Add(s, k) }> }"""
    same(by_graft(text, [np.array(2), ramp(3)]), [(ramp(3) * 2 + 2) * 2 + 2])


def test_inner_names_hide_outer_ones() -> None:
    """Strictly no name may be defined twice, but exporters do it: the innermost counts."""
    text = """g (bool c, float[n] x) => (float[n] y, float[n] z) <float[1] w = {3.0}> {
        h = Add(x, w)
        y = If(c) <
            then_branch = t () => (float[n] y) <float[1] w = {5.0}> { h = Mul(x, w) y = Neg(h) },
            else_branch = e () => (float[n] h) {}>
        z = Identity(h) }"""
    same(by_graft(text, [TRUE, ramp(3)]), [-5 * ramp(3), ramp(3) + 3])
    same(by_graft(text, [FALSE, ramp(3)]), [ramp(3) + 3, ramp(3) + 3])


def test_unsorted_nodes() -> None:
    """The branch reads, by capture, what a later node makes; its own nodes are out of order too."""
    text = """g (bool c, float[n] x) => (float[n] y) {
        y = If(c) <then_branch = t () => (float[n] r) { r = Neg(q) q = Abs(z) },
                   else_branch = e () => (float[n] z) {}>
        z = Relu(x) }"""
    same(by_graft(text, [TRUE, ramp(3) - 1]), [-np.maximum(ramp(3) - 1, 0)])


def test_a_branchs_own_initialiser_is_no_reason_to_wait() -> None:
    """The branch's `z` is its own, so the node that makes the outer one may follow."""
    text = """g (bool c, float[n] x) => (float[n] y, float[n] z) {
        y = If(c) <then_branch = t () => (float[n] r) <float[1] z = {2.0}> { r = Mul(x, z) },
                   else_branch = e () => (float[n] s) { s = Neg(x) }>
        z = Relu(y) }"""
    same(by_graft(text, [TRUE, ramp(3)]), [2 * ramp(3), 2 * ramp(3)])


BAD_GRAPHS = [
    (
        "y = If(c) <then_branch = t () => (float[n] r) { r = Neg(z) },"
        " else_branch = e () => (float[n] x) {}> z = Neg(y)",
        "the nodes form a cycle",
        "If",
    ),
    (
        "y = If(c) <then_branch = t () => (float[n] r) { r = Neg(nothing) },"
        " else_branch = e () => (float[n] x) {}>",
        "'nothing' is neither an input, an initialiser nor any node's result",
        "Neg",
    ),
    (
        "y = If(c) <then_branch = t () => (float[n] r) { q = Neg(x) },"
        " else_branch = e () => (float[n] x) {}>",
        "the output 'r' is defined nowhere",
        "",
    ),
    (
        "y, q = If(c) <then_branch = t () => (float[n] r) { r = Neg(x) },"
        " else_branch = e () => (float[n] x) {}>",
        "the result 'q' is not available",
        "If",
    ),
    (
        "y = Loop(, c, x) <body = b (int64 i, bool i, float[n] v) => (bool i, float[n] v) {}>",
        "the input 'i' of 'body' is declared twice",
        "Loop",
    ),
]


@pytest.mark.parametrize(("nodes", "message", "kind"), BAD_GRAPHS)
def test_bad_graphs(nodes: str, message: str, kind: str) -> None:
    with pytest.raises(GraftError) as caught:
        import_model(model_of(f"g (bool c, float[n] x) => (float[n] y) {{ {nodes} }}"))
    assert message in str(caught.value)
    assert caught.value.location is not None
    assert caught.value.location.kind == kind


def test_graphs_in_functions_nested_too_deeply() -> None:
    functions = [
        f"""f{i} (c, p) => (r) {{
            r = If(c) <then_branch = t () => (float[n] s) {{ s = my.f{i + 1}(c, p) }},
                       else_branch = e () => (float[n] u) {{ u = Neg(p) }}> }}"""
        for i in range(40)
    ]
    text = "g (bool c, float[n] x) => (float[n] y) { y = my.f0(c, x) }"
    with pytest.raises(ModelError, match="nested more than 48 deep"):
        import_model(model_of(with_functions(text, *functions)))
    last = "f15 (c, p) => (r) { r = Abs(p) }"
    model = model_of(with_functions(text, *functions[:15], last))
    same(evaluate(verify(import_model(model)), [TRUE, ramp(3)]), [ramp(3)])
