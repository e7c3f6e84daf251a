"""Compilers of the machine, and what they make: a command in, its output out; a library, loaded."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from graft.base.errors import UserError

_SHOWN_LINES = 12


def run_tool(
    command: Sequence[str],
    refusal: str,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """What a command prints, run in a folder and with more variables in its environment; where it
    fails or is not there, an error of the text `refusal` and what it says of the reason."""
    environment = os.environ | (variables or {})
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder, env=environment
        )
    except OSError as error:
        raise UserError(f"{refusal}: {error}") from None
    if process.returncode:
        first, *more = process.stderr.splitlines()[:_SHOWN_LINES] or ["it does not say why"]
        raise UserError(f"{refusal}: {first}", details=more)
    return process.stdout


def open_library(code: bytes, what: str) -> ctypes.CDLL:
    """A shared object, loaded from a file that is gone again afterwards."""
    handle, name = tempfile.mkstemp(suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        return ctypes.CDLL(name)
    except OSError as error:
        raise UserError(f"{what} cannot be loaded: {error}") from None
    finally:
        Path(name).unlink(missing_ok=True)
