"""Errors of the loop IR and of schedules; they name the kernel, the stage or the loop."""

from __future__ import annotations

from graft.base.errors import UserError


class LoopError(UserError):
    """A kernel or an expression that breaks the rules of the loop IR."""


class ScheduleError(UserError):
    """A schedule that does not fit its computation; the message names the stage and the loop."""
