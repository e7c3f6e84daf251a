"""Weights of 8 bits as kernels multiply them: four at a time by four bytes of the data.

Products are of unsigned bytes by signed ones. Signed data count as 128 more than they are, which,
like their zero point, is taken off beforehand: both times the sum of the weights is a number per
output, which sums start from.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graft.backends.host.group import Group
from graft.backends.host.kernels.words import per_word
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node
from graft.loop.build import Term, binary, constant
from graft.loop.ir import BinaryKind, Cast, Expr
from graft.ops.integer import HALF

QUAD = per_word(DType.INT8)
# The highest bits of four bytes.
_SIGNS = -0x7F7F7F80


def zero_point_of(group: Group, anchor: Node) -> int | None:
    """The zero point of the data of an integer product; None where it is not constant."""
    if len(anchor.inputs) < 3 or anchor.inputs[2] is None:
        return 0
    literal = group.constants.get(anchor.inputs[2])
    return None if literal is None else int(literal.array.reshape(-1)[0])


def no_quads(group: Group, anchor: Node, inputs: int) -> str | None:
    """Why four inputs at a time will not do, if they will not."""
    if zero_point_of(group, anchor) is None:
        return "the zero point is not constant"
    weight = group.constants.get(anchor.args[1])
    if weight is None or weight.array.dtype != np.int8:
        return "the weights are not constant int8"
    return None if inputs % QUAD == 0 else f"{inputs} inputs are no fours"


def taken_off(group: Group, anchor: Node, data: DType) -> int:
    """By how much the bytes of the data count as more than they are."""
    return (zero_point_of(group, anchor) or 0) + (HALF if data is DType.INT8 else 0)


def starts(weight: Array, less: int, bias: Array | None = None) -> Array:
    """What the sums of each output start from, for weights [outputs, ...] and what is taken off."""
    sums = weight.reshape(weight.shape[0], -1).astype(np.int64).sum(axis=1)
    first: Array = (-less * sums + (0 if bias is None else bias)).astype(np.int32)
    return first


def in_blocks(first: Array, block: int) -> Array:
    """Numbers of each output as [blocks, block], with zeros up to a whole block."""
    return np.pad(first, (0, -len(first) % block)).reshape(-1, block)


def bias_behind(group: Group, anchor: Node) -> Node | None:
    """The addition of a constant per channel to the sums of a convolution, if that is all that is
    done to them: they can start from it."""
    readers = [node for node in group.nodes if anchor.output in node.args]
    is_composite = group.node.op.name == "composite"
    results = group.node.attrs.body.outputs if is_composite else group.node.outputs
    if len(readers) != 1 or anchor.output in results:
        return None
    node = readers[0]
    if node.op.name != "nn.bias_add" or node.attrs.axis != 1:
        return None
    is_constant = node.args[0] is anchor.output and node.args[1] in group.constants
    return node if is_constant else None


def unsigned(element: Expr, data: DType) -> Expr:
    """Four bytes of the data as unsigned ones."""
    return element if data is not DType.INT8 else _flip_signs(element)


def signed(element: Expr) -> Expr:
    """Four unsigned bytes as signed ones, 128 less."""
    return _flip_signs(element)


def _flip_signs(element: Expr) -> Expr:
    return binary(BinaryKind.XOR, Term(element), _SIGNS).expr


def signed_byte(element: Expr) -> Expr:
    """A byte of data as a signed one in the lowest bits of a word, the others zero."""
    wide, bits = Term(Cast(DType.INT32, element)), constant(255, DType.INT32, element.lanes)
    if element.dtype is DType.UINT8:
        return (wide ^ constant(HALF, DType.INT32, element.lanes)).expr
    return (wide & bits).expr


def joined_bytes(parts: Iterable[Expr]) -> Expr:
    """Words of bytes that are in the lowest bits of words, the first one lowest."""
    word, *others = map(Term, parts)
    for number, byte in enumerate(others, start=1):
        word = word | (byte << constant(8 * number, DType.INT32, byte.expr.lanes))
    return word.expr
