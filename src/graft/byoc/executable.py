"""Whole programs: what a backend that builds them is asked, and what it gives.

Most backends run regions of a program that another one builds: the host, which takes whatever graph
is left when the regions are cut out, with symbolic shapes, nested graphs and all. The reference
evaluator builds programs, too. Both do it by `Backend.lower`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.base.progress import Progress, quietly
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.passes.pipeline import PassReport
from graft.runtime.session import Session
from graft.target.target import HOST


class Accuracy(Enum):
    """How exact results have to be."""

    DEFAULT = "default"  # algorithms with a stated bound on their rounding are allowed
    STRICT = "strict"  # sums are what the operator's definition adds up, in some order

    @staticmethod
    def named(name: str) -> Accuracy:
        """The accuracy of that name."""
        members = {one.value: one for one in Accuracy}
        if name not in members:
            names = ", ".join(members)
            raise UserError(f"there is no accuracy '{name}'", hint=f"known accuracies: {names}")
        return members[name]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user asks of the backend that builds a program. `threads`: how many share the work,
    None for one per core; `machine`: whose code it is; `accuracy`: which algorithms are allowed;
    `precision`: what backends whose limits say so may compute float32 in; `report` is told of the
    progress."""

    threads: int | None = None
    machine: str = HOST
    accuracy: Accuracy = Accuracy.DEFAULT
    report: Progress = quietly
    precision: DType = DType.FLOAT32


@dataclass(frozen=True, slots=True)
class Footprint:
    """The size of a program. `kernels` counts equal ones once. The arena holds what lies between
    kernels; None: its size depends on the inputs. No plan for these steps can do with less than
    `arena_bound`."""

    calls: int = 0
    kernels: int = 0
    arena_bytes: int | None = None
    arena_bound: int | None = None

    @classmethod
    def of(
        cls, symbols: Iterable[str], arena: int | None = None, bound: int | None = None
    ) -> Footprint:
        """Of a program that calls these kernels."""
        called = list(symbols)
        return cls(len(called), len(set(called)), arena, bound)


class Executable(Protocol):
    """A compiled model: inputs in order in, outputs in order out. Safe to call from several
    threads.

    `outputs` are arrays that the caller wants results in, by name. An executable that can writes
    there and returns them; one that cannot leaves the copying to its caller.
    """

    def __call__(
        self, inputs: Sequence[Data], outputs: Mapping[str, Array] | None = None
    ) -> list[Data]: ...

    def save(
        self,
        path: str | os.PathLike[str],
        blobs: Mapping[str, bytes] | None = None,
        backends: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Write it to a file, with `blobs` beside it, and the versions of the `backends` whose
        code these are; gives the operators that the evaluator has to know there."""
        ...

    @property
    def kernels(self) -> Mapping[str, str]:
        """The native step that makes each value, by its label; fused values are not here."""
        ...

    @property
    def reference_nodes(self) -> Mapping[str, str]:
        """Values that the reference evaluator computes, each with the reason."""
        ...

    @property
    def python_nodes(self) -> Mapping[str, str]:
        """Values that Python makes between native programs, with what it does."""
        ...

    def without_session(self) -> Executable:
        """The same without the session that it may have made: what saves a session's program can
        live with the session, which then goes with the last reference to it."""
        ...

    @property
    def session(self) -> Session:
        """What users hold: it runs in this process, if the code is for this machine."""
        ...


class Lowering(Protocol):
    """A whole graph as a backend sees it right before code generation."""

    @property
    def graph(self) -> Graph:
        """The graph after the backend's own passes, of which each node becomes a kernel."""
        ...

    @property
    def passes(self) -> tuple[PassReport, ...]:
        """What these passes did."""
        ...

    @property
    def reference_nodes(self) -> Mapping[str, str]:
        """Values that the reference evaluator computes, each with the reason."""
        ...

    def kernels(self, form: str) -> list[str]:
        """The text of each kernel, in one of the forms that the backend knows ("loops", "llvm",
        "asm"); none where it has no kernels."""
        ...

    def build(self) -> Executable:
        """Code for all of it, ready to run."""
        ...
