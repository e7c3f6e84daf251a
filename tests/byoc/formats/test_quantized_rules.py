"""Units split into units of one operator each give the same integers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from graft.byoc.candidates import placeable
from graft.byoc.formats.quantized_rules import split_units
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.passes.pipeline import optimize

HEADER = '<ir_version: 9, opset_import: ["": 20]>\n'
BEFORE = "net (uint8[2, 6] x) => (KIND[SHAPE] y) <float s = {0.1}, uint8 z = {ZERO}, "
CONSTANTS = (
    "float low = {-1.0}, float high = {2.0}, float t = {0.23}, int8 v = {-7}, float u = {0.01}"
)


def unit(body: str, kind: str = "uint8", shape: str = "2, 3", zero: int = 100) -> Graph:
    head = BEFORE.replace("KIND", kind).replace("SHAPE", shape).replace("ZERO", str(zero))
    weight = "int8[3, 6] w = {1, -2, 3, -4, 5, -6, 7, -8, 9, 9, -8, 7, -6, 5, -4, 3, -2, 1}"
    other = "int8 o = {0}, int8[2, 3] q = {9, 80, -99, 7, 40, -60}"
    text = f"{head}{CONSTANTS}, int64[2] n = {{3, 4}}, {weight}, {other}> {{ {body} }}"
    return optimize(import_model(parser.parse_model(HEADER + text)))


DENSE = """
    data = DequantizeLinear (x, s, z)
    weight = DequantizeLinear (w, u, o)
    sums = Gemm <transB = 1> (data, weight)
"""


def names(graph: Graph) -> list[str]:
    return [node.op.name.split(".")[-1] for node in placeable(graph)]


def check_same(graph: Graph, split: Graph) -> None:
    for seed in range(4):
        x = np.random.default_rng(seed).integers(0, 256, (2, 6)).astype(np.uint8)
        (before,), (after,) = evaluate(graph, [x]), evaluate(split, [x])
        assert np.array_equal(np.asarray(before), np.asarray(after))


@pytest.mark.parametrize("activation", ["Relu (sums)", "Clip (sums, low, high)"])
def test_an_activation_becomes_a_unit(activation: str) -> None:
    graph = unit(f"{DENSE} clipped = {activation} y = QuantizeLinear (clipped, s, z)")
    split = split_units(graph)
    kind = activation.split()[0].lower()
    layer = ["dequantize", "dequantize", "dense", "quantize"]
    assert names(split) == [*layer, "dequantize", kind, "quantize"]
    check_same(graph, split)


def test_an_activation_that_quantisation_implies_goes() -> None:
    graph = unit(f"{DENSE} clipped = Relu (sums) y = QuantizeLinear (clipped, s, z)", zero=0)
    split = split_units(graph)
    assert names(split) == ["dequantize", "dequantize", "dense", "quantize"]
    check_same(graph, split)


@pytest.mark.parametrize("order", ["sums, other", "other, sums"])
def test_a_tensor_is_added_in_16_bits(order: str) -> None:
    body = f"""{DENSE}
        other = DequantizeLinear (q, t, v)
        all = Add ({order}) rectified = Relu (all) y = QuantizeLinear (rectified, s, z)"""
    graph = unit(body)
    split = split_units(graph)
    for seed in range(8):
        x = np.random.default_rng(seed).integers(0, 256, (2, 6)).astype(np.uint8)
        (before,), (after,) = evaluate(graph, [x]), evaluate(split, [x])
        difference = np.asarray(before).astype(int) - np.asarray(after)
        assert np.abs(difference).max() <= 1
        assert np.unique(np.asarray(after)).size > 2  # neither all saturated nor all clipped
    kinds = [value.dtype for node in placeable(split) for value in node.outputs]
    assert kinds.count("uint16") == 4  # data, sums, the other tensor, the result
    assert split_units(split) is split


def test_elements_are_moved_on_integers() -> None:
    body = "data = DequantizeLinear (x, s, z) m = Reshape (data, n) y = QuantizeLinear (m, t, v)"
    graph = unit(body, "int8", "3, 4")
    split = split_units(graph)
    assert names(split) == ["dequantize", "quantize", "dequantize", "reshape", "quantize"]
    check_same(graph, split)
    assert split_units(split) is split
