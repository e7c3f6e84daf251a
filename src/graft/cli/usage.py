"""What makes no sense on a command line: an error with an exit code of its own, and a check."""

from __future__ import annotations

import argparse

from graft.base.errors import UserError


class UsageError(UserError):
    """Options that contradict one another, or one that is missing."""


def positive(given: str) -> int:
    """The number that an option is set to, for argparse."""
    if not given.isdecimal() or int(given) == 0:
        raise argparse.ArgumentTypeError(f"'{given}' is not a positive whole number")
    return int(given)
