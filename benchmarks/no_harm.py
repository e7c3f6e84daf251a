"""Runs each chosen plan beside the host alone and beside everything offloaded.

For every network and every backend that can run here: the network is partitioned, the host alone,
the greedy plan (all that can be offloaded) and the chosen plan are compiled, and the three run in
turns in one process, so that all see the same neighbours. The time of a contender is its median,
with the interval that order statistics give for it; what each plan was predicted to take stands
beside it. All prices are measured anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from benchmarks.harness import (
    NETWORKS,
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
    network_path,
)
from benchmarks.pages import DOCUMENT, paragraph, table
from graft.base.cache_folder import default_folder
from graft.base.dtypes import Array
from graft.base.quantities import time_text
from graft.byoc.discover import find_backends
from graft.byoc.executable import Settings
from graft.byoc.measure import WATCH, interval, laps
from graft.byoc.partition import plan_of
from graft.byoc.store import PRICES, clear_prices
from graft.compiler import compile, compile_options
from graft.module import Module
from graft.stages import import_graph, optimize, place

BACKENDS = ("onednn", "openvino")
SECONDS = 10.0
PATIENCE = 300.0  # seconds to wait in all for cores that others use
NOISE = 0.03  # what two equal programs may differ by
ERROR = 0.15  # by how much a prediction may be off


@dataclass(frozen=True, slots=True)
class Lap:
    """What one contender takes, by its plan and by the clock."""

    predicted: float | None  # None where it was not recorded
    seconds: float
    spread: float  # half the width of the interval


@dataclass(frozen=True, slots=True)
class Outcome:
    """One network with one backend: what was thought and what was measured.

    Judged by the figures as the table shows them, so that readers come to the same verdict."""

    network: str
    backend: str
    regions: int
    host: Lap
    offloaded: Lap
    chosen: Lap
    harm: float  # by how much the chosen plan is slower than the better of the others
    harm_spread: float

    @property
    def error(self) -> float:
        """By how much the prediction is off."""
        assert self.chosen.predicted is not None
        return self.chosen.predicted / self.chosen.seconds - 1

    @property
    def slower(self) -> bool:
        """Whether the chosen plan was measured slower than equal programs may be."""
        return round(self.harm, 3) > NOISE

    @property
    def harmed(self) -> bool:
        """Whether it is slower beyond the measurement's own interval, too."""
        return self.slower and round(self.harm, 3) > round(self.harm_spread, 3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network_argument(parser, NETWORKS)
    parser.add_argument(
        "--backends",
        metavar="NAMES",
        type=lambda text: text.split(","),
        default=list(BACKENDS),
        help=f"separated by commas (default {','.join(BACKENDS)})",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        default=SECONDS,
        help=f"to run each contender for (default {SECONDS:g})",
    )


def measure(options: argparse.Namespace) -> Json:
    names = [name for name in options.backends if _runs_here(name)]
    WATCH.patience = PATIENCE
    clear_prices(default_folder() / PRICES)  # they may have been measured beside other neighbours
    outcomes = []
    for network in chosen_networks(options):
        for name in names:
            print(f"  {network} with {name}: ", end="", flush=True)
            outcomes.append(outcome(network, name, options))
            print(_in_short(outcomes[-1]), flush=True)
    return [asdict(one) for one in outcomes]


def sections(record: Record) -> Iterator[Section]:
    outcomes = [
        Outcome(**{**one, **{name: Lap(**one[name]) for name in ("host", "offloaded", "chosen")}})
        for one in record.data
    ]
    yield Section(DOCUMENT, "no-harm", [*report(outcomes), *paragraph(str(record.made))])


def _runs_here(name: str) -> bool:
    backend = find_backends().backends.get(name)
    missing = "it is not installed" if backend is None else backend.missing()
    if missing:
        print(f"without {name}: {missing}", flush=True)
    return not missing


def outcome(network: str, backend: str, options: argparse.Namespace) -> Outcome:
    """Three plans of one network, side by side."""
    optimized = optimize(import_graph(network_path(network)))
    target = [backend, "host"]
    build = partial(compile, optimized, threads=options.threads)
    chosen = build(target)
    parted = place(optimized, compile_options(target, Settings(options.threads))).partition
    assert parted is not None
    contenders = {
        "host": build(),
        "offloaded": build(target, plan=plan_of(parted, "greedy")),
        "chosen": chosen,
    }
    feeds = _feeds(chosen)
    runs = {name: partial(module.run, None, feeds) for name, module in contenders.items()}
    plan = chosen.placement.plan
    assert plan is not None
    predicted = {
        "host": parted.alternatives["host-only"].seconds,
        "offloaded": parted.alternatives["greedy"].seconds,
        "chosen": plan.predicted,
    }
    regions = len(chosen.placement.regions)
    WATCH.wait()
    return judged(
        network, backend, regions, predicted, laps(runs, 1.0 if options.quick else options.seconds)
    )


def judged(
    network: str,
    backend: str,
    regions: int,
    predicted: Mapping[str, float],
    times: Mapping[str, Sequence[float]],
) -> Outcome:
    """What the laps say. Laps stand side by side, so what disturbs one contender in one of them
    disturbs the others, too, and cancels out where they are compared lap by lap."""
    own = {name: Lap(predicted[name], *interval(times[name])) for name in times}
    better = min(("host", "offloaded"), key=lambda name: own[name].seconds)
    harm, spread = interval(np.divide(times["chosen"], times[better]) - 1)
    return Outcome(network, backend, regions, **own, harm=harm, harm_spread=spread)


def _feeds(module: Module) -> dict[str, Array]:
    draw = np.random.default_rng(0)
    return {
        argument.name: draw.standard_normal(argument.shape).astype(np.float32)
        for argument in module.get_inputs()
    }


def report(found: Sequence[Outcome]) -> list[str]:
    """The table, and how far it keeps what is promised, which the table's own figures decide."""
    header = (
        "network",
        "backend",
        "regions",
        "host alone",
        "all offloaded",
        "chosen",
        "beside the better",
        "predicted",
        "off by",
    )
    rows = [
        (
            one.network,
            one.backend,
            str(one.regions),
            *(_with_spread(lap) for lap in (one.host, one.offloaded, one.chosen)),
            f"{one.harm:+.1%} ± {one.harm_spread:.1%}",
            time_text(one.chosen.predicted or 0.0),
            f"{one.error:+.0%}",
        )
        for one in found
    ]
    where = (
        f"{verdict(found)} Medians with 95 % intervals, all contenders in turns in one process;"
        " the comparison with the better one is made lap by lap."
    )
    return [*table(header, rows), "", *paragraph(where)]


def verdict(found: Sequence[Outcome]) -> str:
    harmed = [one for one in found if one.harmed]
    unsure = [one for one in found if one.slower and not one.harmed]
    off = [one for one in found if abs(round(one.error, 2)) > ERROR]
    most = max((one.harm for one in found), default=0.0)
    sentences = []
    if not harmed and not unsure:
        sentences.append(
            f"No chosen plan is more than {NOISE:.0%} slower than the better of the other two"
            f" (at most {most:+.1%})."
        )
    if harmed:
        sentences.append(
            f"More than {NOISE:.0%} slower than the better of the other two: {_named(harmed)}."
        )
    if unsure:
        sentences.append(
            f"Measured more than {NOISE:.0%} slower than the better of the other two, but not"
            f" beyond the interval: {_named(unsure)}."
        )
    sentences.append(
        f"Predicted more than {ERROR:.0%} off: {_named(off)}."
        if off
        else f"All predictions are within {ERROR:.0%} of what was measured."
    )
    return " ".join(sentences)


def _named(outcomes: Sequence[Outcome]) -> str:
    return ", ".join(f"{one.network} with {one.backend}" for one in outcomes)


def _with_spread(lap: Lap) -> str:
    return f"{time_text(lap.seconds)} ± {lap.spread / lap.seconds:.0%}"


def _in_short(one: Outcome) -> str:
    contenders = {"host": one.host, "offloaded": one.offloaded, "chosen": one.chosen}
    shown = [
        f"{name} {_with_spread(lap)} (predicted {time_text(lap.predicted or 0.0)})"
        for name, lap in contenders.items()
    ]
    return f"{', '.join(shown)}; {one.harm:+.1%} ± {one.harm_spread:.1%}"


BENCHMARKS = (Benchmark("no-harm", measure, sections, add_arguments),)
