#!/usr/bin/env python3
"""Counts what a backend takes: lines of code, without blank ones, comments and docstrings.

    python tools/loc.py [--write]

Beside them stand TVM's counts, code only, for backends to the same kind of library. `--write` puts
the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Mapping
from pathlib import Path

from bench_pages import DOCUMENT, ROOT, Pages, paragraph, table

BACKENDS = ROOT / "src" / "graft" / "backends"
# What a backend may take at most.
BUDGETS: Mapping[str, int] = {"onednn": 400, "openvino": 80, "csource": 250}
# TVM's own: cuBLAS, CoreML, DNNL, TensorRT, and an NPU for teaching that computes nothing.
TVM: Mapping[str, int] = {
    "TVM cuBLAS": 401,
    "TVM CoreML": 654,
    "TVM DNNL (oneDNN)": 1636,
    "TVM TensorRT": 2567,
    "TVM's teaching NPU (computes nothing)": 855,
}
_OWN = ("host", "reference")  # Graft's own, not grafted on
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="change the project's own page")
    options = parser.parse_args()
    found = backends(BACKENDS)
    lines = report(found)
    print("\n".join(lines))
    if options.write:
        Pages(ROOT).replace(DOCUMENT, "loc", lines)
    over = [name for name, count in found.items() if count > BUDGETS.get(name, count)]
    for name in over:
        print(f"{name} is over its budget of {BUDGETS[name]} lines", file=sys.stderr)
    return 1 if over else 0


def backends(folder: Path) -> dict[str, int]:
    """Lines of each grafted backend, whose files are those of its folder."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in _OWN and (path / "backend.py").is_file():
            files = (file.read_text(encoding="utf-8") for file in sorted(path.rglob("*.py")))
            found[path.name] = sum(code_lines(text) for text in files)
    return found


def code_lines(text: str) -> int:
    """Lines of a Python file on which code stands."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(text))


def _docstring_lines(text: str) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def report(found: Mapping[str, int]) -> list[str]:
    """The table, and what it counts."""
    rows = [
        *(
            (name, f"{count:,}", f"{BUDGETS[name]:,}" if name in BUDGETS else "")
            for name, count in found.items()
        ),
        *((name, f"{count:,}", "") for name, count in TVM.items()),
    ]
    note = (
        "Lines with code: no blank lines, no comments, no docstrings; all Python files in the"
        " backend's folder. TVM's figures are code-only counts of the same kind. Made by"
        " `python tools/loc.py --write`; `make loc` prints it."
    )
    return [*table(("backend", "lines of code", "budget"), rows), "", *paragraph(note)]


if __name__ == "__main__":
    sys.exit(main())
