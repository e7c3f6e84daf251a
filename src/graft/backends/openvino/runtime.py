"""OpenVINO regions at run time: a compiled model in, a callable out that works in place."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import UserError

DEVICE = "CPU"
# Results are compared with the host's, so no silent computation in fewer bits.
_OPTIONS = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


def missing() -> str:
    """What to install, or nothing."""
    try:
        import openvino  # noqa: F401
    except ImportError:
        return "it needs the package 'openvino': pip install 'graft-compiler[openvino]'"
    return ""


@cache
def core() -> Any:
    """OpenVINO itself, loaded once."""
    problem = missing()
    if problem:
        raise UserError(f"OpenVINO cannot run here: {problem}")
    import openvino

    return openvino.Core()


def compile_model(model: bytes) -> bytes:
    """An ONNX model as OpenVINO's compiled form."""
    compiled = core().compile_model(core().read_model(io.BytesIO(model)), DEVICE, _OPTIONS)
    stream = io.BytesIO()
    compiled.export_model(stream)
    return stream.getvalue()


class Region:
    """A compiled region; one call at a time works on the caller's memory."""

    def __init__(self, blob: bytes) -> None:
        self._model = core().import_model(io.BytesIO(blob), DEVICE, _OPTIONS)
        self._request = self._model.create_infer_request()
        self._lock = threading.Lock()

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        import openvino

        with self._lock:
            for index, array in enumerate(inputs):
                tensor = openvino.Tensor(_writable(array), shared_memory=True)
                self._request.set_input_tensor(index, tensor)
            for index, array in enumerate(outputs):
                tensor = openvino.Tensor(array, shared_memory=True)
                self._request.set_output_tensor(index, tensor)
            self._request.infer()


class _Writable:
    """An array's memory without the mark that it is read-only, for OpenVINO takes no other."""

    def __init__(self, array: Array) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self.array = array


def _writable(array: Array) -> Array:
    return np.asarray(_Writable(array))


def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
