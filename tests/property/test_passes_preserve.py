"""Every pass gives a valid graph that computes what the graph before it computed."""

from __future__ import annotations

import pytest
from hypothesis import event, given, note, settings
from tests.examples import MANY, sharded, share
from tests.property.compare import assert_preserved
from tests.property.graphs import Sample, samples

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.ir.equal import difference
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.printer import to_text
from graft.ir.verify import verify
from graft.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.passes.eliminate_noops import eliminate_noops
from graft.passes.fold_constants import fold_constants
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import PASSES, Pass, optimize

TRANSFORMS = tuple(dict.fromkeys((*PASSES, group_fusion, optimize)))
IDEMPOTENT = (
    eliminate_dead_code,
    eliminate_common_subexpressions,
    eliminate_noops,
    fold_constants,
)


def run(sample: Sample) -> list[Array] | None:
    """The graph's results, or None where it refuses its inputs (an empty axis, say)."""
    try:
        return evaluate(sample.graph, sample.inputs)
    except UserError as error:
        event(f"the original graph fails: {type(error).__name__}")
        return None


def check(transform: Pass, sample: Sample, expected: list[Array] | None) -> Graph:
    """Run the pass and compare."""
    before = sample.graph
    after = transform(before)
    if after is before:
        return after
    note(f"after {transform.__name__}:\n{to_text(after)}")
    verify(after)
    assert after.output_names == before.output_names
    assert [(v.name, v.type) for v in after.inputs] == [(v.name, v.type) for v in before.inputs]
    if expected is not None:
        assert_preserved(sample, expected, evaluate(after, sample.inputs))
    return after


@sharded
@settings(max_examples=share(MANY))
@given(sample=samples())
def test_every_pass_preserves_results(shard: int, sample: Sample) -> None:
    """All passes on one graph, so that the examples of a full run are as many graphs."""
    expected = run(sample)
    for transform in TRANSFORMS:
        after = check(transform, sample, expected)
        if transform in IDEMPOTENT:
            assert difference(after, transform(after)) is None, transform.__name__
    fused = group_fusion(optimize(sample.graph))
    if expected is not None:
        assert_preserved(sample, expected, evaluate(verify(fused), sample.inputs))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: transform.__name__)
@settings(max_examples=40)
@given(samples())
def test_pass_preserves_results(transform: Pass, sample: Sample) -> None:
    """The same one by one, to see which pass is at fault."""
    check(transform, sample, run(sample))
