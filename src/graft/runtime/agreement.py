"""What the native driver and the rest of the run time agree on: names, and the layout of memory.

Apart from the driver, which only compilers need. Whoever changes one of these changes
`container.FORMAT` too.
"""

from __future__ import annotations

RUN, WORK, STOP, BARRIER = "graft_run", "graft_work", "graft_stop", "graft_barrier"
ADVANCE = "graft_advance"

# What `RUN` is given, a job of five 64-bit words: the team's memory, step records, how many there
# are, threads, and where times go. One argument, since Python converts arguments at every call.
JOB_WORDS = ("team", "steps", "count", "threads", "times")

# A step record is five 64-bit words: function, buffers, scalars, the distance in bytes between
# the buffer tables of neighbouring threads, flags.
RECORD_WORDS = 5
SERIAL, RUNS_ON, TURNS = 1, 2, 4

# What `ADVANCE` works on, as words: whether there is another turn, turns so far, turns at most,
# addresses of the number of the turn and of the condition, the number of moves; then the moves.
# A move is what it does, a target, an amount or a source, bytes to copy, and bytes on to the next.
LOOP_WORDS, MOVE_WORDS = 6, 5
ADD, EXCHANGE, COPY = 0, 1, 2

# A team's memory. Words that threads write while others poll lie on cache lines of their own.
# Behind it, each thread has a line for the iterations that others claim of its share of a loop.
TEAM_BYTES, CLAIM_BYTES = 768, 64
PATIENCES = (192, 448, 640)  # of its three gates: how often to look, how often to offer the core
GIVE_AWAY = 264  # the address of `sched_yield`, for barriers that kernels bring along
