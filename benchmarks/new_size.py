"""What a size costs that was not seen before: networks in; milliseconds around kernels out.

Nothing is compiled for a new size, but stretches of native code are bound to it. Networks with a
symbolic batch get ever new batch sizes: the time from the call to the first kernel counts.
Detectors get ever new images, so that sizes on the way are new: there it is the time that Python
takes around all stretches together, beside that for the same image again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import onnx

import graft
from benchmarks.harness import Benchmark, Json, Record, Section, network_path
from benchmarks.pages import DOCUMENT, paragraph, table
from graft.base.dtypes import Array
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import read_model
from graft.ir.graph import Graph
from graft.program.instructions import KernelCall, Segment
from graft.runtime.profile import Profile
from graft.runtime.session import Session

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


def measure(options: argparse.Namespace) -> Json:
    """By network, what new sizes cost and what the same sizes cost again."""
    results = {}
    for name in (*SYMBOLIC, *(() if options.quick else DETECTORS)):
        both = costs(compiled(name, options.threads), name in SYMBOLIC)
        results[name] = dict(zip(("new", "known"), map(summarized, both), strict=True))
        print(*table(HEADER, rows({name: results[name]}))[2:], flush=True)
    return results


def sections(record: Record) -> Iterator[Section]:
    where = f"Medians of {len(BATCHES)} sizes. {record.made}"
    lines = [*table(HEADER, rows(record.data)), "", *paragraph(where)]
    yield Section(DOCUMENT, "new-size", lines)


def compiled(name: str, threads: int) -> Session:
    """A network, ready to run at any size, or a detector."""
    path = network_path(name)
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


def summarized(each: Sequence[Cost]) -> Json:
    """Medians, and the most that Python took."""
    around = [one.around for one in each]
    first = median(one.first for one in each)
    return {"first": first, "around": median(around), "most": max(around)}


def rows(results: Json) -> Iterator[list[str]]:
    """The cells of a table."""
    for name, result in results.items():
        cells = [name]
        for one in (result["new"], result["known"]):
            cells.append(_milliseconds(one["first"]))
            cells.append(f"{_milliseconds(one['around'])} ({_milliseconds(one['most'])})")
        yield cells


def _milliseconds(seconds: float) -> str:
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


BENCHMARKS = (Benchmark("new-size", measure, sections),)
