"""The barrier at which the threads of a kernel meet.

Part of the emitter. `shared` points to 128 bytes:

    0   the number of threads that have arrived, at first zero
    8   the address of a function `int (*)(void)` that gives the processor away, or zero
    64  the number of meetings so far, at first zero, in a cache line of its own

The last to arrive resets the first number and raises the last, for which the others wait: spinning
a little, then giving their processor away, so that more threads than processors make progress too.
"""

from __future__ import annotations

from graft.llvm.text import Builder, Module, Value, when

YIELD_OFFSET = 8
SPINS = 2000

_BARRIER = """define internal void @graft.barrier(ptr %shared, i64 %threads) noinline nounwind {{
entry:
  %meetings = getelementptr i8, ptr %shared, i64 64
  %slot = getelementptr i8, ptr %shared, i64 {offset}
  %give.away = load ptr, ptr %slot, align 8
  %can.give = icmp ne ptr %give.away, null
  %before = load atomic i64, ptr %meetings acquire, align 8
  %arrived = atomicrmw add ptr %shared, i64 1 acq_rel, align 8
  %count = add i64 %arrived, 1
  %is.last = icmp eq i64 %count, %threads
  br i1 %is.last, label %last, label %wait
last:
  store atomic i64 0, ptr %shared monotonic, align 8
  %next = add i64 %before, 1
  store atomic i64 %next, ptr %meetings release, align 8
  ret void
wait:
  %spins = phi i64 [ 0, %entry ], [ %more, %spin ], [ 0, %give ]
  %now = load atomic i64, ptr %meetings acquire, align 8
  %met = icmp ne i64 %now, %before
  br i1 %met, label %done, label %again
again:
  %is.long = icmp uge i64 %spins, {spins}
  %gives = and i1 %is.long, %can.give
  br i1 %gives, label %give, label %spin
spin:
  %more = add i64 %spins, 1
  {pause}
  br label %wait
give:
  %ignored = call i32 %give.away()
  br label %wait
done:
  ret void
}}
"""
# Stops LLVM, but no processor, from moving accesses to memory across.
_FENCE = 'fence syncscope("singlethread") seq_cst'


def barrier(builder: Builder, threads: Value, shared: Value) -> None:
    """Wait for all threads; with one thread, go on."""
    _define(builder.module)

    def meet() -> None:
        builder.do(_FENCE)
        builder.do(f"call void @graft.barrier({shared.typed}, {threads.typed})")
        builder.do(_FENCE)

    when(builder, builder.compare("sgt", threads, Value("i64", 1, "1")), meet)


def _define(module: Module) -> None:
    if module.target.is_aarch64:
        module.declare("llvm.aarch64.hint", "void", ["i32"])
        pause = "call void @llvm.aarch64.hint(i32 1)"
    else:
        module.declare("llvm.x86.sse2.pause", "void", [])
        pause = "call void @llvm.x86.sse2.pause()"
    module.functions["graft.barrier"] = _BARRIER.format(
        spins=SPINS, pause=pause, offset=YIELD_OFFSET
    )
