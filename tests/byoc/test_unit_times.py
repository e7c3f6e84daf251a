"""Times of kernels are shared out among the units that they compute."""

from __future__ import annotations

import numpy as np
import pytest

from graft.byoc.contract import Cost
from graft.byoc.precision import unit_seconds
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.quantize.units import find_units


def inverted_residual() -> Graph:
    """Expansion by 6, depthwise 3x3, projection and a residual sum, then one more layer."""
    build, generator = Builder(), np.random.default_rng(0)

    def conv(data: Value, out: int, inputs: int, side: int, **attrs: int) -> Value:
        weight = generator.standard_normal((out, inputs, side, side)).astype(np.float32)
        padding = (side // 2,) * 4
        return build("nn.conv2d", data, build.constant(weight), padding=padding, **attrs)

    data = build.input("x", tensor("float32", 1, 8, 10, 10))
    wide = build("nn.relu", conv(data, 48, 8, 1))
    filtered = build("nn.relu", conv(wide, 48, 1, 3, groups=48))
    added = build("add", conv(filtered, 8, 48, 1), data)
    return build.build(conv(added, 16, 8, 1))


def measured(**seconds: float) -> dict[str, Cost]:
    return {name: Cost(one) for name, one in seconds.items()}


def test_units_of_one_kernel_share_its_time_by_their_operations() -> None:
    graph = inverted_residual()
    units = find_units(graph)
    added, last = units[2].name, units[3].name
    seconds, fused = unit_seconds(graph, units, measured(**{added: 1.2, last: 0.5}))
    assert fused == [(0, 1), (1, 2)]
    assert seconds == pytest.approx([1.2 * 8 / 25, 1.2 * 9 / 25, 1.2 * 8 / 25, 0.5])


def test_units_with_kernels_of_their_own_have_their_times() -> None:
    graph = inverted_residual()
    units = find_units(graph)
    times = {f"{unit.name}_quantized": float(n) for n, unit in enumerate(units, 1)}
    assert unit_seconds(graph, units, measured(**times)) == ([1.0, 2.0, 3.0, 4.0], [])


def test_what_is_timed_nowhere_takes_nothing() -> None:
    """Its result is read by a unit that has no time either, or by several."""
    graph = inverted_residual()
    units = find_units(graph)
    assert unit_seconds(graph, units, {}) == ([0.0] * 4, [])
    assert unit_seconds(graph, units, measured(**{units[0].name: 1.0})) == ([1.0, 0, 0, 0], [])
