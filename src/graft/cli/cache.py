"""`graft cache`: nothing in; where kernels and prices are kept and how many there are out."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from graft.base.cache_folder import default_folder
from graft.base.quantities import counted, size_text
from graft.byoc.store import PRICES, clear_prices, count_prices
from graft.cli.report import Block, print_result, table
from graft.llvm.cache import Usage, default_cache
from graft.target.calibrate import clear_calibrations

DESCRIPTION = """\
Show the cache of compiled kernels, which later compilations reuse. The same folder
holds measured prices, and the calibration of this machine (`graft backends --machine`).
Set $GRAFT_CACHE_DIR to move it; a full cache evicts the least recently used kernels."""
EXAMPLES = """\
  graft cache             where it is and how full
  graft cache --clear     remove all kernels and prices; calibrate anew
  graft cache --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove all of it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(options: argparse.Namespace) -> int:
    cache = default_cache()
    prices = default_folder() / PRICES
    removed = cache.clear() if options.clear else None
    if options.clear:
        clear_prices(prices)
        clear_calibrations(default_folder())
    usage, priced = cache.usage(), count_prices(prices)
    cleared = None if removed is None else {"kernels": removed.entries, "bytes": removed.bytes}
    facts = {**_json(usage), "prices": priced, "removed": cleared}
    print_result(options.json, facts, _text(usage, priced, removed))
    return 0


def _text(usage: Usage, priced: int, removed: Usage | None) -> Iterator[Block]:
    if removed is not None:
        yield f"removed {counted(removed.entries, 'kernel')}, {size_text(removed.bytes)}"
    size = f"{size_text(usage.bytes)} of at most {size_text(usage.limit)}"
    rows = [("folder", str(usage.folder)), ("kernels", str(usage.entries)), ("size", size)]
    yield from table([*rows, ("prices", str(priced))])


def _json(usage: Usage) -> dict[str, object]:
    return {
        "folder": str(usage.folder),
        "kernels": usage.entries,
        "bytes": usage.bytes,
        "limit": usage.limit,
    }
