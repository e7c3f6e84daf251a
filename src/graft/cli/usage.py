"""The error for a command line that makes no sense, which has an exit code of its own."""

from __future__ import annotations

from graft.base.errors import UserError


class UsageError(UserError):
    """Options that contradict one another, or one that is missing."""
