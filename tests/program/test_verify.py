"""Programs that contradict themselves are refused, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runtime.kernels import chain, float32, program_of, with_python

from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import Location
from graft.program.instructions import (
    BindSymbol,
    Block,
    If,
    Instruction,
    KernelCall,
    ListOp,
    Loop,
    RegionCall,
    Scan,
    Segment,
    Slot,
    Switch,
    Transfer,
)
from graft.program.program import Program, ProgramError, Value
from graft.program.verify import verify_program
from graft.runtime.memory import aligned_copy, aligned_empty

PLACE = Location("model.onnx", "node", "Add")
X, Y, C, FAR, NEAR, N, M = range(7)  # of the values below
OTHERS = (
    Value("far", DType.FLOAT32, (9,), space="card"),
    Value("near", DType.FLOAT32, (9,), slot=Slot(0, 0, 36)),
    Value("n", DType.INT64, ()),
    Value("m", DType.FLOAT32, (symbol("m"),)),
)
NOTHING = Block((), (), ())


def program(*steps: Instruction, **changes: Any) -> Program:
    """y is what the steps make of x, with a constant and some values at hand."""
    values = (float32("x", 9),), (float32("y", 9),)
    constant = aligned_copy(np.arange(9, dtype=np.float32))
    return replace(program_of(*values, steps, (constant,), OTHERS, (64,)), **changes)


def call(*buffers: Any, symbol: str = "add", scalars: tuple[int, ...] = ()) -> Segment:
    return Segment((X,), (Y,), (KernelCall(symbol, (*buffers, Y), scalars),), ((128,),))


def there_and_back(*transfers: Transfer) -> tuple[Instruction, ...]:
    return (*transfers, RegionCall("f", (FAR,), ()), call(X))


@pytest.mark.parametrize("n", [0, 1, 17])
def test_sound_programs_pass(n: int) -> None:
    verify_program(chain(n))
    verify_program(with_python(n))
    verify_program(program(call(X)))
    verify_program(program(*there_and_back(Transfer("f", X, FAR, True))))


def test_values_that_cannot_be() -> None:
    for values, message in [
        ((float32("x", 2), float32("x", 3)), "two inputs are named 'x'"),
        ((float32("x", 2, -1),), "'x' has the negative extent -1"),
        ((Value("x", DType.STRING, ()),), "'x' holds strings"),
        ((float32("x", 9, alignment=48),), "the alignment 48, no power of two"),
        ((float32("x", *(1,) * 65),), "'x' has 65 axes, not 0 to 64"),
        ((Value("x", element=(DType.FLOAT32, -1)),), "'x' has -1 axes, not 0 to 64"),
        ((replace(OTHERS[1], slot=Slot(0, 64, 36)),), "lies outside its pool of 64 bytes"),
        ((replace(OTHERS[1], slot=Slot(0, 4, 36)),), "is not aligned to 64 bytes"),
        ((replace(OTHERS[1], slot=Slot(1, 0, 36)),), "lies in the memory of a segment"),
        ((replace(OTHERS[1], slot=Slot(0, 0, 32)),), "needs 36 bytes, and has 32"),
        ((replace(OTHERS[0], shape=None),), "has memory of its own, but no size"),
    ]:
        wrong = program_of(values, (), (), pool=(64,))
        with pytest.raises(ProgramError, match=message):
            verify_program(wrong)


CASES: list[tuple[Sequence[Instruction], str]] = [
    ((), "the value 1 is read before it is made"),
    ((call(X), call(X)), "the value 1 is made twice"),
    ((call(99),), "add: the segment has no value 99"),
    ((call(-1),), "add: the segment has no value -1"),
    ((Segment((X,), (), (KernelCall("add", (X,)),)),), "the value 1 is read before it is made"),
    ((Segment((X,), (Y,), (KernelCall("add", (X,)),)),), "no kernel writes 'y'"),
    ((Segment((NEAR,), (Y,), (KernelCall("add", (Y,)),)),), "the value 4 is read before"),
    ((call(Slot(1, 64, 128)),), r"nbytes=128\) lies outside its pool of 128"),
    ((call(Slot(1, 4, 4)),), "is not aligned to 64 bytes"),
    ((call(Slot(2, 0, 4)),), "there is no pool 2"),
    ((call(scalars=(2**63,)),), "the scalar 9223372036854775808 has more than 64 bits"),
    ((call(symbol=""),), "a kernel call names no function"),
    (
        (replace(call(X), calls=(KernelCall("add", (Y,), (symbol("q"),)),)),),
        r"\['q'\] have no number when a segment begins",
    ),
    ((RegionCall("f", (X,), (FAR,)), call(X)), "f: its operands lie in several memories"),
    ((RegionCall("f", (X,), (X,)),), "the value 0 is made twice"),
    (there_and_back(Transfer("g", X, FAR, True)), "is for 'g', which nothing calls"),
    (there_and_back(Transfer("f", X, FAR, False)), "leads from one device to another"),
    (there_and_back(Transfer("f", X, NEAR, True)), "leads from one device to another"),
    ((BindSymbol("q", N), call(X)), "the value 5 is read before it is made"),
    ((ListOp("sequence.forget", (X,), (Y,)),), "'sequence.forget' is nothing that is done"),
    ((ListOp("take", (X,), (Y,)),), "'take' has no table"),
    ((If(X, NOTHING, NOTHING, (Y,)),), "outputs of a branch: 0 are given and 1 wanted"),
    ((Switch(("q",), (), NOTHING, ()), call(X)), "nothing tells the number of 'q'"),
    ((Loop(X, None, (), NOTHING, (Y,)),), "inputs of a loop's body: 0 are given and 2 wanted"),
    ((Scan((), (), (), (), (), (), NOTHING, (Y,)),), "scanned tensors: 0 are given"),
]


@pytest.mark.parametrize(("steps", "message"), CASES)
def test_contradictions_are_refused(steps: Sequence[Instruction], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        verify_program(program(*steps))


def test_names_and_threads() -> None:
    good = program(call(X))
    for changes, message in [
        ({"output_names": ("y", "z")}, "names of outputs: 2 are given and 1 wanted"),
        ({"threads": 0}, "it wants 0 threads"),
        ({"pool": ()}, "lies outside its pool of 0 bytes"),
        ({"constants": ((99, np.zeros(1)),)}, "is the value 99, which there is not"),
    ]:
        with pytest.raises(ProgramError, match=message):
            verify_program(replace(good, **changes))  # type: ignore[arg-type]


def test_the_location_of_a_bad_instruction_is_told() -> None:
    with pytest.raises(ProgramError) as error:
        verify_program(program(RegionCall("f", (99,), (Y,), location=PLACE)))
    assert error.value.location == PLACE


def test_constants_have_to_be_contiguous_and_aligned() -> None:
    shifted = aligned_empty((10,), np.dtype(np.float32))[1:]
    cases: list[tuple[Array, str]] = [
        (shifted, "the constant 2 is not aligned to 64 bytes"),
        (aligned_copy(np.zeros((4, 4)))[:, :2], "the constant 2 is not contiguous"),
        (np.array(["a"], object), "the constant 2 holds Python objects"),
    ]
    for array, message in cases:
        with pytest.raises(ProgramError, match=message):
            verify_program(replace(chain(9), constants=((2, array),)))
