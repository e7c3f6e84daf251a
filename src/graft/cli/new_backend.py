"""`graft new-backend`: a name in, a package out that is a working backend of that name.

The files are templates under `scaffold/`; the package passes its own tests as written.
"""

from __future__ import annotations

import argparse
import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from graft.base.errors import UserError
from graft.byoc.discover import find_backends
from graft.cli.options import UsageError
from graft.cli.report import print_json, print_lines, print_verbatim

DESCRIPTION = """\
Generate a backend package: entry points, a backend that computes with NumPy, tests
and a README. It works unmodified; replace its kernels with yours."""
EXAMPLES = """\
  graft new-backend mynpu                        into ./graft-mynpu
  graft new-backend mynpu --directory ~/mynpu    somewhere else
  pip install -e graft-mynpu && graft check --backend mynpu
"""

# Where each template goes; {package} is the package's name.
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "__init__.py": "src/{package}/__init__.py",
    "backend.py": "src/{package}/backend.py",
    "runtime.py": "src/{package}/runtime.py",
    "test_backend.py": "tests/test_backend.py",
}
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits and underscores")
    parser.add_argument(
        "--directory", metavar="DIR", type=Path, help="where to write (default: ./graft-NAME)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(options: argparse.Namespace) -> int:
    name: str = options.name
    check_name(name)
    folder: Path = options.directory or Path(f"graft-{name.replace('_', '-')}")
    paths = write_package(name, folder)
    if options.json:
        print_json({"name": name, "directory": str(folder), "files": list(map(str, paths))})
        return 0
    print_lines([f"wrote {folder / path}" for path in paths])
    print_verbatim(["", "next:", f"  pip install -e {folder}", f"  graft check --backend {name}"])
    return 0


def check_name(name: str) -> None:
    """Refuse a name that no backend or package can have, or that is taken."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"'{name}' is no name for a backend",
            hint="lower-case letters, digits and underscores, a letter first, no Python keyword",
        )
    backends = find_backends()
    broken = {item.name: item.origin for item in backends.broken}
    origin = backends.origins.get(name) or broken.get(name)
    if origin is not None:
        raise UserError(f"there is a backend '{name}' already, from {origin}")


def write_package(name: str, folder: Path) -> list[Path]:
    """Write the package into a new or empty folder; gives the files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"'{folder}' is there already", hint="choose another with --directory")
    package = f"graft_{name}"
    words = {
        "name": name,
        "package": package,
        "distribution": package.replace("_", "-"),
        "class_name": "".join(word.capitalize() for word in name.split("_")),
    }
    paths = []
    for template, target in _FILES.items():
        text = files("graft.cli").joinpath("scaffold", f"{template}.txt").read_text("utf-8")
        path = Path(target.format(package=package))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(Template(text).substitute(words), encoding="utf-8")
        paths.append(path)
    return paths
