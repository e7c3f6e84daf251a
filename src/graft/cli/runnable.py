"""What `graft run` runs: a `.graft` file in; its inputs, its outputs and a way to call it out.

A model that has just been compiled takes the same form (`run_model.py`). Nothing here knows the
compiler: a file runs without it, and starts faster for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.base.dims import Dim, bare_symbol
from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.cli.inputs import Input
from graft.cli.report import counted, number, seconds_text
from graft.cli.status import spoken_warnings, status
from graft.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from graft.runtime.artifact import SUFFIX
from graft.runtime.flow import Kind
from graft.runtime.flow_session import FlowSession
from graft.runtime.incidents import Incidents
from graft.runtime.loaded import load
from graft.runtime.loop_bodies import steps_of
from graft.runtime.program import TensorSpec
from graft.runtime.specialized import evaluated_steps
from graft.runtime.specialized_session import AnySession, PlainSession, SpecializedSession

if TYPE_CHECKING:
    from graft.ir.evaluate import Data
    from graft.module import Module


_ONNX_DTYPES = {"float": DType.FLOAT32, "double": DType.FLOAT64}


def is_compiled(path: Path) -> bool:
    """Whether a path names a file that `graft compile` has written."""
    return path.suffix == SUFFIX


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input of a compiled file."""

    name: str
    type: Type


@dataclass(frozen=True, eq=False)
class Runnable:
    """Something with named inputs and outputs that can be called."""

    inputs: Sequence[Input]
    input_symbols: frozenset[str]
    output_names: Sequence[str]
    run: Callable[[Mapping[str, Data]], Sequence[Data]]
    session: AnySession | None  # of native code
    why_not_native: str  # where there is no session
    summary: str
    readied: str  # how, and how long that took
    facts: Mapping[str, Any]  # both of them for programs
    bounds: Mapping[str, int] = field(default_factory=dict)  # of inputs that are indices
    incidents: Callable[[], Incidents] = Incidents  # what backends have done wrong so far
    module: Module | None = None  # where it has just been compiled

    def chosen(self, feeds: Mapping[str, Data]) -> PlainSession | None:
        """The session of native code that runs these feeds."""
        if isinstance(self.session, SpecializedSession):
            return self.session.chosen([feeds[one.name] for one in self.inputs])
        return self.session

    def variant(self, feeds: Mapping[str, Data]) -> str | None:
        """The variant that runs these feeds; empty is the general program of several."""
        return self.session.variant(feeds) if isinstance(self.session, SpecializedSession) else None


def loaded(
    path: Path, threads: int | None, verify: str | None = None, deadline: float | None = None
) -> Runnable:
    """A compiled file, ready to run."""
    start = time.perf_counter()
    with status(f"loading {path.name}"), spoken_warnings():
        session = load(path, threads, verify=verify, deadline=deadline)
    seconds = time.perf_counter() - start
    return Runnable(
        [Parameter(spec.name, type_of(spec)) for spec in _inputs(session)],
        frozenset(symbols_in_inputs(session)),
        [one.name for one in session.get_outputs()],
        lambda feeds: session.run(None, feeds),
        session,
        "",
        f"{_steps_text(session)}, {counted(session.threads, 'thread')}",
        f"loaded in {seconds_text(seconds)}",
        {**_steps(general(session)), "threads": session.threads, "load_seconds": seconds},
        incidents=lambda: session.incidents,
    )


def _inputs(session: AnySession) -> Sequence[TensorSpec | Kind]:
    return general(session).program.inputs


def general(session: AnySession) -> PlainSession:
    """The session that takes any size, where there are others beside it."""
    return session.general if isinstance(session, SpecializedSession) else session


def type_of(spec: TensorSpec | Kind) -> Type:
    """The type of a file's input or output."""
    if spec.dtype is not None:
        return TensorType(spec.dtype, spec.shape)
    return _named_type(spec.type, spec.shape, spec.name)


def _named_type(words: str, shape: Sequence[Dim] | None, name: str) -> Type:
    """The type that ONNX has these words for; what is in a sequence has no shape."""
    kind, _, inner = words.removesuffix(")").partition("(")
    match kind:
        case "tensor":
            dtype = _ONNX_DTYPES.get(inner) or DType(inner)
            return TensorType(dtype, None if shape is None else tuple(shape))
        case "seq":
            return SequenceType(_named_type(inner, None, name))
        case "optional":
            return OptionalType(_named_type(inner, None, name))
        case "map":
            key, _, value = inner.partition(",")
            return MapType(_ONNX_DTYPES.get(key) or DType(key), _named_type(value, None, name))
    raise UserError(f"the file does not say what '{name}' is", hint="compile the model again")


def symbols_in_inputs(session: AnySession) -> set[str]:
    """The symbols that the inputs' shapes give numbers to."""
    dims = (dim for spec in _inputs(session) for dim in spec.shape or ())
    names = (bare_symbol(dim) for dim in dims)
    return {name for name in names if name is not None}


def _steps(session: PlainSession) -> dict[str, int]:
    """How many steps an inference takes; of a flow, those that come back to Python."""
    if isinstance(session, FlowSession):
        return {"python_steps": steps_of(session.program.flow)}
    return {"steps": len(session.program.steps)}


def _steps_text(session: AnySession) -> str:
    if isinstance(session, SpecializedSession):
        own = ", ".join(map(session.program.name, session.program.variants))
        return f"{_steps_text(session.general)} (other variants: {own})"
    evaluated = sum(1 for _ in evaluated_steps(session.program))
    note = f", {number(evaluated)} on the reference evaluator" if evaluated else ""
    if isinstance(session, FlowSession):
        return f"{flow_text(session)}{note}"
    return f"{counted(len(session.program.steps) - evaluated, 'native step')}{note}"


def flow_text(session: FlowSession) -> str:
    """What an inference consists of."""
    return f"{counted(steps_of(session.program.flow), 'step')} of native code and decisions"
