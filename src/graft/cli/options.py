"""Options shared by commands: a command line in, arguments of `graft.compile` out.

Knows nothing of the compiler: a compiled file runs without it.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from graft.base.errors import UserError


class UsageError(UserError):
    """Options that contradict one another, or one that is missing."""


def flag(name: str) -> str:
    """An option as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def positive(text: str) -> int:
    """A positive whole number, for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive whole number")
    return int(text)


def not_negative(text: str) -> float:
    """A finite number of 0 or more, for argparse."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 0 or more")
    return value


def seconds(text: str) -> float:
    """A time, for argparse."""
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_folders(*paths: Path | None) -> None:
    """Refuse to write into folders that do not exist or are not writable, before any work."""
    for path in paths:
        if path is None:
            continue
        if not path.parent.is_dir():
            message = f"there is no folder '{path.parent}' to write '{path.name}' to"
            raise UserError(message, hint=f"mkdir -p '{path.parent}', or choose another folder")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            message = f"no permission to write '{path}'"
            raise UserError(message, hint="check the permissions, or choose another folder")


ACCURACIES = ("default", "strict")


def add_strict_import_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--strict-import",
        action="store_true",
        help="reject models that violate ONNX's rules, even if ONNX Runtime only warns",
    )


def add_accuracy_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--accuracy",
        choices=ACCURACIES,
        help="strict excludes algorithms that trade accuracy for speed (Winograd, Strassen), and "
        "keeps denormal results, which are zeros by default",
    )


HOST, REFERENCE = "host", "reference"
FALLBACKS = ("host", "error")

VERIFICATIONS = ("sample", "always", "off")
ISOLATIONS = ("none", "process")

# Options about backends other than the host; the former also apply to compiled files.
ABOUT_RUNNING = ("verify", "deadline")
_ABOUT_OTHERS = (
    *("pin", "plan", "save_plan", "measure", "fallback", "no_check", "isolation"),
    *ABOUT_RUNNING,
)


def add_target_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--target",
        metavar="NAMES",
        type=targets,
        help="backends to use, separated by commas (default: host); see `graft backends`",
    )


def add_pin_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--pin",
        metavar="NODES=NAME",
        action="append",
        default=[],
        help="pin nodes that match a glob to a backend, or with =!NAME exclude it; repeatable",
    )


def add_shapes_argument(
    parser: argparse._ActionsContainer,
    what: str = "compile specialised variants for these sizes of a dim, as batch=1,8",
) -> None:
    parser.add_argument(
        "--shapes",
        metavar="NAME=SIZES",
        type=sizes,
        action="append",
        default=[],
        help=f"{what}; repeatable",
    )


def sizes(text: str) -> tuple[str, list[int]]:
    """A symbolic dim and numbers for it, for argparse."""
    name, _, numbers = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form NAME=SIZE,SIZE")
    return name, [positive(one.strip()) for one in numbers.split(",")]


def shapes_of(options: argparse.Namespace) -> dict[str, list[int]]:
    """The sizes of all --shapes options, by name."""
    result: dict[str, list[int]] = {}
    for name, numbers in options.shapes:
        result.setdefault(name, []).extend(numbers)
    return result


