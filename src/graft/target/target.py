"""The machine that code is made for.

In goes a name such as `x86-64-v3`, or nothing for this machine; out comes a `Target`: what LLVM
needs to know (triple, processor, features) and what schedules need to know (vector width,
registers, caches). Nothing else in Graft asks which machine it runs on.

Code relies on the features of its target and on nothing else: the processor's name only says how
to order instructions. So a file that was compiled on one machine runs on every other one that has
these features.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.target.machine import MACHINES, Machine

HOST = "host"
CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


class TargetError(UserError):
    """A target that nobody knows, or that cannot do what is asked."""


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
    def baseline(self) -> str:
        """LLVM's name for the least processor of the architecture."""
        return "x86-64" if self.is_x86 else "generic"

    def has(self, feature: str) -> bool:
        """Whether code may rely on a feature, by LLVM's name for it."""
        return feature in self.features

    @property
    def has_fma(self) -> bool:
        return self.is_aarch64 or self.has("fma") or self.has("avx512f")

    @property
    def has_half_conversion(self) -> bool:
        """Whether float16 and float32 convert into each other by an instruction."""
        return self.is_aarch64 or self.has("f16c") or self.has("avx512f")

    @property
    def feature_text(self) -> str:
        """The features in the form that LLVM reads."""
        return ",".join(f"+{feature}" for feature in self.features)

    @property
    def key(self) -> str:
        """A hash of all that changes the code made for the target."""
        parts = (self.triple, self.cpu, self.feature_text, str(self.vector_bits))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def lanes(self, dtype: DType) -> int:
        """How many elements one vector register holds; at least one."""
        return max(1, self.vector_bits // max(dtype.bits, 8))

    def register_tile(self, dtype: DType) -> tuple[int, int]:
        """Rows and columns of the matrix product tile whose sums fill the registers.

        x86 multiplies by an element straight from memory, so one register beside a row of vectors
        is enough; NEON multiplies by a lane, so a register holds as many elements as it has lanes.
        """
        width = 3 if self.is_aarch64 else 2
        per_row = width + (1 / self.lanes(dtype) if self.is_aarch64 else 0)
        spare = self.vector_registers - width - (0 if self.is_aarch64 else 1)
        rows = max(1, int(spare / per_row))
        if rows % 2 and rows > 1:
            rows -= 1
        return rows, width * self.lanes(dtype)


_V1 = ("cmov", "cx8", "sse", "sse2")
_V2 = (*_V1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_NEON = ("fp-armv8", "neon")
_LINUX = "unknown-linux-gnu"

# What code for this machine may rely on where the machine has it: what pays in kernels. The rest
# (encryption, random numbers, odd extensions of one maker) would only tie files to fewer machines.
_WORTH_HAVING = {
    "x86_64": frozenset({*_V4, "avx512vnni", "avxvnni"}),
    "aarch64": frozenset({*_NEON, "lse"}),
}


@dataclass(frozen=True, slots=True)
class _Named:
    """A machine that has a name of its own."""

    summary: str
    architecture: str
    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    vector_registers: int
    machine: str  # stands for all that the name may mean


_NAMED = {
    "x86-64": _Named("any 64-bit x86", "x86_64", "x86-64", _V1, 128, 16, "nehalem"),
    "x86-64-v2": _Named("SSE4.2: since about 2009", "x86_64", "x86-64-v2", _V2, 128, 16, "nehalem"),
    "x86-64-v3": _Named("AVX2: since about 2013", "x86_64", "x86-64-v3", _V3, 256, 16, "haswell"),
    "x86-64-v4": _Named(
        "AVX-512: most servers", "x86_64", "x86-64-v4", _V4, 512, 32, "icelake-server"
    ),
    "aarch64": _Named("NEON: any 64-bit Arm", "aarch64", "generic", _NEON, 128, 32, "neoverse-n1"),
}
_PLAIN = {"x86_64": "x86-64", "aarch64": "aarch64"}


def known_targets() -> dict[str, str]:
    """The names that `named_target` knows, each with a few words about it."""
    own = {HOST: "this machine", "plain": "any machine of this one's architecture"}
    return own | {name: machine.summary for name, machine in _NAMED.items()}


def named_target(name: str) -> Target:
    """The target of that name."""
    if name == HOST:
        return host_target()
    if name == "plain":
        return named_target(_PLAIN[host_target().architecture])
    if name not in _NAMED:
        known = ", ".join(known_targets())
        raise TargetError(f"there is no machine '{name}'", hint=f"known machines: {known}")
    machine = _NAMED[name]
    return Target(
        name,
        f"{machine.architecture}-{_LINUX}",
        machine.cpu,
        tuple(sorted(machine.features)),
        machine.vector_bits,
        machine.vector_registers,
        MACHINES[machine.machine],
    )


@cache
def host_target() -> Target:
    """This machine, its features detected."""
    triple = llvm.get_process_triple()
    architecture = triple.split("-")[0]
    if architecture not in _WORTH_HAVING:
        raise TargetError(f"Graft makes no code for {architecture}, the machine it runs on")
    detected = llvm.get_host_cpu_features()
    features = {name for name in _WORTH_HAVING[architecture] if detected.get(name)}
    bits, registers = _vectors(architecture, features)
    cpu = llvm.get_host_cpu_name()
    machine = _with_cache_sizes(_machine_of(cpu, architecture, bits), _cache_sizes())
    return Target(HOST, triple, cpu, tuple(sorted(features)), bits, registers, machine)


def _machine_of(cpu: str, architecture: str, bits: int) -> Machine:
    """The numbers of a microarchitecture, or of a typical one where the table lacks it."""
    typical = {512: "icelake-server", 256: "haswell", 128: "nehalem"}
    name = typical[bits] if architecture == "x86_64" else "neoverse-n1"
    machine = MACHINES.get(cpu, MACHINES[name])
    return machine if machine.vector_bits == bits else MACHINES[name]


def _with_cache_sizes(machine: Machine, sizes: tuple[int, ...]) -> Machine:
    """The machine with the sizes that the system tells of its caches."""
    pairs = zip(machine.caches, sizes, strict=False)
    caches = tuple(replace(cache, size=size) for cache, size in pairs)
    return replace(machine, caches=caches + machine.caches[len(caches) :])


def _vectors(architecture: str, features: set[str]) -> tuple[int, int]:
    """Bits and number of the vector registers."""
    if architecture == "aarch64":
        return 128, 32
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= features:
        return 512, 32
    return (256 if "avx2" in features else 128), 16


def _cache_sizes() -> tuple[int, ...]:
    """Sizes of this processor's data caches, where the system tells."""
    sizes = {}
    for folder in sorted(CACHE_FOLDER.glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            level = int((folder / "level").read_text())
            text = (folder / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
            sizes[level] = int(text.rstrip("KM")) * scale
    return tuple(size for _, size in sorted(sizes.items()))
