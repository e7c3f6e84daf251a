"""The zoo's files: groups of architectures in; ONNX files and reasons for missing ones out."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch==2.13.0",
    "torchvision==0.28.0",
    "timm==1.0.30",
    "transformers==5.22.2",
    "onnx==1.23.2",
    "onnxscript==0.7.2",
    "scikit-learn==1.9.1",
    "skl2onnx==1.20.0",
    "onnxmltools==1.16.0",
    "xgboost==3.2.0",
    "lightgbm==4.7.0",
    "matplotlib>=3.10",
)
GROUPS = ("timm", "transformers", "segmentation", "classic")
EXPORT_SECONDS = 300.0
EXPORT_BYTES = 16 << 30

_SCRIPT = Path(__file__).with_name("export.py")
_LONGEST_REASON = 200
_ERROR = re.compile(r"(<class ')?[\w.]+(Error|Exception)('>)?: ")


@dataclass(frozen=True, slots=True)
class Model:
    """An architecture of a group; `is_dynamic` if it is exported for any batch size."""

    group: str
    architecture: str
    is_dynamic: bool = False

    @property
    def name(self) -> str:
        group = f"{self.group}-dynamic" if self.is_dynamic else self.group
        return f"{group}/{self.architecture}"

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name}.onnx"


class Records:
    """Results by model name in a JSON file, which is rewritten with each result."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text(encoding="utf-8") if path.exists() else "{}"
        self.by_name: dict[str, Any] = json.loads(text)

    def has(self, name: str) -> bool:
        return name in self.by_name

    def add(self, name: str, record: Any) -> None:
        self.by_name[name] = record
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.by_name, indent=1), encoding="utf-8")
        partial.replace(self._path)


@dataclass(frozen=True, slots=True)
class Exporter:
    """Runs `export.py`, a process per model; `exports` records "" or why there is no file."""

    python: Path
    folder: Path
    exports: Records

    def models(self, groups: Sequence[str], dynamic: bool) -> Iterator[Model]:
        """What the rules select. The names are computed once and kept in the folder."""
        for group in groups:
            listing = self.folder / f"{group}.txt"
            if not listing.exists():
                command = [str(self.python), str(_SCRIPT), "names", group]
                names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                listing.write_text(names, encoding="utf-8")
            for name in listing.read_text(encoding="utf-8").split():
                yield Model(group, name, dynamic and group == "timm")

    def export(self, model: Model) -> str:
        """Write a model's file; "", or the reason if that fails."""
        path = model.file(self.folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        command = [str(self.python), str(_SCRIPT), "export", model.group, model.architecture]
        command += [str(partial), *(["--dynamic"] if model.is_dynamic else [])]
        reason = _run_limited(command)
        if not reason:
            partial.replace(path)
        partial.unlink(missing_ok=True)
        self.exports.add(model.name, reason)
        return reason


def _run_limited(command: Sequence[str]) -> str:
    """Run a process within the limits; "", or why it failed."""
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=EXPORT_SECONDS,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (EXPORT_BYTES,) * 2),
        )
    except subprocess.TimeoutExpired:
        return f"not exported within {EXPORT_SECONDS:.0f} s"
    if child.returncode == 0:
        return ""
    lines = child.stderr.strip().splitlines() or [f"ended with code {child.returncode}"]
    # Where one error led to another, the first one that is named is the cause.
    cause = next(filter(_ERROR.match, lines), lines[-1])
    return cause.strip()[:_LONGEST_REASON]


def environment_python(folder: Path) -> Path:
    """The interpreter of the zoo's environment, which is made if it is not there."""
    python = folder / "bin" / "python"
    stamp = folder / ".packages"
    wanted = "\n".join(PACKAGES)
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"installing {', '.join(PACKAGES)} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = ("-m", "pip", "install", "-qq", "--disable-pip-version-check")
        subprocess.run([str(python), *install, *PACKAGES], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return python
