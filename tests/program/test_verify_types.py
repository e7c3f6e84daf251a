"""Instructions on values of types that they are not for are refused; what only the run can tell
fails there, and touches no memory but the program's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.runtime.kernels import program_of

from graft.base.dims import Dim, symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError, GraftError
from graft.program.instructions import (
    Alias,
    Assert,
    Block,
    Element,
    If,
    Instruction,
    ListOp,
    Loop,
    Scan,
    SizeFunction,
    Slice,
)
from graft.program.program import Program, ProgramError, Value
from graft.program.verify import verify_program
from graft.runtime.session import Session

N, M = symbol("n"), symbol("m")
X, Y, Z, FLAG, COUNTS, FLAGS, LIST, ROW, WIDE, INDEX, P = range(11)
TYPES: Sequence[tuple[str, DType | None, tuple[Dim, ...]]] = [
    ("x", DType.FLOAT32, (N,)),
    ("y", DType.FLOAT32, (M,)),
    ("z", DType.FLOAT64, (M,)),
    ("flag", DType.BOOL, ()),
    ("counts", DType.INT64, (symbol("c"),)),
    ("flags", DType.BOOL, (symbol("f"),)),
    ("list", None, ()),
    ("row", DType.FLOAT32, ()),
    ("wide", DType.FLOAT32, (4, 2)),
    ("i", DType.INT64, ()),
    ("p", DType.BOOL, ()),
]
INPUTS = (X, FLAG, COUNTS, FLAGS)


def value(name: str, dtype: DType | None, shape: tuple[Dim, ...]) -> Value:
    if dtype is None:
        return Value(name, type="seq(tensor(float))", element=(DType.FLOAT32, 1))
    return Value(name, dtype, shape)


def program(*steps: Instruction, outputs: tuple[int, ...] = ()) -> Program:
    """Instructions between inputs and outputs, without kernels."""
    base = program_of((), (), ())
    return Program(
        base.target,
        tuple(value(*one) for one in TYPES),
        (),
        Block(INPUTS, steps, outputs),
        tuple(TYPES[number][0] for number in outputs),
        base.objects,
    )


def block(output: int, inputs: tuple[int, ...] = ()) -> Block:
    return Block(inputs, (), (output,))


def loop(carried: int, inner: int, result: int) -> Loop:
    return Loop(None, FLAG, (carried,), Block((INDEX, P, inner), (), (P, inner)), (result,))


def scan(scanned: int, row: int, stacked: int, axis: int = 0, result_axis: int = 0) -> Scan:
    body = Block((row,), (), (row,))
    return Scan((), (scanned,), (axis,), (False,), (result_axis,), (False,), body, (stacked,))


CASES: list[tuple[Instruction, str]] = [
    (If(FLAG, block(X), block(X), (Z,)), r"'z', float64\[m\], is made of 'x', float32\[n\]"),
    (If(FLAG, block(X), block(FLAG), (Y,)), r"'y', float32\[m\], is made of 'flag', bool\[\]"),
    (If(FLAG, block(X), block(X), (LIST,)), "'list'.* is made of 'x'"),
    (Assert(X, FLAG, True, "", Z), "'z'.* is made of 'x'"),
    (Alias(X, Z), r"'z', float64\[m\], is an alias of 'x'"),
    (Slice(X, FLAG, Y), r"'flag', bool\[\], counts no rows"),
    (Slice(FLAG, COUNTS, P), "'flag' has no rows"),
    (Slice(X, COUNTS, Z), "'z'.* is made of 'x'"),
    (loop(X, Z, Y), "'z'.* is made of 'x'"),
    (loop(X, Y, Z), "'z'.* is made of 'y'"),
    (
        Loop(None, FLAG, (), Block((LIST, P), (), (P,)), ()),
        "is 'list', which is no tensor",
    ),
    (
        Loop(None, FLAG, (), Block((INDEX, P), (), (WIDE,)), ()),
        "is 'wide', which is no single number",
    ),
    (scan(X, Y, Z), r"'x', float32\[n\], has no slices like 'y'"),
    (scan(X, ROW, Y, axis=1), "'x'.* has no axis 1"),
    (scan(X, ROW, Y, result_axis=-2), "'y'.* has no axis -2"),
    (scan(FLAG, P, Y), "has no slices like"),
    (ListOp("sequence.split", (None, None, None), (LIST,)), "has no tensor to split"),
    (ListOp("sequence.split", (X, None, None), (LIST,), chunk=symbol("q")), r"\['q'\] have no"),
    (SizeFunction((Element(COUNTS, 0, "a", "b"),), ()), "has no element 0"),
]


@pytest.mark.parametrize(("step", "message"), CASES)
def test_values_of_other_types_are_refused(step: Instruction, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        verify_program(program(step))


def test_blocks_are_not_nested_without_end() -> None:
    step = If(FLAG, Block((), (), ()), Block((), (), ()), ())
    for _ in range(200):
        step = If(FLAG, Block((), (step,), ()), Block((), (), ()), ())
    with pytest.raises(ProgramError, match="nested more than 64 deep"):
        verify_program(program(step))


def run(steps: Sequence[Instruction], outputs: tuple[int, ...], **changes: Any) -> list[Array]:
    given: dict[str, Any] = {
        "x": np.arange(4, dtype=np.float32),
        "flag": np.array(True),
        "counts": np.array([1, 3], np.int64),
        "flags": np.array([True]),
    }
    session = Session(program(*steps, outputs=outputs), threads=1)
    return session.run(None, {**given, **changes})


def test_rows_that_there_are_not() -> None:
    step = Slice(X, COUNTS, Y)
    np.testing.assert_array_equal(run([step], (Y,))[0], [0, 1, 2])
    for counts in ([5], [2, 2**62], [-1], []):
        with pytest.raises(EvaluationError, match="has no value"):
            run([step], (Y,), counts=np.array(counts, np.int64))


def test_a_condition_without_elements() -> None:
    step = Assert(X, FLAGS, True, "not so", Y)
    np.testing.assert_array_equal(run([step], (Y,))[0], np.arange(4))
    with pytest.raises(EvaluationError, match="not so"):
        run([step], (Y,), flags=np.array([False]))
    for flags in ([], [True, True]):
        with pytest.raises(GraftError, match="'flags' has the shape"):
            run([step], (Y,), flags=np.array(flags, bool))


def test_an_alias_of_other_elements() -> None:
    step = Alias(X, WIDE)
    with pytest.raises(GraftError, match="'x' has the shape"):
        run([step], (WIDE,))
    eight = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(run([step], (WIDE,), x=eight)[0], eight.reshape(4, 2))


def test_a_quotient_that_no_word_holds() -> None:
    """-2^63 // -1 ends a process on some machines."""
    quotient = (N * -(2**61)) // (N - 5)  # with n = 4: -2^63 // -1
    step = ListOp("sequence.split", (X, None, None), (LIST,), chunk=quotient)
    with pytest.raises(EvaluationError, match="has no value"):
        run([step], (LIST,))
