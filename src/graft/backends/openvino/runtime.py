"""OpenVINO regions at run time: a compiled model in, a callable out that works in place."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from typing import Any

from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.runtime.loaders import installed_version, lacking, versioned
from graft.runtime.memory import unlocked

DEVICE = "CPU"
# What OpenVINO calls a dtype as a capability and as an option.
_PRECISIONS = {
    DType.FLOAT32: ("FP32", "f32"),
    DType.FLOAT16: ("FP16", "f16"),
    DType.BFLOAT16: ("BF16", "bf16"),
}


def missing() -> str:
    """What to install, or nothing."""
    return lacking("openvino", "openvino")


def version() -> str:
    """OpenVINO's, which its compiled form is for."""
    return installed_version("openvino")


@cache
def core() -> Any:
    """OpenVINO itself, loaded once."""
    if missing():
        raise UserError(f"OpenVINO cannot run here: {missing()}")
    import openvino

    return openvino.Core()


@cache
def computes_in() -> tuple[DType, ...]:
    """What it computes in on this processor; float32 alone where it is not there to be asked."""
    if missing():
        return (DType.FLOAT32,)
    known = core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
    return tuple(dtype for dtype, (capability, _) in _PRECISIONS.items() if capability in known)


def compile_model(model: bytes, precision: DType = DType.FLOAT32) -> bytes:
    """An ONNX model as OpenVINO's compiled form. Results are compared with the host's, so that it
    computes in no fewer bits than it is told to."""
    number = [*_PRECISIONS].index(precision)
    compiled = core().compile_model(core().read_model(io.BytesIO(model)), DEVICE, _hints(number))
    # imported models follow the hints of whoever imports them: the first byte says which
    stream = io.BytesIO(bytes([number]))
    stream.seek(0, io.SEEK_END)
    compiled.export_model(stream)
    return stream.getvalue()


def _hints(number: int) -> dict[str, Any]:
    """The options for a precision by its number."""
    _, name = [*_PRECISIONS.values()][number]
    return {"INFERENCE_PRECISION_HINT": name, "PERFORMANCE_HINT": "LATENCY"}


class Region:
    """A compiled region. Calls at the same time have a request each, with memory of its own for
    what lies between inputs and outputs; they share the code and the constants."""

    def __init__(self, blob: bytes, threads: int | None = None) -> None:
        allowed = {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
        library = core()
        hints = {**_hints(blob[0]), **allowed}
        self._model = library.import_model(io.BytesIO(blob[1:]), DEVICE, hints)
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
