"""Variants as JSON: a model with variants in, plain values out, and back.

They share constants, code and the table of programs with the general program: what is equal is
stored once. What is decoded may still contradict itself, which `SpecializedProgram.validate` finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graft.runtime.encoding import decode_integer, decode_integers, decode_text
from graft.runtime.flow_encoding import (
    Pool,
    Shared,
    decode_flow_program,
    encode_flow_program,
)
from graft.runtime.flow_program import FlowProgram
from graft.runtime.program import Program
from graft.runtime.specialized import AnyProgram, Key, SpecializedProgram


def encode_variants(program: SpecializedProgram, pool: Pool) -> dict[str, Any]:
    """All but the general program."""
    return {
        "symbols": list(program.symbols),
        "variants": [
            {"sizes": list(key), **_encoded(one, pool)} for key, one in program.variants.items()
        ],
    }


def _encoded(program: AnyProgram, pool: Pool) -> dict[str, Any]:
    if isinstance(program, FlowProgram):
        return encode_flow_program(program, pool)
    return {"program": pool.program(program)}


def decode_variants(
    header: Mapping[str, Any], general: FlowProgram, shared: Shared
) -> SpecializedProgram:
    """The general program with its variants."""
    variants: dict[Key, AnyProgram] = {}
    for item in header["variants"]:
        key = decode_integers(item["sizes"])
        if key in variants:
            raise ValueError(f"there are two variants for {list(key)}")
        variants[key] = _decoded(item, general, shared)
    symbols = tuple(decode_text(name) for name in header["symbols"])
    return SpecializedProgram(general, symbols, variants)


def _decoded(item: Mapping[str, Any], general: FlowProgram, shared: Shared) -> AnyProgram:
    if "flow" in item:
        return decode_flow_program(item, general.target, shared)
    number = decode_integer(item["program"])
    found = shared.programs[number] if number >= 0 else None
    if not isinstance(found, Program):
        raise ValueError(f"program {number} has no sizes of its own")
    return found
