"""OpenVINO regions at run time: a compiled model in, a callable out that works in place."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from importlib.util import find_spec
from typing import Any

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.runtime.loaders import versioned
from graft.runtime.memory import unlocked

DEVICE = "CPU"
# Results are compared with the host's, so no silent computation in fewer bits.
_OPTIONS = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


def missing() -> str:
    """What to install, or nothing."""
    hint = "it needs the package 'openvino': pip install 'graft-compiler[openvino]'"
    return "" if find_spec("openvino") else hint


def version() -> str:
    """OpenVINO's, which its compiled form is for."""
    try:
        return installed("openvino")
    except PackageNotFoundError:
        return "not installed"


@cache
def core() -> Any:
    """OpenVINO itself, loaded once."""
    if missing():
        raise UserError(f"OpenVINO cannot run here: {missing()}")
    import openvino

    return openvino.Core()


def compile_model(model: bytes) -> bytes:
    """An ONNX model as OpenVINO's compiled form."""
    compiled = core().compile_model(core().read_model(io.BytesIO(model)), DEVICE, _OPTIONS)
    stream = io.BytesIO()
    compiled.export_model(stream)
    return stream.getvalue()


class Region:
    """A compiled region. Calls at the same time have a request each, with memory of its own for
    what lies between inputs and outputs; they share the code and the constants."""

    def __init__(self, blob: bytes, threads: int | None = None) -> None:
        allowed = {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
        self._model = core().import_model(io.BytesIO(blob), DEVICE, {**_OPTIONS, **allowed})
        self._free: list[Any] = []  # requests; a list's own operations are atomic

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        from openvino import Tensor

        try:
            request = self._free.pop()
        except IndexError:
            request = self._model.create_infer_request()
        for index, array in enumerate(inputs):
            request.set_input_tensor(index, Tensor(unlocked(array), shared_memory=True))
        for index, array in enumerate(outputs):
            request.set_output_tensor(index, Tensor(array, shared_memory=True))
        request.infer()
        self._free.append(request)


@versioned(version)
def load(blob: bytes, threads: int | None = None) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob, threads)
