"""How the threads of a kernel share a loop: each claims some iterations at a time.

Part of the emitter. Of n iterations, thread t of T owns [n t // T, n (t + 1) // T). It claims half
of what is left of these, and half of the rest, and so on; when none are left, it claims those of
the other threads in the same way, its next neighbour's first. A thread that shares its core with
somebody else so leaves its iterations to the others, and while all are equally fast, each runs its
own, which keeps what it works on in its caches.

Behind the barrier, from `CLAIMS_OFFSET` on, `shared` has 64 bytes for each thread:

    0   loop << 8 | claims: how often iterations that the thread owns were claimed in that loop
    8   how many loops the thread has shared so far; only the thread itself reads it

After k claims, n >> k of n iterations are left. All threads go through the same loops in the same
order, so that the number of a loop tells which one a claim belongs to, and nothing has to be reset
anything between two loops. A number that is higher than one's own means that another thread found
nothing left in one's loop and has gone on.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.llvm.text import Builder, Value

CLAIMS_OFFSET = 512  # behind the barriers, as the run time lays out shared memory
CLAIM_BYTES = 64

# The state of one thread in one loop: first iteration and number of iterations claimed, how far
# the owner of the last claim is from this thread (-1 before the first one), number of the loop.
_CLAIM = """define internal i1 @graft.claim(ptr %shared, i64 %thread, i64 %threads, i64 %count,
                            ptr noalias %state) noinline nounwind {{
entry:
  %length.at = getelementptr i8, ptr %state, i64 8
  %distance.at = getelementptr i8, ptr %state, i64 16
  %loop.at = getelementptr i8, ptr %state, i64 24
  %reached = load i64, ptr %distance.at, align 8
  %is.first = icmp slt i64 %reached, 0
  br i1 %is.first, label %begin, label %resume
begin:
  %is.alone = icmp sle i64 %threads, 1
  br i1 %is.alone, label %everything, label %join
everything:
  store i64 0, ptr %state, align 8
  store i64 %count, ptr %length.at, align 8
  store i64 %threads, ptr %distance.at, align 8
  %is.any = icmp sgt i64 %count, 0
  ret i1 %is.any
join:
  %own.offset = mul i64 %thread, {bytes}
  %own.place = add i64 %own.offset, {offset}
  %own.claims = getelementptr i8, ptr %shared, i64 %own.place
  %loops.at = getelementptr i8, ptr %own.claims, i64 8
  %loops = load i64, ptr %loops.at, align 8
  %joined = add i64 %loops, 1
  store i64 %joined, ptr %loops.at, align 8
  store i64 %joined, ptr %loop.at, align 8
  br label %search
resume:
  %resumed = load i64, ptr %loop.at, align 8
  br label %search
search:
  %from = phi i64 [ 0, %join ], [ %reached, %resume ]
  %loop = phi i64 [ %joined, %join ], [ %resumed, %resume ]
  %tag = shl i64 %loop, 8
  br label %next
next:
  %distance = phi i64 [ %from, %search ], [ %farther, %exhausted ]
  %is.over = icmp sge i64 %distance, %threads
  br i1 %is.over, label %over, label %look
over:
  store i64 %threads, ptr %distance.at, align 8
  ret i1 false
look:
  %forward = add i64 %thread, %distance
  %back = sub i64 %forward, %threads
  %wraps = icmp sge i64 %forward, %threads
  %owner = select i1 %wraps, i64 %back, i64 %forward
  %low.product = mul i64 %count, %owner
  %low = udiv i64 %low.product, %threads
  %high.product = add i64 %low.product, %count
  %high = udiv i64 %high.product, %threads
  %size = sub i64 %high, %low
  %claims.offset = mul i64 %owner, {bytes}
  %claims.place = add i64 %claims.offset, {offset}
  %claims = getelementptr i8, ptr %shared, i64 %claims.place
  %seen = load atomic i64, ptr %claims monotonic, align 8
  br label %decide
decide:
  %word = phi i64 [ %seen, %look ], [ %found, %try ]
  %lead = sub i64 %word, %tag
  %is.behind = icmp slt i64 %lead, 0
  %is.ahead = icmp sgt i64 %lead, 255
  %before = select i1 %is.behind, i64 0, i64 %lead
  %claims.before = and i64 %before, 255
  %left = lshr i64 %size, %claims.before
  %is.none = icmp eq i64 %left, 0
  %is.exhausted = or i1 %is.ahead, %is.none
  br i1 %is.exhausted, label %exhausted, label %try
try:
  %rest = lshr i64 %left, 1
  %length = sub i64 %left, %rest
  %claims.after = add i64 %claims.before, 1
  %new = or i64 %tag, %claims.after
  %swap = cmpxchg ptr %claims, i64 %word, i64 %new monotonic monotonic
  %found = extractvalue {{ i64, i1 }} %swap, 0
  %succeeded = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %succeeded, label %done, label %decide
exhausted:
  %farther = add i64 %distance, 1
  br label %next
done:
  %start = sub i64 %high, %left
  store i64 %start, ptr %state, align 8
  store i64 %length, ptr %length.at, align 8
  store i64 %distance, ptr %distance.at, align 8
  ret i1 true
}}
"""


def share(
    builder: Builder, threads: tuple[Value, Value, Value], count: Value, run: Callable[..., None]
) -> None:
    """Let `run(first, length)` write the code for iterations that this thread has claimed.

    `threads` is the memory they share, the number of this thread, and their count."""
    builder.module.functions["graft.claim"] = _CLAIM.format(bytes=CLAIM_BYTES, offset=CLAIMS_OFFSET)
    state = builder.allocate("i64", 4, 8)
    length, distance = (
        builder.make("ptr", 1, f"getelementptr i8, {state.typed}, i64 {offset}")
        for offset in (8, 16)
    )
    builder.do(f"store i64 -1, {distance.typed}, align 8")
    claim, work, after = (builder.fresh(hint) for hint in ("claim", "work", "shared"))
    builder.jump(claim)
    builder.start(claim)
    arguments = ", ".join(value.typed for value in (*threads, count, state))
    builder.branch(builder.make("i1", 1, f"call i1 @graft.claim({arguments})"), work, after)
    builder.start(work)
    run(*(builder.make("i64", 1, f"load i64, {one.typed}, align 8") for one in (state, length)))
    builder.jump(claim)
    builder.start(after)
