"""The house rules that a program can check, each on each file.

In go the project's files as they lie on disk; out comes one failure per rule and file that breaks
it. Style, types and layers are left to Ruff, mypy and import-linter.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "graft"
MAP = ROOT / "docs" / "map.md"

FILE_LINES = 600
FUNCTION_LINES = 60
CLASS_METHODS = 20
LINE_CHARACTERS = 100
FILE_BYTES = 1024 * 1024

# Brackets around one letter keep the pattern from matching its own text.
MACHINE_PATH = re.compile(rb"(?<![\w.-])/(wor[k]|roo[t]|hom[e])/")
PICKLING_PACKAGES = {"pickle", "_pickle", "shelve", "cloudpickle", "dill", "joblib"}
GENERATED = re.compile(r"\.(?!ci$|gitignore$).*|build|dist|__pycache__|.*\.egg-info")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def project_files() -> list[Path]:
    """All files git tracks or would track; outside a repository, all that are not generated."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    except (FileNotFoundError, subprocess.CalledProcessError):
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(GENERATED.fullmatch(part) for part in path.relative_to(ROOT).parts)
        ]
    return sorted({path for path in paths if path.is_file()})


ALL = project_files()
PYTHON = [
    path
    for path in ALL
    if path.suffix == ".py"
    and path.relative_to(ROOT).parts[0] in ("src", "tests", "tools", "benchmarks")
]
SOURCES = [path for path in PYTHON if path.is_relative_to(PACKAGE)]


def on_each(paths: list[Path]) -> pytest.MarkDecorator:
    """Run a test once per file, named after it."""
    named = [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in paths]
    return pytest.mark.parametrize("path", named)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of each imported module; a relative import counts as Graft's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "graft" if node.level else node.module or ""


def misplaced_imports(tree: ast.Module) -> set[str]:
    """Imports inside functions, but for those of packages that may be missing."""
    ours = sys.stdlib_module_names | {"graft"}
    return {
        f"line {line}: {module}"
        for function in functions(tree)
        for line, module in imported_modules(function)
        if module.split(".")[0] in ours
    }


def pickling(tree: ast.Module) -> list[str]:
    """Imports of packages that pickle, and calls that allow NumPy to."""
    imports = [
        f"line {line}: {module}"
        for line, module in imported_modules(tree)
        if module.split(".")[0] in PICKLING_PACKAGES
    ]
    allowances = [
        f"line {node.value.lineno}: allow_pickle"
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword)
        and node.arg == "allow_pickle"
        and not (isinstance(node.value, ast.Constant) and node.value.value is False)
    ]
    return imports + allowances


def long_functions(tree: ast.Module) -> list[str]:
    """Functions over the limit, counted from the line of `def`, decorators left out."""
    lengths = [(f.name, (f.end_lineno or f.lineno) - f.lineno + 1) for f in functions(tree)]
    return [f"{name}: {length} lines" for name, length in lengths if length > FUNCTION_LINES]


def large_classes(tree: ast.Module) -> list[str]:
    """Classes over the limit; properties and special methods count like any other."""
    counts = [
        (node.name, sum(isinstance(item, Function) for item in node.body))
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    return [f"{name}: {count} methods" for name, count in counts if count > CLASS_METHODS]


def is_named(path: str, page: str) -> bool:
    """Whether a page names a path as a whole, not as the end of a longer one."""
    text = page.replace("src/graft/", "")
    return re.search(rf"(?<![\w./-]){re.escape(path)}(?![\w-])", text) is not None


@on_each(PYTHON)
def test_file_is_short(path: Path) -> None:
    count = len(path.read_text(encoding="utf-8").splitlines())
    assert count <= FILE_LINES, f"{count} lines"


@on_each(PYTHON)
def test_lines_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    assert [n for n, line in enumerate(lines, start=1) if len(line) > LINE_CHARACTERS] == []


@on_each(PYTHON)
def test_functions_are_short(path: Path) -> None:
    assert long_functions(tree_of(path)) == []


@on_each(PYTHON)
def test_classes_are_small(path: Path) -> None:
    assert large_classes(tree_of(path)) == []


@on_each(SOURCES)
def test_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), "the module has no docstring"


@on_each(SOURCES)
def test_imports_stand_at_the_top(path: Path) -> None:
    assert misplaced_imports(tree_of(path)) == set()


@on_each(SOURCES)
def test_nothing_is_pickled(path: Path) -> None:
    assert pickling(tree_of(path)) == []


@on_each([path for path in SOURCES if path.name != "__init__.py"])
def test_map_names_the_file(path: Path) -> None:
    assert MAP.is_file(), "docs/map.md does not exist"
    name = path.relative_to(PACKAGE).as_posix()
    assert is_named(name, MAP.read_text(encoding="utf-8")), f"docs/map.md does not name {name}"


@on_each(ALL)
def test_file_is_small(path: Path) -> None:
    assert path.stat().st_size <= FILE_BYTES


@on_each(ALL)
def test_file_names_no_machine_path(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    assert [n for n, line in enumerate(lines, start=1) if MACHINE_PATH.search(line)] == []


def test_rules_find_what_they_forbid() -> None:
    """Each rule on a piece of code that breaks it and one that just keeps it."""
    local = ast.parse("def f():\n import os\n from . import a\n import onnxruntime.capi\n")
    assert misplaced_imports(local) == {"line 2: os", "line 3: graft"}
    assert misplaced_imports(ast.parse("if True:\n import os\n")) == set()

    loads = ast.parse("from pickle import load\nf(allow_pickle=True)\nf(allow_pickle=False)\n")
    assert pickling(loads) == ["line 1: pickle", "line 2: allow_pickle"]

    for extra, expected in [(0, []), (1, ["f: 61 lines"])]:
        text = "@g\nasync def f():\n" + " pass\n" * (FUNCTION_LINES - 1 + extra)
        assert long_functions(ast.parse(text)) == expected

    for extra, expected in [(0, []), (1, ["C: 21 methods"])]:
        text = "class C:\n" + " def m(self): ...\n" * (CLASS_METHODS + extra)
        assert large_classes(ast.parse(text)) == expected

    page = "`frontends/onnx/conv.py` and src/graft/compile.py."
    named = [is_named(path, page) for path in ("frontends/onnx/conv.py", "compile.py", "conv.py")]
    assert named == [True, True, False]

    assert MACHINE_PATH.search(b"at '/%s/x'" % b"root")
    assert not MACHINE_PATH.search(b"https://example.org/%s/x" % b"home")
