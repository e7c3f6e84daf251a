"""Simulated regions at run time: the host's code computes, the model's time is what counts."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from graft.base.dtypes import Array
from graft.runtime.grafted import artifact_runner

_HEADER = struct.Struct("<d")


def pack(seconds: float, code: bytes) -> bytes:
    """The simulated time of a region, and the code that computes it."""
    return _HEADER.pack(seconds) + code


class Region:
    """A region on the simulated device. `seconds` is what a call takes there."""

    simulated = True

    def __init__(self, blob: bytes) -> None:
        (self.seconds,) = _HEADER.unpack_from(blob)
        self._compute = artifact_runner(blob[_HEADER.size :])

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._compute(inputs, outputs)


def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
