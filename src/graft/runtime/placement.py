"""Who runs what of a model, and what went wrong: what modules and loaded files tell alike."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graft.runtime.container import write_image
from graft.runtime.incidents import Incidents
from graft.runtime.regions import Region, incidents_of

BLOB = "placement"  # under which a file holds it


@dataclass(frozen=True, slots=True)
class PlacedRegion:
    """What one backend runs in one piece: values that its nodes make, and multiply-accumulates."""

    label: str
    backend: str
    nodes: tuple[str, ...]
    macs: int = 0


@dataclass(frozen=True)
class StoredPlacement:
    """The placement of a model as a file tells it: one line of text, and facts for machines."""

    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nodes(self) -> Mapping[str, int]:
        """How many nodes each backend runs."""
        found: Mapping[str, int] = self.facts.get("nodes", {})
        return found

    @property
    def regions(self) -> tuple[PlacedRegion, ...]:
        """What backends other than the host run, each in one piece."""
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


class Placed:
    """What a loaded model tells of its placement and of what went wrong, and the file that it came
    from: `image` are its bytes, `options` what it was loaded with. Copies are made by these."""

    regions: Mapping[str, Region] = {}
    placement = StoredPlacement()
    image: memoryview | None = None
    options: Mapping[str, Any] = {}

    @property
    def incidents(self) -> Incidents:
        """What failed on accelerators while the model ran, and was run on the host instead: the
        latest, and how many there were in all (`total`)."""
        return incidents_of(self.regions)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file again, as it was loaded."""
        write_image(Path(path), self._image())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        loaded = importlib.import_module("graft.runtime.loaded")
        return loaded.restore, (bytes(self._image()), dict(self.options))

    def _image(self) -> memoryview:
        if self.image is None:
            raise TypeError("this session is a part of a module, which can be saved and pickled")
        return self.image
