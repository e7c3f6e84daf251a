"""Simulated regions at run time: the host's code computes, the model's time is what counts."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

from graft.base.dtypes import Array
from graft.runtime.artifact import load as load_artifact
from graft.runtime.session import Session

_HEADER = struct.Struct("<d")


def pack(seconds: float, code: bytes) -> bytes:
    """The simulated time of a region, and the code that computes it."""
    return _HEADER.pack(seconds) + code


class Region:
    """A region on the simulated device. `seconds` is what a call takes there."""

    simulated = True

    def __init__(self, blob: bytes) -> None:
        (self.seconds,) = _HEADER.unpack_from(blob)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "region.graft"
            path.write_bytes(blob[_HEADER.size :])
            self._session = Session(load_artifact(path).program)
        self._inputs = [spec.name for spec in self._session.program.inputs]
        self._outputs = [spec.name for spec in self._session.program.outputs]

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        homes = dict(zip(self._outputs, outputs, strict=True))
        self._session.run(None, dict(zip(self._inputs, inputs, strict=True)), homes)


def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
