"""Dot products of the narrow numbers in each lane of 32 bits, added to a sum.

Four bytes, unsigned ones times signed ones, are exact on every machine. Where the processor has an
instruction for it (VNNI, Hexagon's `vrmpy`), it is that one; where Arm's multiplies signed bytes
alone, it and an addition; on other x86 two products of 16-bit pairs, whose sums cannot overflow;
elsewhere four products. Two int16 are one instruction on all x86, and another one for the sum where
it lacks VNNI. Two bfloat16 are multiplied by an instruction where there is one, which takes
subnormal numbers for zero, or as two float32.
"""

from __future__ import annotations

from graft.llvm.number import Number
from graft.llvm.text import Builder, Value, constant

_LOW_BYTES = 0x00FF00FF
_SIGNS, _HALVES = -0x7F7F7F80, 0x40404040  # four bytes of 128, and of 64
_NEON_LANES = 4
_BRAIN_BITS = (128, 256, 512)  # vectors that have an instruction for bfloat16
# The product of pairs, by the bits of a vector: the intrinsic and the feature that it takes.
_PAIRS = {
    128: ("llvm.x86.sse2.pmadd.wd", "sse2"),
    256: ("llvm.x86.avx2.pmadd.wd", "avx2"),
    512: ("llvm.x86.avx512.pmaddw.d.512", "avx512bw"),
}


def dot4(builder: Builder, unsigned: Value, signed: Value, addend: Value) -> Value:
    """`addend` plus the four products of each lane."""
    bits = 32 * addend.lanes
    if builder.target.is_aarch64 and addend.lanes == _NEON_LANES:
        if builder.target.has("i8mm"):
            return _neon(builder, "usdot", addend, unsigned, signed)
        if builder.target.has("dotprod"):
            return _by_signed(builder, unsigned, signed, addend)
    elif builder.target.multiplies_bytes(addend.lanes):
        name = f"llvm.x86.avx512.vpdpbusd.{bits}"
        return builder.call(name, "i32", addend.lanes, addend, unsigned, signed)
    if builder.target.is_hexagon and bits == builder.target.vector_bits:
        name = "llvm.hexagon.V6.vrmpybusv.acc.128B"
        return builder.call(name, "i32", addend.lanes, addend, unsigned, signed)
    if builder.target.is_x86 and bits in _PAIRS and builder.target.has(_PAIRS[bits][1]):
        return _by_pairs(builder, unsigned, signed, addend)
    return _by_bytes(builder, unsigned, signed, addend)


def _by_signed(builder: Builder, unsigned: Value, signed: Value, addend: Value) -> Value:
    """By an instruction that multiplies signed bytes: unsigned ones count as 128 less, which is
    made up for by 128 times the others. That is the same for all sums by the same weights."""
    lanes = addend.lanes
    centred = builder.binary("xor", unsigned, constant(_SIGNS, "i32", lanes))
    half, more = constant(_HALVES, "i32", lanes), constant(0, "i32", lanes)
    for _ in range(2):
        more = _neon(builder, "sdot", more, half, signed)
    return _neon(builder, "sdot", builder.binary("add", addend, more), centred, signed)


def _neon(builder: Builder, name: str, addend: Value, left: Value, right: Value) -> Value:
    rows = (builder.convert("bitcast", one, "i8", 4 * addend.lanes) for one in (left, right))
    full = f"llvm.aarch64.neon.{name}.v4i32.v16i8"
    return builder.call(full, "i32", addend.lanes, addend, *rows)


