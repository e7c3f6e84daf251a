"""Measured prices on disk: small files, keyed by everything that a price depends on."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from graft.base.cache_folder import keep_text
from graft.byoc.contract import Backend, Cost, Source

PRICES = "prices"  # the folder, beside the kernels


@cache
def code_of(module: str) -> str:
    """A hash of the backend's source code, so that prices of older code are not used."""
    source = getattr(sys.modules.get(module), "__file__", None)
    if source is None:
        return ""
    digest = hashlib.sha256()
    for path in sorted(Path(source).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class PriceStore:
    """A folder of measured prices; entries appear whole or not at all."""

    def __init__(self, folder: Path, machine: str) -> None:
        self._folder = folder
        self._machine = machine  # processor and number of threads

    def key(self, region: str, backend: Backend) -> str:
        """The key of a price: region, machine, and everything that identifies the backend."""
        parts = (
            region,
            self._machine,
            backend.name,
            backend.version,
            backend.device,
            code_of(type(backend).__module__),
            json.dumps(dict(backend.options), sort_keys=True),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def get(self, key: str) -> Cost | None:
        try:
            entry = json.loads((self._folder / f"{key}.json").read_text("utf-8"))
            seconds, spread = float(entry["seconds"]), float(entry["spread"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there, or damaged: measure again
        if not (0.0 <= seconds < math.inf and 0.0 <= spread < math.inf):
            return None
        return Cost(seconds, Source.MEASURED, spread)

    def put(self, key: str, cost: Cost) -> None:
        """Store a price; on a full or read-only disk nothing is stored."""
        entry: Mapping[str, float] = {"seconds": cost.seconds, "spread": cost.spread}
        keep_text(self._folder / f"{key}.json", json.dumps(entry))


def count_prices(folder: Path) -> int:
    """How many prices a folder holds."""
    return sum(1 for _ in folder.glob("*.json"))


def clear_prices(folder: Path) -> int:
    """Remove all prices; gives how many there were."""
    entries = list(folder.glob("*.json"))
    for entry in entries:
        entry.unlink(missing_ok=True)
    return len(entries)
