"""How much scratch memory a kernel needs, as a dim: a function and its scalars in."""

from __future__ import annotations

from collections.abc import Sequence

from graft.base.dims import AnyDim, Dim, product, substitute
from graft.llvm.emit import SCRATCH_ALIGNMENT, scratch_buffers
from graft.llvm.types import byte_size
from graft.loop.index import dim_of
from graft.loop.ir import Function, Var


def scratch_dim(function: Function, scalars: Sequence[Dim]) -> AnyDim:
    """Bytes that each thread needs."""
    total: AnyDim = 0
    for buffer in scratch_buffers(function):
        size = product(dim_of(extent) for extent in buffer.extents) * byte_size(buffer.dtype)
        units = (size + (SCRATCH_ALIGNMENT - 1)) // SCRATCH_ALIGNMENT
        total = total + units * SCRATCH_ALIGNMENT
    names = [one.name for one in function.parameters if isinstance(one, Var)]
    return substitute(total, dict(zip(names, scalars, strict=True)))
