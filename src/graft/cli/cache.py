"""`graft cache`: nothing in; where compiled kernels are kept and how many there are out."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from graft.cli.report import counted, print_json, print_lines, size_text, table
from graft.llvm.cache import Usage, default_cache

DESCRIPTION = """\
Show the cache of compiled kernels: compiling a model again takes from it what it
knows. $GRAFT_CACHE_DIR moves it; the least recently used kernels go when it is full."""
EXAMPLES = """\
  graft cache             where it is and how full
  graft cache --clear     remove all kernels in it
  graft cache --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove all kernels")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(options: argparse.Namespace) -> int:
    cache = default_cache()
    removed = cache.clear() if options.clear else None
    usage = cache.usage()
    if options.json:
        gone = None if removed is None else {"kernels": removed.entries, "bytes": removed.bytes}
        print_json({**_json(usage), "removed": gone})
    else:
        print_lines(_text(usage, removed))
    return 0


def _text(usage: Usage, removed: Usage | None) -> Iterator[str]:
    if removed is not None:
        yield f"removed {counted(removed.entries, 'kernel')}, {size_text(removed.bytes)}"
    size = f"{size_text(usage.bytes)} of at most {size_text(usage.limit)}"
    rows = [("folder", str(usage.folder)), ("kernels", str(usage.entries)), ("size", size)]
    yield from table(rows)


def _json(usage: Usage) -> dict[str, object]:
    return {
        "folder": str(usage.folder),
        "kernels": usage.entries,
        "bytes": usage.bytes,
        "limit": usage.limit,
    }
