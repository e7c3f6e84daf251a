#!/usr/bin/env python3
"""What it costs a network that its sizes are not known: networks in; times side by side out.

    python tools/any_size.py [--networks NAMES] [--seconds S] [--threads N] [--quick] [--write]

Each network is compiled as it is, with a symbolic batch, and with symbolic batch, height and width,
or length for sentences (the network of `encoder.py`). The three run at the size of the first, in
turns in one process, so that all see the same neighbours. `--write` puts the table into
docs/benchmarks.md between its markers.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bench_pages import (
    DOCUMENT,
    MODELS,
    add_common_arguments,
    chosen_pages,
    paragraph,
    parsed,
    table,
)
from encoder import WORDS, encoder
from graft import __version__, compile
from graft.byoc.measure import WATCH, interval, laps
from graft.cli.bench_machine import this_machine
from graft.cli.report import seconds_text
from new_size import BATCH, any_size

# ViT and VGG-19 have sizes in their weights, or reshape to a batch of one.
IMAGES = ("resnet18", "resnet50", "inception_v3", "darknet53", "mobilenet_v2")
SENTENCES = "encoder"
NETWORKS = (*IMAGES, SENTENCES)
WORDS_OF_ONE = 128
EVERYTHING = {0: "batch", 2: "height", 3: "width"}
HEADER = ("network", "known sizes", "any batch", "beside known", "any size", "beside known")
SECONDS = 6.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_common_arguments(parser)
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=SECONDS, help="to run each contender for"
    )
    options = parsed(parser, NETWORKS)
    seconds = 1.0 if options.quick else options.seconds
    pages = chosen_pages(options.write)
    found = []
    for name in options.networks:
        found.append(row(name, timed(name, options.threads, seconds)))
        print(*table(HEADER, found[-1:])[2:], flush=True)
    where = (
        f"Medians with 95 % intervals, lap by lap. Made on {datetime.date.today().isoformat()} on"
        f" {this_machine()}, with {options.threads} threads, Graft {__version__}."
    )
    pages.replace(DOCUMENT, "any-size", [*table(HEADER, found), "", *paragraph(where)])
    return 0


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
    path = MODELS / f"{name}.onnx"
    models = {
        "known": path,
        "batch": any_size(path, BATCH),
        "size": any_size(path, EVERYTHING),
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


def row(name: str, times: Mapping[str, Sequence[float]]) -> list[str]:
    """A network's times, and how they compare lap by lap."""
    cells = [name, seconds_text(interval(times["known"])[0])]
    for contender in ("batch", "size"):
        ratio, spread = interval(np.divide(times[contender], times["known"]) - 1)
        cells.append(seconds_text(interval(times[contender])[0]))
        cells.append(f"{ratio:+.1%} ± {spread:.1%}")
    return cells


if __name__ == "__main__":
    raise SystemExit(main())
