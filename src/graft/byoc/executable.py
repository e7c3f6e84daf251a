"""Whole programs: the part of the backends' contract for backends that build them.

Most backends run regions of a program that the host builds: it compiles the graph that is left when
regions are outlined, with symbolic shapes and nested graphs. The reference evaluator builds
programs, too. Both implement `Backend.lower`.
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
    """The required accuracy of results."""

    # Algorithms with a stated bound on their rounding are allowed, and denormal results are zeros.
    DEFAULT = "default"
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
    """The user's settings for a backend. `threads`: how many share the work, None for one per core;
    `machine`: the machine to generate code for; `accuracy`: which algorithms are allowed;
    `precision`: the dtype in which backends whose limits allow it may compute float32; `report`:
    called with progress."""

    threads: int | None = None
    machine: str = HOST
    accuracy: Accuracy = Accuracy.DEFAULT
    report: Progress = quietly
    precision: DType = DType.FLOAT32


@dataclass(frozen=True, slots=True)
class Footprint:
    """The size of a program. `kernels` counts equal ones once. The arena holds values between
    kernels; None: its size depends on the inputs. `arena_bound` is a lower bound on it for this
    order of steps."""

    calls: int = 0
    kernels: int = 0
    arena_bytes: int | None = None
    arena_bound: int | None = None

    @classmethod
    def of(
        cls, symbols: Iterable[str], arena: int | None = None, bound: int | None = None
    ) -> Footprint:
        """The size of a program that calls kernels with these symbols."""
        called = list(symbols)
        return cls(len(called), len(set(called)), arena, bound)


class Executable(Protocol):
    """A compiled model: a function of inputs to outputs, in order. Safe to call from several
    threads.

    `outputs` are arrays for results, by name. An executable may write there and return them;
    otherwise the caller copies."""

    def __call__(
        self, inputs: Sequence[Data], outputs: Mapping[str, Array] | None = None
    ) -> list[Data]: ...

    def save(
        self,
        path: str | os.PathLike[str],
        blobs: Mapping[str, bytes] | None = None,
        backends: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Write a file, with `blobs` beside the program, and the versions of the `backends` that
        generated code; gives the operators that the evaluator must have to load it."""
        ...

    @property
    def kernels(self) -> Mapping[str, str]:
        """The label of the native step that computes each value; values fused into others are
        missing."""
        ...

    @property
    def reference_nodes(self) -> Mapping[str, str]:
        """Values that the reference evaluator computes, each with the reason."""
        ...

    @property
    def python_nodes(self) -> Mapping[str, str]:
        """Values that Python computes between native segments, with what it does."""
        ...

    def without_session(self) -> Executable:
        """The same without a reference to its session: what saves a session's program can be kept
        by the session without keeping it alive."""
        ...

    @property
    def session(self) -> Session:
        """The session that users hold; it runs if the code is for this machine."""
        ...


class Lowering(Protocol):
    """A whole graph right before code generation."""

    @property
    def graph(self) -> Graph:
        """The graph after the backend's passes; each node becomes a kernel."""
        ...

    @property
    def passes(self) -> tuple[PassReport, ...]:
        """The reports of these passes."""
        ...

    @property
    def reference_nodes(self) -> Mapping[str, str]:
        """Values that the reference evaluator computes, each with the reason."""
        ...

    def kernels(self, form: str) -> list[str]:
        """The text of each kernel in a form that the backend knows ("loops", "llvm", "asm"); empty
        if it has no kernels."""
        ...

    def build(self) -> Executable:
        """Generate code and link the program."""
        ...
