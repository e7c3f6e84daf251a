"""Simulated regions at run time: the host's code computes, the model's time is what counts.

The device has memory of its own: tensors get there and back by transfers only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.loaders import versioned
from graft.runtime.memory import aligned_empty
from graft.runtime.session import artifact_runner

_TIMES = struct.Struct("<dddd")

VERSION = "1"


@dataclass(frozen=True, slots=True)
class Timing:
    """What the model says about a region: its execution, its launch, and the bus before it."""

    seconds: float
    launch_seconds: float
    bus_latency: float
    bus_bandwidth: float


def pack(timing: Timing, code: bytes) -> bytes:
    """The simulated times of a region, and the code that computes it."""
    times = (timing.seconds, timing.launch_seconds, timing.bus_latency, timing.bus_bandwidth)
    return _TIMES.pack(*times) + code


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor on the device, out of reach of the host's kernels."""

    inside: Array = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bus:
    """The device's memory, and the way there."""

    latency: float
    bandwidth: float

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Memory:
        return Memory(aligned_empty(shape, dtype))

    def upload(self, array: Array, memory: Memory) -> None:
        np.copyto(memory.inside, array)

    def download(self, memory: Memory, array: Array) -> None:
        np.copyto(array, memory.inside)

    def transfer_seconds(self, size: int) -> float:
        """What so many bytes would take."""
        return self.latency + size / self.bandwidth


class Region:
    """A region on the simulated device. `seconds` is what a call takes there once launched."""

    simulated = True

    def __init__(self, blob: bytes, threads: int | None = None) -> None:
        self.seconds, self.launch_seconds, latency, bandwidth = _TIMES.unpack_from(blob)
        self.device = Bus(latency, bandwidth)
        self._compute = artifact_runner(blob[_TIMES.size :], threads)

    def __call__(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        self._compute([one.inside for one in inputs], [output.inside for output in outputs])


@versioned(VERSION)
def load(blob: bytes, threads: int | None = None) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob, threads)
