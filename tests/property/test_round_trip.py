"""Random graphs print, and what is printed reads back as the same graph."""

from __future__ import annotations

from hypothesis import given, settings
from tests.examples import MANY, sharded, share
from tests.property.graphs import Sample, samples

from graft.ir.equal import difference
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.verify import verify


@sharded
@settings(max_examples=share(MANY))
@given(sample=samples())
def test_text_reads_back_as_the_same_graph(shard: int, sample: Sample) -> None:
    graph = verify(sample.graph)
    printed = to_text(graph)
    parsed = verify(from_text(printed.text, printed.constants))
    assert difference(graph, parsed) is None
    again = to_text(parsed)
    assert again.text == printed.text
    assert again.constants.keys() == printed.constants.keys()
    places = [node.location for node in graph.walk()]
    assert [node.location for node in parsed.walk()] == places
