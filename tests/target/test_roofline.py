"""The roofline: the one place where amounts of work become seconds."""

from __future__ import annotations

import pytest

from graft.target.machine import MACHINES, Machine
from graft.target.roofline import Roofline, cache_roofline, memory_roofline


def test_the_longer_of_arithmetic_and_traffic() -> None:
    device = Roofline(flops=100.0, bytes=10.0)
    assert device.seconds(200, 10) == 2.0
    assert device.seconds(100, 50) == 5.0
    assert device.seconds(0, 0) == 0.0
    assert device.scaled(4).seconds(100, 50) == 1.25


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_machines(machine: Machine) -> None:
    memory, cache = memory_roofline(machine), cache_roofline(machine)
    assert memory.flops == cache.flops == machine.peak_flops
    assert 0 < memory.bytes == machine.memory_bytes_per_second < cache.bytes
