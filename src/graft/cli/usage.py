"""The error for a command line that makes no sense; `main` gives it the exit code of wrong usage."""

from __future__ import annotations

from graft.base.errors import UserError


class UsageError(UserError):
    """Options that contradict one another, or one that is missing."""
