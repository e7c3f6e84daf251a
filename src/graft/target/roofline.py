"""The roofline: the least time in which a device does some work, from two of its peak rates.

Operations and bytes moved enter, seconds leave (Williams, Waterman, Patterson: CACM 52(4), 2009).
Everything in Graft that estimates time from amounts of work does it here, with the rates of a
`Machine` or with those that a backend declares.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.target.machine import Machine


@dataclass(frozen=True, slots=True)
class Roofline:
    """Operations and bytes per second that a device sustains at best."""

    flops: float
    bytes: float

    def seconds(self, flops: float, moved: float) -> float:
        """What arithmetic or traffic takes, whichever is longer: they overlap."""
        return max(flops / self.flops, moved / self.bytes)

    def scaled(self, factor: float) -> Roofline:
        """The roofline of so many such devices, or of a share of one."""
        return Roofline(self.flops * factor, self.bytes * factor)


def memory_roofline(machine: Machine) -> Roofline:
    """Of one core that works on tensors in memory."""
    return Roofline(machine.peak_flops, machine.memory_bytes_per_second)


def cache_roofline(machine: Machine) -> Roofline:
    """Of one core that works on tensors which its second cache holds, or its only one."""
    level = machine.caches[min(1, len(machine.caches) - 1)]
    return Roofline(machine.peak_flops, level.bytes_per_cycle * machine.gigahertz * 1e9)
