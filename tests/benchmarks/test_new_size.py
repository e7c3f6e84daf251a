"""What is written of the costs of a new size."""

from __future__ import annotations

import numpy as np
import onnx.parser
from benchmarks.new_size import (
    HEADER,
    RUNS,
    SYMBOLS,
    any_size,
    images,
    rows,
    summarized,
    times,
    without_kernels,
)
from benchmarks.pages import ROOT, table

import graft


def test_rows_are_medians_and_what_nine_of_ten_are_within() -> None:
    runs = [[0.001 + first * 1e-6, 0.002, 0.001] for first in range(11)]
    lines = table(HEADER, rows({"net": summarized(runs)}))
    assert lines[2].startswith("| net | 1,000 µs | 5 µs | 9 µs | ")
    assert len({line.count("|") for line in lines}) == 1


def test_a_network_of_any_size() -> None:
    graph = any_size(ROOT / "models" / "resnet18.onnx", SYMBOLS)
    assert graph.input_symbols == {"batch", "height", "width"}
    shape = [str(dim) for dim in graph.inputs[0].shape or ()]
    assert shape == ["batch", "3", "height", "width"]


def test_every_size_runs_several_times() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        net (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { a = Softmax (x) y = Exp (a) }
    """
    session = graft.compile(onnx.parser.parse_model(text))
    feeds = list(images(session, 5))
    assert len({feed.shape for feed in feeds}) == 5
    runs = times(session, iter(feeds))
    assert [len(each) for each in runs] == [RUNS] * 4
    assert all(seconds > 0 for each in runs for seconds in each)


def test_set_up_alone_runs_no_kernel() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        net (float[n] x) => (float[n] y) { y = Exp (x) }
    """
    session = graft.compile(onnx.parser.parse_model(text))
    without_kernels(session)
    result = np.full(9, 7.0, np.float32)
    session.run(None, {"x": np.ones(9, np.float32)}, {"y": result})
    assert (result == 7.0).all()
