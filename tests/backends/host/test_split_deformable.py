"""Deformable convolutions as samples and a convolution of them, against the evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graft
from graft.backends.host.passes.split_deformable import split_deformable
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor

TOLERANCES = {"float16": 5e-3, "float32": 1e-4, "float64": 1e-4}


def _layer(dtype: str, groups: int, parts: int, constant: bool, mask: bool) -> Graph:
    """Twelve channels to eight, every two rows; positions reach beyond the image."""
    build, random = Builder(), np.random.default_rng(0)
    x = build.input("x", tensor(dtype, 2, 12, 9, 10))
    offset = build.input("offset", tensor(dtype, 2, 2 * 9 * parts, 5, 10))
    array = random.standard_normal((8, 12 // groups, 3, 3)).astype(dtype)
    weight = build.constant(array) if constant else build.input("w", tensor(dtype, *array.shape))
    factors = [build.input("mask", tensor(dtype, 2, 9 * parts, 5, 10))] if mask else []
    attrs: dict[str, Any] = {"groups": groups, "deformable_groups": parts}
    steps = {"strides": (2, 1), "padding": (1, 1, 1, 1)}
    sums = build("nn.deformable_conv2d", x, offset, weight, *factors, **attrs, **steps)
    return build.build(build("nn.relu", sums))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("groups", "parts", "constant", "mask"),
    [(1, 1, True, False), (2, 3, True, True), (4, 1, False, True)],
)
def test_as_the_evaluator(dtype: str, groups: int, parts: int, constant: bool, mask: bool) -> None:
    graph = _layer(dtype, groups, parts, constant, mask)
    random = np.random.default_rng(1)
    inputs = [
        random.uniform(-2, 2, one.tensor.shape).astype(dtype)  # type: ignore[arg-type]
        for one in graph.inputs
    ]
    module = graft.compile(graph, strict=True)
    (found,) = module.run(None, dict(zip((one.name for one in graph.inputs), inputs, strict=True)))
    (expected,) = evaluate(graph, inputs)
    bound = TOLERANCES[dtype] * float(np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


def test_samples_are_computed_once() -> None:
    graph = split_deformable(_layer("float32", 1, 1, True, False))
    names = [node.op.name for node in graph.nodes]
    assert "nn.deformable_conv2d" not in names
    assert names.count("nn.deformable_windows") == names.count("nn.conv2d") == 1
