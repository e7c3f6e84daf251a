"""`graft quantize`: a float model and samples in; a model of mixed precision, and the precision of
each layer, out.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

from graft.base.errors import UserError
from graft.base.quantities import counted, time_text
from graft.byoc.executable import Settings
from graft.byoc.explain_html import filled_page
from graft.byoc.formats.onnx_model import to_onnx
from graft.cli.options import (
    UsageError,
    add_containment_arguments,
    add_machine_argument,
    add_strict_import_argument,
    add_target_argument,
    check_folders,
    positive,
    refuse_machine_with_accelerator,
    refuse_without_accelerator,
)
from graft.cli.placement import check_targets
from graft.cli.report import Block, error_text, print_result, section, table
from graft.cli.terminal import print_note, spoken_warnings, status
from graft.compiler import DEFAULT_TARGET, compile, compile_options
from graft.precision import RANDOM, quantize
from graft.quantize.confidence import CONFIDENCE
from graft.quantize.data import Pixels
from graft.quantize.ranges import METHODS
from graft.quantize.report import (
    AUTO,
    BRAIN,
    DEFAULT_BUDGET,
    FLOAT,
    HALF,
    INTEGER,
    INTEGERS,
    NIBBLE,
    WIDE,
    Budget,
    Report,
)
from graft.runtime.artifact import SUFFIX
from graft.runtime.regions import Policy
from graft.stages import import_graph, optimize
from graft.target.target import HOST, known_targets

DESCRIPTION = """\
Quantise a float model to 8 bits where that pays off: calibrate on sample data, measure
each layer's speed-up and its contribution to the output error, choose the fastest mix of
precisions within the budget, and validate it as a whole on held-out samples. The result
is never slower than the float model, as measured here, and within the budget on unseen
data like the samples, with 99 % confidence. Data are a folder of .npy, .npz or image
files, one sample each or many along the first axis, or one such file."""
EXAMPLES = f"""\
  graft quantize model.onnx --data images/ -o model-int8.onnx
  graft quantize model.onnx --data samples.npy --budget 1% -o model{SUFFIX}
  graft quantize model.onnx --data samples/ --budget top1=0.99 --json
  graft quantize model.onnx --data images/ --mean 0.485,0.456,0.406 --std 0.23,0.22,0.23
  graft quantize model.onnx --data images/ --html front.html
  graft quantize model.onnx --data images/ -o model{SUFFIX} --machine x86-64-v3   for AVX2
  graft quantize model.onnx --data random --precision int8   times, not accuracy
