"""What a user may ask of the host backend, beyond the model."""

from __future__ import annotations

from dataclasses import dataclass

from graft.byoc.executable import Accuracy, Settings


@dataclass(frozen=True, slots=True)
class HostOptions(Settings):
    """The settings, and whether code that was made by them runs here."""

    @classmethod
    def of(cls, settings: Settings) -> HostOptions:
        """The same settings."""
        return cls(settings.threads, settings.machine, settings.accuracy, settings.report)


__all__ = ["Accuracy", "HostOptions"]
