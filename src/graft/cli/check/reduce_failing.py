"""`graft check --reduce`: a model that fails in Graft in, the smallest one that still does out.

A failure is what `graft check` reports: results that differ from ONNX Runtime's, an error, or the
end of the process by a signal. Models that crash are tried in separate processes. Each smaller
model has to fail in the same way: with the same error from the same function, or the same signal.
The written file is checked once more, by the command that is printed.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from graft.base.errors import UserError
from graft.base.names import file_stem
from graft.base.quantities import counted
from graft.cli.arrays import save_outputs
from graft.cli.check.peer import LARGEST_IN_MEMORY, Peer, onnxruntime
from graft.cli.check.reduce import Case, Trials, element, reduce_case
from graft.cli.compare import Tolerance, compare, in_expected_order, tolerance_of
from graft.cli.inputs import InputFile, feeds_of
from graft.cli.options import UsageError, asked, flag
from graft.cli.placement import same_placement
from graft.cli.report import Block, Line, section
from graft.cli.survey import index_bounds, parameters
from graft.cli.terminal import status
from graft.compiler import compile
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import filled_model, read_model
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.ir.types import Type
from graft.runtime.placement import PlacedRegion

_DIFFERS = "differs"
_PATIENCE = 600.0  # seconds that a process may take for one model


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure: different results, an error (from a function), or a signal."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        if self.kind == _DIFFERS:
            return "Graft and ONNX Runtime differ"
        return f"Graft {self.kind} ({self.detail})"


@dataclass(frozen=True, slots=True)
class Reduction:
    """The result of reducing a model; without a failure nothing was done."""

    path: Path
    failure: Failure | None
    out: Path | None = None
    nodes: tuple[int, int] = (0, 0)  # left, and before
    operators: Sequence[str] = ()
    trials: int = 0
    gave_up: bool = False
    command: str = ""
    confirmed: bool = False

    def lines(self) -> Iterator[Block]:
        yield str(self.path)
        if self.failure is None:
            yield "Graft and ONNX Runtime agree: there is nothing to reduce."
            return
        left, before = self.nodes
        shown = ", ".join(dict.fromkeys(self.operators))
        trials = counted(self.trials, "smaller model") + " tried"
        trials += ", where the search was ended" if self.gave_up else ""
        yield from section(
            f"{self.failure}",
            [
                f"{self.out}: {left} of {counted(before, 'node')} left ({shown}); {trials}",
                "checked again: it fails in the same way"
                if self.confirmed
                else "checked again: it does NOT fail as a file of its own; the failure depends"
                " on what is not in the model",
                Line(f"to reproduce: {self.command}", wraps=False),
            ],
        )

    def facts(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "model": str(self.path),
            "agrees": self.failure is None,
            "failure": None if self.failure is None else str(self.failure),
            "reduced": None if self.out is None else str(self.out),
            "nodes": self.nodes[0],
            "nodes_before": self.nodes[1],
            "operators": list(self.operators),
            "trials": self.trials,
            "command": self.command or None,
            "confirmed": self.confirmed,
        }


def reduce_failing(
    options: argparse.Namespace, passes: Callable[[argparse.Namespace], bool]
) -> Reduction:
    """Reduce the model that the options name, if it fails; `passes` is the check itself."""
    if options.plan is not None:
        raise UsageError("--plan is for the whole model, and --reduce changes it")
    source = read_model(options.model, strict=options.strict_import)
    if parameters(source).bytes > LARGEST_IN_MEMORY:
        raise UserError("--reduce takes models of up to 1.9 GB")
    graph = import_source(source)
    drawing = next((node for node in graph.walk() if not node.op.pure), None)
    if drawing is not None:
        raise UserError(f"%{drawing.output.name} draws random numbers, which never agree")
    case = Case(filled_model(source), feeds_of(graph, options, index_bounds(graph)))
    out = _default(options.model) if options.reduce == Path() else options.reduce
    out.parent.mkdir(parents=True, exist_ok=True)  # before the work, not after
    judge = _judge(options, case)
    if judge.failure is None:
        return Reduction(options.model, None)
    trials = Trials(judge.fails)
    with status(f"reducing {options.model.name}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of intermediate models
        small = reduce_case(case, _types(graph), trials)
        final, files = _without_files(small, judge, options), {}
    if final is None:
        files = save_outputs(_folder(out), list(small.feeds.items()))
    named = _with_types(final or small)
    out.write_bytes(named.model.SerializeToString())
    again = judge.options_for(named, out, files)
    return Reduction(
        path=options.model,
        failure=judge.failure,
        out=out,
        nodes=(small.size, case.size),
        operators=[node.op_type for node in small.model.graph.node],
        trials=trials.count,
        gave_up=trials.exhausted,
        command=shlex.join(["graft", *command_line(again)]),
        confirmed=_still_fails(again, judge.failure, passes),
    )


def _default(model: Path) -> Path:
    return Path(f"{file_stem(model.stem, 'model')}-reduced.onnx")


def _folder(out: Path) -> Path:
    folder = out.with_name(f"{out.stem}-inputs")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass
class Judge:
    """Decides whether smaller models fail like the whole one."""

    options: argparse.Namespace
    tolerance: Tolerance
    failure: Failure | None = None
    regions: Sequence[PlacedRegion] = ()
    # Ignore rounding in proportion to large numbers, unless there is no other failure.
    lenient: bool = True

    def fails(self, case: Case) -> bool:
        return self.outcome(case) == self.failure

    def outcome(self, case: Case) -> Failure | None:
        """The failure of a case; None also if ONNX Runtime rejects it."""
        try:
            expected = Peer(onnxruntime(), case.model, None).run(case.feeds)
            graph = import_source(read_model(case.model, strict=self.options.strict_import))
        except UserError:
            return None
        try:
            module = compile(graph, **self.wishes(graph))
            self.regions = self.regions or module.placement.regions
            actual = module.run(None, case.feeds)
        except Exception as error:  # noqa: BLE001 (any error is a failure)
            return _error(error)
        aligned, _ = in_expected_order(graph, actual, expected, self.tolerance)
        agree = all(self._agree(one, other) for one, other in zip(aligned, expected, strict=True))
        return None if agree else Failure(_DIFFERS)

    def _agree(self, actual: Data, expected: Data) -> bool:
        allowed = self.tolerance.for_values_like(expected) if self.lenient else self.tolerance
        return compare(actual, expected, allowed).agrees

    def wishes(self, graph: Graph) -> dict[str, Any]:
        result = same_placement(asked(self.options), self.regions, graph)
        if not result.get("shapes", {}).keys() <= graph.input_symbols:
            del result["shapes"]
        return result

    def options_for(self, case: Case, path: Path, files: dict[str, Path]) -> argparse.Namespace:
        """The options to check a case in files as it was judged."""
        graph = import_source(read_model(case.model))
        wishes = self.wishes(graph)
        changed = {
            "model": path,
            "inputs": [InputFile(name, file) for name, file in files.items()],
            "dims": [],
            "pin": wishes.get("pins", []),
            "fallback": wishes.get("fallback"),
            "shapes": list(wishes.get("shapes", {}).items()),
            "save_plan": None,
            "nodes": False,
            "reduce": None,
        }
        return argparse.Namespace(**{**vars(self.options), **changed})


class CrashJudge(Judge):
    """The same in separate processes, which may crash."""

    def outcome(self, case: Case) -> Failure | None:
        with tempfile.TemporaryDirectory(prefix="graft-reduce-") as name:
            folder = Path(name)
            path = folder / "model.onnx"
            path.write_bytes(case.model.SerializeToString())
            files = save_outputs(_folder(path), list(case.feeds.items()))
            try:
                return crash(self.options_for(case, path, files))
            except UserError:
                return None


def _judge(options: argparse.Namespace, case: Case) -> Judge:
    """The judge for the failure of the whole model."""
    with status(f"running {options.model.name} in ONNX Runtime"):
        Peer(onnxruntime(), case.model, None).run(case.feeds)  # what it does not take is an error
    with status(f"checking {options.model.name} in another process"):
        crashed = crash(options)
    tolerance = tolerance_of(options)
    if crashed is not None:
        return CrashJudge(options, tolerance, crashed)
    judge = Judge(options, tolerance)
    with status(f"checking {options.model.name}"):
        judge.failure = judge.outcome(case)
        if judge.failure is None:
            judge.lenient = False
            judge.failure = judge.outcome(case)
    return judge


def crash(options: argparse.Namespace) -> Failure | None:
    """The signal that ends a check in a separate process, if one does."""
    command = [sys.executable, "-m", "graft", *command_line(options)]
    try:
        process = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"the check takes more than {_PATIENCE:.0f} s, too long to be repeated often",
            hint="--deadline bounds what an accelerator may take",
        ) from None
    if process.returncode >= 0:
        return None
    return Failure("crashes", signal.Signals(-process.returncode).name)


def _error(error: Exception) -> Failure:
    """An error by its class and the function that raised it: numbers in its text may change."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).stem}.{frames[-1].name}" if frames else "?"
    return Failure("fails", f"{type(error).__name__} in {where}")


