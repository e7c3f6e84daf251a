"""Kernels of NVIDIA GPUs: loop IR or instructions of one's own -> LLVM text -> PTX.

A kernel is written like any function of the loop IR, except that its buffers are parameters, that
loops are shared among the blocks of a grid and the threads of a block (`emit_stmt.py`), and that
instructions without a counterpart in loop IR (asynchronous copies, products of matrices) are
assembly. Every kernel lets the next one start and waits for the one before: what is written ahead
of `wait` (`KernelWriter.wait_for_inputs`) overlaps the end of that (programmatic dependent launch).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from graft.llvm.codegen import Processor, optimized_module, target_machine
from graft.llvm.emit import PointerFunction
from graft.llvm.emit_stmt import BLOCK_BARRIER, statement
from graft.llvm.text import Module, Value, constant, when
from graft.loop.ir import Buffer, Function
from graft.loop.print import to_text
from graft.target.machine import MACHINES
from graft.target.target import Target

CAPABILITY = "sm_90a"  # Hopper; its instructions are not those of others
_FEATURES = ("ptx83",)  # of PTX 8.3, which drivers of CUDA 12.3 and later read


@cache
def gpu_target() -> Target:
    """What code generation knows of the GPU; schedules of GPUs do not ask its `machine`."""
    machine = next(iter(MACHINES.values()))
    return Target("gpu", "nvptx64-nvidia-cuda", CAPABILITY, _FEATURES, 128, 255, machine)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel: its parameters, the threads of a block, and its blocks; those of a cluster share
    memory. `write` puts down what a block does. `problem` is what is computed, as data, and
    `content` all that the code depends on: kernels of equal content are equal."""

    buffers: Sequence[Buffer]
    threads: int
    grid: tuple[int, int, int]
    write: Callable[[KernelWriter], None]
    problem: Any
    content: str
    cluster: int = 1
    shared_bytes: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.content)

    @property
    def name(self) -> str:
        """The same for equal kernels."""
        return "k" + hashlib.sha256(self.content.encode()).hexdigest()[:16]

    @property
    def is_loop(self) -> bool:
        """Whether it is loop IR, whose loops any number of threads and blocks share."""
        return isinstance(self.problem, Function)

    @property
    def ptx(self) -> str:
        """The kernel on its own."""
        return _ptx(self)


@lru_cache(512)  # contenders of a placement share most of their kernels
def _ptx(kernel: Kernel) -> str:
    writer = KernelWriter(kernel, Module(gpu_target()))
    kernel.write(writer)
    return writer.ptx()


