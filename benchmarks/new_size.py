"""What a size costs that was not seen before: networks in; microseconds beyond a known size out.

Nothing is compiled for a new size, but memory is planned and tables of native code are filled.
Networks whose batch, height and width are symbols get ever new sizes of image, small ones, beside
whose kernels the cost is seen; detectors get ever new images, so that sizes on the way are new.
Every size is run several times: what the first run takes beyond the fastest later one counts.

Part of that is the kernels': they touch memory that is in no cache yet. So the same is measured
with functions in their place that return at once: what is left is the set-up before the first
kernel. It is not known of detectors, whose sizes only kernels tell.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from graft.runtime.executor import Executor
from graft.runtime.session import Session

SYMBOLIC = ("resnet18", "resnet50", "mobilenet_v2", "inception_v3")
DETECTORS = ("ssd300_resnet34",)
SYMBOLS = {0: "batch", 2: "height", 3: "width"}
LEAST = 75  # pixels along a side, which Inception's poolings need
SIZES = 40
RUNS = 4  # of each size
HEADER = (
    *("network", "a known size", "a new size: more, median", "nine of ten within"),
    *("before the first kernel, median", "nine of ten within"),
)


def measure(options: argparse.Namespace) -> Json:
    """By network, what runs of known and new sizes take."""
    results = {}
    for name in (*SYMBOLIC, *(() if options.quick else DETECTORS)):
        session = compiled(name, options.threads)
        results[name] = summarized(times(session, images(session, SIZES)))
        if name in SYMBOLIC:
            session = compiled(name, options.threads)
            without_kernels(session)
            setup = summarized(times(session, images(session, SIZES)))
            results[name] |= {"setup": setup["more"], "most_setup": setup["most"]}
        print(*table(HEADER, rows({name: results[name]}))[2:], flush=True)
    return results


def sections(record: Record) -> Iterator[Section]:
    where = f"{SIZES} sizes each, the largest first. {record.made}"
    lines = [*table(HEADER, rows(record.data)), "", *paragraph(where)]
    yield Section(DOCUMENT, "new-size", lines)


def compiled(name: str, threads: int) -> Session:
    """A network, ready to run at any size, or a detector."""
    path = network_path(name)
    return graft.compile(any_size(path, SYMBOLS) if name in SYMBOLIC else path, threads=threads)


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


def images(session: Session, count: int) -> Iterator[Array]:
    """Images of different sizes, the largest first; different ones of a size that is known."""
    (argument,) = session.get_inputs()
    assert argument.shape is not None
    batch, channels, *sides = argument.shape
    for number in range(count):
        lengths = (LEAST + count - number, LEAST + count - number * 7 % count)
        known = [s if isinstance(s, int) else n for s, n in zip(sides, lengths, strict=True)]
        one = batch if isinstance(batch, int) else 1
        shape = (one, int(channels), *known)
        yield np.random.default_rng(number).random(shape, dtype=np.float32)


def times(session: Session, feeds: Iterator[Array]) -> list[list[float]]:
    """By input, the seconds of its runs; the first, in which threads start and memory is taken
    from the system, is not in."""
    (argument,) = session.get_inputs()
    seconds: list[list[float]] = []
    for feed in feeds:
        seconds.append([])
        for _ in range(RUNS):
            begin = time.perf_counter()
            session.run(None, {argument.name: feed})
            seconds[-1].append(time.perf_counter() - begin)
    return seconds[1:]


def without_kernels(session: Session) -> None:
    """Let functions that return at once be called instead of kernels; before the first run."""
    executor = session.executor
    assert isinstance(executor, Executor)
    nothing = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value
    for position, _ in executor.linked.image.functions:
        executor.linked.words[position] = nothing


def summarized(runs: Sequence[Sequence[float]]) -> Json:
    """Seconds of a known size, and what a new one takes more."""
    known = [min(again) for _, *again in runs]
    more = sorted(first - least for (first, *_), least in zip(runs, known, strict=True))
    return {"known": median(known), "more": median(more), "most": more[len(more) * 9 // 10]}


def rows(results: Mapping[str, Mapping[str, float]]) -> Iterator[list[str]]:
    """The cells of a table."""
    keys = ("known", "more", "most", "setup", "most_setup")
    for name, result in results.items():
        yield [name, *(f"{result[k] * 1e6:,.0f} µs" if k in result else "" for k in keys)]


BENCHMARKS = (Benchmark("new-size", measure, sections),)
