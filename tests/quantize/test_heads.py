"""Where errors are measured when outputs cannot be compared."""

from __future__ import annotations

import numpy as np
from tests.quantize.models import Network, residual, samples

from graft.base.dtypes import Array
from graft.compiler import compile_options
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.verify import verify
from graft.precision import quantize
from graft.quantize.compare import Comparison
from graft.quantize.heads import Heads, find_heads, measured_units, with_outputs
from graft.quantize.report import AUTO, INTEGER
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


def test_heads_are_what_outputs_and_decisions_are_made_of() -> None:
    graph = optimize(Imported(chooser())).graph
    units = find_units(graph)
    heads = find_heads(graph, units)
    assert sorted(str(value.type) for value in heads.values) == [
        "float32[1, 4, 8, 8]",
        "float32[1, 8, 8, 8]",
        "float32[d0, 8]",
    ]
    assert [str(value.type) for value in heads.chosen] == ["float32[d0, 4]"]
    assert measured_units(graph, units) == units
    assert heads.observed(graph).outputs == (*heads.values, *heads.chosen)


def test_rows_are_compared_whatever_others_would_choose() -> None:
    """Other data choose other rows; with the choice of the first they have rows to compare."""
    graph = optimize(Imported(chooser())).graph
    heads = find_heads(graph, find_units(graph))
    one, two = (list(sample.values()) for sample in samples(graph, 2))
    results = evaluate(heads.observed(graph), one)
    compared = verify(heads.compared(graph))
    again = evaluate(compared, [*one, *results[3:]])
    for exact, other in zip(results[:3], again, strict=True):
        np.testing.assert_array_equal(exact, other)
    rows = [len(value) for value in evaluate(compared, [*two, *results[3:]])][2]
    assert rows == len(results[2]) != len(evaluate(heads.observed(graph), two)[2])


def test_largest_elements_follow_from_where_they_were() -> None:
    """Scores are chosen from by position, and a layer reads these and the body."""
    n = Network(1, 6, 8)
    body = n.dense(n.x, 8)
    scores = n.dense(body, 1)
    top, places = n.g.call("topk", n.g("reshape", scores, shape=(6,)), k=3, axis=0)
    rows = n.g("take", n.g("reshape", body, shape=(6, 8)), places, axis=0)
    scaled = n.g("multiply", rows, n.g("expand_dims", top, axes=(1,)))
    some = n.g("nonzero", n.g("greater", top, n.g.constant(np.zeros((), np.float32))))
    graph = optimize(Imported(n.g.build(n.dense(scaled, 4), some))).graph
    heads = find_heads(graph, find_units(graph))
    assert {str(value.type) for value in heads.chosen} == {"int64[3]", "float32[3, 1]"}
    (sample,) = samples(graph, 1)
    given = list(sample.values())
    results = evaluate(heads.observed(graph), given)
    count = len(heads.values)
    again = evaluate(verify(heads.compared(graph)), [*given, *results[count:]])
    for exact, other in zip(results[:count], again, strict=True):
        np.testing.assert_array_equal(exact, other)


def test_floats_that_data_count_are_no_head() -> None:
    """What `unique` leaves cannot be compared, nor can a layer that reads it."""
    n = Network(1, 6, 8)
    kept = n.g.call("unique", n.dense(n.x, 8))[0]
    graph = optimize(Imported(n.g.build(n.dense(n.g("expand_dims", kept, axes=(1,)), 4)))).graph
    units = find_units(graph)
    assert len(units) == 2
    assert measured_units(graph, units) == units[:1]
    assert find_heads(graph, units).values == (units[0].output,)


def test_outputs_that_can_be_compared_are() -> None:
    graph = optimize(Imported(residual())).graph
    units = find_units(graph)
    assert find_heads(graph, units) == Heads()
    assert measured_units(graph, units) == units
    assert with_outputs(graph, ()) is graph


def classifier(with_scores: bool) -> Graph:
    """The class of an image, and the scores that it is decided by or not."""
    n = Network(1, 3, 8, 8)
    body = n.relu(n.conv(n.x, 16))
    pooled = n.g("mean", body, axes=(2, 3), keepdims=False)
    scores = n.dense(pooled, 5)
    decided = n.g("argmax", n.g("nn.softmax", scores, axis=-1), axis=1, keepdims=False)
    extents = n.g("shape_of", body)
    return n.g.build(*([scores] if with_scores else []), decided, extents)


def test_decisions_have_the_errors_of_what_they_are_made_of() -> None:
    """A class is the same or not: without scores, every program would be within the budget."""
    graph = optimize(Imported(classifier(with_scores=False))).graph
    units = find_units(graph)
    heads = find_heads(graph, units)
    assert heads.values == (*graph.outputs, units[-1].output)
    assert heads.outputs == len(graph.outputs)
    graph = optimize(Imported(classifier(with_scores=True))).graph
    assert find_heads(graph, find_units(graph)) == Heads()


def test_a_classifier_without_scores() -> None:
    graph = classifier(with_scores=False)
    data = samples(graph, 8)
    plain, options = optimize(Imported(graph)), compile_options()
    quality = quantize(plain, data, options, INTEGER).report.quality
    assert 0 < quality.error < 0.05
    assert quality.agreement is not None
    report = quantize(plain, data, options, AUTO, 1e-6).report
    assert report.narrow_units == 0
    assert all(all(error > 0 for error in unit.errors.values()) for unit in report.units)


def test_decisions_are_counted() -> None:
    """The share of those that stay the same; of several outputs, floats that rank come first."""
    scores, ids = np.float32([[1, 2], [4, 3], [5, 6], [7, 8]]), np.array([1, 0, 1, 1])
    feeds: list[dict[str, Array]] = [{}]
    for exact, other, share in (
        ([ids], [np.array([1, 1, 1, 1])], 0.75),
        ([ids, scores], [ids, scores[:, ::-1]], 0.0),
        ([ids > 0], [ids > 1], 0.25),
        ([np.float32([1])], [np.float32([2])], None),
    ):
        compared = Comparison.measured(Heads(), lambda _feeds, own=exact: own, feeds, [], 1)
        assert compared.quality(lambda _feeds, own=other: own).agreement == share


def test_a_network_that_chooses() -> None:
    graph = chooser()
    result = quantize(optimize(Imported(graph)), samples(graph, 4), compile_options(), AUTO, 0.5)
    assert 0 <= result.report.quality.error <= result.report.quality.error_bound <= 0.5
    assert result.report.quality.agreement in (None, 1.0)
    assert {unit.op for unit in result.report.units} == {"nn.conv2d", "nn.dense"}
    assert result.optimized.graph.output_names == graph.output_names


def test_a_layer_that_no_sample_reaches_stays_in_float() -> None:
    n = Network(1, 3, 8, 8)
    scores = n.g("sigmoid", n.conv(n.x, 4))
    never = n.g.constant(np.full((), 2, np.float32))
    rows = n.g("transpose", n.g("nonzero", n.g("greater", scores, never)), axes=(1, 0))
    graph = n.g.build(n.dense(n.g("cast", rows, dtype="float32"), 8))
    result = quantize(optimize(Imported(graph)), samples(graph, 4), compile_options(), INTEGER)
    reasons = {unit.op: unit.reason for unit in result.report.units}
    assert reasons == {"nn.conv2d": "as asked", "nn.dense": "no sample reached it"}
