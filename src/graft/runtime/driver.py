"""The native driver: a target triple in, the object code that runs whole programs out.

The driver walks an array of step records and calls each kernel with `(thread, threads, shared)`;
the threads meet at a barrier after every step. It is written in LLVM IR, compiled when a model is
compiled and stored in the artifact beside the kernels, so that loading compiles nothing. The layout
of the thread pool's memory is in `thread_pool.py`. docs/runtime.md explains barriers and sleeping.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from string import Template

import llvmlite
import llvmlite.binding as llvm

from graft.base.errors import UnsupportedError
from graft.runtime.driver_instructions import instructions_text
from graft.runtime.driver_memory import memory_text
from graft.runtime.driver_segments import segments_text


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What differs between processors: the number of Linux's futex call, how to pause, and how to
    let denormal results be zeros and to undo that, where denormal operands are slow."""

    futex: int
    pause: str
    declaration: str = ""
    features: str = ""
    flush: str = ""
    restore: str = ""


_ARCHITECTURES = {
    "x86_64": _Architecture(
        202,
        "call void @llvm.x86.sse2.pause()",
        """declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)""",
        flush="""%modes = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %modes)
  %callers.modes = load i32, ptr %modes
  %own.modes = or i32 %callers.modes, 32768 ; denormal results are zeros
  store i32 %own.modes, ptr %modes
  call void @llvm.x86.sse.ldmxcsr(ptr %modes)""",
        restore="""store i32 %callers.modes, ptr %modes
  call void @llvm.x86.sse.ldmxcsr(ptr %modes)""",
    ),
    "aarch64": _Architecture(
        98,
        "call void @llvm.aarch64.hint(i32 1)",
        "declare void @llvm.aarch64.hint(i32)",
    ),
    "riscv64": _Architecture(98, 'fence syncscope("singlethread") seq_cst', features="+m,+a,+c"),
}


_OPTIONS = {"opt": 2, "reloc": "pic", "codemodel": "small"}


def driver_key(triple: str, keeps_denormals: bool) -> str:
    """A hash of all that the driver's object code depends on."""
    parts = (driver_text(triple, keeps_denormals), str(_OPTIONS), llvmlite.__version__)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def driver_object(triple: str, keeps_denormals: bool = False) -> bytes:
    """The driver's object code for a Linux target; used when a model is compiled."""
    text = driver_text(triple, keeps_denormals)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        features=_ARCHITECTURES[triple.split("-")[0]].features, **_OPTIONS
    )
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIONS["opt"])
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


def driver_text(triple: str, keeps_denormals: bool = False) -> str:
    """The driver as LLVM IR. With one that does not keep denormals, results of kernels that would
    be denormal are zeros: Intel's cores take 150 cycles for a product with one."""
    name, _, system = triple.partition("-")
    if name not in _ARCHITECTURES or "linux" not in system:
        names = ", ".join(_ARCHITECTURES)
        raise UnsupportedError(
            f"the run time has no driver for '{triple}'", hint=f"it runs on Linux on {names}"
        )
    architecture = _ARCHITECTURES[name]
    text = _TEXT.substitute(
        triple=triple,
        futex=architecture.futex,
        pause=architecture.pause,
        declaration=architecture.declaration,
        flush="" if keeps_denormals else architecture.flush,
        restore="" if keeps_denormals else architecture.restore,
    )
    return text + memory_text() + segments_text() + instructions_text()


