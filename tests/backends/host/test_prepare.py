"""The host's passes on graphs that are parts of others."""

from __future__ import annotations

from graft.backends.host.passes.pipeline import prepare
from graft.ir.parser import from_text
from graft.target.target import host_target

PART = """
graph @segment(%theta: float32[2, 3, 4], %x: float32[a, b, broadcast(c, d), 4]) {
  %rows: float32[a*b*broadcast(c, d), 4] = reshape(%x) {shape=[-1, 4]}
  %y: float32[2, 3, a*b*broadcast(c, d)] = nn.dense(%theta, %rows)
  return %y
}
"""


def test_symbols_that_only_the_whole_graph_binds() -> None:
    """No input of the part has an axis that is `c` or `d` alone, and a pass reshapes by them."""
    names = [node.op.name for node in prepare(from_text(PART), host_target()).nodes]
    assert "nn.dense" not in names
    assert names.count("reshape") > 1
