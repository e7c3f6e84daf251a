"""What the native driver and the rest of the run time agree on: names, and the layout of memory.

Apart from the driver, which only compilers need. Whoever changes one of these changes
`container.FORMAT` too.
"""

from __future__ import annotations

WORK, STOP, BARRIER = "graft_work", "graft_stop", "graft_barrier"

# A record of a kernel call is five 64-bit words: function, buffers, scalars, the distance in bytes
# between the buffer tables of neighbouring threads, flags.

# Memory of a thread pool. Words that threads write while others poll lie on cache lines of their
# own. Behind it, each thread has a line for iterations that others claim of its share of a loop.
THREAD_POOL_BYTES, CLAIM_BYTES = 768, 64
PATIENCES = (192, 448, 640)  # of its three gates: how often to look, how often to offer the core
GIVE_AWAY = 264  # the address of `sched_yield`, for barriers that kernels bring along
