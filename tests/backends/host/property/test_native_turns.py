"""Loops and scans that are wired at random: natively as on the evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.backends.host.test_flow import agree
from tests.examples import examples

import graft

SHAPE: list[str | int] = ["n", 3]
BINARY, UNARY = ("Add", "Sub", "Max"), ("Tanh", "Neg", "Abs")


def tensor(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)


def flag(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.BOOL, [])


@st.composite
def bodies(draw: st.DrawFn, scanned: int) -> tuple[onnx.GraphProto, int, int]:
    """A body, how many values it carries, and how many pieces it gives. What it hands on may be
    anything that it has: a value twice, another one's, one from outside."""
    carried = draw(st.integers(1, 3))
    known = [f"v{n}" for n in range(carried)] + [f"s{n}" for n in range(scanned)] + ["x"]
    inputs = [tensor(name) for name in known[:-1]]
    nodes = []
    for number in range(draw(st.integers(1, 5))):
        operands = [draw(st.sampled_from(known)) for _ in range(2)]
        if draw(st.booleans()):
            made = helper.make_node(draw(st.sampled_from(BINARY)), operands, [f"t{number}"])
        else:
            made = helper.make_node(draw(st.sampled_from(UNARY)), operands[:1], [f"t{number}"])
        nodes.append(made)
        known.append(f"t{number}")
    results = [draw(st.sampled_from(known)) for _ in range(carried)]
    pieces = [draw(st.sampled_from(known)) for _ in range(draw(st.integers(0, 3)))]
    outputs = []
    for number, name in enumerate([*results, *pieces]):
        nodes.append(helper.make_node("Identity", [name], [f"o{number}"]))
        outputs.append(tensor(f"o{number}"))
    if not scanned:
        nodes += condition(draw(st.sampled_from(["always", "counted", "summed"])))
        counter = helper.make_tensor_value_info("i", TensorProto.INT64, [])
        inputs, outputs = [counter, flag("c"), *inputs], [flag("d"), *outputs]
    return helper.make_graph(nodes, "body", inputs, outputs), carried, len(pieces)


def condition(kind: str) -> list[onnx.NodeProto]:
    """What makes the flag `d`."""
    if kind == "always":
        return [helper.make_node("Identity", ["c"], ["d"])]
    if kind == "counted":
        limit = helper.make_tensor("five", TensorProto.INT64, [], [5])
        constant = helper.make_node("Constant", [], ["five"], value=limit)
        return [constant, helper.make_node("Less", ["i", "five"], ["d"])]
    limit = helper.make_tensor("most", TensorProto.FLOAT, [], [4.0])
    return [
        helper.make_node("Constant", [], ["most"], value=limit),
        helper.make_node("ReduceSum", ["o0"], ["total"], keepdims=0),
        helper.make_node("Less", ["total", "most"], ["d"]),
    ]


@st.composite
def models(draw: st.DrawFn) -> tuple[onnx.ModelProto, int]:
    scanned = draw(st.integers(0, 2))
    body, carried, pieces = draw(bodies(scanned))
    outputs = [f"r{n}" for n in range(carried + pieces)]
    starts = [f"x{n}" for n in range(carried)]
    if scanned:
        tensors = [f"y{n}" for n in range(scanned)]
        attributes: dict[str, Any] = {
            "num_scan_inputs": scanned,
            "scan_input_directions": [draw(st.integers(0, 1)) for _ in range(scanned)],
        }
        operands = [*starts, *tensors]
        node = helper.make_node("Scan", operands, outputs, "turns", body=body, **attributes)
    else:
        tensors = []
        node = helper.make_node("Loop", ["turns", "", *starts], outputs, "turns", body=body)
    inputs = [tensor(name) for name in ("x", *starts)]
    describe = helper.make_tensor_value_info
    inputs += [describe(name, TensorProto.FLOAT, ["k", *SHAPE]) for name in tensors]
    if not scanned:
        inputs.append(describe("turns", TensorProto.INT64, []))
    results = [tensor(name) for name in outputs[:carried]]
    results += [describe(name, TensorProto.FLOAT, None) for name in outputs[carried:]]
    graph = helper.make_graph([node], "net", inputs, results)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), draw(st.integers(0, 80))


@settings(max_examples=examples(full=1_500, short=12))
@given(drawn=models(), rows=st.integers(0, 3))
def test_loops_wired_at_random(drawn: tuple[onnx.ModelProto, int], rows: int) -> None:
    model, turns = drawn
    host, reference = graft.compile(model, threads=1), graft.compile(model, target="reference")
    random, feeds = np.random.default_rng(turns), {}
    for one in host.get_inputs():
        if one.name == "turns":
            feeds[one.name] = np.array(turns)
            continue
        shape = [turns, rows, 3] if one.name.startswith("y") else [rows, 3]
        feeds[one.name] = random.standard_normal(shape).astype(np.float32)
    agree((host, reference), **feeds)
