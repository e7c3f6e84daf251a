"""The extents of a tensor as numbers in memory: `shape_of`, whose operand is not read."""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.target.target import Target


@node_kernel("shape_of")
def sizes(group: Group, stores: Stores, _target: Target) -> Plan:
    """The extents that the kernel is called with."""

    def write(writer: Writer) -> None:
        result = writer.result(0)
        for number, dim in enumerate(shape_of(group.node.args[0])):
            writer.code.store(result, number, writer.dim(dim))

    return node_plan(group, stores, write)
