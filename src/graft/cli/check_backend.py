"""`graft check --backend`: the name of a backend in, a verdict on it out.

Graphs are made up for every pattern that the backend declares; what it accepts has to compile, run
and equal the reference.
"""

from __future__ import annotations

import argparse

from graft.byoc.discover import backend_named, find_backends
from graft.byoc.kit import Report, conformance
from graft.cli.report import print_json, print_lines
from graft.cli.status import status
from graft.cli.usage import UsageError, positive

_EXAMPLES = 20


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what checking a backend takes."""
    group = parser.add_argument_group("checking a backend instead of a model")
    group.add_argument("--backend", metavar="NAME", help="does this backend do what it says?")
    group.add_argument(
        "--examples",
        metavar="N",
        type=positive,
        help=f"graphs to make up for each pattern (default {_EXAMPLES}); see also --seed",
    )
    group.add_argument(
        "--strict", action="store_true", help="fail where no example of a pattern was accepted"
    )


def wants_backend(options: argparse.Namespace) -> bool:
    """Whether a backend is to be checked; refuses what fits neither that nor a model."""
    if options.backend is not None:
        if options.model is not None:
            raise UsageError("a model and --backend are given", hint="check one at a time")
        return True
    if options.model is None:
        raise UsageError("what is to be checked?", hint="name a model, or a backend by --backend")
    if options.strict or options.examples is not None:
        raise UsageError("--examples and --strict are about --backend NAME")
    return False


def check_backend(options: argparse.Namespace) -> int:
    """Check the backend and print the report; gives the exit code."""
    backend = backend_named(options.backend, find_backends())
    with status(f"checking {backend.name}") as tell:
        report = conformance(backend, options.examples or _EXAMPLES, options.seed or 0, tell)
    if options.json:
        print_json(report.to_json())
    else:
        print_lines(report.lines())
    return 0 if _passes(report, options.strict) else 1


def _passes(report: Report, strict: bool) -> bool:
    return report.ok and not (strict and report.untested)
