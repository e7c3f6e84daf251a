"""This machine's rates as they are, for predictions: a calibrated target in, one with them out.

Calibration rounds rates, so that schedules are the same each time, and reads twice the last cache
to measure memory, of which a third still comes from there. A prediction that is set beside a
measurement needs neither.
"""

from __future__ import annotations

from dataclasses import replace

from graft.target.machine import MIB
from graft.target.probe import Probes
from graft.target.target import Target

_FAR = 256 * MIB  # to read, of which no cache holds a part worth mentioning


def with_measured_rates(target: Target) -> Target:
    """The target with its caches' and its memory's bytes per cycle as just measured."""
    machine = target.machine
    probes = Probes(target.features, True, machine.vector_bits, target.vector_registers)
    clock = machine.gigahertz * 1e9
    near, *levels = machine.caches
    caches = [near]
    for level in levels:
        size = 1 << (min(level.size // 2, 4 * caches[-1].size).bit_length() - 1)
        rate = min(probes.read_bandwidth(size) / clock, caches[-1].bytes_per_cycle)
        caches.append(replace(level, bytes_per_cycle=rate))
    memory = min(probes.read_bandwidth(_FAR) / clock, caches[-1].bytes_per_cycle)
    measured = replace(machine, caches=tuple(caches), memory_bytes_per_cycle=memory)
    return replace(target, machine=measured)