# A gate is a word that changes when waiters may pass, then how many of them sleep (64 bytes on),
# then their patience (128 bytes on): how often they look, and how often they look and offer their
# core to others, before they sleep. A barrier is a count of arrivals, then a gate (64 bytes on). A
# thread pool is the barrier between steps, the barrier within kernels (256), the gate at which idle
# workers wait (512), and the job: steps, count, threads, times, stop (704), whether all go through
# its steps once more (744), and how many loops the caller has shared before it (752); then the
# claims of each thread (768), as kernels expect them. The word of the idle workers' gate holds, in
# its last byte, how many threads a job is for, 0 for all: workers beyond that go on waiting, and
# touch nothing of the job, which may be another one by then.
_TEXT = Template("""
target triple = "$triple"

declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
$declaration

; Changes the gate's word. The exchange comes before the look at the sleepers, and a sleeper counts
; itself before the kernel looks at the word: one of the two sees the other.
; Sleepers are woken if they have a bit of the mask.
define internal void @open_gate(ptr %gate, i32 %value, i64 %mask) nounwind {
  %old = atomicrmw xchg ptr %gate, i32 %value seq_cst
  %sleepers.at = getelementptr i8, ptr %gate, i64 64
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %none = icmp eq i32 %sleepers, 0
  br i1 %none, label %done, label %wake
wake:
  %woken = call i64 (i64, ...) @syscall(i64 $futex, ptr %gate, i64 138, i64 2147483647,
                                        i64 0, i64 0, i64 %mask)
  br label %done
done:
  ret void
}

; Waits until the gate's word is not %old any more: looks for a while; then looks and lets other
; threads have the core, in case the one waited for needs this very core; then sleeps.
define internal i32 @pass_gate(ptr %gate, i32 %old, i64 %mask) nounwind {
entry:
  %looks.at = getelementptr i8, ptr %gate, i64 128
  %looks = load i64, ptr %looks.at, align 8
  %offers.at = getelementptr i8, ptr %gate, i64 136
  %offers = load i64, ptr %offers.at, align 8
  %patience = add i64 %looks, %offers
  br label %look
look:
  %left = phi i64 [ %patience, %entry ], [ %less, %again ]
  %now = load atomic i32, ptr %gate acquire, align 4
  %open = icmp ne i32 %now, %old
  br i1 %open, label %passed, label %check
check:
  %eager = icmp sgt i64 %left, %offers
  br i1 %eager, label %pause, label %tire
pause:
  $pause
  br label %again
tire:
  %tired = icmp sle i64 %left, 0
  br i1 %tired, label %lie.down, label %offer
offer:
  %offered = call i32 @sched_yield()
  br label %again
again:
  %less = sub i64 %left, 1
  br label %look
lie.down:
  %sleepers.at = getelementptr i8, ptr %gate, i64 64
  %before = atomicrmw add ptr %sleepers.at, i32 1 seq_cst
  br label %sleep
sleep:
  %old.wide = zext i32 %old to i64
  %slept = call i64 (i64, ...) @syscall(i64 $futex, ptr %gate, i64 137, i64 %old.wide,
                                        i64 0, i64 0, i64 %mask)
  %then = load atomic i32, ptr %gate acquire, align 4
  %awake = icmp ne i32 %then, %old
  br i1 %awake, label %get.up, label %sleep
get.up:
  %after = atomicrmw sub ptr %sleepers.at, i32 1 seq_cst
  br label %passed
passed:
  %value = phi i32 [ %now, %look ], [ %then, %get.up ]
  ret i32 %value
}

; Whoever runs jobs on a pool does so alone: 0 is free, 1 held, 2 held while others wait.
define internal void @lock_pool(ptr %pool) nounwind {
  %lock = getelementptr i8, ptr %pool, i64 760
  %pair = cmpxchg ptr %lock, i32 0, i32 1 acquire monotonic
  %free = extractvalue { i32, i1 } %pair, 1
  br i1 %free, label %done, label %wait
wait:
  %before = atomicrmw xchg ptr %lock, i32 2 acquire
  %got = icmp eq i32 %before, 0
  br i1 %got, label %done, label %sleep
sleep:
  %slept = call i64 (i64, ...) @syscall(i64 $futex, ptr %lock, i64 128, i64 2, i64 0)
  br label %wait
done:
  ret void
}

define internal void @unlock_pool(ptr %pool) nounwind {
  %lock = getelementptr i8, ptr %pool, i64 760
  %before = atomicrmw xchg ptr %lock, i32 0 release
  %waited = icmp eq i32 %before, 2
  br i1 %waited, label %wake, label %done
wake:
  %woken = call i64 (i64, ...) @syscall(i64 $futex, ptr %lock, i64 129, i64 1)
  br label %done
done:
  ret void
}

; All threads meet. The last one to come resets the count, then opens the gate for the others.
define void @graft_barrier(ptr %barrier, i64 %threads) nounwind {
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %done, label %arrive
arrive:
  %gate = getelementptr i8, ptr %barrier, i64 64
  %epoch = load atomic i32, ptr %gate monotonic, align 4
  %others = atomicrmw add ptr %barrier, i32 1 acq_rel
  %others.wide = zext i32 %others to i64
  %here = add i64 %others.wide, 1
  %last = icmp eq i64 %here, %threads
  br i1 %last, label %open, label %wait
open:
  store atomic i32 0, ptr %barrier monotonic, align 4
  %next = add i32 %epoch, 1
  call void @open_gate(ptr %gate, i32 %next, i64 4294967295)
  br label %done
wait:
  %passed = call i32 @pass_gate(ptr %gate, i32 %epoch, i64 4294967295)
  br label %done
done:
  ret void
}

; The monotonic clock in nanoseconds.
define internal i64 @graft.now() nounwind {
  %clock = alloca { i64, i64 }, align 8
  %status = call i32 @clock_gettime(i32 1, ptr %clock)
  %seconds = load i64, ptr %clock, align 8
  %rest.at = getelementptr i8, ptr %clock, i64 8
  %rest = load i64, ptr %rest.at, align 8
  %whole = mul i64 %seconds, 1000000000
  %time = add i64 %whole, %rest
  ret i64 %time
}

; The time goes to times[index], if times are wanted.
define internal void @stamp(ptr %times, i64 %index) nounwind {
  %unwanted = icmp eq ptr %times, null
  br i1 %unwanted, label %done, label %ask
ask:
  %time = call i64 @graft.now()
  %at = getelementptr i64, ptr %times, i64 %index
  store i64 %time, ptr %at, align 8
  br label %done
done:
  ret void
}

; One thread's way through the steps. A thread's row of times holds, per step, when it began and
; when its own work ended, and the caller's at last when all were through. Once all have met after
; the last step, the caller may be gone, and what it lent with it: workers touch nothing any more.
define internal void @walk(ptr %pool, ptr %steps, i64 %count, i64 %thread, i64 %threads,
                           ptr %all.times) nounwind {
entry:
  $flush
  %shared = getelementptr i8, ptr %pool, i64 256
  %stamps = shl i64 %count, 1
  %row = add i64 %stamps, 1
  %skipped = mul i64 %row, %thread
  %profiled = icmp ne ptr %all.times, null
  %own.times = getelementptr i64, ptr %all.times, i64 %skipped
  %times = select i1 %profiled, ptr %own.times, ptr null
  %nothing = icmp sle i64 %count, 0
  br i1 %nothing, label %done, label %step
step:
  %index = phi i64 [ 0, %entry ], [ %next, %advance ]
  %begun = shl i64 %index, 1
  call void @stamp(ptr %times, i64 %begun)
  %record = getelementptr [5 x i64], ptr %steps, i64 %index
  %function = load ptr, ptr %record, align 8
  %tables.at = getelementptr i8, ptr %record, i64 8
  %tables = load ptr, ptr %tables.at, align 8
  %scalars.at = getelementptr i8, ptr %record, i64 16
  %scalars = load ptr, ptr %scalars.at, align 8
  %stride.at = getelementptr i8, ptr %record, i64 24
  %stride = load i64, ptr %stride.at, align 8
  %flags.at = getelementptr i8, ptr %record, i64 32
  %flags = load i64, ptr %flags.at, align 8
  %serial.bit = and i64 %flags, 1
  %is.serial = icmp ne i64 %serial.bit, 0
  %is.helper = icmp ne i64 %thread, 0
  %stands.by = and i1 %is.serial, %is.helper
  br i1 %stands.by, label %worked, label %work
work:
  %distance = mul i64 %stride, %thread
  %buffers = getelementptr i8, ptr %tables, i64 %distance
  call void %function(ptr %buffers, ptr %scalars, i64 %thread, i64 %threads, ptr %shared)
  br label %worked
worked:
  %ended = or i64 %begun, 1
  call void @stamp(ptr %times, i64 %ended)
  %next = add i64 %index, 1
  %more = icmp slt i64 %next, %count
  %free.bit = and i64 %flags, 2
  %is.free = icmp ne i64 %free.bit, 0
  %runs.on = and i1 %is.free, %more
  br i1 %runs.on, label %advance, label %meet
meet:
  call void @graft_barrier(ptr %pool, i64 %threads)
  br label %advance
advance:
  br i1 %more, label %step, label %done
done:
  %is.caller = icmp eq i64 %thread, 0
  %last.times = select i1 %is.caller, ptr %times, ptr null
  call void @stamp(ptr %last.times, i64 %stamps)
  $restore
  ret void
}

; The caller's part: hands the job to the workers, then does its share as thread 0.
define internal void @graft_run(ptr %own) nounwind {
  %pool = load ptr, ptr %own, align 8
  %own.steps.at = getelementptr i8, ptr %own, i64 8
  %steps = load ptr, ptr %own.steps.at, align 8
  %own.count.at = getelementptr i8, ptr %own, i64 16
  %count = load i64, ptr %own.count.at, align 8
  %own.threads.at = getelementptr i8, ptr %own, i64 24
  %threads = load i64, ptr %own.threads.at, align 8
  %own.times.at = getelementptr i8, ptr %own, i64 32
  %times = load ptr, ptr %own.times.at, align 8
  %alone = icmp sle i64 %threads, 1
  %nothing = icmp sle i64 %count, 0
  %unaided = or i1 %alone, %nothing
  br i1 %unaided, label %begin, label %publish
publish:
  %job = getelementptr i8, ptr %pool, i64 704
  store ptr %steps, ptr %job, align 8
  %count.at = getelementptr i8, ptr %job, i64 8
  store i64 %count, ptr %count.at, align 8
  %threads.at = getelementptr i8, ptr %job, i64 16
  store i64 %threads, ptr %threads.at, align 8
  %times.at = getelementptr i8, ptr %job, i64 24
  store ptr %times, ptr %times.at, align 8
  %own.loops.at = getelementptr i8, ptr %pool, i64 776
  %loops = load i64, ptr %own.loops.at, align 8
  %loops.at = getelementptr i8, ptr %job, i64 48
  store i64 %loops, ptr %loops.at, align 8
  call void @call_workers(ptr %pool, i64 %threads)
  br label %begin
begin:
  call void @walk(ptr %pool, ptr %steps, i64 %count, i64 0, i64 %threads, ptr %times)
  ret void
}

; Workers below the number of threads; all of them if it is 0, or more than the gate can tell.
define internal void @call_workers(ptr %pool, i64 %threads) nounwind {
  %gate = getelementptr i8, ptr %pool, i64 512
  %before = load atomic i32, ptr %gate monotonic, align 4
  %kept = and i32 %before, -256
  %generation = add i32 %kept, 256
  %is.told = icmp ult i64 %threads, 256
  %threads.narrow = trunc i64 %threads to i32
  %told = select i1 %is.told, i32 %threads.narrow, i32 0
  %next = or i32 %generation, %told
  %is.some = icmp ne i32 %told, 0
  %is.few = icmp ult i32 %told, 32
  %bits.single = and i1 %is.some, %is.few
  %power = shl i64 1, %threads
  %below = sub i64 %power, 1
  %mask = select i1 %bits.single, i64 %below, i64 4294967295
  call void @open_gate(ptr %gate, i32 %next, i64 %mask)
  ret void
}

; A worker's life: wait for a job, do it, until told to stop. The barrier after the last step keeps
; the caller from publishing another job before every worker has done this one.
define void @graft_work(ptr %pool, i64 %thread) nounwind {
entry:
  %gate = getelementptr i8, ptr %pool, i64 512
  %job = getelementptr i8, ptr %pool, i64 704
  %count.at = getelementptr i8, ptr %job, i64 8
  %threads.at = getelementptr i8, ptr %job, i64 16
  %times.at = getelementptr i8, ptr %job, i64 24
  %stop.at = getelementptr i8, ptr %job, i64 32
  %loops.at = getelementptr i8, ptr %job, i64 48
  %own.offset = mul i64 %thread, 64
  %own.place = add i64 %own.offset, 776
  %own.loops.at = getelementptr i8, ptr %pool, i64 %own.place
  %is.low = icmp ult i64 %thread, 31
  %bit.number = select i1 %is.low, i64 %thread, i64 31
  %mask = shl i64 1, %bit.number
  br label %idle
idle:
  %seen = phi i32 [ 0, %entry ], [ %word, %called ], [ %word, %busy ]
  %word = call i32 @pass_gate(ptr %gate, i32 %seen, i64 %mask)
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %over = icmp ne i64 %stop, 0
  br i1 %over, label %end, label %called
called:
  %told = and i32 %word, 255
  %wanted = zext i32 %told to i64
  %is.everybody = icmp eq i32 %told, 0
  %is.within = icmp ult i64 %thread, %wanted
  %is.called = or i1 %is.everybody, %is.within
  br i1 %is.called, label %busy, label %idle
busy:
  %loops = load i64, ptr %loops.at, align 8
  store i64 %loops, ptr %own.loops.at, align 8
  %steps = load ptr, ptr %job, align 8
  %count = load i64, ptr %count.at, align 8
  %threads = load i64, ptr %threads.at, align 8
  %times = load ptr, ptr %times.at, align 8
  call void @walk(ptr %pool, ptr %steps, i64 %count, i64 %thread, i64 %threads, ptr %times)
  br label %idle
end:
  ret void
}

; Ends the workers. Only between runs.
define void @graft_stop(ptr %pool) nounwind {
  %stop.at = getelementptr i8, ptr %pool, i64 736
  store atomic i64 1, ptr %stop.at release, align 8
  call void @call_workers(ptr %pool, i64 0)
  ret void
}
""")
