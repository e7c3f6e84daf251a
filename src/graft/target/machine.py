"""Processor cores in numbers: what schedules, algorithms and predictions are derived from.

A microarchitecture's name enters; a `Machine` leaves: how many vector multiply-adds, loads and
stores a core does in a cycle, how long a multiply-add takes, and how fast each level of its memory
is. On the machine at hand, calibration (`calibrate.py`) replaces what it can measure.

Where the table's numbers come from: multiply-adds, loads, stores and their latency from uops.info
and Agner Fog's instruction tables (x86) and from Arm's software optimisation guides (Neoverse,
Cortex); cache sizes and sharing from the vendors' manuals, for the server part most in use where
parts differ. Bytes per cycle are what one core sustains in public streaming-read measurements
(about three quarters of what the vendor names as the peak of a cache), and gigahertz is what all
cores sustain under vector load; both vary by part and are the least certain. What passes between
cores follows from the time of a message (`_MESSAGES`), which is published for many processors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
TYPICAL_CORES = 8  # that schedules are made for where nobody knows how many there are
MOST_CORES = 16  # that schedules are made for; more share kernels all the same
LINE_BYTES = 64  # that move between caches at a time, on all machines of the table


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
    summary: str  # what people call it
    level: str  # of the instruction set, as `target.LEVELS` has it
    extensions: tuple[str, ...] = ()  # features beyond that level, by LLVM's names
    passes: int = 1  # of a unit for one vector: 2 where units are half as wide
    fills_beside_loads: bool = True  # whether the first cache is filled while it is read
    adds_beside_fmas: bool = False  # whether additions have units beside the multiply-adds'
    cores: int = TYPICAL_CORES  # that share a kernel
    # What passes between cores. A thread that sleeps is woken by a system call, an interrupt and a
    # core that leaves its idle state, which is mostly the system's doing: 20 µs in virtual machines
    # of two kinds, and C1E alone takes up to 10 (Linux's intel_idle.c).
    calling_seconds: float = 20e-6  # until threads that sleep have joined
    meeting_seconds: float = 0.15e-6  # in which threads meet after a kernel
    crossing_bytes_per_cycle: float = 8  # read of data that another core has written and still has

    @classmethod
    def from_json(cls, described: dict[str, Any]) -> Machine:
        """The machine that `dataclasses.asdict` has made plain values of."""
        caches = tuple(CacheLevel(**cache) for cache in described["caches"])
        extensions = tuple(described["extensions"])
        return cls(**(described | {"caches": caches, "extensions": extensions}))

    def with_vectors(self, bits: int) -> Machine:
        """The core as code sees it that uses vectors of so many bits, or fewer: units that need
        several passes for whole vectors need fewer for those."""
        faster = min(self.passes, max(1, self.vector_bits // bits))
        return replace(
            self,
            vector_bits=bits,
            vector_fmas=self.vector_fmas * faster,
            vector_loads=self.vector_loads * faster,
            vector_stores=self.vector_stores * faster,
            passes=self.passes // faster,
        )

    @property
    def broadcasts(self) -> float:
        """Loads of one element into all lanes per cycle: an element needs one pass only."""
        return self.vector_loads * self.passes

    @property
    def asks_before_stores(self) -> bool:
        """Whether lines are asked for before they are written, to be there by then.

        On an Ice Lake core, 64 to 256 channels at 56 x 56 took 41 cycles for each line of the
        result, where arithmetic takes 32: a tile's stores come in a burst, which the code waits
        for. Zen 4 has no such waits: Winograd's algorithm for 256 and 512 channels took 5 to 10 %
        longer when it asked, and other layers as long as before."""
        return not self.fills_beside_loads

    @property
    def accumulators(self) -> int:
        """Independent sums that keep the multiply-add units busy."""
        return math.ceil(self.vector_fmas * self.fma_latency)

    @property
    def team(self) -> int:
        """Threads that kernels are scheduled for: at least two, since programs are copied to other
        machines."""
        return max(2, self.cores)

    @property
    def meeting_cycles(self) -> float:
        """Cycles in which threads meet between two kernels."""
        return self.meeting_seconds * self.gigahertz * 1e9

    @property
    def vector_operations(self) -> float:
        """Arithmetic instructions of a vector per cycle, of which some are no multiply-adds."""
        return self.vector_fmas * (2 if self.adds_beside_fmas else 1)

    @property
    def peak_flops(self) -> float:
        """float32 operations per second of one core."""
        return 2 * self.vector_fmas * (self.vector_bits / 32) * self.gigahertz * 1e9

    @property
    def memory_bytes_per_second(self) -> float:
        """What one core alone reads from memory."""
        return self.memory_bytes_per_cycle * self.gigahertz * 1e9


_AVX2, _AVX512, _NEON = "x86-64-v3", "x86-64-v4", "aarch64"
# What Ice Lake added for bytes, which Zen has since its fourth generation.
_ICE_LAKE = ("avx512vbmi", "avx512vnni")


def _xeon(
    name: str, summary: str, l1: int, l2: int, l3: int, gigahertz: float, *extensions: str
) -> Machine:
    """A Xeon with two 512-bit multiply-add units; caches in KiB, `l3` a core's slice of many.

    The first cache is read or filled, but not both in a cycle, and transfers between its levels
    follow one another (the execution-cache-memory model: Stengel, Treibig, Hager, Wellein: ICS
    2015). With 64 bytes a cycle from the second cache and 10 from the last, that gives the
    speeds of five register tiles on an Ice Lake core to within a tenth. kerncraft's machine files
    have 44 and 9.6 bytes a cycle for 512-bit loads of a Cascade Lake core (Xeon Gold 6248), 45 and
    10.1 on Skylake (6148), and 5.2 to 6.3 from memory. Ice Lake and later store two vectors a cycle
    only where they are of 256 bits.
    """
    caches = (
        CacheLevel(l1 * KIB, 128),
        CacheLevel(l2 * KIB, 64),
        CacheLevel(16 * l3 * KIB, 10, shared_by=16),
    )
    return Machine(
        *(name, 512, 2, 4, 2, 1, gigahertz, caches, 5, summary, _AVX512, extensions),
        fills_beside_loads=False,
    )


def _zen(
    number: int, bits: int, fmas: float, latency: int, loads: float, l1: int, l2: int, ghz: float
) -> Machine:
    """A Zen core; caches in KiB.

    Zen 4 does each 512-bit instruction in two halves of 256: one multiply-add, one load and half a
    store a cycle. Zen 5 is taken as its servers are, with units of the full width.
    """
    cluster = CacheLevel(16 * MIB, 16, 4) if number == 2 else CacheLevel(32 * MIB, 20, 8)
    caches = (
        CacheLevel(l1 * KIB, loads * bits / 8),
        CacheLevel(l2 * KIB, 48 if number >= 5 else 28),
        cluster,
    )
    level, extensions = (_AVX512, _ICE_LAKE) if bits == 512 else (_AVX2, ())
    return Machine(
        f"znver{number}",
        *(bits, fmas, latency, loads, loads / 2, ghz, caches, 8),
        f"AMD Zen {number}",
        level,
        extensions,
        passes=2 if number == 4 else 1,
        adds_beside_fmas=True,
    )


def _arm(
    name: str,
    summary: str,
    rates: tuple[float, int, float, float],  # multiply-adds, their latency, loads, stores
    caches: tuple[CacheLevel, ...],
    gigahertz: float,
    memory: float,
    *extensions: str,
) -> Machine:
    """An Arm core with 128-bit NEON units, which has dot products of bytes.

    Arm's own larger cores forward a sum to the next multiply-add that adds to it, so that sums
    take two cycles where the instruction takes four.
    """
    names = ("dotprod", "lse", *extensions)
    return Machine(name, 128, *rates, gigahertz, caches, memory, summary, _NEON, names)


def _caches(*levels: tuple[int, float, int]) -> tuple[CacheLevel, ...]:
    """Levels as KiB, bytes per cycle and cores."""
    return tuple(CacheLevel(size * KIB, rate, cores) for size, rate, cores in levels)


_TABLE = (
    Machine(
        "nehalem",
        *(128, 1, 3, 1, 1, 2.6, _caches((32, 16, 1), (256, 12, 1), (8192, 6, 4)), 3),
        "Intel Nehalem, without multiply-add instructions",
        "x86-64-v2",
        adds_beside_fmas=True,
    ),
    Machine(
        "haswell",
        *(256, 2, 5, 2, 1, 2.8, _caches((32, 64, 1), (256, 28, 1), (20480, 12, 8)), 5),
        "Intel Haswell and Broadwell",
        _AVX2,
    ),
    Machine(
        "skylake",
        *(256, 2, 4, 2, 1, 3.6, _caches((32, 64, 1), (256, 32, 1), (8192, 14, 4)), 6),
        "Intel Skylake without AVX-512",
        _AVX2,
    ),
    _xeon("skylake-avx512", "Intel Skylake-X", 32, 1024, 1408, 2.4),
    _xeon("cascadelake", "Intel Cascade Lake", 32, 1024, 1408, 2.6, "avx512vnni"),
    _xeon("icelake-server", "Intel Ice Lake SP", 48, 1280, 1536, 2.6, *_ICE_LAKE),
    _xeon("sapphirerapids", "Intel Sapphire Rapids", 48, 2048, 1920, 2.8, *_ICE_LAKE, "avxvnni"),
    Machine(
        "alderlake",
        *(256, 2, 4, 3, 2, 4.2, _caches((48, 96, 1), (1280, 48, 1), (30720, 14, 8)), 8),
        "Intel Alder Lake, its performance cores",
        _AVX2,
        ("avxvnni",),
    ),
    _zen(2, 256, 2, 5, 2, 32, 512, 3.0),
    _zen(3, 256, 2, 4, 2, 32, 512, 3.4),
    _zen(4, 512, 1, 4, 1, 32, 1024, 3.6),
    _zen(5, 512, 2, 4, 2, 48, 1024, 3.7),
    _arm(
        "neoverse-n1",
        "Arm Neoverse N1 (Graviton 2, Ampere Altra)",
        (2, 2, 2, 1),
        _caches((64, 32, 1), (1024, 20, 1), (32768, 8, 64)),
        2.5,
        5,
    ),
    _arm(
        "neoverse-v1",
        "Arm Neoverse V1 (Graviton 3)",
        (4, 2, 3, 2),
        _caches((64, 48, 1), (1024, 32, 1), (32768, 10, 64)),
        2.6,
        8,
        "i8mm",
    ),
    _arm(
        "neoverse-v2",
        "Arm Neoverse V2 (Graviton 4, Grace)",
        (4, 2, 3, 2),
        _caches((64, 48, 1), (2048, 40, 1), (36864, 12, 96)),
        2.8,
        8,
        "i8mm",
    ),
    # Two pipes of 64 bits: a vector multiply-add a cycle, a vector load in two.
    _arm(
        "cortex-a55",
        "Arm Cortex-A55",
        (1, 4, 0.5, 1),
        _caches((32, 8, 1), (128, 6, 1), (1024, 4, 4)),
        1.8,
        2,
    ),
    _arm(
        "cortex-a76",
        "Arm Cortex-A76",
        (2, 2, 2, 1),
        _caches((64, 32, 1), (512, 20, 1), (4096, 8, 4)),
        2.4,
        5,
    ),
    _arm(
        "apple-m1",
        "Apple M1 Pro, its performance cores",
        (4, 4, 3, 2),
        _caches((128, 48, 1), (12288, 24, 4), (24576, 16, 8)),
        3.2,
        18,
    ),
)

# Nanoseconds of a message from one core to another: medians over pairs of cores of a socket, as
# github.com/nviennot/core-to-core-latency has them (two threads compare and exchange one word). Of
# those that it lacks, Sapphire Rapids is taken for Ice Lake, Zen 5 for Zen 4, Neoverse V2 for V1,
# Nehalem for Broadwell, and the cores of phones for Neoverse N1.
_MESSAGES = {
    "nehalem": 44,
    "haswell": 44,
    "skylake": 20,
    "alderlake": 35,
    "skylake-avx512": 47,
    "cascadelake": 47,
    "icelake-server": 51,
    "sapphirerapids": 51,
    "znver2": 94,
    "znver3": 115,
    "znver4": 68,
    "znver5": 68,
    "neoverse-n1": 47,
    "neoverse-v1": 46,
    "neoverse-v2": 46,
    "cortex-a55": 47,
    "cortex-a76": 47,
    "apple-m1": 145,
}
# Messages until the last thread at a barrier and one that waits have met: the word that counts
# arrivals comes to the last one, the word that lets all pass goes there and comes back.
_TO_MEET = 3
# Lines that a core waits for at once beyond its second cache: 48 on Intel's servers since Skylake
# and on Zen 3, 46 on Neoverse N1.
_IN_FLIGHT = 48


def _between_cores(machine: Machine) -> Machine:
    """With the numbers that follow from the time of a message, by Little's law for many lines."""
    nanoseconds = _MESSAGES[machine.name]
    asking = nanoseconds * machine.gigahertz / _IN_FLIGHT  # cycles for each of many lines
    last = machine.caches[-1].bytes_per_cycle
    return replace(
        machine,
        meeting_seconds=_TO_MEET * nanoseconds * 1e-9,
        crossing_bytes_per_cycle=1 / (1 / last + asking / LINE_BYTES),
    )


