"""Compiled programs into files: a program in, an artifact that says who made it out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version

from graft.base.errors import UnsupportedError
from graft.byoc.contract import HOME
from graft.runtime.artifact import Origin, save
from graft.runtime.specialized import AnyProgram, SpecializedProgram

HOST_VERSION = "1"


def save_as(
    program: AnyProgram | SpecializedProgram,
    path: str | os.PathLike[str],
    backends: Mapping[str, str] | None = None,
    blobs: Mapping[str, bytes] | None = None,
) -> None:
    """Write a program to a file, with what the regions of other backends need."""
    versions = {HOME: HOST_VERSION, **(backends or {})}
    save(program, path, Origin(version("graft-compiler"), versions), blobs)


def refuse_reference_nodes(reasons: Mapping[str, str]) -> None:
    """Refuse to save what needs the compiler to run; `reasons` are by value."""
    if reasons:
        name, reason = next(iter(reasons.items()))
        raise UnsupportedError(
            f"{len(reasons)} nodes run on the reference evaluator, which a file"
            f" cannot hold; the first is %{name}: {reason}"
        )
