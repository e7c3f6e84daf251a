"""Core ML regions: a program in, an `.mlpackage` in a ZIP archive out; at run time what runs it.

Programs are computed in the precision of their tensors: nothing becomes float16 that was not.
"""

from __future__ import annotations

import io
import logging
import shutil
import sys
import zipfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graft.base.dtypes import Array
from graft.runtime.loaders import installed_version, lacking, versioned

PACKAGE = "coremltools"
_MODEL = "region.mlpackage"


def missing() -> str:
    """What to install, or that this is not macOS."""
    elsewhere = "Core ML runs on macOS alone; here its programs can only be made and looked at"
    return lacking(PACKAGE, "coreml") or ("" if sys.platform == "darwin" else elsewhere)


@cache
def tools() -> Any:
    """coremltools, without its remarks on a system that cannot run what it makes."""
    logging.getLogger(PACKAGE).setLevel(logging.ERROR)
    import coremltools

    return coremltools


def pack(program: Any) -> bytes:
    """A MIL program as a package, in an archive; no pass changes it on the way. coremltools writes
    it to the folder that is named here; else that would be one which stays until Python exits."""
    ct = tools()
    with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):  # bars of progress
        ct.convert(
            program,
            minimum_deployment_target=ct.target.iOS16,
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
            package_dir=f"{folder}/{_MODEL}",
        )
        return Path(shutil.make_archive(f"{folder}/code", "zip", folder, _MODEL)).read_bytes()


def unpack(blob: bytes, folder: str) -> Path:
    """The package of a region, in a folder."""
    zipfile.ZipFile(io.BytesIO(blob)).extractall(folder)
    return Path(folder) / _MODEL


class Region:
    """A loaded package, on whatever of CPU, GPU and Neural Engine Core ML chooses."""

    def __init__(self, blob: bytes) -> None:
        self._folder = TemporaryDirectory()  # Core ML reads weights from there
        self._model = tools().models.MLModel(str(unpack(blob, self._folder.name)))

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        results = self._model.predict({f"input_{n}": array for n, array in enumerate(inputs)})
        for n, output in enumerate(outputs):
            output[...] = results[f"output_{n}"]


@versioned(lambda: installed_version(PACKAGE), missing=missing)
def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
