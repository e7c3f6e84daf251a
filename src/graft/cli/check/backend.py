"""`graft check --backend`: a backend's name in, a verdict out.

Graphs are generated for every pattern of the backend; those that it accepts have to compile, run
and equal the reference.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from graft.base.quantities import counted, number
from graft.byoc.discover import backend_named, find_backends
from graft.byoc.kit import Failure, PatternReport, Report, conformance
from graft.cli.options import UsageError, given, positive
from graft.cli.placement import check_targets
from graft.cli.report import Block, Indented, Line, print_json, print_lines, table
from graft.cli.terminal import BAD, status
from graft.ir.graph import Graph
from graft.ir.printer import to_text

_EXAMPLES = 20
_MOST_REASONS = 2  # of refusals, per pattern
_HERE = "this process"  # the origin of backends that no package announces


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for checking a backend."""
    group = parser.add_argument_group("checking a backend instead of a model")
    group.add_argument("--backend", metavar="NAME", help="test this backend")
    group.add_argument(
        "--examples",
        metavar="N",
        type=positive,
        help=f"graphs to generate for each pattern (default {_EXAMPLES}), plus one of each dtype"
        " that these miss; see also --seed and --deadline",
    )


def wants_backend(options: argparse.Namespace) -> bool:
    """Whether a backend is to be checked; refuses what fits neither that nor a model."""
    if options.backend is not None:
        if options.model is not None:
            raise UsageError("a model and --backend are given", hint="check one at a time")
        if options.reduce is not None:
            raise UsageError("--reduce is about a model", hint="failures of a backend are small")
        about_models = [name for name in given(options) if name != "--deadline"]
        if about_models:
            raise UsageError(f"{about_models[0]} is about a model, and --backend is none")
        return True
    if options.model is None:
        raise UsageError("what is to be checked?", hint="name a model, or a backend by --backend")
    if options.examples is not None:
        raise UsageError("--examples is about --backend NAME")
    return False


def check_backend(options: argparse.Namespace) -> int:
    """Check the backend and print the report; gives the exit code."""
    check_targets((options.backend,))
    backends = find_backends()
    backend = backend_named(options.backend, backends)
    examples, seed = options.examples or _EXAMPLES, options.seed or 0
    if backends.origins.get(backend.name) == _HERE:
        with status(f"checking {backend.name}") as tell:
            report = conformance(backend, examples, seed, tell, deadline=options.deadline)
        return _print(report, options.json)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "graph"
        wishes = [examples, seed, options.deadline or "", int(options.json), journal]
        command = [sys.executable, "-c", _CHILD, backend.name, *map(str, wishes)]
        code = subprocess.run(command, check=False).returncode
        if code >= 0 or not journal.exists():
            return code
        pattern, _, text = journal.read_text("utf-8").partition("\n")
    reason = f"it takes the whole process down ({signal.Signals(-code).name})"
    failure = Failure(pattern, reason, text)
    none = PatternReport("combined")
    dead = Report(backend.name, backend.version, seed, (), none, (failure,))
    return _print(dead, options.json)


# A backend may bring its process down; so it gets one of its own.
_CHILD = "import sys; from graft.cli.check.backend import child; sys.exit(child(*sys.argv[1:]))"


def child(name: str, examples: str, seed: str, deadline: str, as_json: str, journal: str) -> int:
    """The check in a child process, which records every graph before it is tried."""
    backend = backend_named(name, find_backends())

    def note(pattern: str, graph: Graph) -> None:
        Path(journal).write_text(f"{pattern}\n{to_text(graph).text}", encoding="utf-8")

    with status(f"checking {name}") as tell:
        bound = float(deadline) if deadline else None
        report = conformance(backend, int(examples), int(seed), tell, note, bound)
    return _print(report, as_json == "1")


def _print(report: Report, as_json: bool) -> int:
    if as_json:
        print_json(report.to_json())
    else:
        print_lines(_text(report))
    return 0 if report.ok else 1


def _text(report: Report) -> Iterator[Block]:
    yield report.summary
    yield from map(Indented, table(map(_row, (*report.patterns, report.combined)), right=(1, 3)))
    for failure in report.failures:
        head, *graph = f"FAILED {failure}".split("\n")
        yield ""
        yield Line(head, BAD)
        yield from (Line(line, wraps=False) for line in graph)


def _row(pattern: PatternReport) -> tuple[str, ...]:
    counted_reasons = [
        f"{n} × {reason}" for reason, n in pattern.refused.most_common(_MOST_REASONS)
    ]
    if len(pattern.refused) > _MOST_REASONS:
        more = counted(len(pattern.refused) - _MOST_REASONS, "more reason")
        counted_reasons.append(f"and {more}: --json lists them")
    reasons = "; ".join(counted_reasons)
    total, accepted = number(pattern.tried), number(pattern.accepted)
    forms = {"symbolic": pattern.symbolic, "blocks of rows": pattern.blocks}
    kinds = ", ".join([*pattern.dtypes, *(form for form, count in forms.items() if count)])
    return pattern.name, accepted, "of", total, "accepted", kinds and f"({kinds})", reasons