def interleave4(builder: Builder, value: Value) -> Value:
    """Four rows of bytes as one of words, a byte of each row in a word.

    As one permutation where processors have it, or of whole words and then within 16 bytes."""
    lanes = value.lanes // 4
    order = [row * lanes + lane for lane in range(lanes) for row in range(4)]
    if lanes % 4 == 0 and not builder.target.has("avx512vbmi"):
        words = builder.convert("bitcast", value, "i32", lanes)
        moved = [row * lanes // 4 + four for four in range(lanes // 4) for row in range(4)]
        grouped = builder.shuffle(words, words, moved)
        value = builder.convert("bitcast", grouped, "i8", 4 * lanes)
        within = [4 * row + lane for lane in range(4) for row in range(4)]
        order = [first + place for first in range(0, 4 * lanes, 16) for place in within]
    return builder.convert("bitcast", builder.shuffle(value, value, order), "i32", lanes)


def _by_pairs(builder: Builder, unsigned: Value, signed: Value, addend: Value) -> Value:
    """Bytes 0 and 2 of each lane, then 1 and 3, as pairs of 16 bits."""
    lanes = addend.lanes
    mask, byte = constant(_LOW_BYTES, "i32", lanes), constant(8, "i16", 2 * lanes)
    even = builder.binary("and", unsigned, mask)
    shifted = builder.binary("lshr", unsigned, constant(8, "i32", lanes))
    odd = builder.binary("and", shifted, mask)
    pairs = _as_pairs(builder, signed)
    weights = (
        builder.binary("ashr", builder.binary("shl", pairs, byte), byte),
        builder.binary("ashr", pairs, byte),
    )
    name = _PAIRS[32 * lanes][0]
    for half, weight in zip((even, odd), weights, strict=True):
        product = builder.call(name, "i32", lanes, _as_pairs(builder, half), weight)
        addend = builder.binary("add", addend, product)
    return addend


def _as_pairs(builder: Builder, value: Value) -> Value:
    """Lanes of 32 bits as twice as many of 16."""
    return builder.convert("bitcast", value, "i16", 2 * value.lanes)


def _by_bytes(builder: Builder, unsigned: Value, signed: Value, addend: Value) -> Value:
    lanes = addend.lanes
    mask, top = constant(255, "i32", lanes), constant(24, "i32", lanes)
    for shift in (0, 8, 16, 24):
        moved = builder.binary("lshr", unsigned, constant(shift, "i32", lanes))
        left = builder.binary("and", moved, mask)
        raised = builder.binary("shl", signed, constant(24 - shift, "i32", lanes))
        right = builder.binary("ashr", raised, top)
        addend = builder.binary("add", addend, builder.binary("mul", left, right))
    return addend


def join2(builder: Builder, value: Value) -> Value:
    """Pairs of 16-bit lanes as words."""
    return builder.convert("bitcast", value, "i32", value.lanes // 2)


def dot2(builder: Builder, left: Value, right: Value, addend: Value) -> Value:
    """`addend` plus the two products of each lane, whose 32 bits are two int16."""
    lanes, bits = addend.lanes, 32 * addend.lanes
    if builder.target.is_x86 and builder.target.multiplies_bytes(lanes):
        name = f"llvm.x86.avx512.vpdpwssd.{bits}"
        return builder.call(name, "i32", lanes, addend, left, right)
    if builder.target.is_x86 and bits in _PAIRS and builder.target.has(_PAIRS[bits][1]):
        pairs = (_as_pairs(builder, one) for one in (left, right))
        return builder.binary("add", addend, builder.call(_PAIRS[bits][0], "i32", lanes, *pairs))
    half = constant(16, "i32", lanes)
    for raise_first in (True, False):
        parts = (
            builder.binary("ashr", builder.binary("shl", one, half) if raise_first else one, half)
            for one in (left, right)
        )
        addend = builder.binary("add", addend, builder.binary("mul", *parts))
    return addend


def brain_dot2(builder: Builder, left: Value, right: Value, addend: Value) -> Value:
    """`addend` plus the two products of each lane, whose 32 bits are two bfloat16."""
    bits = 32 * addend.lanes
    if bits in _BRAIN_BITS and _has_brain_products(builder, bits):
        name = f"llvm.x86.avx512bf16.dpbf16ps.{bits}"
        pairs = (builder.convert("bitcast", one, "bfloat", 2 * one.lanes) for one in (left, right))
        return builder.call(name, "float", addend.lanes, addend, *pairs)
    total = Number(builder, addend)
    for is_upper in (False, True):  # a bfloat16 is the upper half of a float32
        words = (Number(builder, one).to("bitcast", "i32") for one in (left, right))
        halves = ((bits & -0x10000 if is_upper else bits << 16) for bits in words)
        first, second = (bits.to("bitcast", "float") for bits in halves)
        total = first.fma(second, total)
    return total.value


def _has_brain_products(builder: Builder, bits: int) -> bool:
    has = builder.target.has
    return has("avx512bf16") and (bits == 512 or has("avx512vl"))
