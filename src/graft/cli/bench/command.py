"""`graft bench`: models in; the times of Graft and its peers, side by side, out.

Every contender has a process of its own. Each prepares the model and runs it once; those whose
outputs agree are then timed in alternation. Ratios of times within one run are meaningful; the
times themselves depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graft.base.errors import UserError
from graft.base.progress import Stage
from graft.byoc.cores import Watch
from graft.cli.arrays import read_data
from graft.cli.bench.contenders import CONTENDERS, PEERS, Contender
from graft.cli.bench.model import Subject, prepared
from graft.cli.bench.process import Worker
from graft.cli.bench.report import MARKDOWN, TEXT, Comparison, Standing, Timing, to_json
from graft.cli.bench.rounds import (
    GRAFT,
    ContenderError,
    Limits,
    Measurement,
    Sample,
    Slice,
    measure,
    summarize,
)
from graft.cli.compare import Tolerance, add_tolerance_arguments, disagreements, tolerance_of
from graft.cli.inputs import add_input_arguments, data_type
from graft.cli.machine import this_machine
from graft.cli.options import (
    UsageError,
    add_accuracy_argument,
    add_placement_arguments,
    add_strict_import_argument,
    asked,
    check_placement,
    not_negative,
    others_than_host,
    positive,
)
from graft.cli.placement import check_targets
from graft.cli.report import print_json
from graft.cli.terminal import status
from graft.ir.evaluate import Data
from graft.runtime.session import count_threads

DESCRIPTION = """\
Time Graft beside other runtimes, all with the same number of threads. Outputs are
compared first, with the tolerances of `graft check`: a contender that differs, fails
or is not installed is reported and not timed. The others alternate in short rounds
until the ratios of their times are known to 2 %, or a limit is reached. With
--no-peers, Graft is timed alone. Exit code 0 unless nothing could be compared."""
EXAMPLES = """\
  graft bench model.onnx                          with every peer that is installed
  graft bench model.onnx --peers onnxruntime --threads 1
  graft bench model.onnx --no-peers               Graft alone
  graft bench model.onnx --accuracy strict        without Winograd and Strassen
  graft bench a.onnx b.onnx --batch 8 --seconds 120 --json
  graft bench model.onnx --dim length=128 --markdown >> results.md
  graft bench model.onnx --dim batch=8 --shapes batch=8   Graft with a variant for it
  graft bench model.onnx --target onednn,host     Graft with an accelerator
