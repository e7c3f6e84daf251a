"""`--rtol` and `--atol`: how far results may be apart; options in, a tolerance out."""

from __future__ import annotations

import argparse

from graft.cli.compare import Tolerance


def add_tolerance_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every command that compares results."""
    usual = Tolerance()
    for name, default in (("rtol", usual.relative), ("atol", usual.absolute)):
        parser.add_argument(
            f"--{name}",
            metavar="X",
            type=_tolerance,
            help=f"default {default:g}, and more for floats of 16 bits and less",
        )


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a tolerance")
    return value


def tolerance_of(options: argparse.Namespace) -> Tolerance:
    """What was asked for; what was not is as usual."""
    given = {"relative": options.rtol, "absolute": options.atol}
    chosen = {name: value for name, value in given.items() if value is not None}
    return Tolerance(literally=bool(chosen), **chosen)
