"""Hand-written kernels for the tests of the run time: LLVM IR in, programs out.

The kernels split their range among threads as the compiler's parallel loops do: thread t of T has
the elements from n*t//T up to n*(t+1)//T, where n is the first scalar.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.program.instructions import (
    Block,
    Instruction,
    KernelCall,
    RegionCall,
    Scratch,
    Segment,
    Slot,
)
from graft.program.program import Program, Target, Value
from graft.runtime.driver import driver_object
from graft.runtime.memory import aligned_copy

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = Target(llvm.get_process_triple(), core=(120e9, 120e9), calling=20e-6, meeting=2e-6)
SIGNATURE = "(ptr %buffers, ptr %scalars, i64 %thread, i64 %threads, ptr %shared)"

# A loop over this thread's share; @BODY@ sees %i and the pointers %b0, %b1, %b2.
_LOOP = """
define void @NAME@SIGNATURE {
entry:
  %b0 = load ptr, ptr %buffers
  %b1.at = getelementptr ptr, ptr %buffers, i64 1
  %b1 = load ptr, ptr %b1.at
  %b2.at = getelementptr ptr, ptr %buffers, i64 @LAST@
  %b2 = load ptr, ptr %b2.at
  %n = load i64, ptr %scalars
  %next.thread = add i64 %thread, 1
  %low = mul i64 %n, %thread
  %high = mul i64 %n, %next.thread
  %start = sdiv i64 %low, %threads
  %end = sdiv i64 %high, %threads
  br label %head
head:
  %i = phi i64 [ %start, %entry ], [ %i.next, %loop.end ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %loop, label %done
loop:
  @BODY@
  br label %loop.end
loop.end:
  %i.next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""

_ADD = """
  %p0 = getelementptr float, ptr %b0, i64 %i
  %p1 = getelementptr float, ptr %b1, i64 %i
  %p2 = getelementptr float, ptr %b2, i64 %i
  %v0 = load float, ptr %p0
  %v1 = load float, ptr %p1
  %v2 = fadd float %v0, %v1
  store float %v2, ptr %p2
"""

# b1[i] = b0[n - 1 - i] * scalar 1: reads what another thread wrote in the step before.
_SCALE_REVERSED = """
  %factor.at = getelementptr double, ptr %scalars, i64 1
  %factor = load double, ptr %factor.at
  %factor.f = fptrunc double %factor to float
  %last = sub i64 %n, 1
  %back = sub i64 %last, %i
  %p0 = getelementptr float, ptr %b0, i64 %back
  %p1 = getelementptr float, ptr %b1, i64 %i
  %v0 = load float, ptr %p0
  %v1 = fmul float %v0, %factor.f
  store float %v1, ptr %p1
"""

# Per thread: sums its share of b0 in its scratch memory (b1's last), then meets the others inside
# the kernel; thread 0 adds up what each has left in its slot of b1.
_TOTAL = f"""
declare void @graft_barrier(ptr, i64)
define void @total{SIGNATURE} {{
entry:
  %b0 = load ptr, ptr %buffers
  %b1.at = getelementptr ptr, ptr %buffers, i64 1
  %b1 = load ptr, ptr %b1.at
  %b2.at = getelementptr ptr, ptr %buffers, i64 2
  %b2 = load ptr, ptr %b2.at
  %scratch.at = getelementptr ptr, ptr %buffers, i64 3
  %scratch = load ptr, ptr %scratch.at
  %n = load i64, ptr %scalars
  %next.thread = add i64 %thread, 1
  %low = mul i64 %n, %thread
  %high = mul i64 %n, %next.thread
  %start = sdiv i64 %low, %threads
  %end = sdiv i64 %high, %threads
  store float 0.0, ptr %scratch
  br label %head
head:
  %i = phi i64 [ %start, %entry ], [ %i.next, %loop ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %loop, label %publish
loop:
  %p = getelementptr float, ptr %b0, i64 %i
  %v = load float, ptr %p
  %sum = load float, ptr %scratch
  %sum.next = fadd float %sum, %v
  store float %sum.next, ptr %scratch
  %i.next = add i64 %i, 1
  br label %head
publish:
  %own = load float, ptr %scratch
  %slot = getelementptr float, ptr %b1, i64 %thread
  store float %own, ptr %slot
  call void @graft_barrier(ptr %shared, i64 %threads)
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %gather, label %done
gather:
  %k = phi i64 [ 0, %publish ], [ %k.next, %gather ]
  %all = phi float [ 0.0, %publish ], [ %all.next, %gather ]
  %part.at = getelementptr float, ptr %b1, i64 %k
  %part = load float, ptr %part.at
  %all.next = fadd float %all, %part
  %k.next = add i64 %k, 1
  %left = icmp slt i64 %k.next, %threads
  br i1 %left, label %gather, label %write
write:
  store float %all.next, ptr %b2
  br label %done
done:
  ret void
}}
"""

# Adds one to a counter without any care for other threads: right only if one thread calls it.
_COUNT = f"""
define void @count{SIGNATURE} {{
  %b0 = load ptr, ptr %buffers
  %v = load i64, ptr %b0
  %next = add i64 %v, 1
  store i64 %next, ptr %b0
  ret void
}}
define void @nothing{SIGNATURE} {{
  ret void
}}
"""

# b1[0] = how many threads run this, each of which counts up to scalar 0 alone, and to scalar 1 or,
# if b0[0] is not 0, to scalar 2 beside others: as slow as on a core that somebody else keeps busy.
_CROWD = f"""
define void @crowd{SIGNATURE} {{
entry:
  %slot = alloca i64
  %b0 = load ptr, ptr %buffers
  %b1.at = getelementptr ptr, ptr %buffers, i64 1
  %b1 = load ptr, ptr %b1.at
  %busy = load i64, ptr %b0
  %is.shared = icmp sgt i64 %threads, 1
  %column = zext i1 %is.shared to i64
  %row = shl i64 %busy, 1
  %number = add i64 %row, %column
  %count.at = getelementptr i64, ptr %scalars, i64 %number
  %count = load i64, ptr %count.at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  store volatile i64 %i, ptr %slot
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %over
over:
  %is.first = icmp eq i64 %thread, 0
  br i1 %is.first, label %tell, label %done
tell:
  store i64 %threads, ptr %b1
  br label %done
done:
  ret void
}}
"""


def compiled(text: str, triple: str = TARGET.triple) -> bytes:
    """The object code of LLVM IR."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        opt=2, reloc="pic", codemodel="small"
    )
    code: bytes = machine.emit_object(module)
    return code


@cache
def kernels() -> tuple[bytes, ...]:
    """Object code of all kernels, in several objects, and of the driver."""

    def loop(name: str, body: str, last: int) -> str:
        text = _LOOP.replace("NAME@SIGNATURE", name + SIGNATURE)
        return text.replace("@LAST@", str(last)).replace("@BODY@", body)

    texts = [
        loop("add", _ADD, 2),
        loop("scale_reversed", _SCALE_REVERSED, 1),
        _TOTAL,
        _COUNT,
        _CROWD,
    ]
    return (*map(compiled, texts), driver_object(TARGET.triple))


def float32(name: str, *shape: int, alignment: int = 1) -> Value:
    return Value(name, DType.FLOAT32, shape, alignment=alignment)


def program_of(
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    instructions: Sequence[Instruction],
    constants: Sequence[Array] = (),
    others: Sequence[Value] = (),
    pool: tuple[int, ...] = (),
) -> Program:
    """A program whose values are its inputs, outputs, constants and others, in this order."""
    first = len(inputs) + len(outputs)
    fixed = [Value("", dtype_of(one.dtype), one.shape) for one in constants]
    numbers = range(len(inputs)), range(len(inputs), first)
    return Program(
        TARGET,
        (*inputs, *outputs, *fixed, *others),
        tuple(enumerate(constants, start=first)),
        Block(tuple(numbers[0]), tuple(instructions), tuple(numbers[1])),
        tuple(one.name for one in outputs),
        kernels(),
        pool,
    )


def native(
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    calls: Sequence[KernelCall],
    constants: Sequence[Array] = (),
    arena: int = 0,
    scratch: int = 0,
) -> Program:
    """A program of one segment."""
    segment = Segment(
        tuple(range(len(inputs))),
        tuple(range(len(inputs), len(inputs) + len(outputs))),
        tuple(calls),
        ((arena,),),
        (scratch,),
    )
    return program_of(inputs, outputs, (segment,), constants)


def bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def chain(n: int, rounds: int = 1, alignment: int = 1) -> Program:
    """y = the sum of x and a constant, then reversed and doubled, `rounds` times."""
    constant = aligned_copy(np.arange(n, dtype=np.float32))
    size = -(-n * 4 // 64) * 64
    sums, scaled = Slot(1, 0, n * 4), Slot(1, size, n * 4)
    x, y, added = range(3)
    calls = []
    for index in range(rounds):
        source = scaled if index else x
        goal = scaled if index < rounds - 1 else y
        calls += [
            KernelCall("add", (source, added, sums), (n,), "add", flops=n, bytes=12 * n),
            KernelCall("scale_reversed", (sums, goal), (n, bits(2.0)), "scale", flops=n),
        ]
    inputs, outputs = (float32(name, n, alignment=alignment) for name in "xy")
    return native((inputs,), (outputs,), calls, (constant,), 2 * size)


def chain_meaning(x: Array, rounds: int = 1) -> Array:
    for _ in range(rounds):
        x = ((x + np.arange(x.size, dtype=np.float32)) * np.float32(2.0))[::-1]
    return x


def total(n: int) -> Program:
    """y = the sum of all x, by a kernel that has scratch memory and a barrier of its own."""
    call = KernelCall("total", (0, Slot(1, 0, 256), 1, Scratch()), (n,), "total")
    return native((float32("x", n),), (float32("y"),), (call,), arena=256, scratch=4)


def crowd() -> Program:
    """threads = how many run the kernel; several take half of one thread's time, or many times as
    long if `busy` is 1. If it is 2 or 3, several are much faster, and all take longer for 3."""
    alone_and_shared = (200_000, 100_000), (200_000, 20_000_000), (20_000_000, 1_000_000)
    scalars = (*itertools.chain(*alone_and_shared), 200_000_000, 40_000_000)
    call = KernelCall("crowd", (0, 1), scalars, "crowd", flops=10_000_000)
    values = (Value(name, DType.INT64, (1,)) for name in ("busy", "threads"))
    return native((next(values),), (next(values),), (call,))


def with_python(n: int) -> Program:
    """z = f(x + constant) reversed and doubled, where f is the Python function 'negate'."""
    constant = aligned_copy(np.arange(n, dtype=np.float32))
    size = -(-n * 4 // 64) * 64
    places = Slot(0, 0, n * 4), Slot(0, size, n * 4)
    others = [Value(f"v{place.offset}", DType.FLOAT32, (n,), slot=place) for place in places]
    x, z, added, sums, negated = range(5)
    steps = (
        Segment((x,), (sums,), (KernelCall("add", (x, added, places[0]), (n,), "add"),)),
        RegionCall("negate", (sums,), (negated,), "negate"),
        Segment(
            (negated,),
            (z,),
            (KernelCall("scale_reversed", (places[1], z), (n, bits(2.0)), "scale"),),
        ),
    )
    values = (float32("x", n),), (float32("z", n),)
    return program_of(*values, steps, (constant,), others, (2 * size,))


def environment() -> dict[str, str]:
    """For processes that import Graft from this tree."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def said_by(script: str) -> str:
    """What a script prints in a process of its own, which has to end well and in silence."""
    outcome = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return outcome.stdout
