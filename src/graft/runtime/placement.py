"""Who runs what of a model, as files hold it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BLOB = "placement"  # under which a file holds it


@dataclass(frozen=True, slots=True)
class PlacedRegion:
    """What one backend runs as one region: values that its nodes make, and multiply-accumulates in
    an inference. `body` is the body of a branch, loop or scan that it lies in, and `executions` how
    often that was expected to run when the region was priced; `rows` are those of a block, if it
    runs in blocks."""

    label: str
    backend: str
    nodes: tuple[str, ...]
    macs: int = 0
    body: str = ""
    executions: float = 1.0
    rows: int = 0


@dataclass(frozen=True)
class StoredPlacement:
    """The placement of a model as its file has it: one line of text, and facts for programs."""

    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nodes(self) -> Mapping[str, int]:
        """How many nodes each backend runs."""
        facts: Mapping[str, int] = self.facts.get("nodes", {})
        return facts

    @property
    def reasons(self) -> Mapping[str, str]:
        """Values that the reference evaluator makes, each with the reason."""
        facts: Mapping[str, str] = self.facts.get("reference", {})
        return facts

    @property
    def regions(self) -> tuple[PlacedRegion, ...]:
        """What backends other than the host run, each as one region."""
        described = self.facts.get("regions", ())
        return tuple(PlacedRegion(**{**one, "nodes": tuple(one["nodes"])}) for one in described)

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> str:
        """All of it, for machines."""
        return json.dumps(self.facts)

    def to_blob(self) -> bytes:
        return json.dumps({"text": self.text, "facts": self.facts}).encode()

    @classmethod
    def from_blobs(cls, blobs: Mapping[str, memoryview]) -> StoredPlacement:
        """As a file holds it; empty for one that does not."""
        return cls(**json.loads(bytes(blobs[BLOB]))) if BLOB in blobs else cls()
