"""What it costs a network that its sizes are not known.

Each network is compiled as it is, with a symbolic batch, and with symbolic batch, height and width,
or length for sentences (the network of `encoder.py`). The three run at the size of the first, in
turns in one process, so that all see the same neighbours.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.encoder import WORDS, encoder
from benchmarks.harness import (
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
    network_path,
)
from benchmarks.new_size import SYMBOLS, any_size
from benchmarks.pages import DOCUMENT, paragraph, table
from graft import compile
from graft.base.quantities import time_text
from graft.byoc.measure import WATCH, interval, laps

# ViT and VGG-19 have sizes in their weights, or reshape to a batch of one.
IMAGES = ("resnet18", "resnet50", "inception_v3", "darknet53", "mobilenet_v2")
SENTENCES = "encoder"
NETWORKS = (*IMAGES, SENTENCES)
WORDS_OF_ONE = 128
HEADER = ("network", "known sizes", "any batch", "beside known", "any size", "beside known")
SECONDS = 6.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network_argument(parser, NETWORKS)
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=SECONDS, help="to run each contender for"
    )


def measure(options: argparse.Namespace) -> Json:
    """By network, medians and how they compare lap by lap."""
    seconds = 1.0 if options.quick else options.seconds
    results = {}
    for name in chosen_networks(options, NETWORKS):
        results[name] = compared(timed(name, options.threads, seconds))
        print(*table(HEADER, [row(name, results[name])])[2:], flush=True)
    return results


def sections(record: Record) -> Iterator[Section]:
    rows = [row(name, result) for name, result in record.data.items()]
    where = f"Medians with 95 % intervals, lap by lap. {record.made}"
    yield Section(DOCUMENT, "any-size", [*table(HEADER, rows), "", *paragraph(where)])


def timed(name: str, threads: int, seconds: float) -> Mapping[str, Sequence[float]]:
    """Laps of the network with known sizes, any batch and any size."""
    models, feeds = sentences() if name == SENTENCES else images(name)
    build = partial(compile, threads=threads, strict=True)
    runs = {
        contender: partial(build(model).run, None, feeds) for contender, model in models.items()
    }
    WATCH.wait()
    return laps(runs, seconds)


def images(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The three models, and an image for each of them."""
    path = network_path(name)
    models = {
        "known": path,
        "batch": any_size(path, {0: "batch"}),
        "size": any_size(path, SYMBOLS),
    }
    (argument,) = compile(path).get_inputs()
    image = np.random.default_rng(0).standard_normal(argument.shape).astype(np.float32)
    return models, {argument.name: image}


def sentences() -> tuple[dict[str, Any], dict[str, Any]]:
    """The three models, and a sentence for each of them."""
    models = {
        "known": encoder(1, WORDS_OF_ONE),
        "batch": encoder("batch", WORDS_OF_ONE),
        "size": encoder("batch", "length"),
    }
    tokens = np.random.default_rng(0).integers(0, WORDS, (1, WORDS_OF_ONE))
    return models, {"tokens": tokens, "mask": np.ones_like(tokens)}


def compared(times: Mapping[str, Sequence[float]]) -> Json:
    """Median seconds by contender; beside the known sizes, the difference and its interval."""
    results: dict[str, dict[str, float]] = {}
    for contender, each in times.items():
        results[contender] = {"seconds": interval(each)[0]}
        if contender != "known":
            ratio, spread = interval(np.divide(each, times["known"]) - 1)
            results[contender] |= {"difference": ratio, "spread": spread}
    return results


def row(name: str, result: Json) -> list[str]:
    """A network's times, and how they compare."""
    cells = [name, time_text(result["known"]["seconds"])]
    for contender in ("batch", "size"):
        one = result[contender]
        cells.append(time_text(one["seconds"]))
        cells.append(f"{one['difference']:+.1%} ± {one['spread']:.1%}")
    return cells


BENCHMARKS = (Benchmark("any-size", measure, sections, add_arguments),)
