"""What is written of the costs of a new size."""

from __future__ import annotations

import onnx.parser
from benchmarks.new_size import BATCH, HEADER, Cost, any_size, costs, rows, summarized
from benchmarks.pages import ROOT, table

import graft


def test_rows_are_medians_and_the_most() -> None:
    new = [Cost(0.001, 0.002), Cost(0.003, 0.009), Cost(0.002, 0.004)]
    again = [Cost(0.0001, 0.0002)] * 3
    lines = table(HEADER, rows({"net": {"new": summarized(new), "known": summarized(again)}}))
    assert lines[2] == "| net | 2.00 ms | 4.00 ms (9.00 ms) | 0.10 ms | 0.20 ms (0.20 ms) |"
    assert len({line.count("|") for line in lines}) == 1


def test_a_network_with_any_batch() -> None:
    graph = any_size(ROOT / "models" / "resnet18.onnx", BATCH)
    assert graph.input_symbols == {"batch"}
    assert [str(dim) for dim in graph.inputs[0].shape or ()] == ["batch", "3", "224", "224"]


def test_costs_of_sizes_that_come_twice() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        net (float[n, 64] x) => (float[n, 64] y) { a = Softmax (x) y = Exp (a) }
    """
    new, again = costs(graft.compile(onnx.parser.parse_model(text)), symbolic=True)
    assert len(new) == len(again) == 7
    for one in (*new, *again):
        assert one.first > 0
        assert one.around > 0
