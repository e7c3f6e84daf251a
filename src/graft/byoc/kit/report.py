"""The kit's report: counts per pattern, and failures with a small graph each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from graft.base.errors import UserError


class ConformanceError(UserError):
    """A backend does not conform to the contract."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure on something that was accepted: the reason, and the smallest graph found.

    `text` parses back with `graft.ir.parser.from_text`; it is empty if the failure is not about a
    graph."""

    pattern: str
    reason: str
    text: str = ""
    nodes: int = 0

    def __str__(self) -> str:
        head = f"{self.pattern}: {self.reason}" if self.pattern else self.reason
        return f"{head}\n{self.text}".rstrip()


@dataclass(frozen=True)
class PatternReport:
    """The outcomes of the graphs of a pattern."""

    name: str
    tried: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    dtypes: tuple[str, ...] = ()  # of inputs and results of what was accepted
    symbolic: int = 0  # accepted graphs that had an axis of unknown extent
    blocks: int = 0  # accepted in blocks of rows, as many as are known at run time only

    @property
    def tested(self) -> bool:
        return self.accepted > 0


@dataclass(frozen=True)
class Report:
    """The result of checking a backend."""

    backend: str
    version: str
    seed: int
    patterns: tuple[PatternReport, ...]
    combined: PatternReport  # graphs of several patterns in one region
    failures: tuple[Failure, ...]

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def untested(self) -> tuple[str, ...]:
        """Patterns that accepted no example."""
        return tuple(pattern.name for pattern in self.patterns if not pattern.tested)

    def assert_ok(self) -> None:
        """Raise if there are failures; a pattern that was never tested is one."""
        if self.failures:
            shown = [line for failure in self.failures for line in str(failure).split("\n")]
            raise ConformanceError(f"{self.backend} does not conform", details=shown)

    def to_json(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "version": self.version,
            "seed": self.seed,
            "ok": self.ok,
            "untested": list(self.untested),
            "patterns": [_counts(pattern) for pattern in self.patterns],
            "combined": _counts(self.combined),
            "failures": [
                {"pattern": f.pattern, "reason": f.reason, "graph": f.text, "nodes": f.nodes}
                for f in self.failures
            ],
        }

    @property
    def summary(self) -> str:
        """The report in one line."""
        every = (*self.patterns, self.combined)
        total, accepted = sum(p.tried for p in every), sum(p.accepted for p in every)
        return (
            f"{self.backend} {self.version}: {len(self.patterns)} patterns, {total} graphs tried,"
            f" {accepted} accepted, {len(self.failures)} failures (seed {self.seed})"
        )

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"\nFAILED {failure}" for failure in self.failures)])


def _counts(pattern: PatternReport) -> dict[str, Any]:
    return {
        "name": pattern.name,
        "tried": pattern.tried,
        "accepted": pattern.accepted,
        "refused": dict(pattern.refused.most_common()),
        "dtypes": list(pattern.dtypes),
        "symbolic": pattern.symbolic,
        "blocks": pattern.blocks,
    }
