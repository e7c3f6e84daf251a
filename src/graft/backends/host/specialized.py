"""A model with variants for some sizes: programs of the host's in, one that runs them all out.

It goes into a file as a whole. Constants that are equal are one array: most weights are the same at
every size.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np

from graft.backends.host.flow_program import FlowExecutable, kernel_calls
from graft.backends.host.options import HostOptions
from graft.backends.host.saving import save_as
from graft.base.dtypes import Array
from graft.byoc.executable import Footprint
from graft.ir.evaluate import Data
from graft.runtime.flow import Choice, Flow, FlowStep, Repetition, Stretch, Sweep
from graft.runtime.flow_executor import Supplied
from graft.runtime.flow_program import FlowProgram
from graft.runtime.flow_session import FlowSession
from graft.runtime.memory import give_back
from graft.runtime.specialized import AnyProgram, Key, SpecializedProgram
from graft.runtime.specialized_session import SpecializedSession

# Smaller constants are not worth comparing.
_SHARED_BYTES = 4096


class Part(Protocol):
    """One of the programs, as `HostBackend.build` gives it."""

    @property
    def program(self) -> AnyProgram: ...
    @property
    def supplied(self) -> Supplied: ...
    @property
    def kernels(self) -> dict[str, str]: ...
    @property
    def reference_nodes(self) -> dict[str, str]: ...
    @property
    def python_nodes(self) -> dict[str, str]: ...


class SpecializedExecutable:
    """A compiled model with variants."""

    def __init__(
        self,
        general: FlowExecutable,
        symbols: tuple[str, ...],
        variants: Mapping[Key, Part],
        options: HostOptions,
    ) -> None:
        share = _Shared()
        own = {key: share.program(part.program) for key, part in variants.items()}
        flow = replace(share.flow_program(general.program), threads=options.threads)
        self.program = SpecializedProgram(flow, symbols, own)
        named = {self.program.name(key): variants[key] for key in own}
        self._parts: dict[str, Part] = {"": general, **named}
        self._options = options

    @cached_property
    def session(self) -> SpecializedSession:
        """All of it, linked into this process; what is for another machine is refused."""
        self._options.require_here(self.program.target)
        give_back()  # what the compiler worked on
        supplied = {name: part.supplied for name, part in self._parts.items()}
        return SpecializedSession(self.program, self._options.threads, supplied)

    @property
    def kernels(self) -> dict[str, str]:
        """The step that makes each value, by its label, in the first program that makes it."""
        return _first(part.kernels for part in self._parts.values())

    @property
    def reference_nodes(self) -> dict[str, str]:
        """Values that the reference evaluator computes in any of the programs, with the reason."""
        return _first(part.reference_nodes for part in self._parts.values())

    @property
    def python_nodes(self) -> dict[str, str]:
        """Values that Python makes in any of the programs, with what it does."""
        return _first(part.python_nodes for part in self._parts.values())

    @property
    def footprint(self) -> Footprint:
        """How large all of them are together."""
        return Footprint.of(kernel_calls(self.program.programs))

    def variant(self, inputs: Sequence[Data]) -> str:
        """The variant that runs these inputs; empty for the general program."""
        return self.program.name(self.program.key(inputs))

    def save(
        self,
        path: str | os.PathLike[str],
        blobs: Mapping[str, bytes] | None = None,
        backends: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Write all programs to one file, with what the regions of other backends need."""
        return save_as(self.program, path, backends, blobs)

    def __call__(
        self, inputs: Sequence[Data], homes: Mapping[str, Array] | None = None
    ) -> list[Data]:
        chosen = self.session.chosen(inputs)
        if isinstance(chosen, FlowSession):
            return chosen.executor(inputs)
        names = (spec.name for spec in chosen.program.inputs)
        return list(chosen.run(None, dict(zip(names, inputs, strict=True)), homes))


def _first(mappings: Iterable[dict[str, str]]) -> dict[str, str]:
    """All of them in one; of equal keys the first counts."""
    merged: dict[str, str] = {}
    for one in mappings:
        merged = {**one, **merged}
    return merged


class _Shared:
    """Programs with one array for constants that are equal."""

    def __init__(self) -> None:
        self._known: dict[object, Array] = {}

    def program(self, program: AnyProgram) -> AnyProgram:
        if isinstance(program, FlowProgram):
            return self.flow_program(program)
        return replace(program, constants=self._constants(program.constants))

    def flow_program(self, program: FlowProgram) -> FlowProgram:
        return replace(program, flow=self._flow(program.flow))

    def _flow(self, flow: Flow) -> Flow:
        return replace(flow, steps=tuple(self._step(step) for step in flow.steps))

    def _step(self, step: FlowStep) -> FlowStep:
        match step:
            case Stretch(program):
                constants = self._constants(program.constants)
                return replace(step, program=replace(program, constants=constants))
            case Choice(branches=(one, other)):
                return replace(step, branches=(self._flow(one), self._flow(other)))
            case Repetition() | Sweep():
                return replace(step, body=self._flow(step.body))
        return step

    def _constants(self, constants: Iterable[Array]) -> tuple[Array, ...]:
        return tuple(self._constant(array) for array in constants)

    def _constant(self, array: Array) -> Array:
        if array.nbytes < _SHARED_BYTES or not array.flags.c_contiguous:
            return array
        digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data).digest()
        return self._known.setdefault((array.dtype, array.shape, digest), array)
