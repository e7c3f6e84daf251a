"""Narrow numbers as kernels multiply them.

Bytes and bfloat16 are multiplied a word of 32 bits at a time, four or two of them. Products of
bytes are summed in int32, see `integer_weights.py`; those of bfloat16 in float32, and a word of two
counts as a float32 with their bits. Where only weights are narrow, or they are of float16, for
which processors have no such products, they are widened when they are loaded.
"""

from __future__ import annotations

import numpy as np

from graft.backends.host.group import Group
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.graph import Node
from graft.loop.ir import Cast, Expr
from graft.ops.mixed import HALVES

_WORD = 32  # bits


def per_word(dtype: DType) -> int:
    """How many numbers of a dtype are multiplied together, by as many of the same bits."""
    return 1 if dtype is DType.FLOAT16 else _WORD // dtype.bits


def word_type(dtype: DType) -> DType:
    """What a word of such numbers counts as."""
    return DType.FLOAT32 if dtype is DType.BFLOAT16 else DType.INT32


def product_of(sums: DType, is_paired: bool) -> str:
    """The intrinsic that multiplies words or plain numbers and adds to `sums`; words are pairs of
    16 bits, or of four bytes."""
    if is_paired:
        return "dot2"
    return "dot4" if sums is DType.INT32 else "fma"


def widened(element: Expr) -> Expr:
    """What was loaded, as it is multiplied."""
    return Cast(DType.FLOAT32, element) if element.dtype in HALVES else element


def in_words(packed: Array, axis: int) -> Array:
    """[..., inputs, ..., outputs] of narrow numbers as [..., words of inputs, ..., outputs]."""
    dtype, shape = dtype_of(packed.dtype), list(packed.shape)
    together = per_word(dtype)
    shape[axis : axis + 1] = [shape[axis] // together, together]
    moved = np.moveaxis(packed.reshape(shape), axis + 1, -1)
    return np.ascontiguousarray(moved).view(word_type(dtype).numpy)[..., 0]


def no_halves(group: Group, anchor: Node, inputs: int) -> str | None:
    """Why floats of 16 bits cannot be multiplied as they are, if they cannot."""
    weight = group.constants.get(anchor.args[1])
    if weight is None or dtype_of(weight.array.dtype) not in HALVES:
        return "the weights are not constant floats of 16 bits"
    return None if inputs % per_word(anchor.args[0].dtype) == 0 else f"{inputs} inputs are no pairs"
