"""Makes the files that `precision` compares: a float network in, one file per quantiser out.

All quantisers calibrate on the same random images. Graft's files, and what `graft quantize` says of
them, are made anew in every run; those of peers lie in build/quantized/ and are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.harness import Json
from benchmarks.quantized import FOLDER, float_file, images, quantized
from graft.target.target import HOST

SAMPLES = 16  # images that are calibrated on
TRANSFORMERS = ("vit_b_16",)


def samples_of(network: str) -> Path:
    """A folder of the images that all calibrate on."""
    plain = float_file(network)
    folder = plain.with_suffix(".samples")
    folder.mkdir(exist_ok=True)
    session = onnxruntime.InferenceSession(plain)
    for number, feeds in enumerate(images(session, SAMPLES, seed=1)):
        np.savez(folder / f"{number:03}.npz", **feeds)
    for leftover in sorted(folder.glob("*.npz"))[SAMPLES:]:
        leftover.unlink()
    return folder


def quantized_by_graft(network: str, options: list[str], name: str, threads: int) -> Json:
    """What `graft quantize` says with some options; the file is `graft_file` of the name."""
    command = [sys.executable, "-m", "graft", "quantize", str(float_file(network))]
    command += ["--data", str(samples_of(network)), "--threads", str(threads), "--json"]
    command += ["-o", str(graft_file(network, name)), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(" ".join(done.stderr.split())[-300:])
    return json.loads(done.stdout)


def graft_file(network: str, name: str) -> Path:
    return FOLDER / f"{network}-{name}.onnx"


def quantized_by_nncf(network: str) -> Path:
    """OpenVINO's model as NNCF quantises it, by its defaults, made where it is not there yet."""
    path = FOLDER / f"{network}-nncf.xml"
    if path.exists():
        return path
    import nncf  # type: ignore[import-not-found]
    import openvino

    plain = float_file(network)
    model = openvino.Core().read_model(str(plain))
    session = onnxruntime.InferenceSession(plain)
    data = nncf.Dataset(list(images(session, SAMPLES, seed=1)))
    kind = nncf.ModelType.TRANSFORMER if network in TRANSFORMERS else None
    result = nncf.quantize(model, data, subset_size=SAMPLES, model_type=kind)
    openvino.save_model(result, str(path), compress_to_fp16=False)
    return path


# By contender, who makes the file of a peer.
PEER_FILES: dict[str, Callable[[str], Path]] = {
    "onnxruntime": float_file,
    "openvino": float_file,
    "onnxruntime-int8": quantized,
    "openvino-int8": quantized_by_nncf,
}

Infer = Callable[[Any], list[Any]]


def runner(contender: str, path: Path | bytes, machine: str = HOST) -> Infer:
    """A file as a function of the inputs by name, for errors; Graft's code is for the machine."""
    if contender.startswith("graft"):
        import graft

        module = graft.compile(path, machine=machine)
        return lambda feeds: list(module.run(None, feeds))
    if contender.startswith("openvino"):
        import openvino

        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(str(path), "CPU", settings)
        return lambda feeds: [np.array(one) for one in compiled(feeds).values()]
    session = onnxruntime.InferenceSession(path)
    return lambda feeds: list(session.run(None, feeds))


def unseen(network: str, count: int) -> Iterator[dict[str, Any]]:
    """Images that nobody has calibrated on."""
    return images(onnxruntime.InferenceSession(float_file(network)), count, seed=2)
