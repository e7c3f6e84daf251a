#!/usr/bin/env python3
"""Quantises networks of models/ to 8 bits, times Graft beside ONNX Runtime on them, and compares.

    python tools/quantized.py [--networks NAMES] [--threads N] [--runs N] [--inputs N] [--write]

ONNX Runtime's own quantiser makes the files (build/quantized/): quantised and dequantised tensors
around every operator, activations and weights of 8 bits, calibrated on random images. What is timed
is what `graft bench` times. Beside it stands on how many of some random images both find the same
class. `--write` puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import bench_tables
import graft
from bench import compared
from bench_pages import DOCUMENT, MODELS, ROOT, add_writing_arguments, chosen_pages, paragraph
from bench_tables import Row, Setting
from graft.cli.bench_machine import this_machine
from graft.cli.bench_rounds import GRAFT
from graft.cli.usage import positive
from graft.frontends.onnx.reader import write_filled

FOLDER = ROOT / "build" / "quantized"
NETWORKS = ("resnet50", "mobilenet_v2")
PEERS = ("onnxruntime", "openvino")
CALIBRATED_ON = 8  # images
MARKER = "quantised"
# Scores are of the order of 1. Roundings that go another way add up to some steps of them, also
# between ONNX Runtime's own ways to run a file.
FAR_APART = 0.5


def main() -> int:
    options = _options()
    machine, pages = this_machine(), chosen_pages(options.write)
    setting = Setting(MARKER, options.threads, 1)
    contenders = (GRAFT, *PEERS)
    rows, alike = [], []
    for network in options.networks:
        path = quantized(network)
        same = same_class(path, options.inputs, options.threads)
        alike.append(f"{network} on {same} of {options.inputs}")
        loosely = ("--atol", str(FAR_APART))
        runs = [compared(path, setting, contenders, False, *loosely) for _ in range(options.runs)]
        rows.append(Row(network, runs))
        print("\n".join(bench_tables.full_table(rows[-1:], contenders)), alike[-1], flush=True)
    words = f"Graft and ONNX Runtime find the same class of random images: {', '.join(alike)}."
    date, command = datetime.date.today().isoformat(), shlex.join(["python", *sys.argv])
    versions = bench_tables.versions(rows, graft.__version__)
    made = bench_tables.provenance(str(machine), date, versions, command)
    table = bench_tables.full_table(rows, contenders)
    intro = paragraph(f"{setting}, 8 bits. {words}")
    pages.replace(DOCUMENT, MARKER, [*intro, "", *table, "", *made])
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_writing_arguments(parser)
    parser.add_argument(
        "--networks", metavar="NAMES", type=lambda names: names.split(","), default=NETWORKS
    )
    parser.add_argument("--runs", metavar="N", type=positive, default=1, help="(default 1)")
    parser.add_argument(
        "--inputs", metavar="N", type=positive, default=100, help="images (default 100)"
    )
    return parser.parse_args()


def quantized(network: str) -> Path:
    """The network's file of 8 bits, made where it is not there yet."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{network}.onnx"
    if path.exists():
        return path
    plain, prepared = FOLDER / f"{network}-float32.onnx", FOLDER / f"{network}-prepared.onnx"
    write_filled(MODELS / f"{network}.onnx", plain)
    quant_pre_process(str(plain), str(prepared))
    quantize_static(
        str(prepared),
        str(path),
        _Images(prepared),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    plain.unlink()
    prepared.unlink()
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


if __name__ == "__main__":
    sys.exit(main())
