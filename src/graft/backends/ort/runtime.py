"""ONNX Runtime regions at run time: the code of a region is its model, behind a provider's name."""

from __future__ import annotations

from graft.runtime.loaders import installed_version, lacking, versioned
from graft.runtime.onnx_session import PACKAGE, session_options, session_runner
from graft.runtime.spaces import Runner


def pack(provider: str, model: bytes) -> bytes:
    """A model with the name of the provider that runs it."""
    return provider.encode() + b"\0" + model


@versioned(lambda: installed_version(PACKAGE), missing=lambda: lacking(PACKAGE, PACKAGE))
def load(blob: bytes, threads: int | None = None) -> Runner:
    """What `graft.load` calls for a region of this backend."""
    name, _, model = blob.partition(b"\0")
    provider = name.decode(errors="replace")
    return session_runner(provider, model, session_options(provider, threads))
