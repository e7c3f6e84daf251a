"""`graft run`: a model or a compiled file, and inputs, in; a summary of the outputs, their files,
and a profile out.

The compiler is imported for models only: a compiled file runs without it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graft.base.dtypes import DType, dtype_of
from graft.base.errors import UserError
from graft.base.quantities import number, time_text
from graft.cli.arrays import save_outputs
from graft.cli.inputs import InputData, add_input_arguments, data_type, feed, telling_sizes
from graft.cli.options import (
    ACCURACIES,
    REFERENCE,
    UsageError,
    add_accuracy_argument,
    add_placement_arguments,
    add_strict_import_argument,
    asked,
    check_folders,
    check_placement,
    positive,
)
from graft.cli.profile import MeasuredRuns, measured, profile_json, profile_lines, write_trace
from graft.cli.report import Block, figure, print_result, section, table
from graft.cli.runnable import (
    Runnable,
    is_compiled,
    loaded,
    refuse_options,
    refuse_placement_of_file,
)
from graft.cli.terminal import spoken_warnings, status
from graft.runtime.artifact import SUFFIX

if TYPE_CHECKING:
    from graft.cli.dump import Dump
    from graft.ir.evaluate import Data

DESCRIPTION = """\
Run a model, or a .graft file that `graft compile` has saved, once, on given or
generated inputs, and summarise its outputs. A dim that two inputs share has one
value; an unset dim is 1. With --profile, time each kernel."""
EXAMPLES = """\
  graft run model.onnx                                generated inputs
  graft run model.onnx --dim batch=4 --seed 7         of another size, other numbers
  graft run model.onnx --input x=x.npy --output-dir out
  graft run model.onnx --input inputs.npz --json
  graft run model.onnx --shapes batch=1,8 --dim batch=8  by a variant for this size
  graft run model.onnx --target reference             without native code
  graft run model.onnx --target onednn,host           with an accelerator
  graft run model.onnx --target onednn,host --pin "layer4/*=host" --save-plan model.plan
  graft run model.onnx --dump conv1,relu1             what these nodes compute, as files
  graft run model.graft --threads 2                   compiled before
  graft run model.graft --profile --trace trace.json  time per kernel; open it in Perfetto