def _types(graph: Graph) -> dict[str, Type]:
    values = (value for node in graph.nodes for value in node.outputs)
    return {value.name: value.type for value in (*graph.inputs, *values)}


def _without_files(case: Case, judge: Judge, options: argparse.Namespace) -> Case | None:
    """The case on generated inputs, if it fails on these, too."""
    graph = import_source(read_model(case.model))
    if graph.input_symbols:
        return None
    bare = argparse.Namespace(inputs=[], dims=[], seed=options.seed)
    try:
        generated = Case(case.model, feeds_of(graph, bare, index_bounds(graph)))
    except UserError:
        return None
    return generated if judge.fails(generated) else None


def _with_types(case: Case) -> Case:
    """The case with types of outputs, as ONNX requires."""
    results = Peer(onnxruntime(), case.model, None).run(case.feeds)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for info, data in zip(model.graph.output, results, strict=True):
        if isinstance(data, np.ndarray):
            extents = [None] * data.ndim
            info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, element(data), extents))
    return Case(model, case.feeds)


def _still_fails(
    options: argparse.Namespace, failure: Failure, passes: Callable[[argparse.Namespace], bool]
) -> bool:
    """Whether the check of the written file fails as the whole model does."""
    if failure.kind not in (_DIFFERS, "fails"):
        return crash(options) == failure
    try:
        agrees = passes(options)
    except Exception as error:  # noqa: BLE001 (any error is a failure)
        return _error(error) == failure
    return failure.kind == _DIFFERS and not agrees


def command_line(options: argparse.Namespace) -> list[str]:
    """The arguments of `graft` that stand for these options of `check`."""
    words = ["check", str(options.model)]
    for file in options.inputs:
        words += ["--input", f"{file.name}={file.path}" if file.name else str(file.path)]
    words += [word for name, extent in options.dims for word in ("--dim", f"{name}={extent}")]
    if options.seed:
        words += ["--seed", str(options.seed)]
    if options.target:
        words += ["--target", ",".join(options.target)]
    words += [word for pin in options.pin for word in ("--pin", pin)]
    for name, sizes in options.shapes:
        words += ["--shapes", f"{name}={','.join(map(str, sizes))}"]
    for name in ("rtol", "atol", "fallback", "verify", "deadline", "isolation"):
        value = getattr(options, name)
        words += [] if value is None else [f"--{name}", str(value)]
    for name in ("no_check", "measure", "strict_import"):
        words += [flag(name)] if getattr(options, name) else []
    return words
