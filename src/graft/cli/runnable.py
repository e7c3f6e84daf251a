"""What `graft run` runs: a `.graft` file in; its inputs, its outputs and a way to call it out.

`placement.py` makes the same of a model. This module does not import the compiler, so that files
start faster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.base.dims import Dim
from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.base.quantities import counted, number, time_text
from graft.cli.inputs import Input
from graft.cli.options import ABOUT_RUNNING, UsageError, given
from graft.cli.profile import decides
from graft.cli.terminal import spoken_warnings, status
from graft.ir.types import (
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    bound_symbols,
)
from graft.program.instructions import (
    Alias,
    Block,
    Evaluate,
    Instruction,
    ListOp,
    RegionCall,
    Segment,
    SizeFunction,
    Transfer,
    blocks,
)
from graft.program.program import Program, Value
from graft.program.variants import general_block, switch_of, variant_blocks
from graft.runtime.artifact import SUFFIX
from graft.runtime.session import Session, load

if TYPE_CHECKING:
    from graft.ir.evaluate import Data


_IN_PYTHON = (RegionCall, Transfer, Evaluate, SizeFunction, ListOp)
_ONNX_DTYPES = {"float": DType.FLOAT32, "double": DType.FLOAT64}


def is_compiled(path: Path) -> bool:
    """Whether a path names a file that `graft compile` has written."""
    return path.suffix == SUFFIX


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse options that are about compiling; those given are true, by name."""
    for name, is_given in options.items():
        if is_given:
            raise UsageError(f"{name} is for models, and a {SUFFIX} file is compiled already")


def refuse_placement_of_file(options: argparse.Namespace) -> None:
    """Refuse options on placement but those that are about running."""
    running = {f"--{name}" for name in ABOUT_RUNNING}
    refuse_options({name: name not in running for name in given(options)})


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input of a compiled file."""

    name: str
    type: Type


@dataclass(frozen=True, eq=False)
class Runnable:
    """A session, its inputs, and facts about it."""

    session: Session
    inputs: Sequence[Input]
    input_symbols: frozenset[str]
    summary: str
    readied: str  # "compiled in 2 s", or loaded
    facts: Mapping[str, Any]  # the same for --json
    bounds: Mapping[str, int] = field(default_factory=dict)  # of inputs that are indices

    @property
    def is_native(self) -> bool:
        """Whether there is machine code, and not the reference evaluator alone."""
        return is_native(self.session)

    @property
    def output_names(self) -> Sequence[str]:
        return self.session.program.output_names

    def run(self, feeds: Mapping[str, Data]) -> Sequence[Data]:
        return self.session.run(None, feeds)

    def variant(self, feeds: Mapping[str, Data]) -> str | None:
        """The variant that runs these feeds; empty is the general program of several."""
        has_variants = switch_of(self.session.program) is not None
        return self.session.variant(feeds) if self.is_native and has_variants else None


def is_native(session: Session) -> bool:
    """Whether a program has machine code; the evaluator's has none."""
    return bool(session.program.target.triple)


def loaded(
    path: Path, threads: int | None, verify: str | None = None, deadline: float | None = None
) -> Runnable:
    """A compiled file, ready to run."""
    start = time.perf_counter()
    with status(f"loading {path.name}"), spoken_warnings():
        session = load(path, threads, verify=verify, deadline=deadline)
    seconds = time.perf_counter() - start
    inputs = [Parameter(value.name, type_of(value)) for value in session.program.inputs]
    return Runnable(
        session,
        inputs,
        frozenset().union(*(bound_symbols(one.type) for one in inputs)),
        f"{_summary(session.program)}, {counted(session.threads, 'thread')}",
        f"loaded in {time_text(seconds)}",
        {**_steps(session.program), "threads": session.threads, "load_seconds": seconds},
    )


def type_of(value: Value) -> Type:
    """The type of a file's input or output."""
    if value.dtype is not None:
        return TensorType(value.dtype, value.shape)
    return _named_type(value.type, value.shape, value.name)


def _named_type(words: str, shape: Sequence[Dim] | None, name: str) -> Type:
    """The type that ONNX writes like this; elements of a sequence have no shape."""
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


def _steps(program: Program) -> dict[str, int]:
    """The steps of an inference; of a program whose sizes or steps depend on data, those in
    Python."""
    if decides(program):
        return {"python_steps": python_steps(general_block(program))}
    return {"steps": _native_steps(program)}


def _native_steps(program: Program) -> int:
    """Kernel calls, and what other backends run between them."""
    others = sum(not isinstance(one, Segment | Alias) for one in program.instructions)
    return sum(1 for _ in program.calls) + others


def _summary(program: Program) -> str:
    evaluated = sum(1 for _ in program.evaluated)
    note = f", {number(evaluated)} on the reference evaluator" if evaluated else ""
    variants = ", ".join(name for name in variant_blocks(program) if name)
    others = f" (other variants: {variants})" if variants else ""
    if decides(program):
        return f"{steps_text(program)}{note}{others}"
    return f"{counted(_native_steps(program) - evaluated, 'native step')}{note}"


def steps_text(program: Program) -> str:
    """What an inference consists of."""
    steps = python_steps(general_block(program))
    return f"one native call, {counted(steps, 'step')} in Python" if steps else "one native call"


def python_steps(block: Block) -> int:
    """The steps of an inference that run in Python: of branches, the larger number; of loops, those
    of one iteration."""
    return sum(_python_steps(instruction) for instruction in block.instructions)


def _python_steps(instruction: Instruction) -> int:
    inside = max((python_steps(block) for block in blocks(instruction)), default=0)
    return inside + isinstance(instruction, _IN_PYTHON)
