"""Compiled programs into files: a program in, an artifact that says who made it out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version

from graft.byoc.contract import HOME
from graft.program.program import Program
from graft.runtime.artifact import Origin, save

HOST_VERSION = "1"


def save_as(
    program: Program,
    path: str | os.PathLike[str],
    backends: Mapping[str, str] | None = None,
    blobs: Mapping[str, bytes] | None = None,
) -> list[str]:
    """Write a program to a file, with what the regions of other backends need; tells what
    operators the evaluator has to know."""
    versions = {HOME: HOST_VERSION, **(backends or {})}
    return save(program, path, Origin(version("graft-compiler"), versions), blobs)
