"""Scan, against ONNX Runtime and plain Python, and the types it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.model_text import agree, by_graft, imported, model_of, result_types, same

from graft.base.dims import symbol
from graft.base.errors import EvaluationError, ModelError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate


def ramp(*shape: int) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(np.float32)


def scan(attributes: str) -> str:
    return f"""g (float[2] s, float[t, 2] x, float[a, b, c] u)
        => (float[] p, float[] q, float[] r) {{
        p, q, r = Scan(s, x, u) <num_scan_inputs = 2, {attributes} body = l
            (float[2] si, float[2] xi, float[] ui) => (float[2] so, float[2] y, float[] z) {{
                so = Add(si, xi) y = Mul(si, xi) z = Neg(ui) }}> }}"""


SCANS = [
    ("", (4, 3, 5), (4, 2)),
    ("scan_input_axes = [0, -1],", (3, 5, 4), (4, 2)),
    ("scan_input_axes = [-2, 1], scan_output_axes = [1, -1],", (3, 4, 5), (4, 2)),
    ("scan_input_axes = [0, 2], scan_output_axes = [-1, -3],", (3, 5, 1), (1, 2)),
    ("scan_input_directions = [1, 0], scan_output_directions = [0, 1],", (4, 3, 5), (4, 2)),
    ("scan_input_directions = [0, 1], scan_output_directions = [1, 1],", (4, 3, 5), (4, 2)),
]


@pytest.mark.parametrize(("attributes", "third", "second"), SCANS)
def test_scan(attributes: str, third: tuple[int, ...], second: tuple[int, ...]) -> None:
    agree(scan(attributes), [ramp(2), ramp(*second) + 1, ramp(*third)], 16)


def test_scan_types_and_zero_length() -> None:
    graph = imported(scan("scan_input_axes = [0, -1], scan_output_axes = [1, -2],"))
    assert result_types(graph) == ["float32[2]", "float32[2, t]", "float32[a, t, b]"]
    found = evaluate(graph, [ramp(2), ramp(0, 2), ramp(3, 5, 0)])
    same(found, [ramp(2), np.zeros((2, 0), np.float32), np.zeros((3, 0, 5), np.float32)])
    with pytest.raises(EvaluationError, match="lengths of scanned tensors differ: 3 and 4"):
        evaluate(graph, [ramp(2), ramp(3, 2), ramp(3, 5, 4)])


@pytest.mark.parametrize("length", [0, 2])
def test_scan_of_pieces_whose_extents_are_expressions(length: int) -> None:
    text = """g (float[t, n] x) => (float[] y) {
        w = Concat<axis=1>(x, x)
        y = Scan<num_scan_inputs=1, scan_output_axes=[-1], body = b (float[k] e) => (float[] f) {
            f = Concat<axis=0>(e, e) }>(w) }"""
    assert result_types(imported(text)) == ["float32[4*n, t]"]
    (found,) = by_graft(text, [ramp(length, 3)])
    assert found.shape == (12, length)


def test_scan_of_strings() -> None:
    text = """g (string[n] x) => (string[] y) {
        y = Scan<num_scan_inputs=1, scan_output_directions=[1], body = b (string e) => (string f) {
            f = Identity(e) }>(x) }"""
    words = np.array(["a", "bc", ""], dtype=object)
    assert by_graft(text, [words])[0].tolist() == ["", "bc", "a"]


@pytest.mark.parametrize("lengths", [None, [2, 1, 4], [4, 1, 3]])
@pytest.mark.parametrize("direction", [0, 1])
def test_scan_of_opset_8(lengths: list[int] | None, direction: int) -> None:
    """With a batch axis, and sequences that end early."""
    length_input = "" if lengths is None else "int64[3] l, "
    text = f"""g ({length_input}float[3, 2] s, float[3, t, 2] x) => (float[] p, float[] q) {{
        w = Constant<value = float[1] {{2.0}}>()
        p, q = Scan({"" if lengths is None else "l"}, s, x) <num_scan_inputs = 1,
            directions = [{direction}],
            body = b (float[2] si, float[2] xi) => (float[2] so, float[2] y) {{
                so = Add(si, xi) y = Mul(so, w) }}> }}"""
    given = [] if lengths is None else [np.array(lengths)]
    agree(text, [*given, ramp(3, 2), ramp(3, 4, 2)], 8)


def test_an_empty_sequence_among_others_in_opset_8() -> None:
    """ONNX Runtime refuses a length of 0, for which nothing is left to do but fill."""
    text = """g (int64[2] l, float[2] s, float[2, t] x) => (float[] p, float[] q) {
        p, q = Scan(l, s, x) <num_scan_inputs = 1, body = b (float si, float xi)
            => (float so, float y) { so = Add(si, xi) y = Neg(si) }> }"""
    found = by_graft(text, [np.array([0, 2]), ramp(2), ramp(2, 3)], 8)
    same(found, [np.array([0, 8], np.float32), np.array([[0, 0, 0], [-1, -4, 0]], np.float32)])


def test_carried_value_that_grows() -> None:
    text = """g (float[a] s, float[t, 2] x) => (float[] p, float[] q) {
        p, q = Scan(s, x) <num_scan_inputs = 1, body = b (float[k] si, float[2] xi)
            => (float[j] so, float[2] y) { so = Concat<axis=0>(si, xi) y = Neg(xi) }> }"""
    graph = imported(text)
    assert result_types(graph) == ["float32[d1]", "float32[t, 2]"]
    grown = np.concatenate([ramp(3), ramp(8)])
    same(evaluate(graph, [ramp(3), ramp(4, 2)]), [grown, -ramp(4, 2)])


REFUSALS = [
    (scan("scan_input_directions = [0, 2],"), "a direction is 0 or 1"),
    (scan("scan_input_axes = [0],"), "attribute 'scan_input_axes' has 1 elements, not 2"),
    (scan("scan_input_axes = [0, 3],"), "axis 3 is out of range for rank 3"),
    (scan("").replace("num_scan_inputs = 2", "num_scan_inputs = 4"), "num_scan_inputs is 4"),
    (
        scan("").replace("float[t, 2] x", "float[4, 2] x").replace("[a, b, c]", "[3, b, c]"),
        "lengths of scanned tensors differ: 4 and 3",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSALS)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises((ModelError, TypeRuleError)) as caught:
        import_model(model_of(text))
    assert message in str(caught.value)
    assert caught.value.location is not None


def test_work_is_one_turns_times_the_length() -> None:
    graph = imported(
        """g (float[t, 4, 5] z, float[5, 6] y) => (float[] q) {
        q = Scan(z) <num_scan_inputs = 1, body = l (float[4, 5] s) => (float[] r) {
            r = MatMul(s, y) }> }"""
    )
    node = graph.nodes[-1]
    work = node.op.work(node.attrs, [value.type for value in node.args], [])
    assert work.macs == 120 * symbol("t")