"""
ONNX = ".onnx"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", type=Path, help="the ONNX file")
    add(
        "--data",
        metavar="PATH",
        help=f"representative samples; '{RANDOM}' generates some, which is enough for"
        " times but says nothing about accuracy",
    )
    add(
        "--budget",
        metavar="SHARE",
        type=_budget,
        help=f"the error budget: a relative error of the outputs (default {DEFAULT_BUDGET}), or"
        " top1=SHARE of samples whose largest output stays the same",
    )
    add(
        "--precision",
        choices=(AUTO, *INTEGERS, BRAIN, HALF),
        default=AUTO,
        help=f"{AUTO}: what pays off within the budget (default); {INTEGER}: every supported layer;"
        f" {WIDE}, {NIBBLE}: the same with activations of 16 bits, or weights of 4, for devices"
        f" that support them; {BRAIN}, {HALF}: layers that are faster in 16 bits",
    )
    add(
        "--ranges",
        choices=tuple(METHODS),
        default="mse",
        help="method for the ranges of activations (default: mse)",
    )
    add("--mean", metavar="M,M,M", type=_numbers, help="subtracted from pixels (0 to 1) of images")
    add("--std", metavar="S,S,S", type=_numbers, help="pixels of images are divided by it")
    add("-o", "--output", metavar="FILE", type=Path, help=f"an {ONNX} or {SUFFIX} file to write")
    add("--threads", metavar="N", type=positive, help="number of threads (default: one per core)")
    listed = "one whose code this one runs (`graft compile --help` lists them)"
    add_machine_argument(parser, known_targets(), listed)
    add("--html", metavar="FILE", type=Path, help="write a page that plots time against error")
    add("--json", action="store_true", help="print one JSON object")
    add_target_argument(parser)
    add_containment_arguments(parser)
    add_strict_import_argument(parser)


def execute(options: argparse.Namespace) -> int:
    _check(options)
    start = time.perf_counter()
    target = options.target or DEFAULT_TARGET
    check_targets(options.target or ())
    with status(f"quantizing {options.model.name}") as tell, spoken_warnings():
        optimized = optimize(import_graph(options.model, options.strict_import))
        machine = options.machine or HOST
        settings = Settings(options.threads, machine, report=tell)
        policy = Policy(deadline=options.deadline)
        result = quantize(
            optimized,
            options.data,
            compile_options(target, settings, options.isolation, policy=policy),
            options.precision,
            options.budget,
            options.ranges,
            Pixels(options.mean or (0.0,), options.std or (1.0,)),
        )
        if options.output is not None and options.output.suffix == ONNX:
            onnx.save(to_onnx(result.optimized.graph, whole=True), options.output)
        elif options.output is not None:
            wishes = {"threads": options.threads, "deadline": options.deadline, "report": tell}
            wishes |= {"machine": machine, "isolation": options.isolation}
            module = compile(result.optimized, target, **wishes)
            module.save(options.output)
    seconds = time.perf_counter() - start
    facts = _facts(options, result.report, seconds)
    if options.html is not None:
        page = filled_page("graft.cli", "quantize.html", str(options.model), facts)
        options.html.write_text(page, encoding="utf-8")
    print_result(options.json, facts, _lines(options, result.report, seconds))
    if result.report.random:
        print_note("note", "random data say what the model would take, not how accurate it is")
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.data is None:
        raise UsageError(
            "graft quantize needs samples to calibrate on",
            hint=f"--data FOLDER; --data {RANDOM} makes some up, to see times alone",
        )
    if options.output is not None and options.output.suffix not in (ONNX, SUFFIX):
        raise UsageError(f"'{options.output}' ends in neither {ONNX} nor {SUFFIX}")
    check_folders(options.output, options.html)
    refuse_without_accelerator(options)
    refuse_machine_with_accelerator(options)


def _budget(text: str) -> Budget:
    try:
        return Budget.parse(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(f"{error}") from None


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(one) for one in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of numbers") from None


def _lines(options: argparse.Namespace, report: Report, seconds: float) -> Iterator[Block]:
    target_note = f" -> {options.output}" if options.output is not None else ""
    yield f"{options.model}{target_note}"
    kinds = list(dict.fromkeys(kind for unit in report.units for kind in unit.errors))
    rows = (
        (
            *(unit.name, unit.op, unit.precision, _time(unit.seconds.get(FLOAT))),
            *(_time(unit.seconds.get(kind)) for kind in kinds),
            *(_error(unit.errors.get(kind)) for kind in kinds),
            unit.reason,
        )
        for unit in report.units
    )
    errors = (f"{kind} error alone" for kind in kinds)
    header = ("unit", "operator", "precision", "float", *kinds, *errors, "why")
    numbers = tuple(range(3, 4 + 2 * len(kinds)))
    yield from section("Units", table(rows, header, right=numbers))
    if report.front:
        points = [
            (
                time_text(point.seconds),
                error_text(point.error),
                ", ".join(f"{count} {kind}" for kind, count in point.counts.items()),
            )
            for point in report.front
        ]
        titles = ("time of all units", "error", "units")
        yield from section("Time against error, predicted", table(points, titles, right=(0, 1)))
    yield from section("Measured end to end", table(_summary(report)))
    yield f"quantised in {time_text(seconds)}"
    if options.html is not None:
        yield f"{options.html} plots time against error"


def _summary(report: Report) -> Iterator[tuple[str, str]]:
    quality = report.quality
    counts = Counter(unit.precision for unit in report.units)
    yield "units", ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    for warning in report.warnings:
        yield "data", warning
    for refusal in report.refusals:
        yield "refused", refusal
    yield "samples", f"{report.samples} calibrated on, {report.held_out} others measured on"
    if report.equalized:
        yield "equalised", f"channels of {counted(report.equalized, 'value')}"
    certain = f"with {CONFIDENCE:.0%} confidence"
    bound = f"; at most {error_text(quality.error_bound)} on others {certain}"
    yield "relative output error", error_text(quality.error) + (bound if quality.error else "")
    if quality.agreement is not None:
        least = f"; at least {quality.agreement_bound:.2%} on others {certain}"
        yield "top-1 agreement", f"{quality.agreement:.2%}{least}"
    if report.budget is not None:
        yield "budget", f"{report.budget}; {counted(report.attempts, 'choice')} measured"
    if report.advice:
        yield "samples", report.advice
    yield "time in float", time_text(report.float_seconds)
    ratio = report.float_seconds / report.seconds
    yield "time of the result", f"{time_text(report.seconds)} ({ratio:.2f} × as fast)"


def _time(seconds: float | None) -> str:
    return "" if not seconds else time_text(seconds)


def _error(squared: float | None) -> str:
    return "" if squared is None else error_text(math.sqrt(squared))


def _facts(options: argparse.Namespace, report: Report, seconds: float) -> dict[str, Any]:
    facts = asdict(report)
    quality = facts["quality"]  # JSON has no infinity
    facts["quality"] = {k: v if v is None or math.isfinite(v) else None for k, v in quality.items()}
    output = None if options.output is None else str(options.output)
    facts |= {"advice": report.advice, "confidence": CONFIDENCE, "quantize_seconds": seconds}
    return {"model": str(options.model), "file": output, **facts}
