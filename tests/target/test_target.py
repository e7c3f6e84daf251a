"""Targets: detected, named, compared."""

from __future__ import annotations

import dataclasses
import json

import pytest

from graft.base.dtypes import DType
from graft.llvm.compile import assembly
from graft.llvm.emit import llvm_text
from graft.loop.ir import Buffer, Const, Function, Load, Ramp, Store
from graft.target.machine import MACHINES, Machine, closest_machine
from graft.target.target import LEVELS, TargetError, host_target, known_targets, named_target


def test_host_is_this_machine() -> None:
    host = host_target()
    assert host.vector_bits in (128, 256, 512)
    assert host.vector_registers in (16, 32)
    assert list(host.cache_bytes) == sorted(host.cache_bytes)
    assert named_target("host") == host


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("x86-64", 128),
        ("x86-64-v2", 128),
        ("x86-64-v3", 256),
        ("x86-64-v4", 512),
        ("aarch64", 128),
        ("znver3", 256),
        ("icelake-server", 512),
        ("neoverse-v1", 128),
    ],
)
def test_named_targets(name: str, bits: int) -> None:
    target = named_target(name)
    assert target.vector_bits == bits
    assert target.lanes(DType.FLOAT32) == bits // 32
    assert target.lanes(DType.BOOL) == bits // 8


def test_known_targets_are_this_machine_levels_and_microarchitectures() -> None:
    levels = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"]
    assert list(known_targets()) == ["host", "plain", *levels, *MACHINES]
    assert all(known_targets().values())


@pytest.mark.parametrize("name", MACHINES)
def test_microarchitectures_are_targets(name: str) -> None:
    target, machine = named_target(name), MACHINES[name]
    assert target.machine is machine
    assert target.cpu == name
    assert target.vector_bits == machine.vector_bits
    assert set(target.features) == {*LEVELS[machine.level].features, *machine.extensions}
    sizes = [cache.size for cache in machine.caches]
    rates = [cache.bytes_per_cycle for cache in machine.caches]
    assert sizes == sorted(sizes)
    assert [*rates, machine.memory_bytes_per_cycle] == sorted(
        [*rates, machine.memory_bytes_per_cycle], reverse=True
    ) or name == "apple-m1"  # whose memory is as fast as its last cache
    assert rates[0] <= machine.vector_loads * machine.vector_bits / 8
    assert machine == Machine.from_json(json.loads(json.dumps(dataclasses.asdict(machine))))


def test_levels_name_a_machine_of_their_width() -> None:
    for level in LEVELS.values():
        assert MACHINES[level.typical].vector_bits == level.vector_bits


def test_processors_outside_of_the_table_have_a_stand_in() -> None:
    assert closest_machine("znver3", "x86_64", 256).name == "znver3"
    assert closest_machine("emeraldrapids", "x86_64", 512).name == "sapphirerapids"
    assert closest_machine("sapphirerapids", "x86_64", 256).name == "haswell"  # AVX-512 is off
    assert closest_machine("abacus", "x86_64", 512).name == "icelake-server"
    assert closest_machine("abacus", "aarch64", 128).name == "neoverse-n1"


def test_features() -> None:
    assert not named_target("x86-64").has_fma
    assert not named_target("x86-64-v2").has_half_conversion
    assert named_target("x86-64-v3").has("avx2")
    assert not named_target("x86-64-v3").has("avx512f")
    assert named_target("aarch64").has_fma


def test_plain_is_the_least_machine_of_this_architecture() -> None:
    plain, host = named_target("plain"), host_target()
    assert plain.architecture == host.architecture
    assert set(plain.features) <= set(host.features)


def test_code_relies_on_nothing_that_does_not_pay_in_kernels() -> None:
    """A file for this machine shall run on others; nobody encrypts in a kernel."""
    others = {"aes", "sha", "rdrnd", "gfni", "prfchw", "sse4a", "crc", "64bit"}
    assert not others & set(host_target().features)


def test_llvm_gets_features_and_tuning_apart() -> None:
    host = dataclasses.replace(named_target("x86-64"), cpu="znver4")
    rows = [Buffer(name, DType.FLOAT32, (Const(16),)) for name in ("x", "y")]
    lanes = Ramp(Const(0), 1, 16)
    copy = Function("kernel", tuple(rows), Store(rows[1], (lanes,), Load(rows[0], (lanes,))))
    assert 'tune-cpu"="znver4"' in llvm_text(copy, host)
    text = assembly(copy, host)
    assert "movaps" in text
    assert "ymm" not in text
    assert "zmm" not in text


def test_keys_tell_targets_apart() -> None:
    keys = {named_target(name).key for name in known_targets() if name not in ("host", "plain")}
    assert len(keys) == len(known_targets()) - 2
    other = dataclasses.replace(named_target("x86-64"), cpu="znver3")
    assert other.key != named_target("x86-64").key
    known = dataclasses.replace(named_target("x86-64"), machine=MACHINES["haswell"])
    assert known.key == named_target("x86-64").key  # the same code


def test_kernels_are_scheduled_for_no_more_threads_than_there_are() -> None:
    target = named_target("znver5")
    assert target.shared_by(2).machine.cores == 2
    assert target.shared_by(1000) == target


def test_unknown_target() -> None:
    with pytest.raises(TargetError, match="there is no machine 'z80'") as caught:
        named_target("z80")
    assert "x86-64-v3" in caught.value.hint
