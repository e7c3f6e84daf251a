"""HTP regions: a Q/DQ model in, a context binary out; a context binary in, what runs it out.

The package `onnxruntime-qnn` holds Qualcomm's graph compiler and, on x86, an emulator of the chip.
The emulator's time says nothing about the chip's, so runners have a model's.
"""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graft.base.errors import UnsupportedError
from graft.runtime import onnx_session
from graft.runtime.loaders import installed_version, lacking, load_quietly, versioned
from graft.runtime.spaces import Runner

PACKAGE = "onnxruntime-qnn"
PROVIDER = "QNNExecutionProvider"
CHIP = "Snapdragon X Elite, HTP v73"
LAUNCH_SECONDS = 1e-4  # assumed: a call from the host to the processor is no published number
_RUN = {"backend_type": "htp"}
_COMPILE = {**_RUN, "soc_model": "60", "htp_arch": "73"}  # Qualcomm's numbers of CHIP
_SECONDS = struct.Struct("<d")  # in front of the context binary: what a call takes on the chip


def missing() -> str:
    """What to install, or nothing."""
    return lacking(PACKAGE, "qnn", "onnxruntime_qnn") or onnx_session.missing(PROVIDER)


@cache
def is_emulated() -> bool:
    """Whether ONNX Runtime finds no such processor here, and the chip is emulated."""
    types = [] if missing() else [one.device.type for one in onnx_session.devices(PROVIDER)]
    return all(kind.name != "NPU" for kind in types)


def session_options(threads: int | None, options: dict[str, str]) -> Any:
    """Options of sessions on the processor, or on its emulator, which prints as it is loaded."""
    import onnxruntime_qnn

    with onnx_session.refusals("Qualcomm's library does not load"):
        load_quietly(onnxruntime_qnn.get_qnn_htp_path())
    return onnx_session.session_options(PROVIDER, threads, options)


def compile_model(model: bytes, seconds: float) -> bytes:
    """A Q/DQ model as a context binary in an ONNX node, with what a call takes on the chip."""
    with TemporaryDirectory() as folder:
        dump = {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": folder}
        options = session_options(1, {**_COMPILE, **dump})
        blob = onnx_session.compiled(PROVIDER, model, options)
        dumps = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    graphs = [dump["graph"]["nodes"] for dump in dumps if "graph" in dump]
    kinds = {node["type"] for nodes in graphs for node in nodes.values()}
    if not kinds or kinds & {"Dequantize", "Quantize"}:
        raise UnsupportedError(f"{PROVIDER} would compute a part of it in floats: {sorted(kinds)}")
    return _SECONDS.pack(seconds) + blob


@versioned(lambda: installed_version(PACKAGE), missing=missing)
def load(blob: bytes, threads: int | None = None) -> Runner:
    """What `graft.load` calls for a region of this backend."""
    options = session_options(threads, _RUN)
    runner: Any = onnx_session.session_runner(PROVIDER, blob[_SECONDS.size :], options)
    (runner.seconds,) = _SECONDS.unpack_from(blob)
    runner.launch_seconds, runner.simulated = LAUNCH_SECONDS, is_emulated()
    return runner  # type: ignore[no-any-return]
