"""Dense layers by weights of 4 bits: kernels and the reference, and the pass that makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.images import case, random_inputs, run
from tests.backends.host.test_integers import every_target

import graft
from graft.backends.host.kernels.block_dense import block_dense, pack_codes
from graft.backends.host.passes.use_nibbles import use_nibbles
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.target.target import Target, host_target

GENERATOR = np.random.default_rng(5)


@every_target
@pytest.mark.parametrize(
    ("rows", "units", "inputs", "block", "dtype", "has_zeros"),
    [
        (1, 130, 64, 32, DType.INT4, False),
        (1, 1030, 96, 16, DType.UINT4, True),
        (3, 70, 256, 128, DType.UINT4, True),
        (7, 33, 64, 64, DType.INT4, False),
        (2, 40, 64, 32, DType.INT4, True),
        (2, 40, 64, 32, DType.UINT4, False),
    ],
)
def test_codes_are_unpacked(
    rows: int,
    units: int,
    inputs: int,
    block: int,
    dtype: DType,
    has_zeros: bool,
    target: Target,
) -> None:
    """Codes and zero points at both ends of their range, and what follows the layer."""
    signed = dtype is DType.INT4
    low, high = (-8, 7) if signed else (0, 15)
    codes = GENERATOR.integers(low, high, (units, inputs), endpoint=True)
    codes[0], codes[-1] = low, high
    blocks = (units, inputs // block)
    scale = GENERATOR.uniform(0.01, 0.02, blocks).astype(np.float32 if signed else np.float16)
    zero = np.where(GENERATOR.random(blocks) < 0.5, 0, 15).astype(np.uint8)

    def write(g: Builder) -> Value:
        constants = [codes.astype(dtype.numpy), scale, *((zero,) if has_zeros else ())]
        x = g.input("x", tensor("float32", rows, inputs))
        layer = g("mixed.block_dense", x, *map(g.constant, constants), block_size=block)
        return g("nn.relu", g("nn.bias_add", layer, g.constant(np.ones(units, np.float32))))

    made = case(write, {})
    inputs = random_inputs(made.graph)
    (expected,) = evaluate(made.graph, inputs)
    found = run(made, made.kernel(block_dense, target), inputs, 2, target)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_words_hold_eight_inputs_of_a_unit() -> None:
    codes = GENERATOR.integers(-8, 8, (5, 24)).astype(DType.INT4.numpy)
    words = pack_codes(codes, 4)
    assert words.shape == (2, 3, 4)
    for number in range(8):
        found = (words >> 4 * number & 15) - 8
        wanted = np.zeros((8, 3), np.int32)
        wanted[:5] = codes.astype(np.int32)[:, number::8]
        rows = found.transpose(0, 2, 1).reshape(8, 3)
        np.testing.assert_array_equal(rows[:5], wanted[:5])


class _Layer:
    """A dense layer by weights that are dequantised by blocks."""

    def __init__(self, rows: Any, units: int = 96, inputs: int = 128, block: int = 32) -> None:
        self.rows, self.units, self.inputs, self.block = rows, units, inputs, block
        self.codes: Array = GENERATOR.integers(0, 16, (units, inputs)).astype(np.uint8)
        self.zero: Array | None = np.full((units, inputs // block), 8, np.uint8)
        self.scale: Array = GENERATOR.uniform(0.1, 0.2, self.zero.shape).astype(np.float32)

    def graph(self) -> Graph:
        g = Builder()
        x = g.input("x", tensor("float32", self.rows, self.inputs))
        zero = None if self.zero is None else g.constant(self.zero)
        stored = (g.constant(self.codes), g.constant(self.scale), zero)
        weight = g("qnn.dequantize", *stored, axis=1, block_size=self.block)
        return g.build(g("nn.dense", x, weight))

    def operators(self) -> list[str]:
        graph = use_nibbles(self.graph(), host_target())
        return [node.op.name for node in graph.nodes if node.op.name != "constant"]


@pytest.mark.parametrize("rows", [1, symbol("rows")])
@pytest.mark.parametrize("zeros", ["alike", "mixed", "none"])
def test_layers_of_few_or_uncounted_rows_keep_their_codes(rows: Any, zeros: str) -> None:
    layer = _Layer(rows)
    if zeros == "mixed":
        layer.zero = GENERATOR.integers(0, 16, layer.scale.shape).astype(np.uint8)
    if zeros == "none":
        layer.zero = None
    x = GENERATOR.standard_normal((1 if rows == 1 else 5, layer.inputs)).astype(np.float32)
    graph = layer.graph()
    kept = zeros != "none"  # codes up to 15 are no signed ones
    assert layer.operators() == (["mixed.block_dense"] if kept else ["qnn.dequantize", "nn.dense"])
    (expected,) = evaluate(graph, [x])
    (found,) = graft.compile(graph, strict=True).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rows": 4096}, "rows"),
        ({"block": 4}, "block"),
        ({"codes": np.full((96, 128), 16, np.uint8)}, "codes"),
    ],
)
def test_other_layers_are_left_alone(change: dict[str, Any], name: str) -> None:
    sizes = {key: value for key, value in change.items() if key != "codes"}
    layer = _Layer(**({"rows": 1} | sizes))
    layer.codes = change.get("codes", layer.codes)
    assert layer.operators() == ["qnn.dequantize", "nn.dense"], name
