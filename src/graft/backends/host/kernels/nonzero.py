"""Where a tensor is not zero, once it is known how often: `nonzero`, whatever the sizes."""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import (
    Cell,
    Writer,
    block,
    let,
    loop,
    store,
    when,
    with_memory,
)
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.loop.build import Term, cast, load
from graft.loop.ir import Stmt
from graft.target.target import Target


@node_kernel("nonzero")
def nonzero(group: Group, stores: Stores, _target: Target) -> Plan:
    """The indices of elements that are not zero, in order, by one thread."""
    return lambda: _kernel(group, Writer(group, stores))


def _kernel(group: Group, writer: Writer) -> Kernel:
    shape = shape_of(group.node.args[0])
    count = writer.dim(shape_of(group.output)[1])
    data, result = writer.given(0), writer.result(0)
    found = Cell("found")

    def kept(here: Term, at: Term) -> Stmt:
        """The indices of an element, from its number among all."""
        stored: list[Stmt] = [found.set(here + 1)]
        for axis, extent in enumerate(shape):
            position = at // writer.dim(product(shape[axis + 1 :])) if axis + 1 < len(shape) else at
            position = position % writer.dim(extent) if axis else position
            stored.append(store(result, count * axis + here, position))
        return block(*stored)

    def element(at: Term) -> Stmt:
        # Should the data have changed since they were counted, there is no room for more.
        def known(here: Term) -> Stmt:
            is_hit = cast(DType.BOOL, load(data, at)) & (here < count)
            return when(is_hit, kept(here, at))

        return let("here", found.value, known)

    body = block(found.set(0), loop("at", writer.dim(product(shape)), element))
    return writer.kernel(with_memory(body, found))
