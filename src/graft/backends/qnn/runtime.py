"""HTP regions: a Q/DQ model in, a context binary out; a context binary in, what runs it out.

The package `onnxruntime-qnn` holds Qualcomm's graph compiler and, on x86, an emulator of the chip.
The emulator's time says nothing about the chip's, so runners have a model's.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graft.backends.ort import runtime as ort
from graft.base.errors import UnsupportedError
from graft.runtime.loaders import installed_version, lacking, versioned
from graft.runtime.spaces import Runner

PROVIDER = "QNNExecutionProvider"
CHIP = "Snapdragon X Elite, HTP v73"
_RUN = {"backend_type": "htp"}
_COMPILE = {**_RUN, "soc_model": "60", "htp_arch": "73"}  # Qualcomm's numbers of CHIP
_TIMES = struct.Struct("<dd")


def version() -> str:
    """The provider's, whose compiler context binaries are made by and for."""
    return installed_version("onnxruntime-qnn")


def missing() -> str:
    """What to install, or nothing."""
    return lacking("onnxruntime-qnn", "qnn", "onnxruntime_qnn") or ort.missing(PROVIDER)


@contextmanager
def own_output() -> Iterator[None]:
    """Send to standard error what the emulator prints to standard output when it is first used."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)


@cache
def is_emulated() -> bool:
    """Whether ONNX Runtime finds no such processor here, and the chip is emulated."""
    return bool(missing()) or all(one.device.type.name != "NPU" for one in ort.devices(PROVIDER))


def compile_model(model: bytes, seconds: float, launch_seconds: float) -> bytes:
    """A Q/DQ model as a context binary in an ONNX node, with what a call takes on the chip."""
    import onnxruntime

    with TemporaryDirectory() as folder:
        dump = {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": folder}
        options = ort.session_options(PROVIDER, 1, {**_COMPILE, **dump})
        compiler = onnxruntime.ModelCompiler
        try:
            blob = compiler(options, model, embed_compiled_data_into_model=True).compile_to_bytes()
        except Exception as error:  # the classes of its errors have no base of their own
            raise UnsupportedError(f"{PROVIDER} does not take it: {error}") from error
        dumps = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    graphs = [dump["graph"]["nodes"] for dump in dumps if "graph" in dump]
    kinds = {node["type"] for nodes in graphs for node in nodes.values()}
    if not kinds or kinds & {"Dequantize", "Quantize"}:
        raise UnsupportedError(f"{PROVIDER} would compute a part of it in floats: {sorted(kinds)}")
    return _TIMES.pack(seconds, launch_seconds) + bytes(blob)


@versioned(version)
def load(blob: bytes, threads: int | None = None) -> Runner:
    """What `graft.load` calls for a region of this backend."""
    options = ort.session_options(PROVIDER, threads, _RUN)
    runner: Any = ort.session_runner(PROVIDER, blob[_TIMES.size :], options)
    runner.seconds, runner.launch_seconds = _TIMES.unpack_from(blob)
    runner.simulated = is_emulated()
    return runner  # type: ignore[no-any-return]
