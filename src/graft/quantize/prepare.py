"""What is known of a model before precisions are measured: samples in; an equalised graph, ranges,
and the samples to measure errors on out.

Every sample is read once: most are calibrated on, and one of four is held out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

from graft.base.errors import UserError
from graft.base.progress import Progress, Stage
from graft.ir.graph import Graph
from graft.quantize.calibrate import Calibration, Compile, Statistics
from graft.quantize.data import ConstantChannels, Sample
from graft.quantize.equalize import equalize, find_links, observed_values
from graft.quantize.heads import measured_units, with_outputs
from graft.quantize.scheme import Scheme
from graft.quantize.units import Unit, find_units

LEAST_SAMPLES, LEAST_WITHIN = 2, 3  # of three, errors of two say how much they differ
_EVERY, _MOST_HELD_OUT = 4, 64  # one of so many samples is not calibrated on, and not more
_PROBES = 4  # calibrated samples that are kept: single units are perturbed on them


@dataclass(frozen=True, eq=False)
class Prepared:
    """A calibrated graph; `equalized` counts the values whose channels were scaled."""

    graph: Graph
    equalized: int
    units: Sequence[Unit]
    unreached: Sequence[Unit]  # by any sample
    statistics: Statistics
    held_out: Sequence[Sample]
    probes: Sequence[Sample]
    samples: int  # calibrated on
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Preparation:
    """How a model is prepared: `least` samples are needed, `integers` says whether units may be on
    integers, which alone need ranges."""

    compile: Compile
    scheme: Scheme
    integers: bool
    method: str
    least: int
    report: Progress

    def run(self, plain: Graph, samples: Iterator[Sample]) -> Prepared:
        """Equalise the graph, and calibrate it on the samples."""
        first = list(islice(samples, _PROBES))
        if len(first) < self.least:
            uses = "one is needed to calibrate on, and another one to measure the error on"
            if len(first) >= LEAST_SAMPLES:
                uses = "a budget is kept by how much errors differ from one to the next"
            raise UserError(
                f"there are too few samples ({len(first)}): {uses}",
                hint="some hundred samples of what the model will see are good data",
            )
        graph, equalized = self._equalized(plain, first)
        units = measured_units(graph, find_units(graph))
        self.report(Stage("compiling for calibration"))
        calibration = Calibration(graph, units if self.integers else (), self.compile)
        constant = ConstantChannels()
        held_out: list[Sample] = []
        probes: list[Sample] = []
        for position, sample in enumerate(chain(first, samples)):
            constant.add(sample)
            self.report(Stage("calibrating", detail=f"sample {position + 1}"))
            if position % _EVERY == 1 and len(held_out) < _MOST_HELD_OUT:
                held_out.append(sample)
                continue
            calibration.add(sample)
            if len(probes) < _PROBES:
                probes.append(sample)
        layers = [unit for unit in calibration.units if unit.weight is not None]
        on_unit = partial(report_unit, self.report, "rounding weights", layers)
        statistics = calibration.statistics(self.method, self.scheme, on_unit)
        reached = tuple(unit for unit in units if unit not in calibration.unreached)
        return Prepared(
            graph,
            equalized,
            reached,
            calibration.unreached,
            replace(statistics, units=reached),
            held_out,
            probes,
            calibration.samples,
            constant.warnings(),
        )

    def _equalized(self, graph: Graph, first: Sequence[Sample]) -> tuple[Graph, int]:
        """The graph with channels scaled against each other where that reduces rounding errors."""
        units = measured_units(graph, find_units(graph))
        links = find_links(graph, units) if self.integers else []
        if not links:
            return graph, 0
        self.report(Stage("equalising channels"))
        values = observed_values(links)
        runs = list(map(self.compile(with_outputs(graph, values)), first))
        known = dict(zip(values, zip(*runs, strict=True), strict=True))
        return equalize(graph, links, known, self.scheme)


def report_unit(report: Progress, stage: str, units: Sequence[Unit], position: int) -> None:
    """Report the unit at which a stage is."""
    report(Stage(stage, position + 1, len(units), units[position].name))
