"""OpenVINO regions at run time: a compiled model in, a callable out that works in place."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
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
    names = core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
    return tuple(dtype for dtype, (capability, _) in _PRECISIONS.items() if capability in names)


def compile_model(
    model: bytes, precision: DType = DType.FLOAT32, rounding: DType = DType.FLOAT32
) -> bytes:
    """An ONNX model as OpenVINO's compiled form. Results are compared with the host's, so that it
    computes in no fewer bits than it is told to, and says what it rounds to."""
    parsed = core().read_model(io.BytesIO(model))
    compiled = core().compile_model(parsed, DEVICE, _hints(precision))
    # imported models follow the hints of whoever imports them
    stream = io.BytesIO(f"{precision} {rounding}\n".encode())
    stream.seek(0, io.SEEK_END)
    compiled.export_model(stream)
    return stream.getvalue()


def _hints(precision: DType) -> dict[str, Any]:
    """The options for a precision."""
    _, name = _PRECISIONS[precision]
    return {"INFERENCE_PRECISION_HINT": name, "PERFORMANCE_HINT": "LATENCY"}


def _tensor(array: Array) -> Any:
    """OpenVINO's view of an array; NumPy has no bfloat16 of its own."""
    from openvino import Shape, Tensor, Type

    if dtype_of(array.dtype) is DType.BFLOAT16:
        return Tensor(unlocked(array.view(np.uint16)), Shape(array.shape), Type.bf16)
    return Tensor(unlocked(array), shared_memory=True)


class Region:
    """A compiled region. Calls at the same time have a request each, with memory of its own for
    what lies between inputs and outputs; they share the code and the constants. OpenVINO keeps
    what it prepares for a size of symbolic shapes in a cache, which it bounds itself."""

    def __init__(self, blob: bytes, threads: int | None = None) -> None:
        allowed = {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
        library = core()
        facts, _, model = blob.partition(b"\n")
        precision, self.rounding = map(DType, facts.decode().split())
        hints = {**_hints(precision), **allowed}
        self._model = library.import_model(io.BytesIO(model), DEVICE, hints)
        self._free: list[Any] = []  # requests; a list's own operations are atomic

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if not any(array.size for array in outputs):  # some of its operators refuse such
            return
        try:
            request = self._free.pop()
        except IndexError:
            request = self._model.create_infer_request()
        for index, array in enumerate(inputs):
            request.set_input_tensor(index, _tensor(array))
        for index, array in enumerate(outputs):
            request.set_output_tensor(index, _tensor(array))
        request.infer()
        self._free.append(request)


@versioned(version, missing=missing)
def load(blob: bytes, threads: int | None = None) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob, threads)
