"""What the documentation says of `Limits` is what the class has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from graft.byoc.contract import Limits

PAGE = Path(__file__).parents[2] / "docs" / "byoc.md"


def test_the_table_of_limits_has_all_fields_and_their_defaults() -> None:
    section = PAGE.read_text("utf-8").partition("\n`Limits` has these fields")[2]
    table = section.partition("\n\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", table, re.MULTILINE)
    assert rows == [(field.name, _written(field.default)) for field in fields(Limits)]


def _written(default: object) -> str:
    if isinstance(default, tuple):
        return f"({', '.join(map(_written, default))},)" if default else "()"
    return f'"{default}"' if isinstance(default, str) else repr(default)
