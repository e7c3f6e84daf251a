#!/usr/bin/env python3
"""What a size costs that was not seen before: networks in; milliseconds around kernels out.

    python tools/new_size.py [--write]

Nothing is compiled for a new size, but stretches of native code are bound to it. Networks with a
symbolic batch get ever new batch sizes: the time from the call to the first kernel counts.
Detectors get ever new images, so that sizes on the way are new: there it is the time that Python
takes around all stretches together, beside that for the same image again. `--write` puts the table
into docs/benchmarks.md between its markers.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

import graft
from bench_pages import DOCUMENT, add_writing_arguments, chosen_pages, paragraph, table
from graft.base.dtypes import Array
from graft.cli.bench_machine import this_machine
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import read_model
from graft.ir.graph import Graph
from graft.program.instructions import KernelCall, Segment
from graft.runtime.profile import Profile
from graft.runtime.session import Session

MODELS = Path(__file__).resolve().parents[1] / "models"
SYMBOLIC = ("resnet18", "mobilenet_v2")
DETECTORS = ("ssd300_resnet34",)
BATCH = {0: "batch"}
BATCHES = range(2, 9)
HEADER = (
    "network",
    "new size: first kernel after",
    "Python in all (most)",
    "known size: first kernel after",
    "Python in all (most)",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds: to the first kernel, and of Python around all segments."""

    first: float
    around: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_writing_arguments(parser)
    options = parser.parse_args(arguments)
    pages = chosen_pages(options.write)
    found = {}
    for name in (*SYMBOLIC, *DETECTORS):
        found[name] = costs(compiled(name, options.threads), name in SYMBOLIC)
        print(*table(HEADER, rows({name: found[name]}))[2:], flush=True)
    where = (
        f"Made on {datetime.date.today().isoformat()} on {this_machine()}, with"
        f" {options.threads} threads, Graft {graft.__version__}; medians of {len(BATCHES)} sizes."
    )
    pages.replace(DOCUMENT, "new-size", [*table(HEADER, rows(found)), "", *paragraph(where)])
    return 0


def compiled(name: str, threads: int) -> Session:
    """A network, ready to run at any size, or a detector."""
    path = MODELS / f"{name}.onnx"
    return graft.compile(any_size(path, BATCH) if name in SYMBOLIC else path, threads=threads)


def any_size(path: Path, names: Mapping[int, str]) -> Graph:
    """A network whose inputs have symbols along some axes."""
    source = read_model(path)
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    del model.graph.value_info[:]
    for value in model.graph.input:
        for axis, name in names.items():
            value.type.tensor_type.shape.dim[axis].dim_param = name
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return import_source(replace(source, model=model))


def costs(session: Session, symbolic: bool) -> tuple[list[Cost], list[Cost]]:
    """What new sizes cost, and the same sizes again."""
    (argument,) = session.get_inputs()
    session.run(None, {argument.name: _image(session, 1, 0)})  # threads start with the first run
    new, again = [], []
    for number in BATCHES:
        image = _image(session, number, 0) if symbolic else _image(session, 1, number)
        feeds = {argument.name: image}
        new.append(cost(session.profile(feeds)))
        again.append(cost(session.profile(feeds)))
    return new, again


def rows(found: Mapping[str, tuple[list[Cost], list[Cost]]]) -> Iterable[list[str]]:
    """The cells of a table."""
    for name, both in found.items():
        cells = [name]
        for those in both:
            around = [one.around for one in those]
            cells.append(_milliseconds(np.median([one.first for one in those])))
            cells.append(f"{_milliseconds(np.median(around))} ({_milliseconds(max(around))})")
        yield cells


def _milliseconds(seconds: float | np.floating) -> str:
    return f"{seconds * 1e3:.2f} ms"


def cost(profile: Profile) -> Cost:
    """What a run spent besides computing."""
    begins = [one.begin for one in profile.moments if isinstance(one.step, KernelCall)]
    around = [one.own for one in profile.moments if isinstance(one.step, Segment)]
    return Cost(min(begins), sum(around))


def _image(session: Session, batch: int, seed: int) -> Array:
    (argument,) = session.get_inputs()
    shape = [extent if isinstance(extent, int) else batch for extent in argument.shape or ()]
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


if __name__ == "__main__":
    raise SystemExit(main())