def add_placement_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options on placement."""
    add_shapes_argument(parser)
    group = parser.add_argument_group("placement")
    add = group.add_argument
    add_target_argument(group)
    add_pin_argument(group)
    add("--plan", metavar="FILE", type=Path, help="replay this plan instead of choosing one")
    add("--save-plan", metavar="FILE", type=Path, help="write the plan, to edit or replay")
    add("--measure", action="store_true", help="time the best plans, keep the fastest")
    add(
        "--fallback",
        choices=FALLBACKS,
        help="if an accelerator fails at run time: run its region on the host (default), or error;"
        " 'host', if given, also lets the host run pinned nodes that their backend rejects",
    )
    add(
        "--no-check",
        action="store_true",
        help="skip the compile-time comparison of regions with the host",
    )
    add(
        "--verify",
        choices=VERIFICATIONS,
        help="compare results of accelerators with the host's at run time: the first runs"
        " and a sample of later ones (default), every run, or none",
    )
    add_containment_arguments(group)


def add_containment_arguments(parser: argparse._ActionsContainer) -> None:
    """Declare the options that contain faults of accelerators."""
    parser.add_argument(
        "--deadline",
        metavar="S",
        type=seconds,
        help="time limit in seconds for an accelerator to price, compile, load or run a region"
        " (default: 60 at first, then 100 times the longest run, at least 10; inf: none)",
    )
    parser.add_argument(
        "--isolation",
        choices=ISOLATIONS,
        help="run accelerators in separate processes, which may crash (default: per backend)",
    )


def targets(text: str) -> list[str]:
    """Names of backends, for argparse."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of backends")
    return list(dict.fromkeys(names))


def others_than_host(options: argparse.Namespace) -> list[str]:
    """The accelerators among the targets."""
    return [name for name in options.target or () if name not in (HOST, REFERENCE)]


def add_machine_argument(
    parser: argparse.ArgumentParser, names: Iterable[str], listed: str
) -> None:
    """Declare --machine with these names; `listed` says where users find them."""
    parser.add_argument(
        "--machine",
        metavar="NAME",
        choices=list(names),
        help=f"the machine to compile for, {listed} (default: this one)",
    )


def refuse_machine_with_accelerator(options: argparse.Namespace) -> None:
    """Refuse --machine beside backends that are measured on this machine."""
    if others_than_host(options) and options.machine is not None:
        raise UsageError("--machine is for the host alone: accelerators are priced on this machine")


def given(options: argparse.Namespace) -> list[str]:
    """The options on placement that the command line contains."""
    names = ("target", "shapes", *_ABOUT_OTHERS)
    return [flag(name) for name in names if getattr(options, name, None)]


def refuse_without_accelerator(options: argparse.Namespace) -> None:
    """Refuse options about backends other than the host if there is none."""
    about_others = [name for name in given(options) if name not in ("--target", "--shapes")]
    if about_others and not others_than_host(options):
        raise UsageError(
            f"{about_others[0]} is about backends other than the host, and there is none",
            hint="add one with --target NAME,host; `graft backends` lists them",
        )


def check_placement(options: argparse.Namespace) -> None:
    """Refuse options that contradict one another, or change nothing."""
    target_names = options.target or []
    if REFERENCE in target_names and len(target_names) > 1:
        raise UsageError(
            "the reference evaluator runs whole models", hint=f"--target {REFERENCE} alone"
        )
    refuse_without_accelerator(options)
    check_folders(getattr(options, "save_plan", None))
    if options.shapes and REFERENCE in target_names:
        raise UsageError("--shapes is for native code", hint=f"leave out --target {REFERENCE}")
    for name in ("plan", "save_plan"):
        if options.shapes and getattr(options, name, None) is not None:
            raise UsageError(f"{flag(name)} is for one plan, and --shapes makes one per variant")
    if getattr(options, "plan", None) is not None:
        for name in ("pin", "measure"):
            if getattr(options, name):
                raise UsageError(f"--plan replays a plan, and --{name} is for choosing one")


def asked(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `graft.compile`, by parameter; JSON can hold all of them."""
    result: dict[str, Any] = {"target": options.target or [HOST]}
    if options.shapes:
        result["shapes"] = shapes_of(options)
    if options.pin:
        result["pins"] = options.pin
    if options.plan is not None:
        result["plan"] = str(options.plan)
    if options.measure:
        result["measure"] = True
    if options.fallback is not None:
        result["fallback"] = options.fallback
    if options.no_check:
        result["check"] = False
    for name in ("isolation", *ABOUT_RUNNING):
        if getattr(options, name) is not None:
            result[name] = getattr(options, name)
    return result
