"""Steps of a region -> a program for the DSP.

Kernels become one LLVM module, that an object file, and that, with the worker that calls them
(`worker.c`), an executable without a C library, which zig links and gives its run-time routines
(divisions, float64).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from graft.backends.hexagon.hvx import VECTOR
from graft.base.cache_folder import default_folder
from graft.llvm.codegen import compile_text
from graft.llvm.compile import processor_of
from graft.llvm.emit import PointerFunction, scratch_buffers
from graft.llvm.emit_stmt import statement
from graft.llvm.text import Module
from graft.loop.ir import Buffer, Function
from graft.loop.print import to_text
from graft.runtime.tools import run_tool
from graft.target.machine import MACHINES
from graft.target.target import Target

CPU = "hexagonv67"
_FEATURES = ("hvx-length128b", "hvxv67")
_LINK = (
    *("-target", "hexagon-linux-musl", f"-mcpu={CPU}", "-O2", "-s"),
    *("-ffreestanding", "-nolibc", "-rtlib=compiler-rt"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel, and where in the arena its buffers lie, memory of its own last."""

    function: Function
    offsets: tuple[int, ...]


@cache
def target() -> Target:
    """The DSP to code generation; the schedules of this backend do not ask its `machine`."""
    machine = next(iter(MACHINES.values()))
    return Target("hexagon", "hexagon-unknown-linux-musl", CPU, _FEATURES, 1024, 32, machine)


def buffers_of(function: Function) -> list[Buffer]:
    """The memory that a kernel works in: its parameters, then what is its own."""
    parameters = [one for one in function.parameters if isinstance(one, Buffer)]
    return [*parameters, *scratch_buffers(function)]


def llvm_module(steps: Sequence[Step], arena_bytes: int) -> str:
    """The text of a module with `arena`, and `steps`, which ends with a null."""
    module, names, calls = Module(target()), dict[str, str](), list[str]()
    for step in steps:
        content = to_text(step.function)
        if content not in names:
            names[content] = f"kernel{len(names)}"
            kernel = PointerFunction(module, names[content], buffers_of(step.function))
            statement(kernel.context, step.function.body)
            kernel.finish("internal", 'noinline nounwind "no-builtins"', VECTOR)
        places = (f"ptr getelementptr (i8, ptr @arena, i32 {offset})" for offset in step.offsets)
        call = f"  call void @{names[content]}({', '.join(places)})"
        calls.append(f"define internal void @step{len(calls)}() {{\n{call}\n  ret void\n}}\n")
    table = ", ".join([*(f"ptr @step{number}" for number in range(len(steps))), "ptr null"])
    arena = f"[{arena_bytes} x i8] zeroinitializer, align {VECTOR}"
    data = f"@arena = dso_local global {arena}\n"
    data += f"@steps = dso_local constant [{len(steps) + 1} x ptr] [{table}]\n"
    return module.render() + data + "\n".join(calls)


def linked(steps: Sequence[Step], arena_bytes: int) -> bytes:
    """The executable that runs steps."""
    code = compile_text(llvm_module(steps, arena_bytes), processor_of(target()))
    worker, zig = Path(__file__).with_name("worker.c"), (sys.executable, "-m", "ziglang", "cc")
    kept = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), f"{default_folder()}/zig")
    with TemporaryDirectory(prefix="graft-hexagon-") as folder:
        made, program = Path(folder) / "region.o", Path(folder) / "region"
        made.write_bytes(code)
        command = (*zig, *_LINK, str(worker), str(made), "-o", str(program))
        run_tool(command, "zig does not link a region for Hexagon", variables=kept)
        return program.read_bytes()
