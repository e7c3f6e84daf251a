"""The machine that code is made for.

In goes nothing (this machine) or a name such as `x86-64-v3`; out comes a `Target`: what LLVM needs
to know (triple, processor, features) and what schedules need to know (vector width, registers,
caches). Nothing else in Graft asks which machine it runs on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from graft.base.dtypes import DType
from graft.base.errors import UserError

CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


class TargetError(UserError):
    """A target that nobody knows, or that cannot do what is asked."""


@dataclass(frozen=True, slots=True)
class Target:
    """A processor as code generation sees it."""

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...]  # those it has, by LLVM's names, sorted
    vector_bits: int
    vector_registers: int
    cache_bytes: tuple[int, ...] = ()  # data caches from the nearest on; empty if not known

    @property
    def architecture(self) -> str:
        return self.triple.split("-")[0]

    @property
    def is_x86(self) -> bool:
        return self.architecture == "x86_64"

    @property
    def is_aarch64(self) -> bool:
        return self.architecture in ("aarch64", "arm64")

    def has(self, feature: str) -> bool:
        """Whether the processor has a feature, by LLVM's name for it."""
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


_V1 = ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_V2 = (*_V1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_LINUX = "unknown-linux-gnu"

# Name -> architecture, processor, features, bits and number of vector registers.
_NAMED: dict[str, tuple[str, str, tuple[str, ...], int, int]] = {
    "x86-64": ("x86_64", "x86-64", _V1, 128, 16),
    "x86-64-v2": ("x86_64", "x86-64-v2", _V2, 128, 16),
    "x86-64-v3": ("x86_64", "x86-64-v3", _V3, 256, 16),
    "x86-64-v4": ("x86_64", "x86-64-v4", _V4, 512, 32),
    "aarch64-neon": ("aarch64", "generic", ("fp-armv8", "neon"), 128, 32),
    "aarch64-neon-v8.6": (
        "aarch64",
        "generic",
        ("bf16", "dotprod", "fp-armv8", "fullfp16", "i8mm", "lse", "neon", "rcpc", "v8.6a"),
        128,
        32,
    ),
}


def target_names() -> list[str]:
    """The names that `named_target` knows."""
    return ["host", *_NAMED]


def named_target(name: str) -> Target:
    """The target of that name; `host` is this machine."""
    if name == "host":
        return host_target()
    if name not in _NAMED:
        known = ", ".join(target_names())
        raise TargetError(f"there is no target '{name}'", hint=f"known targets: {known}")
    architecture, cpu, features, bits, registers = _NAMED[name]
    triple = f"{architecture}-{_LINUX}"
    return Target(name, triple, cpu, tuple(sorted(features)), bits, registers)


@cache
def host_target() -> Target:
    """This machine, its features detected."""
    triple = llvm.get_process_triple()
    detected = llvm.get_host_cpu_features()
    features = tuple(sorted(name for name, present in detected.items() if present))
    bits, registers = _vectors(triple.split("-")[0], features)
    cpu = llvm.get_host_cpu_name()
    return Target("host", triple, cpu, features, bits, registers, _cache_sizes())


def _vectors(architecture: str, features: tuple[str, ...]) -> tuple[int, int]:
    """Bits and number of the vector registers."""
    if architecture == "x86_64":
        if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= set(features):
            return 512, 32
        return (256 if "avx2" in features else 128), 16
    if architecture in ("aarch64", "arm64"):
        return 128, 32
    raise TargetError(f"Graft makes no code for {architecture}, the machine it runs on")


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