MACHINES = {machine.name: _between_cores(machine) for machine in _TABLE}

# Processors with the same numbers as one in the table, by LLVM's names.
_ALIKE = {
    "broadwell": "haswell",
    "cooperlake": "cascadelake",
    "emeraldrapids": "sapphirerapids",
    "graniterapids": "sapphirerapids",
    "raptorlake": "alderlake",
    "meteorlake": "alderlake",
    "arrowlake": "alderlake",
    "znver1": "znver2",
    "westmere": "nehalem",
    "neoverse-n2": "neoverse-n1",
    "neoverse-512tvb": "neoverse-v1",
    "cortex-a77": "cortex-a76",
    "cortex-a78": "cortex-a76",
    "cortex-a53": "cortex-a55",
    "apple-m2": "apple-m1",
    "apple-m3": "apple-m1",
}
# What stands for processors that the table lacks, by architecture and vector width.
_TYPICAL = {
    ("x86_64", 512): "icelake-server",
    ("x86_64", 256): "haswell",
    ("x86_64", 128): "nehalem",
    ("aarch64", 128): "neoverse-n1",
}


def closest_machine(cpu: str, architecture: str, vector_bits: int) -> Machine:
    """The numbers of a processor by LLVM's name for it, or of a typical one of its width."""
    machine = MACHINES.get(_ALIKE.get(cpu, cpu))
    if machine is None or machine.vector_bits != vector_bits:
        machine = MACHINES[_TYPICAL[architecture, vector_bits]]
    return machine
