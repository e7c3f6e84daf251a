"""What a user may ask of the host backend, beyond the model."""

from __future__ import annotations

from dataclasses import dataclass

from graft.base.errors import UserError
from graft.byoc.executable import Accuracy, Settings
from graft.runtime.native import why_not_here
from graft.runtime.program import Target


@dataclass(frozen=True, slots=True)
class HostOptions(Settings):
    """The settings, and whether code that was made by them runs here."""

    @classmethod
    def of(cls, settings: Settings) -> HostOptions:
        """The same settings."""
        return cls(settings.threads, settings.machine, settings.accuracy, settings.report)

    def require_here(self, target: Target) -> None:
        """Refuse to run code of another machine in this process."""
        reason = why_not_here(target)
        if reason:
            raise UserError(
                f"this model was compiled with machine='{self.machine}': it {reason}",
                hint="save it and run the file on such a machine",
            )


__all__ = ["Accuracy", "HostOptions"]
