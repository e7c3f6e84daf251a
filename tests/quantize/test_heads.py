"""Where errors are measured when outputs cannot be compared."""

from __future__ import annotations

import numpy as np
from tests.quantize.models import Network, residual, samples

from graft.compiler import compile_options
from graft.ir.graph import Graph
from graft.precision import quantize
from graft.quantize.heads import head_values, measured_units, with_outputs
from graft.quantize.report import AUTO
from graft.quantize.units import find_units
from graft.stages import Imported, optimize


def chooser() -> Graph:
    """Two heads on one body; of what one scores highly, the positions; a layer on these."""
    n = Network(1, 3, 8, 8)
    body = n.relu(n.conv(n.x, 16))
    scores, boxes = n.conv(body, 8), n.conv(n.relu(n.conv(body, 8)), 4)
    threshold = n.g.constant(np.zeros((), np.float32))
    chosen = n.g("nonzero", n.g("greater", scores, threshold))
    rows = n.g("cast", n.g("transpose", chosen, axes=(1, 0)), dtype="float32")
    return n.g.build(n.dense(rows, 8), n.g("sigmoid", boxes))


def test_heads_are_the_last_units_before_data_decide() -> None:
    graph = optimize(Imported(chooser())).graph
    units = find_units(graph)
    heads = head_values(graph, units)
    assert sorted(str(value.type) for value in heads) == [
        "float32[1, 4, 8, 8]",
        "float32[1, 8, 8, 8]",
    ]
    measured = measured_units(graph, units)
    assert (len(units), len(measured)) == (5, 4)
    assert all(unit.anchor.op.name == "nn.conv2d" for unit in measured)
    assert with_outputs(graph, heads).outputs == heads


def test_outputs_that_can_be_compared_are() -> None:
    graph = optimize(Imported(residual())).graph
    units = find_units(graph)
    assert head_values(graph, units) == ()
    assert measured_units(graph, units) == units
    assert with_outputs(graph, ()) is graph


def test_a_network_that_chooses() -> None:
    graph = chooser()
    result = quantize(optimize(Imported(graph)), samples(graph, 4), compile_options(), AUTO, 0.5)
    assert 0 <= result.report.quality.error <= 0.5
    assert result.report.quality.agreement in (None, 1.0)
    assert result.optimized.graph.output_names == graph.output_names
