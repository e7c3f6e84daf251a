"""docs/walkthrough.md names each source file that it leads through, once, by a path that exists.

Its numbers are checked by its own Python, which test_docs.py runs.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATHS = re.findall(
    r"`([a-z_/0-9]+\.py)`", (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")
)


def test_every_file_exists() -> None:
    assert [path for path in PATHS if not (ROOT / "src" / "graft" / path).is_file()] == []


def test_no_file_is_named_twice() -> None:
    assert [path for path, count in Counter(PATHS).items() if count > 1] == []


def test_the_stages_are_all_there() -> None:
    """Both models pass through these packages, in this order of their first mention."""
    packages = list(dict.fromkeys("/".join(path.split("/")[:-1]) for path in PATHS))
    order = [
        "frontends/onnx",
        "ir",
        "passes",
        "byoc",
        "backends/host",
        "backends/host/lowering",
        "loop",
        "llvm",
        "program",
        "runtime",
    ]
    assert [package for package in packages if package in order] == order
