"""The emulator notices what it is there to notice."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.cross import emulated

from graft.base.dtypes import DType
from graft.llvm.compile import object_code
from graft.llvm.load import aligned
from graft.loop.ir import AtomicAdd, Buffer, Const, Function, Load, Stmt, Store, Var
from graft.target.target import Target, named_target

pytestmark = pytest.mark.full

AARCH64 = named_target("aarch64")
WORDS = Buffer("words", DType.INT64, (Const(8),))
WHERE = Var("where")


def run(body: Stmt, where: int = 0, target: Target = AARCH64) -> list[int]:
    function = Function("kernel", (WORDS, WHERE), body)
    words = aligned(np.zeros(8, np.int64))
    emulated.load(function, object_code(function, target))({"words": words, "where": where})
    return words.tolist()


def test_what_is_written_comes_back() -> None:
    assert run(Store(WORDS, (WHERE,), Const(5)), 7) == [0, 0, 0, 0, 0, 0, 0, 5]


def test_memory_ends_where_data_end() -> None:
    with pytest.raises(AssertionError, match="the program ended with -11"):
        run(Store(WORDS, (WHERE,), Const(5)), 8)
    with pytest.raises(AssertionError, match="the program ended with -11"):
        run(Store(WORDS, (Const(0),), Load(WORDS, (WHERE,))), 8)


def test_writing_before_the_data_is_noticed() -> None:
    with pytest.raises(AssertionError, match="memory beside the data was written"):
        run(Store(WORDS, (WHERE,), Const(5)), -1)


def test_code_that_relies_on_more_than_every_arm_has() -> None:
    more = dataclasses.replace(AARCH64, features=(*AARCH64.features, "lse"))
    addition = AtomicAdd(WORDS, (WHERE,), Const(5))
    assert run(addition) == [5, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(AssertionError, match="the program ended with -4"):
        run(addition, target=more)
