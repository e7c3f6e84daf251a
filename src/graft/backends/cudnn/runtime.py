"""cuDNN regions at run time: the launches of `cuda`, some of them calls of cuDNN's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass

from graft.backends.cuda import runtime as cuda
from graft.backends.cuda.driver import Memory
from graft.backends.cudnn.library import Library, Plan, library
from graft.runtime.json_graph import JsonNode
from graft.runtime.loaders import versioned

VERSION = "2"


@dataclass(frozen=True, slots=True)
class Call:
    """An operation graph of cuDNN's, planned, with memory to work in."""

    library: Library
    plan: Plan
    workspace: Memory

    def start(self, addresses: Sequence[int], stream: c_void_p) -> None:
        self.library.execute(self.plan, addresses, self.workspace.address, stream)

    def __str__(self) -> str:
        return f"cuDNN, engine {self.plan.engine}, {self.plan.workspace} bytes of workspace"


class Region(cuda.Region):
    """A loaded region of kernels and calls."""

    def work(self, node: JsonNode, modules: Mapping[str, c_void_p]) -> cuda.Work:
        if "call" not in node.attrs:
            return super().work(node, modules)
        plan = library().plan(node.attrs["call"])
        return Call(library(), plan, self.device.reserve(plan.workspace))


@versioned(VERSION)
def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
