"""Concatenation of row-major tensors, whatever their sizes: a copy of each operand to its place.

Along the axes before the one that is joined, every operand is a series of runs of elements, and so
is the result; a run of the result is one run of each operand after the other.
"""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template
from graft.backends.host.kernels.writing import Writer, block, copy_runs
from graft.backends.host.storage import shape_of
from graft.base.dims import AnyDim, product
from graft.llvm.types import SMALL_FLOATS
from graft.loop.ir import Stmt
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@kernel_template(("concatenate",), Layout.ROW_MAJOR, alone=True, empty=True)
def joining(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A concatenation, operand by operand."""
    dtype = group.output.dtype
    if dtype in SMALL_FLOATS:
        return Refusal(f"{dtype} is not moved as it is")
    return lambda: _kernel(Writer(group, stores), target.lanes(dtype))


def _kernel(writer: Writer, lanes: int) -> Kernel:
    node = writer.group.node
    shape = shape_of(node.output)
    axis = node.attrs.axis % len(shape)
    sources = [writer.present_operand(number) for number in range(len(node.args))]
    result = writer.result(0)
    runs, stride = writer.dim(product(shape[:axis])), writer.dim(product(shape[axis:]))
    copies: list[Stmt] = []
    offset: AnyDim = 0
    for number, (source, value) in enumerate(zip(sources, node.args, strict=True)):
        run = product(shape_of(value)[axis:])
        place = writer.dim(offset)
        copies.append(
            copy_runs(source, result, writer.dim(run), lanes, runs, stride, place, str(number))
        )
        offset = offset + run
    return writer.kernel(block(*copies))