"""

_PREPARE_SECONDS = 1200.0
# A slice is given up after so many times what it should take, and never sooner than a minute.
_PATIENCE = 20
_LEAST_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PreparedContender:
    """A contender that has run the model once."""

    contender: Contender
    worker: Worker
    version: str
    prepare_seconds: float
    run_seconds: float
    outputs: Sequence[Data]

    def run(self, portion: Slice) -> Sample:
        """Run for a slice of time."""
        expected = portion.most_seconds + self.run_seconds
        patience = max(_LEAST_PATIENCE_SECONDS, _PATIENCE * expected)
        command = {
            "do": "measure",
            "least_runs": portion.least_runs,
            "least_seconds": portion.least_seconds,
            "most_seconds": portion.most_seconds,
        }
        answer = self.worker.ask(command, patience)
        return Sample(tuple(answer["times"]), answer["processor_seconds"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", metavar="MODEL", type=Path, nargs="+", help="an ONNX file")
    whom = parser.add_mutually_exclusive_group()
    whom.add_argument(
        "--peers",
        metavar="NAMES",
        type=_peers,
        default=list(PEERS),
        help=f"whom to compare with (default {','.join(PEERS)})",
    )
    whom.add_argument(
        "--no-peers", dest="peers", action="store_const", const=[], help="time Graft alone"
    )
    counts = (
        ("threads", None, "of each contender (default: one per core)"),
        ("batch", None, "the first dim of the inputs, fixed or dynamic"),
        ("rounds", 200, "at most (default 200)"),
    )
    for name, default, explanation in counts:
        parser.add_argument(
            f"--{name}", metavar="N", type=positive, default=default, help=explanation
        )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=not_negative,
        default=60.0,
        help="to spend on timing a model, at most (default 60)",
    )
    add_input_arguments(parser)
    add_tolerance_arguments(parser)
    add_accuracy_argument(parser)
    add_placement_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    add_strict_import_argument(parser)
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print Markdown tables")


def _peers(names: str) -> list[str]:
    result = list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in result:
        if name not in PEERS:
            peers = ", ".join(PEERS)
            raise argparse.ArgumentTypeError(f"there is no peer '{name}'; there are {peers}")
    return result


def execute(options: argparse.Namespace) -> int:
    check_placement(options)
    check_targets(options.target or ())
    if options.save_plan is not None and len(options.models) > 1:
        raise UsageError("--save-plan is for one model", hint="bench them one by one")
    machine = this_machine()
    threads = count_threads(None, options.threads) if options.threads else machine.cores
    contenders = [CONTENDERS[name] for name in (GRAFT, *options.peers)]
    form = MARKDOWN if options.markdown else TEXT
    comparisons = []
    for path in options.models:
        comparisons.append(_compared_or_not(path, contenders, options, threads))
        if not options.json:
            if path is options.models[0]:
                form.show(form.heading(machine, threads))
            form.show(form.comparison(comparisons[-1], threads))
    if options.json:
        print_json(to_json(machine, threads, comparisons))
    return 0 if any(comparison.graft_timed for comparison in comparisons) else 1


def _compared_or_not(
    path: Path, contenders: Sequence[Contender], options: argparse.Namespace, threads: int
) -> Comparison:
    """The comparison on one model; an error on one of several models does not affect the others."""
    try:
        return compared(path, contenders, options, threads)
    except UserError as error:
        if len(options.models) == 1:
            raise
        return Comparison(path, problem=" ".join(str(error).split()))


def compared(
    path: Path, contenders: Sequence[Contender], options: argparse.Namespace, threads: int
) -> Comparison:
    """Prepare all contenders, exclude those whose outputs differ, and time the others."""
    with tempfile.TemporaryDirectory(prefix="graft-bench-") as name, ExitStack() as workers:
        folder = Path(name)
        with status(f"importing {path.name}"):
            subject = prepared(path, options, folder)
        standings: dict[str, Standing] = {}
        ready: dict[str, PreparedContender] = {}
        for number, contender in enumerate(contenders):
            try:
                with status(f"preparing {path.name}") as tell:
                    tell(Stage("contender", number + 1, len(contenders), contender.title))
                    task = _task(contender, subject, threads, options)
                    one = prepare_contender(contender, task, folder, workers)
            except ContenderError as error:
                standings[contender.name] = Standing(
                    contender, reason=error.message, hint=error.hint
                )
            else:
                ready[contender.name] = one
                standings[contender.name] = Standing(contender, one.version, one.prepare_seconds)
        _exclude(ready, standings, subject, tolerance_of(options))
        limits = Limits(options.rounds, options.seconds)
        fewest = 2 if len(contenders) > 1 else 1
        result = _measured(ready, limits, path, threads, fewest)
        standings |= dict(_timed(standings, result, fewest))
    inputs = [(fed.name, data_type(fed.data)) for fed in subject.inputs]
    ordered = [standings[contender.name] for contender in contenders]
    return Comparison(
        path, inputs, ordered, len(result.rounds), result.seconds, disturbed=result.disturbed
    )


def _task(
    contender: Contender, subject: Subject, threads: int, options: argparse.Namespace
) -> dict[str, Any]:
    """The task of a contender; options of the compiler are for Graft only."""
    task: dict[str, Any] = {
        "function": contender.function,
        "model": str(subject.file),
        "feeds": subject.feeds,
        "threads": threads,
    }
    if contender.name != GRAFT:
        return task
    if others_than_host(options) or options.shapes:
        saved = None if options.save_plan is None else str(options.save_plan.absolute())
        task |= {"asked": asked(options), "save_plan": saved}
    if options.accuracy is not None:
        task["asked"] = {**task.get("asked", {}), "accuracy": options.accuracy}
    return task


def prepare_contender(
    contender: Contender, task: dict[str, Any], folder: Path, workers: ExitStack
) -> PreparedContender:
    """Start a contender's process and have it run the model once."""
    own = folder / contender.name
    own.mkdir()
    command = {"do": "prepare", "folder": str(own), **task}
    with ExitStack() as stack:  # a process that fails is not kept until the end
        worker = stack.enter_context(closing(Worker(own / "log.txt", task["threads"])))
        answer = worker.ask(command, _PREPARE_SECONDS)
        workers.push(stack.pop_all())
    outputs = [read_data(own, description) for description in answer["outputs"]]
    version, seconds, run_seconds = answer["version"], answer["seconds"], answer["run_seconds"]
    return PreparedContender(contender, worker, version, seconds, run_seconds, outputs)


def _exclude(
    ready: dict[str, PreparedContender],
    standings: dict[str, Standing],
    subject: Subject,
    tolerance: Tolerance,
) -> None:
    """Exclude contenders whose outputs differ."""
    outputs = {name: one.outputs for name, one in ready.items()}
    for name, reason in disagreements(subject.graph, outputs, tolerance).items():
        hint = f"graft check {shlex.quote(str(subject.path))}" if name == GRAFT else ""
        standings[name] = replace(standings[name], reason=reason, hint=hint)
        ready.pop(name).worker.close()


def _measured(
    ready: Mapping[str, PreparedContender], limits: Limits, path: Path, threads: int, fewest: int
) -> Measurement:
    """The rounds of the prepared contenders; none if they are fewer than `fewest`."""
    if GRAFT not in ready or len(ready) < fewest:
        return Measurement([], {}, 0.0)
    runs = {name: one.run for name, one in ready.items()}
    with status(f"timing {path.name}: {', '.join(runs)}") as tell:
        return measure(runs, limits, Slice(), Watch(threads, limits.seconds), tell)


def _timed(
    standings: Mapping[str, Standing], measurement: Measurement, fewest: int
) -> Iterator[tuple[str, Standing]]:
    """The standings that the measurement has changed."""
    for name, error in measurement.failures.items():
        yield name, replace(standings[name], reason=error.message, hint=error.hint)
    lasting = measurement.rounds[0] if measurement.rounds else {}
    comparable = GRAFT in lasting and len(lasting) >= fewest
    for name, standing in standings.items():
        if name in lasting and comparable:
            ratio = None if name == GRAFT else measurement.ratio(GRAFT, name)
            timing = Timing(summarize(measurement.times(name)), measurement.cores_used(name), ratio)
            yield name, replace(standing, timing=timing)
        elif not standing.reason and name not in measurement.failures:
            yield name, replace(standing, reason="nothing to compare it with")
