"""`graft backends`: nothing in; the backends there are, and what keeps some from working, out.

With `--machine`, the machine that the host's code is for instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from graft.base.callbacks import described
from graft.base.errors import BackendError
from graft.byoc.annotate import tables_of
from graft.byoc.contract import Backend
from graft.byoc.discover import Discovery, find_backends
from graft.cli.machine import describe
from graft.cli.report import Block, print_result, section, table
from graft.cli.terminal import BAD, GOOD, styled
from graft.target.target import HOST, known_targets

DESCRIPTION = """\
List the targets for `--target`: the backends of installed packages, found through the
entry-point group graft.backends. Reports what this machine lacks to run each, errors in
its patterns, and packages whose backend does not load.

With --machine, print the machine model that kernels are chosen by, for this machine or a
named one. The source of each number is the table of microarchitectures, the operating
system, or a calibration at the first compilation (off with $GRAFT_CALIBRATE=0)."""
EXAMPLES = """\
  graft backends
  graft backends --json
  graft backends --machine                  this machine
  graft backends --machine icelake-server   one of those that `graft compile --help` lists
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--machine",
        metavar="NAME",
        nargs="?",
        const=HOST,
        choices=known_targets(),
        help="print the machine model of this machine, or of the named one",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(options: argparse.Namespace) -> int:
    if options.machine is not None:
        description = describe(options.machine)
        print_result(options.json, description.to_json(), description.lines())
        return 0
    backends = find_backends()
    print_result(options.json, _json(backends), _text(backends))
    return 0


def _text(discovery: Discovery) -> Iterator[Block]:
    header = ("name", "version", "device", "from", "available")
    backends = sorted(discovery.backends.items())
    reasons = {name: reason for name, one in backends if (reason := missing(one))}
    yes, no = styled("yes", GOOD), styled("no", BAD)
    rows = [
        (name, one.version, device(one), discovery.origins[name], no if name in reasons else yes)
        for name, one in backends
    ]
    yield from table(rows, header)
    if reasons:
        lines = [f"{name}: {reason}" for name, reason in reasons.items()]
        yield from section("What is missing or wrong", lines)
    if discovery.broken:
        lines = [f"{one.name} (from {one.origin}): {one.reason}" for one in discovery.broken]
        yield from section("What does not load", lines)


def device(backend: Backend) -> str:
    """The backend's device, labelled if it is simulated."""
    if backend.simulated and backend.device != "simulated":
        return f"{backend.device} (simulated)"
    return backend.device


def missing(backend: Backend) -> str:
    """What the machine lacks for a backend, or why the backend cannot tell; also an error in its
    patterns."""
    try:
        lacking = backend.missing()
    except Exception as error:  # noqa: BLE001  a plug-in may raise anything
        return f"it cannot say: {described(error)}"
    if not lacking:
        try:
            tables_of(backend)
        except BackendError as error:
            return error.message
    return lacking


def _json(discovery: Discovery) -> dict[str, Any]:
    return {
        "backends": [
            {
                "name": name,
                "version": one.version,
                "device": one.device,
                "simulated": one.simulated,
                "origin": discovery.origins[name],
                "available": not reason,
                "missing": reason or None,
            }
            for name, one in sorted(discovery.backends.items())
            for reason in [missing(one)]
        ],
        "broken": [
            {"name": one.name, "origin": one.origin, "reason": one.reason}
            for one in discovery.broken
        ],
    }
