"""Kernels of NVIDIA GPUs: loop IR or instructions of one's own -> LLVM text -> PTX.

A kernel is written like any function of the loop IR, except that its buffers are parameters, that
loops are shared among the blocks of a grid and the threads of a block (`emit_stmt.py`), and that
instructions without a counterpart in loop IR (asynchronous copies, products of matrices) are
assembly. Every kernel lets the next one start and waits for the one before: what is written ahead
of `wait` (`KernelWriter.wait_for_inputs`) overlaps the end of that (programmatic dependent launch).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from graft.llvm.codegen import Processor, optimized_module, target_machine
from graft.llvm.context import Context
from graft.llvm.emit import alias_scopes, bind
from graft.llvm.emit_stmt import BLOCK_BARRIER, statement
from graft.llvm.text import Builder, Module, Value, constant
from graft.loop.ir import Buffer, Function
from graft.target.machine import MACHINES
from graft.target.target import Target

CAPABILITY = "sm_90a"  # Hopper; its instructions are not those of others
_FEATURES = ("ptx83",)  # of PTX 8.3, which drivers of CUDA 12.3 and later read
_REGISTERS = ("tid", "ctaid", "nctaid")


@cache
def gpu_target() -> Target:
    """What code generation knows of the GPU; schedules of GPUs do not ask its `machine`."""
    machine = next(iter(MACHINES.values()))
    return Target("gpu", "nvptx64-nvidia-cuda", CAPABILITY, _FEATURES, 128, 255, machine)


class KernelWriter:
    """A kernel in the making: `threads` in a block, clusters of `cluster` blocks."""

    def __init__(
        self, name: str, buffers: Sequence[Buffer], threads: int, cluster: int = 1
    ) -> None:
        self.name, self.buffers, self.threads, self.cluster = name, buffers, threads, cluster
        self.module = Module(gpu_target())
        self.builder = Builder(self.module)
        self.context = Context(self.builder, name)
        self.pointers = [Value("ptr", 1, f"%b{number}") for number in range(len(buffers))]
        bind(self.context, buffers, self.pointers, alias_scopes(self.context, buffers))

    def special(self, register: str, axis: str = "x") -> Value:
        """A special register, as 32 bits: `tid`, `ctaid`, `nctaid`, `cluster.ctarank`."""
        suffix = "" if "." in register else f".{axis}"
        name = f"llvm.nvvm.read.ptx.sreg.{register}{suffix}"
        return self.builder.call(name, "i32", 1)

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

    def barrier(self) -> None:
        """The threads of a block meet."""
        self.module.declare(BLOCK_BARRIER, "void", ["i32"])
        self.builder.do(f"call void @{BLOCK_BARRIER}(i32 0)")

    def launch_next(self) -> None:
        """Let the next kernel of the stream start its blocks."""
        self.assembly("griddepcontrol.launch_dependents;", "", ())

    def wait_for_inputs(self) -> None:
        """Wait until the kernels before are done and what they wrote can be read."""
        self.assembly("griddepcontrol.wait;", "", ())

    def ptx(self) -> str:
        """The finished kernel."""
        self.builder.do("ret void")
        parameters = ", ".join(f"ptr %b{number}" for number in range(len(self.buffers)))
        attributes = f'nounwind "nvvm.reqntid"="{self.threads},1,1"'
        if self.cluster > 1:
            attributes += f' "nvvm.cluster_dim"="{self.cluster},1,1"'
        self.module.functions[self.name] = (
            f'define ptx_kernel void @"{self.name}"({parameters}) {attributes} '
            f"{{\n{self.builder.body()}\n}}\n"
        )
        return ptx_of(self.module.render())


def loop_kernel(function: Function, threads: int) -> str:
    """A function of the loop IR as PTX."""
    buffers = [one for one in function.parameters if isinstance(one, Buffer)]
    writer = KernelWriter(function.name, buffers, threads)
    builder = writer.builder
    tid, block, blocks = (
        builder.convert("zext", writer.special(name), "i64") for name in _REGISTERS
    )
    size = constant(threads, "i64")
    first = builder.binary("add nuw nsw", builder.binary("mul nuw nsw", block, size), tid)
    writer.context.shares = {
        "thread": (tid, size),
        "block": (block, blocks),
        "grid": (first, builder.binary("mul nuw nsw", blocks, size)),
    }
    writer.launch_next()
    writer.wait_for_inputs()
    statement(writer.context, function.body)
    return writer.ptx()


def ptx_of(text: str) -> str:
    """The text of a module as PTX."""
    target = gpu_target()
    machine = target_machine(Processor(target.triple, target.cpu, target.feature_text))
    return str(machine.emit_assembly(optimized_module(text, machine)))
