"""Targets: detected, named, compared."""

from __future__ import annotations

import dataclasses

import pytest

from graft.base.dtypes import DType
from graft.llvm.target import TargetError, host_target, named_target, target_names


def test_host_is_this_machine() -> None:
    host = host_target()
    assert host.vector_bits in (128, 256, 512)
    assert host.vector_registers in (16, 32)
    assert list(host.cache_bytes) == sorted(host.cache_bytes)
    assert named_target("host") == host


@pytest.mark.parametrize(
    ("name", "bits", "tile"),
    [
        ("x86-64", 128, (6, 8)),
        ("x86-64-v2", 128, (6, 8)),
        ("x86-64-v3", 256, (6, 16)),
        ("x86-64-v4", 512, (14, 32)),
        ("aarch64-neon", 128, (8, 12)),
        ("aarch64-neon-v8.6", 128, (8, 12)),
    ],
)
def test_named_targets(name: str, bits: int, tile: tuple[int, int]) -> None:
    target = named_target(name)
    assert target.vector_bits == bits
    assert target.lanes(DType.FLOAT32) == bits // 32
    assert target.lanes(DType.BOOL) == bits // 8
    assert target.register_tile(DType.FLOAT32) == tile


def test_every_named_target_is_tested() -> None:
    assert len(target_names()) == 7


def test_features() -> None:
    assert not named_target("x86-64").has_fma
    assert not named_target("x86-64-v2").has_half_conversion
    assert named_target("x86-64-v3").has("avx2")
    assert not named_target("x86-64-v3").has("avx512f")
    assert named_target("aarch64-neon").has_fma


def test_keys_tell_targets_apart() -> None:
    keys = {named_target(name).key for name in target_names() if name != "host"}
    assert len(keys) == 6
    other = dataclasses.replace(named_target("x86-64"), cpu="znver3")
    assert other.key != named_target("x86-64").key
    known = dataclasses.replace(named_target("x86-64"), cache_bytes=(1 << 15,))
    assert known.key == named_target("x86-64").key  # the same code


def test_unknown_target() -> None:
    with pytest.raises(TargetError, match="there is no target 'z80'") as caught:
        named_target("z80")
    assert "x86-64-v3" in caught.value.hint
