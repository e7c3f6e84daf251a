"""Whether a program can run as it stands: a program in, an error that says what contradicts itself.

Every file goes through here before anything of it runs, so nothing is taken for granted: numbers of
values, blocks and what they take and give, memory, and symbols that need a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graft.base.dims import AnyDim, Dim, bare_symbol, symbols_of
from graft.base.dtypes import Array, DType
from graft.program.extents import dims_of_test
from graft.program.instructions import (
    LIST_OPERATIONS,
    LOOKUPS,
    BindSymbol,
    Block,
    Evaluate,
    If,
    Instruction,
    KernelCall,
    ListOp,
    Loop,
    RegionCall,
    Scan,
    Segment,
    SizeFunction,
    Slot,
    Switch,
    Transfer,
    blocks,
    reads,
    writes,
)
from graft.program.program import ALIGNMENT, Program, ProgramError, Value, segment_dims
from graft.program.verify_types import check_types

MOST_AXES = 64  # that NumPy's arrays have
_DEEPEST = 64  # blocks in blocks; a serialised ONNX model has at most half as many


def verify_program(program: Program) -> None:
    """Refuse a program that contradicts itself."""
    if program.threads is not None and program.threads < 1:
        raise ProgramError(f"it wants {program.threads} threads")
    _check_names("input", [value.name for value in program.inputs])
    _check_names("output", program.output_names)
    _same("names of outputs", len(program.output_names), len(program.body.outputs))
    for value in program.values:
        _check_value(value, program)
    for number, array in program.constants:
        _check_constant(number, array, program)
    _Verifier(program).check()


def _check_names(kind: str, names: Iterable[str]) -> None:
    present: set[str] = set()
    for name in names:
        if name in present:
            raise ProgramError(f"two {kind}s are named '{name}'")
        present.add(name)


def _check_value(value: Value, program: Program) -> None:
    what = f"the value '{value.name}'"
    if value.alignment < 1 or value.alignment & (value.alignment - 1):
        raise ProgramError(f"{what} has the alignment {value.alignment}, no power of two")
    if value.dtype is DType.STRING:
        raise ProgramError(f"{what} holds strings, for which native memory has no type")
    if value.element and (value.dtype or value.space or value.element[0] is DType.STRING):
        raise ProgramError(f"{what} is a list in no memory that holds its elements")
    axes = len(value.shape or ()) if value.element is None else value.element[1]
    if not 0 <= axes <= MOST_AXES:
        raise ProgramError(f"{what} has {axes} axes, not 0 to {MOST_AXES}")
    least = min((extent for extent in value.shape or () if isinstance(extent, int)), default=0)
    if least < 0:
        raise ProgramError(f"{what} has the negative extent {least}")
    if (value.slot is not None or value.space) and not (value.dtype and value.is_static):
        raise ProgramError(f"{what} has memory of its own, but no size")
    if value.slot is not None:
        if value.slot.pool:
            raise ProgramError(f"{what} lies in the memory of a segment")
        size = _check_slot(value.slot, (program.pool,), what)
        if size is not None and nbytes_of(value) > size:
            raise ProgramError(f"{what} needs {nbytes_of(value)} bytes, and has {size}")


def nbytes_of(value: Value) -> int:
    """The size of a tensor whose extents are numbers."""
    return value.size * (value.dtype.numpy.itemsize if value.dtype else 0)


def _check_constant(number: int, array: Array, program: Program) -> None:
    if not 0 <= number < len(program.values):
        raise ProgramError(f"a constant is the value {number}, which there is not")
    value = program.values[number]
    if value.dtype is None:
        return  # strings
    if array.dtype.hasobject:
        raise ProgramError(f"the constant {number} holds Python objects")
    if not array.flags.c_contiguous:
        raise ProgramError(f"the constant {number} is not contiguous")
    if array.dtype != value.dtype.numpy or not _may_agree(value.shape, array.shape):
        shape = list(array.shape)
        raise ProgramError(f"'{value.name}', {value}, is a constant {array.dtype}{shape}")


def _check_alignment(number: int, array: Array) -> None:
    if array.size and array.__array_interface__["data"][0] % ALIGNMENT:
        raise ProgramError(f"the constant {number} is not aligned to {ALIGNMENT} bytes")


def _check_slot(slot: Slot, pools: Sequence[Sequence[AnyDim]], user: str) -> int | None:
    """The size of a slot, where it is a number; refuses one outside of its pool."""
    if not 0 <= slot.pool < len(pools):
        raise ProgramError(f"{user}: there is no pool {slot.pool}")
    offset, nbytes, sizes = slot.offset, slot.nbytes, pools[slot.pool]
    if isinstance(offset, int) and isinstance(nbytes, int):
        if offset < 0 or nbytes < 0 or offset % ALIGNMENT:
            raise ProgramError(f"{user}: {slot} is not aligned to {ALIGNMENT} bytes")
        if all(isinstance(size, int) for size in sizes):
            largest = max((size for size in sizes if isinstance(size, int)), default=0)
            if offset + nbytes > largest:
                raise ProgramError(f"{user}: {slot} lies outside its pool of {largest} bytes")
    return nbytes if isinstance(nbytes, int) else None


class _Verifier:
    """Goes through the instructions in order. `_made` are values that exist by then, `known` the
    symbols with a number."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._constants = dict(program.constants)
        self._regions = {
            one.function for one in program.instructions if isinstance(one, RegionCall)
        }
        self._all: set[int] = set()

    def check(self) -> None:
        available: set[int] = set()
        for number in self._constants:
            self._make(number, available)
        self._pool()
        self._block(self._program.body, available, set())

    def _pool(self) -> None:
        """What lies in the program's pool lies there from the beginning, when only the inputs have
        told anything."""
        bound = {name for value in self._program.inputs for name in _bound(value)}
        _require_known(self._program.pool, bound)
        for value in self._program.values:
            if value.slot is not None:
                _require_known((value.slot.offset, value.slot.nbytes), bound)

    def _make(self, number: int, available: set[int]) -> None:
        if not 0 <= number < len(self._program.values):
            raise ProgramError(f"there is no value {number}")
        if number in self._all:
            raise ProgramError(f"the value {number} is made twice")
        self._all.add(number)
        available.add(number)

    def _block(self, block: Block, available: set[int], bound: set[str], depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise ProgramError(f"blocks are nested more than {_DEEPEST} deep")
        for number in block.inputs:
            self._make(number, available)
            bound |= _bound(self._program.values[number])
        for instruction in block.instructions:
            try:
                self._instruction(instruction, available, bound, depth)
            except ProgramError as error:
                raise error.at(getattr(instruction, "location", None)) from None
        self._read(block.outputs, available)

    def _read(self, numbers: Iterable[int], available: set[int]) -> None:
        for number in numbers:
            if number not in available:
                raise ProgramError(f"the value {number} is read before it is made")

    def _instruction(
        self, instruction: Instruction, available: set[int], bound: set[str], depth: int
    ) -> None:
        self._read(reads(instruction), available)
        _check_arity(instruction)
        check_types(instruction, self._program.values)
        match instruction:
            case Segment():
                self._segment(instruction, available, bound)
            case BindSymbol():
                bound.add(instruction.symbol)
            case SizeFunction():
                self._size_function(instruction, bound)
            case ListOp():
                _require_known((instruction.chunk, *(instruction.sizes or ())), bound)
            case RegionCall() | Evaluate():
                self._memory(instruction)
            case Transfer():
                self._transfer(instruction)
            case Switch():
                missing = [name for name in instruction.symbols if name not in bound]
                if missing:
                    raise ProgramError(f"nothing tells the number of '{missing[0]}'")
            case _:
                pass
        for block in blocks(instruction):
            self._block(block, set(available), set(bound), depth + 1)
        for number in writes(instruction):
            self._make(number, available)
            bound |= _bound(self._program.values[number])

    def _size_function(self, step: SizeFunction, bound: set[str]) -> None:
        for number in step.numbers:
            value = self._program.values[number.value]
            if value.dtype is None or not value.dtype.is_integer or number.index < 0:
                raise ProgramError(f"the value {number.value} holds no integers to tell sizes")
            if not value.is_static or number.index >= value.size:
                raise ProgramError(f"the value {number.value} has no element {number.index}")
            bound |= {number.positive, number.negative}
        for name, dim in step.lets:
            _require_known([dim], bound)
            bound.add(name)
        for check in step.checks:
            _require_known(dims_of_test(check.test), bound)

    def _memory(self, step: RegionCall | Evaluate) -> None:
        values = [self._program.values[number] for number in (*step.inputs, *step.outputs)]
        if len({value.space for value in values}) > 1:
            raise ProgramError(f"{step.function}: its operands lie in several memories")

    def _transfer(self, step: Transfer) -> None:
        if step.region not in self._regions:
            raise ProgramError(f"a transfer is for '{step.region}', which nothing calls")
        ends = [self._program.values[number] for number in (step.source, step.target)]
        host, device = ends if step.upload else ends[::-1]
        if host.space or not device.space:
            raise ProgramError(f"{step.region}: a transfer leads from one device to another")
        if host.dtype != device.dtype or not _may_agree(host.shape, device.shape):
            raise ProgramError(f"{step.region}: a transfer changes the type of a value")

    def _segment(self, segment: Segment, available: set[int], bound: set[str]) -> None:
        own = {*segment.inputs, *segment.outputs, *self._constants.keys()}
        own |= set() if segment.guard_indices is None else {segment.guard_indices}
        pools = (self._program.pool, *segment.pools)
        numbers: set[int] = set()
        for call in segment.calls:
            _check_call(call)
            for buffer in call.buffers:
                if isinstance(buffer, Slot):
                    _check_slot(buffer, pools, call.symbol)
                elif isinstance(buffer, int):
                    numbers.add(buffer)
                    if buffer in self._constants:
                        _check_alignment(buffer, self._constants[buffer])
                    if buffer not in own:
                        raise ProgramError(f"{call.symbol}: the segment has no value {buffer}")
                    if not self._program.values[buffer].is_native:
                        raise ProgramError(f"{call.symbol}: the value {buffer} is no tensor")
        for number in segment.outputs:
            value = self._program.values[number]
            if number not in numbers and value.slot is None and nbytes_of(value):
                raise ProgramError(f"no kernel writes '{value.name}'")
        self._guards(segment)
        unknown = {
            name for dim in segment_dims(segment, self._program.values) for name in symbols_of(dim)
        }
        if not unknown <= bound:
            raise ProgramError(f"{sorted(unknown - bound)} have no number when a segment begins")

    def _guards(self, segment: Segment) -> None:
        number, count = segment.guard_indices, len(segment.guards)
        if not count:
            return
        indices = None if number is None else self._program.values[number]
        if indices is None or (indices.dtype, indices.shape) != (DType.INT64, (count,)):
            raise ProgramError(f"no value tells what {count} guards have found")


def _require_known(dims: Iterable[AnyDim], bound: set[str]) -> None:
    unknown = {name for dim in dims for name in symbols_of(dim)} - bound
    if unknown:
        raise ProgramError(f"{sorted(unknown)} have no number when sizes are computed")


def _may_agree(one: Sequence[Dim] | None, other: Sequence[Dim] | None) -> bool:
    """Whether shapes can be the same, for some numbers of symbols."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and not any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(one, other, strict=True)
    )


def _check_call(call: KernelCall) -> None:
    if not call.symbol:
        raise ProgramError("a kernel call names no function")
    for scalar in call.scalars:
        if isinstance(scalar, int) and not -(2**63) <= scalar < 2**63:
            raise ProgramError(f"{call.symbol}: the scalar {scalar} has more than 64 bits")


def _bound(value: Value) -> set[str]:
    """The symbols that a value gives numbers to."""
    names = (bare_symbol(dim) for dim in value.shape or ())
    return {name for name in names if name is not None}


def _check_arity(instruction: Instruction) -> None:
    """Blocks take and give as many values as the instruction around them says."""
    match instruction:
        case ListOp():
            if instruction.operation not in LIST_OPERATIONS:
                raise ProgramError(f"'{instruction.operation}' is nothing that is done to lists")
            if instruction.operation in LOOKUPS and instruction.table is None:
                raise ProgramError(f"'{instruction.operation}' has no table")
            _same(f"results of '{instruction.operation}'", len(instruction.outputs), 1)
            count = LIST_OPERATIONS[instruction.operation]
            if count is not None:
                _same(f"operands of '{instruction.operation}'", len(instruction.inputs), count)
        case If() | Switch():
            for block in blocks(instruction):
                _same("inputs of a branch", len(block.inputs), 0)
                _same("outputs of a branch", len(block.outputs), len(instruction.outputs))
            if isinstance(instruction, Switch):
                for key, _ in instruction.cases:
                    if len(key) != len(instruction.symbols) or min(key, default=1) < 1:
                        names = list(instruction.symbols)
                        raise ProgramError(f"a variant is for the sizes {list(key)} of {names}")
                if len({key for key, _ in instruction.cases}) != len(instruction.cases):
                    raise ProgramError("two variants are for the same sizes")
        case Loop(carried=carried, body=body, outputs=outputs):
            _same("inputs of a loop's body", len(body.inputs), 2 + len(carried))
            _same("outputs of a loop's body", len(body.outputs), 1 + len(outputs))
            _at_least("outputs of a loop", len(outputs), len(carried))
        case Scan():
            _check_scan(instruction)
        case _:
            pass


def _check_scan(step: Scan) -> None:
    body, carried = step.body, len(step.carried)
    _at_least("scanned tensors", len(step.scanned), 1)
    _same("inputs of a scan's body", len(body.inputs), carried + len(step.scanned))
    _same("outputs of a scan's body", len(body.outputs), len(step.outputs))
    for what, actual in (("axes", step.axes), ("directions", step.backwards)):
        _same(f"{what} of scanned tensors", len(actual), len(step.scanned))
    for what, actual in (("axes", step.result_axes), ("directions", step.result_backwards)):
        _same(f"{what} of stacked results", len(actual), len(step.outputs) - carried)


def _same(what: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise ProgramError(f"{what}: {actual} are given and {expected} wanted")


def _at_least(what: str, actual: int, least: int) -> None:
    if actual < least:
        raise ProgramError(f"{what}: {actual} are given and at least {least} wanted")
