"""Sequences and optional values, against ONNX Runtime and plain Python.

Operators on a sequence whose elements are known melt away, so each is tried on both: on a sequence
that comes from outside, and on one that the model makes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.model_text import agree, by_graft, model_of, names_of, result_types, same

from graft.base.dims import UNKNOWN, symbol
from graft.base.errors import EvaluationError, ModelError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import OptionalType, SequenceType, TensorType, Type, tensor
from graft.ir.verify import verify
from graft.ops import get_op

N = symbol("n")


def ramp(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def graph_of(text: str, opset: int = 18) -> Graph:
    return verify(import_model(model_of(text, opset)))


THREE = [ramp(2, 3), ramp(1, 3) + 10, ramp(0, 3)]

# Python's own lists say what is meant: (operator, what it does to the list, positions).
LIST_OPERATORS: dict[str, Any] = {
    "SequenceAt(s, p)": (lambda items, p: items[p], [0, 2, -1, -3]),
    "SequenceErase(s, p)": (lambda items, p: [x for x in items if x is not items[p]], [0, 1, -1]),
    "SequenceInsert(s, x, p)": (
        lambda items, p: [*items[:p], ramp(4, 3), *items[p:]],
        [0, 2, 3, -1, -3],
    ),
}


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("operator", LIST_OPERATORS)
def test_operators_with_a_position(operator: str, dtype: str) -> None:
    meaning, positions = LIST_OPERATORS[operator]
    result = "float[]" if "At" in operator else "seq(float[])"
    outside = f"g (seq(float[]) s, float[] x, {dtype} p) => ({result} y) {{ y = {operator} }}"
    for position in positions:
        number = np.array(position, dtype)
        expected = [meaning(THREE, position)]
        same(by_graft(outside, [THREE, ramp(4, 3), number]), expected)
        agree(outside, [THREE, ramp(4, 3), number])
        made = f"""g (float[a, 3] t, float[b, 3] u, float[c, 3] v, float[d, 3] x) => ({result} y) {{
            s = SequenceConstruct(t, u, v)
            p = Constant<value = {dtype} {{{position}}}>()
            y = {operator} }}"""
        graph = graph_of(made)
        assert not {"sequence.at", "sequence.erase", "sequence.insert"} & set(names_of(graph))
        same(evaluate(graph, [*THREE, ramp(4, 3)]), expected)


def test_operators_without_a_position() -> None:
    outside = """g (seq(float[]) s, float[] x) => (seq(float[]) y, seq(float[]) z, int64 n) {
        y = SequenceInsert(s, x) z = SequenceErase(y) n = SequenceLength(y) }"""
    expected = [[*THREE, ramp(2, 3)], THREE, np.array(4)]
    same(by_graft(outside, [THREE, ramp(2, 3)]), expected)
    agree(outside, [THREE, ramp(2, 3)])


def test_a_list_that_only_hands_tensors_around_melts_away() -> None:
    text = """g (float[a, 3] t, float[b, 3] u) => (float[] y, float[] z, int64 k, seq(float[]) e) {
        s = SequenceEmpty()
        s1 = SequenceInsert(s, t)
        zero = Constant<value_int = 0>()
        s2 = SequenceInsert(s1, u, zero)
        y = ConcatFromSequence<axis = 0>(s2)
        s3 = SequenceErase(s2)
        z = SequenceAt(s3, zero)
        k = SequenceLength(s2)
        e = SequenceErase(s3) }"""
    graph = graph_of(text)
    assert result_types(graph)[:3] == ["float32[a + b, 3]", "float32[b, 3]", "int64[]"]
    assert set(names_of(graph)) == {"sequence.empty", "sequence.construct", "concatenate"}
    first, second = ramp(2, 3), ramp(1, 3) + 10
    expected = [np.concatenate([second, first]), second, np.array(2), []]
    same(evaluate(graph, [first, second]), expected)


def test_a_list_of_extents_is_a_shape() -> None:
    """What exporters make of `x.view(x.size(0), -1)` in scripted code."""
    text = """g (float[n, 4, 5] x) => (float[] y) {
        s = Shape(x) zero = Constant<value_int = 0>() rest = Constant<value_int = -1>()
        n = Gather(s, zero)
        sizes = SequenceConstruct(n, rest)
        shape = ConcatFromSequence<axis = 0, new_axis = 1>(sizes)
        y = Reshape(x, shape) }"""
    graph = graph_of(text)
    assert result_types(graph) == ["float32[n, 20]"]
    agree(text, [ramp(3, 4, 5)])


CONCATENATIONS = [
    (0, 0, [(2, 3), (1, 3), (0, 3)], "float32[d0, 3]"),
    (-1, 0, [(2, 1), (2, 4)], "float32[2, d0]"),
    (0, 1, [(2, 3), (2, 3)], "float32[d0, 2, 3]"),
    (2, 1, [(2, 3), (2, 3), (2, 3)], "float32[2, 3, d0]"),
    (-1, 1, [(2, 3)], "float32[2, 3, d0]"),
    (-3, 1, [(2, 3), (2, 3)], "float32[d0, 2, 3]"),
    (0, 1, [(), ()], "float32[d0]"),
]


@pytest.mark.parametrize(("axis", "new", "shapes", "expected"), CONCATENATIONS)
def test_concatenate(axis: int, new: int, shapes: list[Any], expected: str) -> None:
    data = [np.asarray(ramp(*shape) + i) for i, shape in enumerate(shapes)]
    join = f"y = ConcatFromSequence<axis = {axis}, new_axis = {new}>(s)"
    agree(f"g (seq(float[]) s) => (float[] y) {{ {join} }}", [data])
    names = [f"x{i}" for i in range(len(shapes))]
    inputs = ", ".join(
        f"float{list(shape) or ''} {name}" for shape, name in zip(shapes, names, strict=True)
    )
    agree(
        f"g ({inputs}) => (float[] y) {{ s = SequenceConstruct({', '.join(names)}) {join} }}", data
    )
    elements = {shape: tensor("float32", *shape) for shape in shapes}
    construct, concatenate = get_op("sequence.construct"), get_op("sequence.concatenate")
    sequence = construct.result_types(construct.attrs(), tuple(elements[s] for s in shapes))[0]
    attrs = concatenate.attrs(axis=axis, new_axis=bool(new))  # type: ignore[call-arg]
    assert str(concatenate.result_types(attrs, (sequence,))[0]) == expected.replace("d0", "?")


SPLITS: list[tuple[str, list[Any], tuple[int, ...]]] = [
    ("SplitToSequence<axis = 1>(x)", [], (2, 3)),
    ("SplitToSequence<axis = -1, keepdims = 0>(x)", [], (2, 3)),
    ("SplitToSequence<axis = 0>(x)", [], (1, 3)),
    ("SplitToSequence<axis = 1>(x, p)", [np.array(2)], (2, 5)),
    ("SplitToSequence<axis = 1>(x, p)", [np.array(3)], (2, 6)),
    ("SplitToSequence(x, p)", [np.array([1, 2, 1])], (4, 2)),
    ("SplitToSequence<axis = -2>(x, p)", [np.array([2, 2], np.int32)], (4, 0)),
]


@pytest.mark.parametrize(("operator", "sizes", "shape"), SPLITS)
@pytest.mark.parametrize("known", [True, False])
def test_split(operator: str, sizes: list[Any], shape: tuple[int, ...], known: bool) -> None:
    dims = ", ".join(map(str, shape)) if known else "n, m"
    inputs, constant = f"float[{dims}] x", ""
    if sizes:
        kind = f"{sizes[0].dtype}{[*sizes[0].shape] or ''}"
        listed = ", ".join(map(str, sizes[0].reshape(-1)))
        constant = f"p = Constant<value = {kind} {{{listed}}}>()" if known else ""
        inputs += "" if known else f", {kind} p"
    text = f"g ({inputs}) => (seq(float[]) y) {{ {constant} y = {operator} }}"
    assert ("sequence.split" in names_of(graph_of(text))) != known
    agree(text, [ramp(*shape), *([] if known else sizes)])


SPLIT_TYPES = [
    ({"axis": 1, "chunk": 2}, (N, 6), (N, 2)),
    ({"axis": 1, "chunk": 2}, (N, 5), (N, UNKNOWN)),
    ({"axis": 0, "chunk": 1}, (N, 5), (1, 5)),
    ({"axis": 0, "chunk": 1, "keepdims": False}, (N, 5), (5,)),
    ({"axis": -1, "chunk": N}, (3, 2 * N), (3, UNKNOWN)),
    ({"axis": 0, "sizes": (N, N)}, (2 * N, 5), (N, 5)),
    ({"axis": 0, "sizes": (N, 3)}, (N + 3, 5), (UNKNOWN, 5)),
    ({"axis": 0, "chunk": 3}, None, None),
]


@pytest.mark.parametrize(("attributes", "before", "after"), SPLIT_TYPES)
def test_type_of_split(attributes: dict[str, Any], before: Any, after: Any) -> None:
    builder = Builder()
    data = builder.input("x", TensorType(tensor("float32").dtype, before))
    found = builder("sequence.split", data, **attributes).type
    assert found == SequenceType(TensorType(tensor("float32").dtype, after))


def test_splits_that_onnxruntime_refuses() -> None:
    """Parts larger than the tensor; sizes, which make `keepdims` void."""
    text = """g (float[n] x, int64 p) => (seq(float[]) y) {
        y = SplitToSequence<keepdims = 0>(x, p) }"""
    same(by_graft(text, [ramp(5), np.array(7)]), [[ramp(5)]])
    same(by_graft(text, [ramp(5), np.array(4)]), [[ramp(4), ramp(5)[4:]]])


def test_nothing_to_split() -> None:
    for operator in ("SplitToSequence(x)", "SplitToSequence<keepdims = 0>(x)"):
        for dims in ("0, 2", "n, 2"):
            text = f"g (float[{dims}] x) => (seq(float[]) y) {{ y = {operator} }}"
            assert by_graft(text, [ramp(0, 2)]) == [[]]


ONES = """shape = Shape(x)
    count = Slice(shape, {first}, {last})
    ones = ConstantOfShape<value = int64[1] {{{value}}}>(count)
    y = SplitToSequence<axis = {axis}>(x, ones)"""


@pytest.mark.parametrize(
    ("value", "axis", "of", "element"),
    [
        (1, 0, 0, "float32[1, m]"),
        (1, -1, 1, "float32[n, 1]"),
        (1, 0, 1, "float32[?, m]"),  # one part per column, as long as there are as many rows
        (2, 0, 0, "float32[?, m]"),
    ],
)
def test_parts_of_one_element_each(value: int, axis: int, of: int, element: str) -> None:
    """A list of as many ones as there are elements, as exporters write it."""
    head = f"<int64[1] first = {{{of}}}, int64[1] last = {{{of + 1}}}>"
    body = ONES.format(first="first", last="last", value=value, axis=axis)
    text = f"g (float[n, m] x) => (seq(float[]) y) {head} {{ {body} }}"
    assert str(graph_of(text).outputs[0].type) == f"sequence<{element}>"
    if value == 1:
        data = ramp(3, 3)
        expected = [data[:, i : i + 1] if axis else data[i : i + 1] for i in range(3)]
        same(by_graft(text, [data]), [expected])
    else:
        with pytest.raises(EvaluationError):
            by_graft(text, [ramp(3, 3)])


JOINS: list[tuple[list[Type], Type]] = [
    ([tensor("float32", N, 3), tensor("float32", N, 3)], tensor("float32", N, 3)),
    ([tensor("float32", N, 3), tensor("float32", 2, 3)], tensor("float32", UNKNOWN, 3)),
    ([tensor("float32", N), tensor("float32")], TensorType(tensor("float32").dtype, None)),
    ([SequenceType(tensor("bool", 2))] * 2, SequenceType(tensor("bool", 2))),
]


@pytest.mark.parametrize(("elements", "expected"), JOINS)
def test_type_of_elements(elements: list[Type], expected: Type) -> None:
    builder = Builder()
    values = [builder.input(f"x{i}", type_) for i, type_ in enumerate(elements)]
    assert builder("sequence.construct", *values).type == SequenceType(expected)
    start = builder("sequence.construct", values[0])
    assert builder("sequence.insert", start, values[1]).type == SequenceType(expected)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, object])
def test_odd_dtypes(dtype: Any) -> None:
    data = np.array(["a", ""], object) if dtype is object else np.array([1, 2]).astype(dtype)
    builder = Builder()
    value = builder.input("x", TensorType(builder.constant(data).dtype, (2,)))
    sequence = builder("sequence.construct", value, value)
    parts = builder("sequence.split", value, chunk=1, keepdims=False)
    joined = builder("sequence.concatenate", sequence, axis=0, new_axis=True)
    found, pieces = evaluate(builder.build(joined, parts), [data])
    assert (found.dtype, found.tolist()) == (data.dtype, [data.tolist()] * 2)
    assert [piece.shape for piece in pieces] == [(), ()]


def test_sequences_through_identity_and_if() -> None:
    text = """g (bool c, seq(float[]) s, float[n] x) => (seq(float[]) y) {
        i = Identity(s)
        y = If(c) <then_branch = t () => (seq(float[]) a) { a = SequenceInsert(i, x) },
                   else_branch = e () => (seq(float[]) i) {}> }"""
    for condition in (True, False):
        expected = [[*THREE, ramp(2)] if condition else THREE]
        same(by_graft(text, [np.array(condition), THREE, ramp(2)]), expected)


def test_appending_to_an_empty_sequence_keeps_the_elements_type() -> None:
    text = """g (int64 m, float[n, 3] x) => (float[] y) {
        s = SequenceEmpty()
        q = Loop(m, , s) <body = b (int64 i, bool c, seq(float[]) v) => (bool co, seq(float[]) w) {
            co = Identity(c) d = Mul(x, x) u = SequenceInsert(v, x) w = SequenceInsert(u, d) }>
        y = ConcatFromSequence<axis=0, new_axis=1>(q) }"""
    graph = graph_of(text)
    assert result_types(graph) == ["float32[d0, n, 3]"]
    same(evaluate(graph, [np.array(2), ramp(2, 3)]), [np.stack([ramp(2, 3), ramp(2, 3) ** 2] * 2)])


OPTIONALS = """g (optional(float[n]) o, float[n] x) => (bool h, bool k, bool f, float[n] y) {
    h = OptionalHasElement(o)
    made = Optional(x)
    k = OptionalHasElement(made)
    y = OptionalGetElement(made)
    empty = Optional<type = float[2]>()
    f = OptionalHasElement(empty) }"""


@pytest.mark.parametrize("opset", [15, 18])
def test_optional(opset: int) -> None:
    graph = graph_of(OPTIONALS, opset)
    assert "optional.get_element" not in names_of(graph)  # it is known to be x
    for given in (None, ramp(3)):
        flags = [np.array(given is not None), np.array(True), np.array(False)]
        same(evaluate(graph, [given, ramp(3)]), [*flags, ramp(3)])


def test_tensors_and_sequences_count_as_present() -> None:
    text = """g (float[n] x, seq(float[]) s)
            => (bool a, bool b, bool c, float[n] y, seq(float[]) t) {
        a = OptionalHasElement(x) b = OptionalHasElement(s) c = OptionalHasElement()
        y = OptionalGetElement(x) t = OptionalGetElement(s) }"""
    true, false = np.array(True), np.array(False)
    same(by_graft(text, [ramp(2), THREE]), [true, true, false, ramp(2), THREE])


def test_element_of_an_optional_from_outside() -> None:
    text = "g (optional(seq(float[])) o) => (seq(float[]) y) { y = OptionalGetElement(o) }"
    same(by_graft(text, [THREE]), [THREE])
    with pytest.raises(EvaluationError, match="the optional value is empty"):
        by_graft(text, [None])


def test_optionals_type() -> None:
    graph = graph_of("g (float[n] x) => (optional(float[n]) y) { y = Optional(x) }")
    assert graph.outputs[0].type == OptionalType(tensor("float32", N))
    assert evaluate(graph, [ramp(3)])[0].tolist() == [0, 1, 2]


RUN_TIME_ERRORS = [
    ("SequenceAt(s, p)", 3, "position 3 is outside a sequence of 3"),
    ("SequenceAt(s, p)", -4, "position -4 is outside a sequence of 3"),
    ("SequenceErase(s, p)", 3, "position 3 is outside a sequence of 3"),
    ("SequenceInsert(s, x, p)", 4, "position 4 is outside a sequence of 3"),
    ("SplitToSequence(x, p)", 0, "parts of 0 cannot be cut"),
]


@pytest.mark.parametrize(("operator", "position", "message"), RUN_TIME_ERRORS)
def test_positions_outside(operator: str, position: int, message: str) -> None:
    """Known or not, they are an error when it comes to it, for it may never come to it."""
    result = "float[]" if "At" in operator else "seq(float[])"
    outside = f"g (seq(float[]) s, float[m] x, int64 p) => ({result} y) {{ y = {operator} }}"
    with pytest.raises(EvaluationError, match=message):
        by_graft(outside, [THREE, ramp(3), np.array(position)])
    made = f"""g (float[k, 3] t, float[m] x) => ({result} y) {{
        s = SequenceConstruct(t, t, t) p = Constant<value_int = {position}>() y = {operator} }}"""
    with pytest.raises(EvaluationError, match=message):
        by_graft(made, [ramp(2, 3), ramp(3)])


def test_nothing_to_join_or_erase() -> None:
    with pytest.raises(EvaluationError, match="an empty sequence has no elements to join"):
        by_graft("g (seq(float[]) s) => (float[] y) { y = ConcatFromSequence<axis=0>(s) }", [[]])
    with pytest.raises(EvaluationError, match="position -1 is outside a sequence of 0"):
        by_graft("g (seq(float[]) s) => (seq(float[]) y) { y = SequenceErase(s) }", [[]])
    text = "g (float[n] x, int64[2] p) => (seq(float[]) y) { y = SplitToSequence(x, p) }"
    with pytest.raises(EvaluationError, match=r"parts of \[1, 4\] do not make up an extent of 3"):
        by_graft(text, [ramp(3), np.array([1, 4])])


REFUSALS = [
    ("SequenceConstruct(x, i)", "a sequence cannot hold both float32[n] and int64[2]"),
    ("SequenceInsert(s, i)", "a sequence cannot hold both float32[*] and int64[2]"),
    ("SequenceAt(x, i)", "wants a sequence, not float32[n]"),
    ("SequenceAt(s, x)", "the position is float32[n], not an integer"),
    ("SequenceErase(x)", "wants a sequence of tensors, not float32[n]"),
    ("ConcatFromSequence<axis = 1>(made)", "axis 1 is out of range for rank 1"),
    ("SplitToSequence<axis = 2>(x)", "axis 2 is out of range for rank 1"),
    ("Optional()", "lacks the attribute 'type'"),
    ("Optional(o)", "an optional cannot hold an optional<float32[n]>"),
]


@pytest.mark.parametrize(("operator", "message"), REFUSALS)
def test_refusals(operator: str, message: str) -> None:
    text = f"""g (seq(float[]) s, float[n] x, int64[2] i, optional(float[n]) o) => (float[] y) {{
        made = SequenceConstruct(x) y = {operator} }}"""
    with pytest.raises((ModelError, TypeRuleError)) as caught:
        graph_of(text)
    assert message in str(caught.value)
    assert caught.value.location is not None
