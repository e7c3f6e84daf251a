"""Steps of a region -> a program for the DSP.

Kernels become one LLVM module, that an object file, and that, with the worker that calls them
(`worker.c`), an executable without a C library, which zig links and gives its run-time routines
(divisions, float64).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from graft.backends.hexagon.hvx import VECTOR
from graft.base.cache_folder import default_folder
from graft.base.errors import BackendError
from graft.llvm.codegen import compile_text
from graft.llvm.compile import processor_of
from graft.llvm.context import Context
from graft.llvm.emit import alias_scopes, bind, scratch_buffers
from graft.llvm.emit_stmt import statement
from graft.llvm.text import Builder, Module, Value
from graft.loop.ir import Buffer, Function
from graft.loop.print import to_text
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
            module.functions[names[content]] = _kernel(module, names[content], step.function)
        places = (f"ptr getelementptr (i8, ptr @arena, i32 {offset})" for offset in step.offsets)
        call = f"  call void @{names[content]}({', '.join(places)})"
        calls.append(f"define internal void @step{len(calls)}() {{\n{call}\n  ret void\n}}\n")
    table = ", ".join([*(f"ptr @step{number}" for number in range(len(steps))), "ptr null"])
    arena = f"[{arena_bytes} x i8] zeroinitializer, align {VECTOR}"
    data = f"@arena = dso_local global {arena}\n"
    data += f"@steps = dso_local constant [{len(steps) + 1} x ptr] [{table}]\n"
    return module.render() + data + "\n".join(calls)


def _kernel(module: Module, name: str, function: Function) -> str:
    buffers, builder = buffers_of(function), Builder(module)
    context = Context(builder, name)
    pointers = [Value("ptr", 1, f"%b{number}") for number in range(len(buffers))]
    bind(context, buffers, pointers, alias_scopes(context, buffers))
    statement(context, function.body)
    builder.do("ret void")
    parameters = ", ".join(f"ptr align {VECTOR} {pointer.text}" for pointer in pointers)
    head = f'define internal void @{name}({parameters}) noinline nounwind "no-builtins"'
    return f"{head} {{\n{builder.body()}\n}}\n"


def zig_path() -> str:
    """The compiler of the package `ziglang`; empty where it is not installed."""
    found = find_spec("ziglang")
    return "" if found is None or found.origin is None else str(Path(found.origin).parent / "zig")


def linked(steps: Sequence[Step], arena_bytes: int) -> bytes:
    """The executable that runs steps."""
    code = compile_text(llvm_module(steps, arena_bytes), processor_of(target()))
    with TemporaryDirectory(prefix="graft-hexagon-") as folder:
        made, program = Path(folder) / "region.o", Path(folder) / "region"
        made.write_bytes(code)
        worker = Path(__file__).with_name("worker.c")
        zig_cache = str(Path(default_folder()) / "zig")
        folders = {"ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache}
        command = [zig_path(), "cc", *_LINK, str(worker), str(made), "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | folders)
        if done.returncode:
            raise BackendError(f"zig does not link a region for Hexagon: {done.stderr.strip()}")
        return program.read_bytes()
