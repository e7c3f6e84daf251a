"""Counts lines of code of packages and backends, without blank ones, comments and docstrings.

Beside the packages stands what they were before the redesign around one program, beside the
backends TVM's counts and those that the paper gives, for the same kind of library or device.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Benchmark, Json, Record, Section
from benchmarks.pages import DOCUMENT, ROOT, paragraph, table

PACKAGE = ROOT / "src" / "graft"
BACKENDS = PACKAGE / "backends"
# TVM's own: cuBLAS, CoreML, DNNL, TensorRT, and an NPU for teaching that computes nothing.
TVM: Mapping[str, int] = {
    "TVM cuBLAS": 401,
    "TVM CoreML": 654,
    "TVM DNNL (oneDNN)": 1636,
    "TVM TensorRT": 2567,
    "TVM's teaching NPU (computes nothing)": 855,
}
# What the paper's integrations took.
PAPER: Mapping[str, int] = {
    "paper: Core ML": 840,
    "paper: Vitis-AI (FPGA)": 1924,
    "paper: Arm Compute Library (CPU)": 2188,
    "paper: Arm Ethos-N (NPU)": 2405,
    "paper: TI TIDL (DSP)": 3085,
}
# Files and lines of the packages at commit 8011482, which had two run times (static and dynamic).
BEFORE: Mapping[str, tuple[int, int]] = {
    ".": (5, 747),
    "backends": (130, 14190),
    "base": (16, 1432),
    "byoc": (56, 6451),
    "cli": (57, 6943),
    "frontends": (60, 5635),
    "ir": (18, 1684),
    "llvm": (27, 2825),
    "loop": (31, 4667),
    "ops": (81, 10509),
    "passes": (23, 2196),
    "rewrite": (5, 722),
    "runtime": (64, 7526),
    "target": (6, 683),
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


def measure(_options: argparse.Namespace) -> Json:
    return {"backends": backends(BACKENDS), "packages": packages(PACKAGE)}


def sections(record: Record) -> Iterator[Section]:
    yield Section(DOCUMENT, "loc", report(record.data["backends"]))
    yield Section(DOCUMENT, "loc-packages", package_report(record.data["packages"]))


def packages(folder: Path) -> dict[str, dict[str, int]]:
    """Files and lines of each package directly below a folder; modules there count as one."""
    counts: dict[str, dict[str, int]] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        count = counts.setdefault(parts[0] if len(parts) > 1 else ".", {"files": 0, "lines": 0})
        count["files"] += 1
        count["lines"] += code_lines(path.read_text(encoding="utf-8"))
    return counts


def package_report(
    counts: Mapping[str, Mapping[str, int]], before: Mapping[str, tuple[int, int]] = BEFORE
) -> list[str]:
    """The packages, beside what they were before."""
    now = {name: (count["files"], count["lines"]) for name, count in counts.items()}
    names = sorted(now.keys() | before.keys())
    rows = [(name, before.get(name, (0, 0)), now.get(name, (0, 0))) for name in names]
    rows.append(("all", _total(list(before.values())), _total(list(now.values()))))
    header = ("package", "files before", "lines before", "files", "lines of code", "change")
    return table(header, (_package_row(*row) for row in rows))


def _total(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(files for files, _ in counts), sum(lines for _, lines in counts)


def _package_row(name: str, before: tuple[int, int], now: tuple[int, int]) -> Sequence[str]:
    change = f"{now[1] / before[1] - 1:+.0%}" if before[1] else "new"
    return name, *(f"{count:,}" for count in (*before, *now)), change


def backends(folder: Path) -> dict[str, int]:
    """Lines of each grafted backend, whose files are those of its folder."""
    result = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in _OWN and (path / "backend.py").is_file():
            files = (file.read_text(encoding="utf-8") for file in sorted(path.rglob("*.py")))
            result[path.name] = sum(code_lines(text) for text in files)
    return result


def code_lines(text: str) -> int:
    """Lines of a Python file on which code stands."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(text))


def _docstring_lines(text: str) -> set[int]:
    result: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            result.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return result


def report(found: Mapping[str, int]) -> list[str]:
    """The table, and what it counts."""
    rows = [
        *((name, f"{count:,}") for name, count in found.items()),
        *((name, f"{count:,}") for name, count in (*TVM.items(), *PAPER.items())),
    ]
    note = (
        "Lines with code: no blank lines, no comments, no docstrings; all Python files in the"
        " backend's folder, and nothing in other languages (the Verilog of `fpga`'s array with its"
        " harness in C++, the C of `hexagon`'s worker). TVM's figures are code-only counts of the"
        " same kind, the paper's are its own. `make loc` prints it."
    )
    return [*table(("backend", "lines of code"), rows), "", *paragraph(note)]


BENCHMARKS = (Benchmark("lines-of-code", measure, sections),)