"""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of an output or an item of it; None if it has no numbers."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    minimum: float | None
    mean: float | None
    maximum: float | None
    nans: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run: what was run, its inputs and outputs, and the time it took."""

    runnable: Runnable
    inputs: Sequence[InputData]
    outputs: Sequence[tuple[str, Data]]
    run_seconds: float
    variant: str | None  # None: there are none; empty: the general program
    profile: MeasuredRuns | None
    dump: Dump | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help="the ONNX or .graft file")
    add_input_arguments(parser)
    parser.add_argument(
        "--threads", metavar="N", type=positive, help="number of threads (default: one per core)"
    )
    add_accuracy_argument(parser)
    parser.add_argument(
        "--output-dir", metavar="DIR", type=Path, help="save the outputs there as .npy files"
    )
    parser.add_argument(
        "--dump",
        metavar="NAMES",
        action="append",
        default=[],
        help="write the results of these nodes or values, separated by commas, or of `all`",
    )
    parser.add_argument(
        "--dump-to", metavar="DIR", type=Path, help="folder for --dump (default MODEL-dump)"
    )
    parser.add_argument("--profile", action="store_true", help="time each kernel")
    parser.add_argument(
        "--trace", metavar="FILE", type=Path, help="with --profile: write trace events to a file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_strict_import_argument(parser)
    add_placement_arguments(parser)


def execute(options: argparse.Namespace) -> int:
    _check(options)
    if options.output_dir is not None:
        options.output_dir.mkdir(parents=True, exist_ok=True)  # before the work, not after
    outcome = _run(options)
    files: dict[str, Path] = {}
    if options.output_dir is not None:
        files = save_outputs(options.output_dir, outcome.outputs)
    if options.trace is not None and outcome.profile is not None:
        write_trace(outcome.profile, options.trace)
    statistics = [one for name, data in outcome.outputs for one in described(name, data)]
    print_result(
        options.json,
        _json(options.model, outcome, statistics, files),
        _text(options.model, outcome, statistics, files),
    )
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse options that contradict one another."""
    if options.trace is not None and not options.profile:
        raise UsageError("--trace writes what --profile measures", hint="add --profile")
    check_folders(options.trace)
    if options.dump_to is not None and not options.dump:
        raise UsageError("--dump-to is where --dump writes", hint="add --dump NAMES or --dump all")
    if options.dump and is_compiled(options.model):
        raise UsageError(
            f"--dump is for models: a {SUFFIX} file has no values but its outputs",
            hint="give the ONNX file that it was compiled from",
        )
    if is_compiled(options.model):
        refuse_placement_of_file(options)
        accuracy, strict = options.accuracy is not None, options.strict_import
        refuse_options({"--accuracy": accuracy, "--strict-import": strict})
    else:
        check_placement(options)
    if options.target == [REFERENCE]:
        hint = f"leave out --target {REFERENCE}"
        if options.profile:
            raise UsageError("profiling wants native code", hint=hint)
        if options.threads is not None:
            raise UsageError("--threads is for native code", hint=hint)
        if options.accuracy is not None:
            raise UsageError("--accuracy is for native code", hint=hint)


def _run(options: argparse.Namespace) -> Outcome:
    write_dump = _dump_writer(options) if options.dump else None
    runnable = _runnable(options)
    if options.profile and not runnable.is_native:
        raise UserError("profiling wants native code", hint="the reference evaluator runs it")
    inputs = feed(runnable, options, runnable.bounds)
    feeds = {fed.name: fed.data for fed in inputs}
    ready = time.perf_counter()
    running = status(f"running {options.model.name}")
    with running, spoken_warnings(), telling_sizes(runnable, options):
        results = runnable.run(feeds)
    seconds = time.perf_counter() - ready
    profile: MeasuredRuns | None = None
    if options.profile:
        with status(f"profiling {options.model.name}") as tell:
            profile = measured(runnable.session, feeds, tell)
    outputs = list(zip(runnable.output_names, results, strict=True))
    dump = None if write_dump is None else write_dump(runnable.session, feeds, outputs)
    return Outcome(runnable, inputs, outputs, seconds, runnable.variant(feeds), profile, dump)


def _dump_writer(options: argparse.Namespace) -> Callable[..., Dump]:
    # lazy: it imports the compiler, which a compiled file does without
    from graft.cli.dump import dump, request

    return partial(dump, request(options), options)


def _runnable(options: argparse.Namespace) -> Runnable:
    if is_compiled(options.model):
        return loaded(options.model, options.threads, options.verify, options.deadline)
    # lazy: it imports the compiler, which a compiled file does without
    from graft.cli.placement import compiled

    return compiled(
        options.model,
        asked(options),
        options.save_plan,
        options.threads,
        options.accuracy or ACCURACIES[0],
        options.strict_import,
    )


def described(name: str, data: Data) -> Iterator[Statistics]:
    """Statistics of a tensor, or of each item of a sequence or map."""
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
) -> Iterator[Block]:
    yield f"{path} ({outcome.runnable.summary})"
    inputs = [(fed.name, data_type(fed.data), fed.origin) for fed in outcome.inputs]
    yield from section("Inputs", table(inputs) or ["none"])
    header = ("name", "type", "min", "mean", "max", "NaN")
    rows = [_row(one) for one in statistics]
    yield from section("Outputs", table(rows, header, right=(2, 3, 4, 5)) if rows else ["none"])
    if files:
        yield from section("Saved", [str(file) for file in files.values()])
    if outcome.dump is not None:
        yield from section("Dumped", outcome.dump.lines())
    if outcome.profile is not None:
        yield from section("Profile", profile_lines(outcome.profile))
    yield ""
    ran = "ran" if outcome.variant is None else f"{outcome.variant or 'the general program'} ran"
    simulates = any(one.simulated for one in outcome.runnable.session.regions.values())
    note = ", a simulation included" if simulates else ""
    yield f"{outcome.runnable.readied}, {ran} in {time_text(outcome.run_seconds)}{note}"


def _row(one: Statistics) -> tuple[str, ...]:
    shape = "" if one.shape is None else f"[{', '.join(map(str, one.shape))}]"
    figures = (figure(one.minimum), figure(one.mean), figure(one.maximum))
    return (one.name, f"{one.dtype}{shape}", *figures, number(one.nans))


def _json(
    path: Path, outcome: Outcome, statistics: Sequence[Statistics], files: dict[str, Path]
) -> dict[str, Any]:
    return {
        "model": str(path),
        **outcome.runnable.facts,
        "inputs": [
            {"name": fed.name, "type": data_type(fed.data), "origin": fed.origin}
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
        "run_seconds": outcome.run_seconds,
        "variant": outcome.variant,
        "profile": None if outcome.profile is None else profile_json(outcome.profile),
        "dump": None if outcome.dump is None else str(outcome.dump.folder),
        "incidents": [asdict(incident) for incident in outcome.runnable.session.incidents],
    }
