"""The instructions of a program: what each reads, makes and does.

Operands are numbers of the program's values. Instructions are frozen and plain data, so that a
program can be verified, printed, written to a file and encoded for the native driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from graft.base.dims import AnyDim, Dim
from graft.base.dtypes import Array
from graft.base.errors import Location
from graft.program.extents import SizeCheck
from graft.program.guards import Guard
from graft.program.lookup import Table

NOWHERE = Location()


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory in the arena: which pool of it, the offset there, and the size.

    Values that are never needed at the same time share a pool, which is as large as the largest of
    them. Pool 0 is the program's and lives as long as a run; the others are the segment's: pool
    n is the one at position n - 1 of its `pools`."""

    pool: int
    offset: Dim
    nbytes: Dim


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that each thread has for itself while a kernel runs."""


Buffer = int | Slot | Scratch  # an int is the number of a value


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of native code by all threads at once, after which they meet.

    A `serial` kernel is called by one thread while the others wait. After a call that `overlaps`
    the threads do not meet, since the next one does not depend on it."""

    symbol: str
    buffers: tuple[Buffer, ...]
    scalars: tuple[Dim, ...] = ()
    label: str = ""
    flops: AnyDim = 0
    bytes: AnyDim = 0
    location: Location = NOWHERE
    serial: bool = False
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """Kernel calls with no decision between them: one job for the thread pool.

    All symbols in its extents have numbers when it begins. Sizes that fail `checks` are refused
    before the first kernel. Kernels read constants, the `inputs`, and what lies in the arena; they
    write the `outputs` and the arena. Its part of the arena has `pools`, each given by the sizes
    of what lies there; `scratch` are the sizes that kernels need per thread. Where there are
    `guards`, kernels write an index per guard to the value `guard_indices`."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    calls: tuple[KernelCall, ...]
    pools: tuple[tuple[Dim, ...], ...] = ()
    scratch: tuple[Dim, ...] = ()
    checks: tuple[SizeCheck, ...] = ()
    guards: tuple[Guard, ...] = ()
    guard_indices: int | None = None


@dataclass(frozen=True, slots=True)
class RegionCall:
    """A call of a region of another backend, which the program's loader supplies by name."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: str = ""
    location: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy of a value between the host's memory and that of a region's device."""

    region: str  # the name of its function
    source: int
    target: int
    upload: bool  # to the device; otherwise from it
    label: str = ""
    location: Location = NOWHERE


@dataclass(frozen=True, eq=False)
class EvaluatedGraph:
    """A graph of one node as text, the constants that the text refers to by name, and the operators
    that it and the graphs within it use. The operands that the node has are the instruction's."""

    text: str
    operators: tuple[str, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluate:
    """A node on the reference evaluator, whose function is supplied by name."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    graph: EvaluatedGraph
    label: str = ""
    location: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class Element:
    """An integer in a tensor, as the difference of two symbols of which one is 0, since symbols
    stand for natural numbers. Numbers beyond 2^62 count as that."""

    value: int
    index: int
    positive: str
    negative: str


@dataclass(frozen=True, slots=True)
class SizeFunction:
    """Sizes that follow from elements of tensors, by integer arithmetic.

    Elements are read first, then symbols are set in order (`lets`), then `checks` tell what is
    wrong with the numbers. A symbol that has a number must come out as that number."""

    numbers: tuple[Element, ...]
    lets: tuple[tuple[str, Dim], ...]
    checks: tuple[SizeCheck, ...] = ()
    location: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class BindSymbol:
    """A symbol stands for the number that a value holds from here on."""

    symbol: str
    value: int


@dataclass(frozen=True, slots=True)
class Slice:
    """The first rows of a value, as many as the last of `counts` says: the same memory."""

    value: int
    counts: int
    output: int


@dataclass(frozen=True, slots=True)
class Alias:
    """A value under another name and shape: the same memory. Its shape gives numbers to symbols."""

    value: int
    output: int


@dataclass(frozen=True, slots=True)
class Assert:
    """A value is handed on where the condition is `expected`; otherwise the run fails."""

    value: int
    condition: int
    expected: bool
    message: str
    output: int
    location: Location = NOWHERE


# What tables do for strings and maps.
LOOKUPS = ("ml.label_map", "ml.zip_map", "take")
# What is done to lists and optional values, and the number of operands, if it is always the same.
LIST_OPERATIONS: Mapping[str, int | None] = {
    **dict.fromkeys(LOOKUPS, 1),
    "optional.construct": None,
    "optional.get_element": 1,
    "optional.has_element": 1,
    "sequence.at": 2,
    "sequence.concatenate": 1,
    "sequence.construct": None,
    "sequence.empty": 0,
    "sequence.erase": 2,
    "sequence.insert": 3,
    "sequence.length": 1,
    "sequence.split": 3,
}


@dataclass(frozen=True, slots=True)
class ListOp:
    """An operation on a list of tensors or on a tensor that may be missing, or strings looked up
    in a table; `runtime/lists.py` has them by name."""

    operation: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    axis: int = 0
    with_axis: bool = True  # whether the elements of the list have the axis
    chunk: Dim = 1
    sizes: tuple[Dim, ...] | None = None
    table: Table | None = None
    location: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions in order, which read values of the blocks around them, too. `inputs` are values
    that the instruction with the block gives it, `outputs` those that it takes from it."""

    inputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class If:
    """One of two blocks, by a condition; neither has inputs."""

    condition: int
    otherwise: Block
    then: Block
    outputs: tuple[int, ...]
    location: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class Switch:
    """One of several blocks, by the numbers of some symbols: a model's variants for sizes that were
    asked for. `default` is for all other sizes; no block has inputs."""

    symbols: tuple[str, ...]
    cases: tuple[tuple[tuple[int, ...], Block], ...]
    default: Block
    outputs: tuple[int, ...]
    location: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class Loop:
    """A block again and again: at most `limit` times and as long as its condition holds.

    The body takes the number of the iteration, the condition and the carried values; it gives the
    condition, the carried values, and slices that are stacked to the remaining outputs."""

    limit: int | None
    condition: int | None
    carried: tuple[int, ...]
    body: Block
    outputs: tuple[int, ...]
    location: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class Scan:
    """A block once for each slice of some tensors along an axis each, forwards or backwards.

    The body takes the carried values and the slices; it gives the carried values, and slices that
    are stacked along an axis each, forwards or backwards."""

    carried: tuple[int, ...]
    scanned: tuple[int, ...]
    axes: tuple[int, ...]
    backwards: tuple[bool, ...]
    result_axes: tuple[int, ...]
    result_backwards: tuple[bool, ...]
    body: Block
    outputs: tuple[int, ...]
    location: Location = NOWHERE


Instruction = (
    Segment
    | RegionCall
    | Transfer
    | Evaluate
    | SizeFunction
    | BindSymbol
    | Slice
    | Alias
    | Assert
    | ListOp
    | If
    | Switch
    | Loop
    | Scan
)


def reads(instruction: Instruction) -> tuple[int, ...]:
    """The values that an instruction reads itself; its blocks may read more."""
    match instruction:
        case Segment() | RegionCall() | Evaluate():
            return instruction.inputs
        case Transfer():
            return (instruction.source,)
        case SizeFunction():
            return tuple(dict.fromkeys(one.value for one in instruction.numbers))
        case ListOp():
            return tuple(number for number in instruction.inputs if number is not None)
        case BindSymbol() | Alias():
            return (instruction.value,)
        case Slice():
            return (instruction.value, instruction.counts)
        case Assert():
            return (instruction.value, instruction.condition)
        case If():
            return (instruction.condition,)
        case Switch():
            return ()
        case Loop():
            flags = (instruction.limit, instruction.condition)
            return (*(number for number in flags if number is not None), *instruction.carried)
        case Scan():
            return (*instruction.carried, *instruction.scanned)


def writes(instruction: Instruction) -> tuple[int, ...]:
    """The values that an instruction makes."""
    match instruction:
        case Transfer():
            return (instruction.target,)
        case BindSymbol() | SizeFunction():
            return ()
        case Slice() | Alias() | Assert():
            return (instruction.output,)
        case Segment():
            indices = () if instruction.guard_indices is None else (instruction.guard_indices,)
            return (*instruction.outputs, *indices)
        case _:
            return instruction.outputs


def blocks(instruction: Instruction) -> tuple[Block, ...]:
    """The blocks inside an instruction."""
    match instruction:
        case If():
            return (instruction.otherwise, instruction.then)
        case Switch():
            return (instruction.default, *(block for _, block in instruction.cases))
        case Loop() | Scan():
            return (instruction.body,)
    return ()


def walk(block: Block) -> Iterator[Instruction]:
    """The instructions of a block and of all blocks inside it, in order."""
    for instruction in block.instructions:
        yield instruction
        for inner in blocks(instruction):
            yield from walk(inner)
