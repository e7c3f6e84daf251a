"""Quantises networks of models/ to 8 bits, and times Graft beside ONNX Runtime and OpenVINO.

ONNX Runtime's own quantiser makes the files (build/quantized/): quantised and dequantised tensors
around every operator, activations and weights of 8 bits, calibrated on random images. What is timed
is what `graft bench` times. Beside it stands on how many of some random images both find the same
class.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import graft
from benchmarks import network_tables
from benchmarks.harness import (
    DETECTORS,
    ONNXRUNTIME,
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
    graft_bench,
    network_path,
)
from benchmarks.network_tables import Row, Setting
from benchmarks.pages import DOCUMENT, ROOT, paragraph
from graft.cli.bench.rounds import GRAFT
from graft.cli.options import positive
from graft.frontends.onnx.reader import write_filled

FOLDER = ROOT / "build" / "quantized"
NETWORKS = ("resnet50", "mobilenet_v2")
PEERS = ("onnxruntime", "openvino")
RUNS, IMAGES = 3, 100
CALIBRATED_ON = 16  # images
# What is quantised of detectors. With the arithmetic on boxes, ONNX Runtime 1.31 crashes on its own
# file of Faster R-CNN, and SSDs are slower.
DETECTOR_OPERATORS = (
    *("Conv", "Gemm", "MatMul", "Add", "Relu", "Clip"),
    *("MaxPool", "AveragePool", "GlobalAveragePool"),
)
# Scores are of the order of 1. Roundings that go another way add up to some steps of them, also
# between ONNX Runtime's own ways to run a file.
FAR_APART = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network_argument(parser)
    parser.add_argument("--runs", metavar="N", type=positive, default=RUNS)
    parser.add_argument("--images", metavar="N", type=positive, default=IMAGES)


def measure(options: argparse.Namespace) -> Json:
    setting = Setting()
    rows = []
    for network in chosen_networks(options, NETWORKS):
        path = quantized(network)
        arguments = [*setting.arguments(options.threads, PEERS), "--atol", str(FAR_APART)]
        row = {
            "network": network,
            "images": options.images,
            "same_class": same_class(path, options.images, options.threads),
            "runs": [graft_bench(path, *arguments) for _ in range(options.runs)],
        }
        rows.append(row)
        print("\n".join(_table(rows[-1:])), flush=True)
    return rows


def sections(record: Record) -> Iterator[Section]:
    rows = record.data
    alike = [f"{row['network']} on {row['same_class']} of {row['images']}" for row in rows]
    intro = (
        f"{Setting().described(record.made.threads)}, 8 bits. Graft and ONNX Runtime find the same"
        f" class of random images: {', '.join(alike)}."
    )
    made = paragraph(str(record.made))
    yield Section(DOCUMENT, "quantised", [*paragraph(intro), "", *_table(rows), "", *made])


def _table(rows: list[Json]) -> list[str]:
    each = [Row(row["network"], row["runs"]) for row in rows]
    return network_tables.full_table(each, (GRAFT, *PEERS))


def quantized(network: str) -> Path:
    """The network's file of 8 bits, made where it is not there yet."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{network}.onnx"
    if path.exists():
        return path
    prepared = FOLDER / f"{network}-prepared.onnx"
    plain = float_file(network)
    with TemporaryDirectory() as folder, chdir(folder):  # it leaves files there where it fails
        try:
            quant_pre_process(str(plain), str(prepared))
        except Exception:  # noqa: BLE001  (of shapes that data decide on: detectors)
            quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(path),
        _Images(prepared),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        op_types_to_quantize=list(DETECTOR_OPERATORS if network in DETECTORS else ()) or None,
    )
    prepared.unlink()
    return path


def float_file(network: str) -> Path:
    """The network's file with all weights in it, made where it is not there yet."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{network}-float32.onnx"
    if not path.exists():
        write_filled(network_path(network), path)
    return path


class _Images(CalibrationDataReader):  # type: ignore[misc]
    """Random images, one after the other."""

    def __init__(self, model: Path) -> None:
        session = onnxruntime.InferenceSession(model)
        self._left = images(session, CALIBRATED_ON, seed=1)

    def get_next(self) -> Any:
        return next(self._left, None)


def images(session: Any, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Inputs for a session."""
    generator = np.random.default_rng(seed)
    (given,) = session.get_inputs()
    for _ in range(count):
        yield {given.name: generator.standard_normal(given.shape, dtype=np.float32)}


def same_class(path: Path, count: int, threads: int) -> int:
    """On how many images the largest score is of the same class."""
    session = onnxruntime.InferenceSession(path)
    module = graft.compile(path, threads=threads, strict=True)
    pairs = (
        (session.run(None, feeds)[0], module.run(None, feeds)[0])
        for feeds in images(session, count, seed=2)
    )
    return sum(int(np.argmax(theirs) == np.argmax(ours)) for theirs, ours in pairs)


BENCHMARKS = (
    Benchmark(
        "quantized", measure, sections, add_arguments, {**ONNXRUNTIME, "openvino": "OpenVINO"}
    ),
)
