"""The house rules that a program can check, each on all files.

In go the project's files as they lie on disk; out comes one failure per rule that names the files
which break it. Style, types and layers are left to Ruff, mypy and import-linter.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

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
    if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ("src", "tests", "benchmarks")
]
SOURCES = [path for path in PYTHON if path.is_relative_to(PACKAGE)]


def broken(paths: list[Path], rule: Callable[[Path], object]) -> dict[str, object]:
    """What a rule has against files, by path; a test per file would take longer than the rules."""
    found = {path.relative_to(ROOT).as_posix(): rule(path) for path in paths}
    return {name: problem for name, problem in found.items() if problem}


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


def misplaced_imports(tree: ast.Module, text: str) -> set[str]:
    """Imports inside functions, but for those of packages that may be missing, and of what takes
    long to import and is rarely needed, with a comment before that says so: `# lazy: ...`."""
    ours = sys.stdlib_module_names | {"graft"}
    lines = ["", *text.splitlines()]
    return {
        f"line {line}: {module}"
        for function in functions(tree)
        for line, module in imported_modules(function)
        if module.split(".")[0] in ours and not lines[line - 1].strip().startswith("# lazy: ")
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


def paths_in(page: str) -> set[str]:
    """The paths that a page names as a whole, not as the end of a longer one."""
    return {path.rstrip(".") for path in re.findall(r"[\w./-]+", page.replace("src/graft/", ""))}


def test_files_are_short() -> None:
    def lines(path: Path) -> int:
        count = len(path.read_text(encoding="utf-8").splitlines())
        return count if count > FILE_LINES else 0

    assert broken(PYTHON, lines) == {}


def test_lines_are_short() -> None:
    def long(path: Path) -> list[int]:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [n for n, line in enumerate(lines, start=1) if len(line) > LINE_CHARACTERS]

    assert broken(PYTHON, long) == {}


def test_functions_are_short() -> None:
    assert broken(PYTHON, lambda path: long_functions(tree_of(path))) == {}


def test_classes_are_small() -> None:
    assert broken(PYTHON, lambda path: large_classes(tree_of(path))) == {}


def test_modules_say_what_they_are_for() -> None:
    assert broken(SOURCES, lambda path: not ast.get_docstring(tree_of(path))) == {}


def test_imports_stand_at_the_top() -> None:
    assert broken(SOURCES, lambda path: misplaced_imports(tree_of(path), path.read_text())) == {}


def test_nothing_is_pickled() -> None:
    assert broken(SOURCES, lambda path: pickling(tree_of(path))) == {}


def test_map_names_every_file() -> None:
    named = paths_in(MAP.read_text(encoding="utf-8"))
    paths = [path for path in SOURCES if path.name != "__init__.py"]
    assert broken(paths, lambda path: path.relative_to(PACKAGE).as_posix() not in named) == {}


def test_files_are_small() -> None:
    assert broken(ALL, lambda path: path.stat().st_size > FILE_BYTES) == {}


def test_files_name_no_machine_path() -> None:
    def named(path: Path) -> list[int]:
        lines = path.read_bytes().split(b"\n")
        return [n for n, line in enumerate(lines, start=1) if MACHINE_PATH.search(line)]

    assert broken(ALL, named) == {}


def test_rules_find_what_they_forbid() -> None:
    """Each rule on a piece of code that breaks it and one that just keeps it."""
    local = "def f():\n import os\n from . import a\n import onnxruntime.capi\n"
    assert misplaced_imports(ast.parse(local), local) == {"line 2: os", "line 3: graft"}
    for allowed in ("if True:\n import os\n", "def f():\n # lazy: slow\n import os\n"):
        assert misplaced_imports(ast.parse(allowed), allowed) == set()

    loads = ast.parse("from pickle import load\nf(allow_pickle=True)\nf(allow_pickle=False)\n")
    assert pickling(loads) == ["line 1: pickle", "line 2: allow_pickle"]

    for extra, expected in [(0, []), (1, ["f: 61 lines"])]:
        text = "@g\nasync def f():\n" + " pass\n" * (FUNCTION_LINES - 1 + extra)
        assert long_functions(ast.parse(text)) == expected

    for extra, expected in [(0, []), (1, ["C: 21 methods"])]:
        text = "class C:\n" + " def m(self): ...\n" * (CLASS_METHODS + extra)
        assert large_classes(ast.parse(text)) == expected

    page = "`frontends/onnx/conv.py` and src/graft/compile.py."
    assert {"frontends/onnx/conv.py", "compile.py"} <= paths_in(page)
    assert "conv.py" not in paths_in(page)

    assert MACHINE_PATH.search(b"at '/%s/x'" % b"root")
    assert not MACHINE_PATH.search(b"https://example.org/%s/x" % b"home")
