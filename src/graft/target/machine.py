"""Processor cores in numbers: what schedules, algorithms and predictions are derived from.

A microarchitecture's name enters; a `Machine` leaves: how many vector multiply-adds, loads and
stores a core does in a cycle, how long a multiply-add takes, and how fast each level of its memory
is. The table holds what vendors' optimisation guides and public measurements say; on the machine
at hand, calibration replaces what it can measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """A data cache: its size, what one core sustains from it, and the cores that share it."""

    size: int  # bytes
    bytes_per_cycle: float  # into the next level up, one core, streaming reads
    shared_by: int = 1  # cores


@dataclass(frozen=True, slots=True)
class Machine:
    """One core, its caches and its share of memory. Vectors are of the width that code uses."""

    name: str
    vector_bits: int
    vector_fmas: float  # multiply-adds of a vector per cycle
    fma_latency: int  # cycles until a sum can be added to again
    vector_loads: float  # per cycle from the first cache
    vector_stores: float  # per cycle
    gigahertz: float  # sustained under vector load
    caches: tuple[CacheLevel, ...]  # from the nearest on
    memory_bytes_per_cycle: float  # one core alone
    halves: int = 1  # in how many passes a unit does a vector: 2 where units are half as wide

    @classmethod
    def from_json(cls, described: dict[str, Any]) -> Machine:
        """The machine that `dataclasses.asdict` has made plain values of."""
        caches = tuple(CacheLevel(**cache) for cache in described["caches"])
        return cls(**(described | {"caches": caches}))

    def fmas(self, bits: int) -> float:
        """Multiply-adds per cycle of vectors that may be narrower: no faster than one pass each."""
        return self.vector_fmas * min(self.halves, self.vector_bits / bits)

    @property
    def broadcasts(self) -> float:
        """Loads of one element into all lanes per cycle: an element needs one pass only."""
        return self.vector_loads * self.halves

    @property
    def accumulators(self) -> int:
        """Independent sums that keep the multiply-add units busy."""
        return math.ceil(self.vector_fmas * self.fma_latency)

    @property
    def peak_flops(self) -> float:
        """float32 operations per second of one core."""
        return 2 * self.vector_fmas * (self.vector_bits / 32) * self.gigahertz * 1e9


def _intel(name: str, l1: int, l2: int, l3: int, gigahertz: float) -> Machine:
    """A Xeon with two 512-bit multiply-add units; `l3` is a core's slice in KiB."""
    caches = (
        CacheLevel(l1 * KIB, 128),
        CacheLevel(l2 * KIB, 40),
        CacheLevel(16 * l3 * KIB, 10, shared_by=16),
    )
    return Machine(name, 512, 2, 4, 2, 1, gigahertz, caches, 4)


def _amd(
    name: str, bits: int, fmas: float, latency: int, loads: float, l1: int, l2: int
) -> Machine:
    """A Zen core; eight share 32 MiB of last cache."""
    caches = (
        CacheLevel(l1 * KIB, loads * bits / 8),
        CacheLevel(l2 * KIB, 32),
        CacheLevel(32 * MIB, 16, shared_by=8),
    )
    halves = 2 if name == "znver4" else 1
    return Machine(name, bits, fmas, latency, loads, loads / 2, 3.3, caches, 8, halves)


def _arm(
    name: str, fmas: float, loads: float, l1: int, l2: int, l3: int, gigahertz: float
) -> Machine:
    """An Arm core with 128-bit NEON units; caches in KiB."""
    caches = (
        CacheLevel(l1 * KIB, loads * 16),
        CacheLevel(l2 * KIB, 16 * min(loads, 2)),
        CacheLevel(l3 * KIB, 10, shared_by=8),
    )
    return Machine(name, 128, fmas, 4, loads, max(1, loads / 2), gigahertz, caches, 6)


_TABLE = (
    _amd("znver2", 256, 2, 5, 2, 32, 512),
    _amd("znver3", 256, 2, 4, 2, 32, 512),
    _amd("znver4", 512, 1, 4, 1, 32, 1024),
    _amd("znver5", 512, 2, 4, 2, 48, 1024),
    _intel("skylake-avx512", 32, 1024, 1408, 2.6),
    _intel("cascadelake", 32, 1024, 1408, 2.8),
    _intel("icelake-server", 48, 1280, 1536, 2.6),
    _intel("sapphirerapids", 48, 2048, 1920, 2.8),
    Machine(
        "haswell",
        *(256, 2, 5, 2, 1, 2.8),
        (CacheLevel(32 * KIB, 64), CacheLevel(256 * KIB, 28), CacheLevel(20 * MIB, 12, 8)),
        5,
    ),
    Machine(
        "alderlake",
        *(256, 2, 4, 3, 2, 4.0),
        (CacheLevel(48 * KIB, 96), CacheLevel(1280 * KIB, 40), CacheLevel(30 * MIB, 12, 8)),
        6,
    ),
    Machine(
        "nehalem",
        *(128, 1, 8, 1, 1, 2.6),
        (CacheLevel(32 * KIB, 16), CacheLevel(256 * KIB, 12), CacheLevel(8 * MIB, 6, 4)),
        3,
    ),
    _arm("neoverse-n1", 2, 2, 64, 1024, 32 * 1024, 2.5),
    _arm("neoverse-v1", 4, 3, 64, 1024, 32 * 1024, 2.6),
    _arm("neoverse-v2", 4, 3, 64, 2048, 64 * 1024, 2.8),
    _arm("cortex-a55", 1, 0.5, 32, 128, 1024, 1.8),
    _arm("cortex-a76", 2, 2, 64, 512, 4096, 2.4),
    _arm("apple-m1", 4, 3, 128, 3072, 8192, 3.2),
)
MACHINES = {machine.name: machine for machine in _TABLE}