class KernelWriter(PointerFunction):
    """A kernel in the making.

    With `block_threads` it is no kernel but a function of one that goes through several phases with
    blocks of so many threads: it is called with a gate (the counter of blocks that are done with
    what it reads, or null) and the number of the block that it stands for."""

    def __init__(
        self, kernel: Kernel, module: Module, block_threads: int = 0, is_timed: bool = False
    ) -> None:
        super().__init__(module, kernel.name, kernel.buffers)
        self.kernel, self.block_threads, self._is_timed = kernel, block_threads, is_timed
        if self.is_phase:  # a callee does not know that pointers are to global memory
            for pointer in self.pointers:
                text = f"addrspacecast ptr addrspace(1) {pointer.text}.global to ptr"
                self.builder.do(f"{pointer.text} = {text}")

    @property
    def is_phase(self) -> bool:
        return self.block_threads > 0

    def special(self, register: str, axis: str = "x") -> Value:
        """A special register, as 32 bits: `tid`, `ctaid`, `nctaid`, `cluster.ctarank`."""
        suffix = "" if "." in register else f".{axis}"
        name = f"llvm.nvvm.read.ptx.sreg.{register}{suffix}"
        return self.builder.call(name, "i32", 1)

    def block(self) -> tuple[Value, Value]:
        """The number of this block along both axes of the kernel's grid."""
        if not self.is_phase:
            return self.special("ctaid"), self.special("ctaid", "y")
        number, across = Value("i32", 1, "%block"), constant(self.kernel.grid[0], "i32")
        if self.kernel.grid[1] == 1:
            return number, constant(0, "i32")
        return self.builder.binary("urem", number, across), self.builder.binary(
            "udiv", number, across
        )

    def assembly(
        self, text: str, constraints: str, results: Sequence[str], *operands: Value
    ) -> str:
        """An instruction that LLVM does not know, in order with accesses to memory; the name of
        its result, a struct where there are several."""
        kind = "void" if not results else results[0]
        kind = f"{{{', '.join(results)}}}" if len(results) > 1 else kind
        inside = ", ".join(operand.typed for operand in operands)
        clobbered = ",".join(part for part in (constraints, "~{memory}") if part)
        call = f'call {kind} asm sideeffect "{text}", "{clobbered}"({inside})'
        if not results:
            self.builder.do(call)
            return ""
        return self.builder.make(kind, 1, call).text

    def when(self, condition: Value, write: Callable[[], None]) -> None:
        """Code that runs where a condition holds."""
        when(self.builder, condition, write)

    def loop(self, begin: Value, end: Value, step: Value, write: Callable[[Value], None]) -> None:
        """Code that runs for unsigned numbers from `begin` on, up to `end`, in steps."""
        counter = self.builder.allocate(begin.element, 1, 8)
        self.builder.do(f"store {begin.typed}, {counter.typed}")
        test, inside, after = (self.builder.fresh(hint) for hint in ("test", "loop", "done"))
        self.builder.jump(test)
        self.builder.start(test)
        now = self.builder.make(begin.element, 1, f"load {begin.element}, {counter.typed}")
        self.builder.branch(self.builder.compare("ult", now, end), inside, after)
        self.builder.start(inside)
        write(now)
        following = self.builder.binary("add", now, step)
        self.builder.do(f"store {following.typed}, {counter.typed}")
        self.builder.jump(test)
        self.builder.start(after)

    def barrier(self) -> None:
        """The threads that run this kernel meet, of each block its own."""
        if self.is_phase and not self.kernel.is_loop and self.kernel.threads < self.block_threads:
            # Others may wait at barrier 0 already.
            self.assembly(f"bar.sync 1, {self.kernel.threads};", "", ())
            return
        self.module.declare(BLOCK_BARRIER, "void", ["i32"])
        self.builder.do(f"call void @{BLOCK_BARRIER}(i32 0)")

    def launch_next(self) -> None:
        """Let the next kernel of the stream start its blocks."""
        if not self.is_phase:
            self.assembly("griddepcontrol.launch_dependents;", "", ())

    def wait_for_inputs(self) -> None:
        """Wait until the kernels before are done and what they wrote can be read."""
        if not self.is_phase:
            self.assembly("griddepcontrol.wait;", "", ())
            return
        gate = Value("ptr addrspace(1)", 1, "%gate")
        closed = self.builder.compare("ne", gate, Value(gate.element, 1, "null"))

        def poll() -> None:
            self.assembly(self._poll, "l,r", (), gate, blocks)

        def wait() -> None:
            first = self.builder.compare("eq", self.special("tid"), constant(0, "i32"))
            self.when(first, poll)
            self.barrier()

        blocks = self.special("nctaid")
        self.when(closed, wait)

    @property
    def _poll(self) -> str:
        """Instructions of one thread that wait until all blocks have passed a gate."""
        timed = "mov.u64 t, %globaltimer; st.global.u64 [$0+8], t; " if self._is_timed else ""
        return (
            "{ .reg .pred p; .reg .b32 v; .reg .b64 t; again: ld.acquire.gpu.global.u32 v, [$0];"
            f" setp.lt.u32 p, v, $1; @p bra again; {timed}}}"
        )

    def ptx(self) -> str:
        """The finished kernel."""
        attributes = f'nounwind "nvvm.reqntid"="{self.kernel.threads},1,1"'
        if self.kernel.cluster > 1:
            attributes += f' "nvvm.cluster_dim"="{self.kernel.cluster},1,1"'
        self.finish("ptx_kernel", attributes)
        return ptx_of(self.module.render())

    def finish_phase(self) -> None:
        """Add the finished function to the module."""
        pointers = [f"ptr addrspace(1) {pointer.text}.global" for pointer in self.pointers]
        parameters = (*pointers, "ptr addrspace(1) %gate", "i32 %block")
        self.define("internal", "noinline convergent nounwind", parameters)


def loop_kernel(function: Function, threads: int, blocks: int) -> Kernel:
    """A function of the loop IR as a kernel."""

    def write(writer: KernelWriter) -> None:
        builder = writer.builder
        tid, block, grid = (
            builder.convert("zext", one, "i64")
            for one in (writer.special("tid"), writer.block()[0], writer.special("nctaid"))
        )
        size = constant(writer.block_threads or threads, "i64")
        first = builder.binary("add nuw nsw", builder.binary("mul nuw nsw", block, size), tid)
        writer.context.shares = {
            "thread": (tid, size),
            "block": (block, grid),
            "grid": (first, builder.binary("mul nuw nsw", grid, size)),
        }
        writer.launch_next()
        writer.wait_for_inputs()
        statement(writer.context, function.body)

    buffers = [parameter for parameter in function.parameters if isinstance(parameter, Buffer)]
    content = to_text(function) + str(threads)
    return Kernel(buffers, threads, (blocks, 1, 1), write, function, content)


def ptx_of(text: str) -> str:
    """The text of a module as PTX."""
    target = gpu_target()
    machine = target_machine(Processor(target.triple, target.cpu, target.feature_text))
    return str(machine.emit_assembly(optimized_module(text, machine)))
