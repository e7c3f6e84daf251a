"""The extents of a tensor as numbers in memory: `shape_of`, whose operand is not read."""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer
from graft.backends.host.storage import shape_of
from graft.loop.statements import store
from graft.loop.traverse import block
from graft.target.target import Target


@node_kernel("shape_of")
def sizes(group: Group, stores: Stores, _target: Target) -> Plan:
    """The extents that the kernel is called with."""
    return lambda: _kernel(group, Writer(group, stores))


def _kernel(group: Group, writer: Writer) -> Kernel:
    result = writer.result(0)
    extents = enumerate(shape_of(group.node.args[0]))
    return writer.kernel(block(*(store(result, n, writer.dim(dim)) for n, dim in extents)))
