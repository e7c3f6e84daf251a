"""The machine that code is made for.

In goes the name of an instruction set level (`x86-64-v3`) or of a microarchitecture
(`icelake-server`), or nothing for this machine; out comes a `Target`: what LLVM needs to know
(triple, processor, features) and what schedules need to know (vector width, registers, the
`Machine`). Nothing else in Graft asks which machine it runs on.

Code relies on the features of its target and on nothing else: the processor's name only says how
to order instructions. So a file that was compiled on one machine runs on every other one that has
these features.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache

import llvmlite.binding as llvm

from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.target.calibrate import KnownMachine, calibrated, with_system_caches
from graft.target.machine import MACHINES, Machine, closest_machine

HOST = "host"


class TargetError(UserError):
    """An unknown target, or one that lacks what is required."""


@dataclass(frozen=True, slots=True)
class Target:
    """A processor as code generation sees it."""

    name: str
    triple: str
    cpu: str  # whose timing the code is tuned for
    features: tuple[str, ...]  # those the code relies on, by LLVM's names, sorted
    vector_bits: int
    vector_registers: int
    machine: Machine  # whose numbers schedules are derived from

    @property
    def cache_bytes(self) -> tuple[int, ...]:
        """Sizes of the data caches, from the nearest on."""
        return tuple(cache.size for cache in self.machine.caches)

    @property
    def architecture(self) -> str:
        return self.triple.split("-")[0]

    @property
    def is_x86(self) -> bool:
        return self.architecture == "x86_64"

    @property
    def is_aarch64(self) -> bool:
        return self.architecture == "aarch64"

    @property
    def is_gpu(self) -> bool:
        return self.architecture == "nvptx64"

    @property
    def is_hexagon(self) -> bool:
        return self.architecture == "hexagon"

    @property
    def baseline(self) -> str:
        """LLVM's name for the least processor of the architecture."""
        if self.is_gpu or self.is_hexagon:
            return self.cpu
        return "x86-64" if self.is_x86 else "generic"

    def has(self, feature: str) -> bool:
        """Whether code may rely on a feature, by LLVM's name for it."""
        return feature in self.features

    @property
    def has_fma(self) -> bool:
        always = self.is_aarch64 or self.is_gpu or self.is_hexagon
        return always or self.has("fma") or self.has("avx512f")

    @property
    def has_half_conversion(self) -> bool:
        """Whether float16 and float32 convert into each other by an instruction."""
        return self.is_aarch64 or self.is_gpu or self.has("f16c") or self.has("avx512f")

    @property
    def feature_text(self) -> str:
        """The features in the form that LLVM reads."""
        return ",".join(f"+{feature}" for feature in self.features)

    @property
    def key(self) -> str:
        """A hash of all that changes the code made for the target."""
        parts = (self.triple, self.cpu, self.feature_text, str(self.vector_bits))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def shared_by(self, threads: int) -> Target:
        """The target with kernels scheduled for so many threads, where it has as many cores."""
        cores = min(threads, self.machine.cores)
        return replace(self, machine=replace(self.machine, cores=cores))

    def lanes(self, dtype: DType) -> int:
        """How many elements one vector register holds; at least one."""
        return max(1, self.vector_bits // max(dtype.bits, 8))

    def has_masks(self, dtype: DType) -> bool:
        """Whether some lanes of a vector are read or written by one instruction."""
        if self.has("avx512bw"):
            return True
        return self.has("avx2") and dtype.bits >= 32

    def multiplies_bytes(self, lanes: int) -> bool:
        """Whether one instruction adds four products of bytes to each of so many int32."""
        bits = 32 * lanes
        if self.is_aarch64:
            return bits == self.vector_bits and self.has("i8mm")
        if bits == 512:
            return self.has("avx512vnni")
        is_short = self.has("avxvnni") or (self.has("avx512vnni") and self.has("avx512vl"))
        return bits in (128, 256) and is_short

    def product_instructions(self, dtype: DType, lanes: int) -> int:
        """Instructions that multiply so many words of int8 or int16 and add them to int32."""
        if self.multiplies_bytes(lanes) and (self.is_x86 or dtype is DType.INT8):
            return 1
        if self.is_aarch64:
            return 2 if self.has("dotprod") and dtype is DType.INT8 else 2 * (32 // dtype.bits)
        return 2 * (16 // dtype.bits)  # `pmaddwd`, and an addition


_V1 = ("cmov", "cx8", "sse", "sse2")
_V2 = (*_V1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_NEON = ("fp-armv8", "neon")
_LINUX = "unknown-linux-gnu"

# What code for this machine may rely on where the machine has it: what pays in kernels. The rest
# (encryption, random numbers, odd extensions of one maker) would only tie files to fewer machines.
_WORTH_HAVING = {
    "x86_64": frozenset({*_V4, "avx512bf16", "avx512vbmi", "avx512vnni", "avxvnni"}),
    "aarch64": frozenset({*_NEON, "dotprod", "i8mm", "lse"}),
}


@dataclass(frozen=True, slots=True)
class Level:
    """A level of an instruction set: what code may rely on, and a machine that stands for it."""

    summary: str
    architecture: str
    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    vector_registers: int
    typical: str  # whose numbers stand for all that the level may mean


LEVELS = {
    "x86-64": Level("any 64-bit x86", "x86_64", "x86-64", _V1, 128, 16, "nehalem"),
    "x86-64-v2": Level("SSE4.2: since about 2009", "x86_64", "x86-64-v2", _V2, 128, 16, "nehalem"),
    "x86-64-v3": Level("AVX2: since about 2013", "x86_64", "x86-64-v3", _V3, 256, 16, "haswell"),
    "x86-64-v4": Level(
        "AVX-512: most servers", "x86_64", "x86-64-v4", _V4, 512, 32, "icelake-server"
    ),
    "aarch64": Level("NEON: any 64-bit Arm", "aarch64", "generic", _NEON, 128, 32, "neoverse-n1"),
}
_PLAIN = {"x86_64": "x86-64", "aarch64": "aarch64"}


def known_targets() -> dict[str, str]:
    """The names that `named_target` knows, each with a few words about it."""
    own = {HOST: "this machine", "plain": "any machine of this one's architecture"}
    levels = {name: level.summary for name, level in LEVELS.items()}
    return own | levels | {name: machine.summary for name, machine in MACHINES.items()}


def named_target(name: str) -> Target:
    """The target of that name."""
    if name == HOST:
        return host_target()
    if name == "plain":
        return named_target(_PLAIN[_detect().architecture])
    if name in LEVELS:
        return _of_level(name, LEVELS[name], MACHINES[LEVELS[name].typical])
    if name in MACHINES:
        machine = MACHINES[name]
        level = LEVELS[machine.level]
        features = level.features + machine.extensions
        return _of_level(name, replace(level, cpu=name, features=features), machine)
    names = ", ".join(known_targets())
    raise TargetError(f"there is no machine '{name}'", hint=f"known machines: {names}")


def _of_level(name: str, level: Level, machine: Machine) -> Target:
    return Target(
        name,
        f"{level.architecture}-{_LINUX}",
        level.cpu,
        tuple(sorted(level.features)),
        level.vector_bits,
        level.vector_registers,
        machine,
    )


@cache
def host_target() -> Target:
    """This machine: features detected, numbers calibrated at the first call on it."""
    return replace(_detect(), machine=host_machine().machine)


@cache
def host_machine() -> KnownMachine:
    """This machine in numbers, and where each of them comes from."""
    target = _detect()
    described = with_system_caches(KnownMachine(target.machine))
    return calibrated(described, target.cpu, target.features, target.vector_registers)


@cache
def _detect() -> Target:
    """This machine's features, with the table's numbers."""
    triple = llvm.get_process_triple()
    architecture = triple.split("-")[0]
    if architecture not in _WORTH_HAVING:
        raise TargetError(f"Graft makes no code for {architecture}, the machine it runs on")
    detected = llvm.get_host_cpu_features()
    features = {name for name in _WORTH_HAVING[architecture] if detected.get(name)}
    bits, registers = _vectors(architecture, features)
    cpu = llvm.get_host_cpu_name()
    machine = closest_machine(cpu, architecture, bits)
    return Target(HOST, triple, cpu, tuple(sorted(features)), bits, registers, machine)


def _vectors(architecture: str, features: set[str]) -> tuple[int, int]:
    """Bits and number of the vector registers."""
    if architecture == "aarch64":
        return 128, 32
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= features:
        return 512, 32
    return (256 if "avx2" in features else 128), 16
