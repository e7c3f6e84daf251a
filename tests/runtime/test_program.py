"""Programs that contradict themselves are refused, each with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runtime.kernels import chain, float32, with_python

from graft.base.dtypes import DType
from graft.base.errors import Place
from graft.runtime.memory import aligned_copy, aligned_empty
from graft.runtime.program import (
    Arena,
    Constant,
    Input,
    KernelCall,
    Operand,
    Output,
    ProgramError,
    PythonStep,
    Remote,
    RemoteTensor,
    Scratch,
    Step,
    TensorSpec,
    Transfer,
    float_bits,
)

PLACE = Place("model.onnx", "node", "Add")


def call(*buffers: Any, scalars: tuple[int, ...] = ()) -> tuple[KernelCall, ...]:
    return (KernelCall("add", (*buffers, Output(0)), scalars, place=PLACE),)


def python(operand: Operand, result: Operand) -> tuple[PythonStep, ...]:
    return (PythonStep("f", (operand,), (result,)),)


def travel(home: Operand, upload: bool = True, region: str = "f") -> tuple[Step, ...]:
    """There or back, and what it is for."""
    step = PythonStep("f", (floats(Remote(0), 9),), (floats(Remote(0), 9),))
    return (Transfer(region, home, Remote(0), upload), step)


def floats(buffer: Any, *shape: int) -> Operand:
    return Operand(buffer, DType.FLOAT32, shape)


@pytest.mark.parametrize("n", [0, 1, 17])
def test_sound_programs_pass(n: int) -> None:
    chain(n).validate()
    with_python(n).validate()
    assert [step.function for step in with_python(n).python_steps] == ["negate"]


CASES = [
    ({"inputs": (float32("x", 2), float32("x", 3))}, "two inputs are named 'x'"),
    ({"outputs": (float32("y", 2), float32("y"))}, "two outputs are named 'y'"),
    ({"inputs": (float32("x", 2, -1),)}, "the input 'x' has the negative extent -1"),
    ({"inputs": (TensorSpec("x", DType.STRING, ()),)}, "the input 'x' holds strings"),
    ({"outputs": (float32("y", 9, alignment=48),)}, "the alignment 48, which is not a power"),
    ({"arena_bytes": -1}, "arena_bytes is negative"),
    ({"scratch_bytes": -1}, "scratch_bytes is negative"),
    ({"arena_bytes": 0}, "lies outside the arena of 0 bytes"),
    ({"steps": ()}, "no step writes the output 'y'"),
    ({"steps": call(Input(1))}, r"add: there is no Input\(index=1\)"),
    ({"steps": call(Input(-1))}, r"add: there is no Input\(index=-1\)"),
    ({"steps": call(Output(1))}, r"add: there is no Output\(index=1\)"),
    ({"steps": call(Constant(1))}, r"add: there is no Constant\(index=1\)"),
    ({"steps": call(Arena(64, 128))}, r"offset=64, nbytes=128\) lies outside the arena of 128"),
    ({"steps": call(Arena(4, 4))}, "is not aligned to 64 bytes"),
    ({"steps": call(scalars=(2**63,))}, "the scalar 9223372036854775808 has more than 64 bits"),
    ({"steps": (KernelCall("", (Output(0),)),)}, "a kernel call names no function"),
    ({"steps": python(floats(Scratch(), 1), floats(Output(0), 9))}, "has no scratch memory"),
    ({"steps": python(floats(Input(0), 9), floats(Input(0), 9))}, "cannot be written"),
    ({"steps": python(floats(Input(0), 10), floats(Output(0), 9))}, "36 bytes and .* needs 40"),
    ({"steps": python(floats(Output(0), 9), floats(Arena(0, 36), 9))}, "no step writes"),
    ({"steps": travel(floats(Input(0), 9)), "remotes": ()}, r"there is no Remote\(index=0\)"),
    ({"steps": travel(floats(Input(0), 8))}, r"Remote\(index=0\) is of another type"),
    ({"steps": travel(floats(Input(0), 9), False)}, r"Input\(index=0\) cannot be written"),
    ({"steps": travel(floats(Remote(0), 9))}, "leads from one device to another"),
    ({"steps": travel(floats(Input(0), 9), region="g")}, "is for 'g', which no step calls"),
    ({"steps": travel(floats(Input(0), 9))}, "no step writes the output 'y'"),
    ({"steps": python(floats(Remote(0), 9), floats(Output(0), 9))}, "lie in several memories"),
]


@pytest.mark.parametrize(("changes", "message"), CASES)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    program = replace(chain(9), remotes=(RemoteTensor("far", DType.FLOAT32, (9,)),))
    with pytest.raises(ProgramError, match=message):
        replace(program, **changes).validate()


def test_the_place_of_a_bad_step_is_told() -> None:
    with pytest.raises(ProgramError) as error:
        replace(chain(9), steps=call(Input(5))).validate()
    assert error.value.place == PLACE


def test_constants_have_to_be_contiguous_and_aligned() -> None:
    shifted = aligned_empty((10,), np.dtype(np.float32))[1:]
    for array, message in [
        (shifted, "constant 0 is not aligned to 64 bytes"),
        (aligned_copy(np.zeros((4, 4)))[:, :2], "constant 0 is not contiguous"),
        (np.array(["a"], object), "constant 0 holds Python objects"),
    ]:
        with pytest.raises(ProgramError, match=message):
            replace(chain(9), constants=(array,)).validate()


def test_float_scalars_are_words() -> None:
    assert float_bits(0.0) == 0
    assert float_bits(-0.0) == -(2**63)
    assert float_bits(1.0) == 0x3FF0000000000000
