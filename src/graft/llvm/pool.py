"""Compiling many functions at once.

In go `Function`s and a `Target`; out comes their object code, in order, from the cache where it is
there. LLVM's Python binding serialises threads, so the work goes to processes. They are plain
subprocesses that speak a small protocol rather than `multiprocessing` ones, which would run the
user's script again in each; and should LLVM abort, it takes a worker down, not its user.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from graft.base.errors import InternalError
from graft.base.progress import Progress, Stage, quietly
from graft.llvm.cache import KernelCache, kernel_key
from graft.llvm.compile import compile_text
from graft.llvm.emit import llvm_text
from graft.llvm.worker import DONE, LENGTH, request
from graft.loop.ir import Function
from graft.runtime.cores import available_processors
from graft.target.target import Target

# Starting a process costs about as much as compiling this much LLVM text.
WORTH_A_PROCESS = 60_000


@dataclass(frozen=True, slots=True)
class _Job:
    """A function that is not in the cache."""

    position: int
    name: str
    key: str
    text: str


def compile_all(
    functions: Sequence[Function],
    target: Target,
    cache: KernelCache | None = None,
    jobs: int | None = None,
    progress: Progress = quietly,
) -> list[bytes]:
    """Object code of each function."""
    codes: dict[int, bytes] = {}
    work: list[_Job] = []
    for position, function in enumerate(functions):
        key = kernel_key(function, target) if cache is not None else ""
        known = cache.get(key) if cache is not None else None
        if known is None:
            work.append(_Job(position, function.name, key, llvm_text(function, target)))
        else:
            codes[position] = known

    def finished(job: _Job, code: bytes) -> None:
        codes[job.position] = code
        if cache is not None:
            cache.put(job.key, code)
        progress(Stage("compiling kernels", len(codes), len(functions), job.name))

    count = _processes(work, jobs)
    if count <= 1:
        for job in work:
            finished(job, compile_text(job.text, target))
    else:
        _in_processes(work, target, count, finished)
    return [codes[position] for position in range(len(functions))]


def _processes(work: list[_Job], jobs: int | None) -> int:
    """How many processes pay: never more than jobs, and one per so much text."""
    allowed = jobs if jobs is not None else available_processors()
    total = sum(len(job.text) for job in work)
    return min(allowed, len(work), total // WORTH_A_PROCESS)


def _in_processes(
    work: list[_Job], target: Target, count: int, finished: Callable[[_Job, bytes], None]
) -> None:
    """Each thread of a pool borrows a process per job; the largest jobs go first."""
    workers = [_Worker() for _ in range(count)]
    free: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def run(job: _Job) -> bytes:
        worker = free.get()
        try:
            return worker.compile(job, target)
        finally:
            free.put(worker)

    executor = ThreadPoolExecutor(count)
    try:
        largest_first = sorted(work, key=lambda job: -len(job.text))
        futures = {executor.submit(run, job): job for job in largest_first}
        for future in as_completed(futures):
            finished(futures[future], future.result())
    finally:
        # After an error or Ctrl-C nobody waits for what is under way: its process goes.
        for worker in workers:
            worker.stop()
        executor.shutdown(cancel_futures=True)


class _Worker:
    """A process that compiles."""

    def __init__(self) -> None:
        source = Path(__file__).resolve().parents[2]
        paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "graft.llvm.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )

    def compile(self, job: _Job, target: Target) -> bytes:
        """Object code of one job."""
        sink, source = self._process.stdin, self._process.stdout
        if sink is None or source is None:
            raise InternalError("a compiling process has no pipes")
        with suppress(BrokenPipeError):
            sink.write(request(job.text, target))
            sink.flush()
        status, header = source.read(1), source.read(LENGTH.size)
        if len(header) < LENGTH.size:
            raise InternalError(
                f"the process that compiled '{job.name}' ended with code {self._process.wait()}"
            )
        answer = source.read(LENGTH.unpack(header)[0])
        if status != DONE:
            raise InternalError(f"'{job.name}' does not compile: {answer.decode()}")
        return answer

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
