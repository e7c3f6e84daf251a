"""`graft run`: model and inputs in, a summary of the outputs (and their files) out."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graft.base.dtypes import DType, dtype_of
from graft.cli.arrays import save_outputs
from graft.cli.inputs import Fed, add_input_arguments, feed
from graft.cli.report import figure, number, print_json, print_lines, seconds_text, section, table
from graft.cli.status import status
from graft.compiler import compile
from graft.ir.evaluate import Data
from graft.ir.types import TensorType
from graft.module import Module

DESCRIPTION = """\
Run a model once, on given or generated inputs, and summarise its outputs. A dim
that two inputs share has one value; a dim that nothing sets is 1."""
EXAMPLES = """\
  graft run model.onnx                                generated inputs
  graft run model.onnx --dim batch=4 --seed 7         of another size, other numbers
  graft run model.onnx --input x=x.npy --output-dir out
  graft run model.onnx --input inputs.npz --json
"""


@dataclass(frozen=True, slots=True)
class Statistics:
    """An output, or one item of it, in a few figures; None where there are no numbers."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    minimum: float | None
    mean: float | None
    maximum: float | None
    nans: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run: what it was given, what it gave, and how long it took."""

    module: Module
    inputs: Sequence[Fed]
    outputs: Sequence[tuple[str, Data]]
    compile_seconds: float
    run_seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help="the ONNX file")
    add_input_arguments(parser)
    parser.add_argument(
        "--output-dir", metavar="DIR", type=Path, help="save the outputs there as .npy files"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(options: argparse.Namespace) -> int:
    if options.output_dir is not None:
        options.output_dir.mkdir(parents=True, exist_ok=True)  # before the work, not after
    outcome = _run(options)
    files: dict[str, Path] = {}
    if options.output_dir is not None:
        files = save_outputs(options.output_dir, outcome.outputs)
    statistics = [one for name, data in outcome.outputs for one in described(name, data)]
    if options.json:
        print_json(_json(options.model, outcome, statistics, files))
    else:
        print_lines(_text(options.model, outcome, statistics, files))
    return 0


def _run(options: argparse.Namespace) -> Outcome:
    start = time.perf_counter()
    with status(f"compiling {options.model.name}"):
        module = compile(options.model)
    compiled = time.perf_counter()
    inputs = feed(module.graph, options)
    feeds = {fed.value.name: fed.data for fed in inputs}
    ready = time.perf_counter()
    with status(f"running {options.model.name}"):
        results = module.run(None, feeds)
    done = time.perf_counter()
    outputs = list(zip(module.graph.output_names, results, strict=True))
    return Outcome(module, inputs, outputs, compiled - start, done - ready)


def described(name: str, data: Data) -> Iterator[Statistics]:
    """Figures for a tensor; for each item of a sequence or map, or for nothing, likewise."""
    if isinstance(data, list):
        for position, item in enumerate(data):
            yield from described(f"{name}[{position}]", item)
    elif isinstance(data, dict):
        for key, item in data.items():
            yield from described(f"{name}[{key!r}]", np.asarray(item))
    elif data is None:
        yield Statistics(name, "empty", None, None, None, None, 0)
    else:
        yield _of_array(name, np.asarray(data))


def _of_array(name: str, array: Any) -> Statistics:
    dtype = dtype_of(array.dtype)
    if dtype is DType.STRING or dtype.is_complex or not array.size:
        return Statistics(name, dtype, array.shape, None, None, None, 0)
    # In double precision nothing that a model computes overflows while it is added up.
    numbers = array.astype(np.float64)
    nans = np.isnan(numbers)
    real = numbers[~nans]
    count = int(nans.sum())
    if not real.size:
        return Statistics(name, dtype, array.shape, None, None, None, count)
    with np.errstate(invalid="ignore"):
        figures = float(real.min()), float(real.mean()), float(real.max())
    return Statistics(name, dtype, array.shape, *figures, count)


def _text(
    path: Path, outcome: Outcome, statistics: Sequence[Statistics], files: dict[str, Path]
) -> Iterator[str]:
    yield f"{path} ({outcome.module.placement})"
    inputs = [(fed.value.name, _data_type(fed.data), fed.origin) for fed in outcome.inputs]
    yield from section("Inputs", table(inputs) or ["none"])
    header = ("name", "type", "min", "mean", "max", "NaN")
    rows = [_row(one) for one in statistics]
    yield from section("Outputs", table(rows, header, right=(2, 3, 4, 5)) if rows else ["none"])
    if files:
        yield from section("Saved", [str(file) for file in files.values()])
    yield ""
    compiling, running = outcome.compile_seconds, outcome.run_seconds
    yield f"compiled in {seconds_text(compiling)}, ran in {seconds_text(running)}"


def _row(one: Statistics) -> tuple[str, ...]:
    shape = "" if one.shape is None else f"[{', '.join(map(str, one.shape))}]"
    figures = (figure(one.minimum), figure(one.mean), figure(one.maximum))
    return (one.name, f"{one.dtype}{shape}", *figures, number(one.nans))


def _data_type(data: Data) -> str:
    if isinstance(data, list):
        return f"sequence of {len(data)}"
    return str(TensorType(dtype_of(data.dtype), data.shape))


def _json(
    path: Path, outcome: Outcome, statistics: Sequence[Statistics], files: dict[str, Path]
) -> dict[str, Any]:
    return {
        "model": str(path),
        "placement": dict(outcome.module.placement.nodes),
        "inputs": [
            {"name": fed.value.name, "type": _data_type(fed.data), "origin": fed.origin}
            for fed in outcome.inputs
        ],
        "outputs": [
            {
                "name": one.name,
                "dtype": str(one.dtype),
                "shape": None if one.shape is None else list(one.shape),
                "min": one.minimum,
                "mean": one.mean,
                "max": one.maximum,
                "nans": one.nans,
            }
            for one in statistics
        ],
        "files": {name: str(file) for name, file in files.items()},
        "compile_seconds": outcome.compile_seconds,
        "run_seconds": outcome.run_seconds,
    }
