"""The extents of a tensor as numbers in memory: `shape_of`, whose operand nobody reads."""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernels.writing import Writer, block, not_plain, store
from graft.backends.host.storage import shape_of
from graft.rewrite.rule import Refusal
from graft.target.target import Target


def sizes(group: Group, stores: Stores, _target: Target) -> Kernel | Refusal:
    """The extents that the kernel is called with."""
    refused = not_plain(group, stores, "shape_of")
    if refused is not None:
        return refused
    writer = Writer(group, stores)
    result = writer.result(0)
    extents = enumerate(shape_of(group.node.args[0]))
    return writer.kernel(block(*(store(result, n, writer.dim(dim)) for n, dim in extents)))
