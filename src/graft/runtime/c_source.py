"""Compiled C at run time: a blob in, a callable out that hands pointers to it.

The blob holds a shared object, the source it was compiled from, a description, and the constants,
which are passed by pointer from where they lie. The description names the instruction set that the
code needs: on a machine that lacks some of it, the blob is refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.runtime.json_graph import pack, unpack
from graft.runtime.loaders import versioned
from graft.runtime.memory import address_of, aligned_copy, aligned_empty
from graft.runtime.native import host_architecture, host_features
from graft.runtime.tools import open_library

ENTRY = "graft_region"
_CODE, _SOURCE = "code", "source"


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """What machine code needs: an architecture and, by LLVM's names, features of the processor."""

    architecture: str
    features: tuple[str, ...] = ()

    def why_not_here(self) -> str:
        """Why such code cannot run on this machine; empty where it can."""
        if self.architecture != host_architecture():
            return f"is for {self.architecture}, and this machine is {host_architecture()}"
        missing = [name for name in self.features if name not in host_features()]
        return f"needs a processor with {', '.join(missing)}" if missing else ""


def pack_code(
    code: bytes, source: str, constants: Sequence[Array], workspace: int, needs: InstructionSet
) -> bytes:
    """A shared object with all that a call of it needs."""
    parts: dict[str, Array] = {
        _CODE: np.frombuffer(code, np.uint8),
        _SOURCE: np.frombuffer(source.encode(), np.uint8),
    }
    parts |= {f"constant {number}": array for number, array in enumerate(constants)}
    facts = [str(workspace), str(len(constants)), needs.architecture, *needs.features]
    described = {"inputs": [], "nodes": [], "outputs": facts}
    return pack(described, parts)


class CompiledRegion:
    """A region in C. Calls at the same time have a workspace each; constants are shared."""

    def __init__(self, blob: bytes) -> None:
        graph = unpack(blob)
        workspace, count = (int(text) for text in graph.outputs[:2])
        architecture, *features = graph.outputs[2:] or ("a machine that it does not name",)
        reason = InstructionSet(architecture, tuple(features)).why_not_here()
        if reason:
            raise UserError(f"the compiled C code {reason}", hint="compile the model here")
        self.source = bytes(graph.constants[_SOURCE]).decode()
        stored = (graph.constants[f"constant {number}"] for number in range(count))
        self._constants = [aligned_copy(array) for array in stored]
        self._size = workspace
        self._free: list[Array] = []  # workspaces; a list's own operations are atomic
        self._library = open_library(bytes(graph.constants[_CODE]), "the compiled C code")
        self._function = getattr(self._library, ENTRY)
        self._function.restype = None
        self._table = _addresses(self._constants)

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        try:
            workspace = self._free.pop()
        except IndexError:
            workspace = aligned_empty((self._size,), np.dtype(np.uint8))
        where = ctypes.c_void_p(address_of(workspace))
        self._function(_addresses(inputs), _addresses(outputs), self._table, where)
        self._free.append(workspace)


def _addresses(arrays: Sequence[Array]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(address_of(array) for array in arrays))


@versioned("", loads=lambda _version: True)  # machine code, whichever version wrote the C
def load(blob: bytes) -> CompiledRegion:
    """What `graft.load` calls for a region in C."""
    return CompiledRegion(blob)
