"""The statement builder: what is told in order, and within bodies, becomes nested statements."""

from __future__ import annotations

from graft.base.dtypes import DType
from graft.loop.build import load
from graft.loop.ir import INDEX, Buffer, Const, Function, LoopKind
from graft.loop.print import statement_text
from graft.loop.statements import Cell, StatementBuilder, scratch
from graft.loop.verify import verify

DATA = Buffer("data", DType.FLOAT32, (Const(8),))


def text(code: StatementBuilder) -> str:
    return statement_text(verify(Function("kernel", (DATA,), code.statement())).body)


def test_a_name_holds_for_all_that_follows_in_its_body() -> None:
    code = StatementBuilder()
    with code.loop("i", 8) as i:
        twice = code.let("twice", load(DATA, i) * 2.0)
        code.store(DATA, i, twice)
    code.store(DATA, 0, 1.0)
    assert text(code) == (
        "{\n"
        "  for i in 0 +: 8 {\n"
        "    let twice: float32 = data[i] * 2.0 {\n"
        "      data[i] = twice\n"
        "    }\n"
        "  }\n"
        "  data[0] = 1.0\n"
        "}\n"
    )


def test_names_of_a_scope_end_with_it() -> None:
    code = StatementBuilder()
    for value in (1.0, 2.0):
        with code.scope():
            code.store(DATA, 0, code.let("value", load(DATA, 1) + value))
    assert statement_text(code.statement()) == (
        "{\n"
        "  let value: float32 = data[1] + 1.0 {\n"
        "    data[0] = value\n"
        "  }\n"
        "  let value: float32 = data[1] + 2.0 {\n"
        "    data[0] = value\n"
        "  }\n"
        "}\n"
    )


def test_branches_and_loops_that_go_on_as_long_as_a_condition_holds() -> None:
    code, at = StatementBuilder(), Cell("at")
    with code.memory(at):
        code.set(at, 0)
        with code.as_long_as(at.value < 8):
            with code.when(at.value < 4):
                code.set(at, at.value + 1)
            with code.otherwise():
                code.set(at, at.value + 2)
    assert text(code) == (
        "allocate at: int64[1] in register {\n"
        "  at[0] = 0\n"
        "  while at[0] < 8 {\n"
        "    if at[0] < 4 {\n"
        "      at[0] = at[0] + 1\n"
        "    } else {\n"
        "      at[0] = at[0] + 2\n"
        "    }\n"
        "  }\n"
        "}\n"
    )


def test_a_loop_without_iterations_is_left_out() -> None:
    code, memory = StatementBuilder(), scratch("memory", INDEX, 4)
    with code.memory(memory), code.parallel("i", 4) as i:
        with code.loop("j", 0) as j:
            code.store(memory, j, 0)
        code.store(memory, i, i)
    loops = code.statement()
    assert statement_text(loops) == (
        "allocate memory: int64[4] in heap {\n"
        f"  {LoopKind.PARALLEL.value} for i in 0 +: 4 {{\n"
        "    memory[i] = i\n"
        "  }\n"
        "}\n"
    )
