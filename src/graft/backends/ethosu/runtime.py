"""Ethos-U regions at run time: Vela's code and the TOSA graph that it was made from.

A board's driver is handed the command stream and the addresses of weights and scratch memory. There
is none here, so the graph runs on Arm's TOSA reference model, which gives the same bytes and says
nothing about time; what a call takes is Vela's estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.array_file import pack_arrays, unpack_arrays
from graft.runtime.loaders import installed_version, lacking, versioned


def version() -> str:
    """Vela's."""
    return installed_version("ethos-u-vela")


def missing() -> str:
    """The package to install, or nothing."""
    return lacking("ethos-u-vela", "ethosu", "ethosu") or missing_model()


def missing_model() -> str:
    """The same for code that Vela has made already."""
    return lacking("tosa-tools", "ethosu", "tosa_reference_model")


def pack(tosa: bytes, model: Any, seconds: float) -> bytes:
    """What Vela has made of a graph, as arrays of an `.npz` file.

    Memory has three parts: the weights, scratch memory, and scratch memory in the SRAM. Of each
    operand and result there is the part that it lies in and where."""
    memories = (model.read_only, model.scratch, model.scratch_fast)
    tensors = [*model.inputs, *model.outputs]
    return pack_arrays(
        tosa=tosa,
        command_stream=bytes(model.command_stream),
        weights=bytes(model.read_only.data),
        scratch_bytes=[model.scratch.size, model.scratch_fast.size],
        parts=[memory.region for memory in memories],
        tensors=[(tensor.region, tensor.address) for tensor in tensors],
        seconds=seconds,
    )


class Region:
    """A region on the reference model. `seconds` is what Vela estimates for a call on the chip."""

    simulated = True
    launch_seconds = 0.0
    _lock = Lock()  # the model does not say that it may be called by several threads

    def __init__(self, blob: bytes) -> None:
        parts = unpack_arrays(blob)
        self._tosa, self.seconds = parts["tosa"].tobytes(), float(parts["seconds"])

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        import tosa_reference_model

        bytes_ = [array.view(np.int8) for array in inputs]
        with self._lock:
            results, status = tosa_reference_model.run(self._tosa, bytes_)
        if status != tosa_reference_model.GraphStatus.TOSA_VALID:
            raise RuntimeError(f"the reference model says {status.name}")
        for result, output in zip(results, outputs, strict=True):
            np.copyto(output.view(np.int8), result.reshape(output.shape))


@versioned(version, lambda _made_by: True, missing_model)  # TOSA files outlive versions of Vela
def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
