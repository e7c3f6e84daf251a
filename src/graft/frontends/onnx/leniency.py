"""Violations of ONNX's rules that are tolerated with a warning, as ONNX Runtime does.

In go the errors that a strict import would raise; out comes one warning per kind of mistake, with
the first node that has it and the number of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graft.base.errors import Location, ModelWarning, UserError, warn_user


@dataclass
class Leniency:
    """How one model's mistakes are treated: errors if `strict`, else collected."""

    strict: bool = False
    locations: dict[str, dict[Location, None]] = field(default_factory=dict)  # by message

    def allow(self, error: UserError, consequence: str) -> None:
        """Raise the error if strict; else record it, and what is done instead."""
        if self.strict:
            raise error
        noted = self.locations.setdefault(f"{error.message}; {consequence}", {})
        noted[error.location or Location()] = None

    def warn(self) -> None:
        """Warn of the mistakes that were tolerated since the last call."""
        for message, locations in self.locations.items():
            first, *others = locations
            more = f", and {len(others)} more" if others else ""
            where = f" ({first}{more})" if str(first) else more
            warn_user(f"{message}{where}", ModelWarning)
        self.locations.clear()
