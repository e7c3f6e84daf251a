"""What a program is whose sizes or steps depend on its data: stretches of native code, and between
them the decisions that need numbers first.

Values are numbered. A step reads some and makes some; what it makes gives numbers to the symbols
in their types. Everything is immutable and plain, as in `program`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graft.base.dims import Dim
from graft.base.dtypes import Array, DType
from graft.base.errors import Place
from graft.runtime.evaluated import EvaluatedGraph
from graft.runtime.lookup import Table
from graft.runtime.program import NOWHERE, Program
from graft.runtime.shaped import ShapedProgram


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value is: a tensor of a dtype with a shape, where known. Anything else has no dtype,
    but a type in ONNX's words; strings have a shape, too."""

    name: str
    dtype: DType | None = None
    shape: tuple[Dim, ...] | None = None
    type: str = ""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A native program on some values."""

    program: Program | ShapedProgram
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A node on the reference evaluator, which whoever loads the flow supplies by name."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    graph: EvaluatedGraph
    label: str = ""
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Measuring:
    """What tells the sizes of tensors from numbers that are data: a Python function, supplied by
    name, whose results have these sizes and no elements of their own."""

    function: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Handing:
    """A list of tensors, or a tensor that may be missing, is made, changed or read, as `lists` has
    it. A tensor is cut into parts of one size, or of several. Strings are looked up in a table."""

    operation: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    axis: int = 0
    with_axis: bool = True  # whether the elements of the list have the axis
    chunk: Dim = 1
    sizes: tuple[Dim, ...] | None = None
    table: Table | None = None
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Offload:
    """A region of another backend, supplied by name, on tensors; it takes any sizes."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: str = ""
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Reading:
    """A number that native code has found becomes what a symbol stands for."""

    value: int
    symbol: str
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trimming:
    """As many of a value's first rows as the last of some numbers says: the same memory."""

    value: int
    counts: int
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """A value is handed on if the condition is the wanted one; otherwise the run fails."""

    value: int
    condition: int
    wanted: bool
    message: str
    outputs: tuple[int, ...]
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two flows, by a condition; both take the captures and give the outputs."""

    condition: int
    captures: tuple[int, ...]
    branches: tuple[Flow, Flow]  # taken if false, taken if true
    outputs: tuple[int, ...]
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Repetition:
    """A flow again and again: at most `limit` times and as long as its condition holds.

    It takes the number of the turn, the condition, the carried values and the captures, and gives
    the condition, the carried values, and pieces that are stacked."""

    limit: int | None
    condition: int | None
    carried: tuple[int, ...]
    captures: tuple[int, ...]
    body: Flow
    outputs: tuple[int, ...]
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Sweep:
    """A flow once for each slice of some tensors along their axes, forwards or backwards.

    It takes the carried values, the slices and the captures, and gives the carried values and
    pieces that are stacked along an axis each, forwards or backwards."""

    carried: tuple[int, ...]
    scanned: tuple[int, ...]
    captures: tuple[int, ...]
    axes: tuple[int, ...]
    backwards: tuple[bool, ...]
    result_axes: tuple[int, ...]
    result_backwards: tuple[bool, ...]
    body: Flow
    outputs: tuple[int, ...]
    place: Place = NOWHERE


FlowStep = (
    Stretch
    | Evaluation
    | Measuring
    | Handing
    | Offload
    | Reading
    | Trimming
    | Demand
    | Choice
    | Repetition
    | Sweep
)


@dataclass(frozen=True, eq=False)
class Flow:
    """Steps in order on numbered values: the inputs, then constants, then what steps make."""

    name: str
    kinds: tuple[Kind, ...]  # per value
    inputs: tuple[int, ...]
    constants: tuple[tuple[int, Array], ...] = field(repr=False)
    steps: tuple[FlowStep, ...]
    outputs: tuple[int, ...]
    inherited: tuple[str, ...] = ()  # symbols whose numbers the flow around this one tells

    @property
    def finished(self) -> tuple[tuple[int, ...], ...]:
        """Per step, the values that nobody needs after it."""
        kept = {*self.outputs, *(number for number, _ in self.constants)}
        found: list[tuple[int, ...]] = []
        for step in reversed(self.steps):
            own = tuple(dict.fromkeys(n for n in (*reads(step), *step.outputs) if n not in kept))
            kept |= {*own}
            found.append(own)
        return tuple(reversed(found))


def reads(step: FlowStep) -> tuple[int, ...]:
    """The values that a step reads."""
    match step:
        case Stretch() | Offload() | Evaluation():
            return step.inputs
        case Measuring() | Handing():
            return tuple(number for number in step.inputs if number is not None)
        case Reading():
            return (step.value,)
        case Trimming():
            return (step.value, step.counts)
        case Demand():
            return (step.value, step.condition)
        case Choice():
            return (step.condition, *step.captures)
        case Repetition():
            flags = (number for number in (step.limit, step.condition) if number is not None)
            return (*flags, *step.carried, *step.captures)
        case Sweep():
            return (*step.carried, *step.scanned, *step.captures)


def nested(step: FlowStep) -> tuple[Flow, ...]:
    """The flows inside a step."""
    match step:
        case Choice():
            return step.branches
        case Repetition() | Sweep():
            return (step.body,)
        case _:
            return ()
