"""Compiling many functions at once.

In go `Function`s and a `Target`; out comes their object code, in order, from the cache where it is
there. LLVM's Python binding serialises threads, so the work goes to processes, which compile while
the caller is still making functions. They are plain subprocesses that speak a small protocol rather
than `multiprocessing` ones, which would run the user's script again in each; and should LLVM abort,
it takes a worker down, not its user.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import PriorityQueue, SimpleQueue
from typing import Self

from graft.base.cores import available_processors
from graft.base.errors import InternalError
from graft.base.progress import Progress, Stage, quietly
from graft.llvm.cache import KernelCache, kernel_key
from graft.llvm.codegen import Processor, compile_text
from graft.llvm.compile import processor_of
from graft.llvm.emit import llvm_text
from graft.llvm.worker import DONE, LENGTH, request
from graft.loop.ir import Function
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

    def __lt__(self, other: _Job) -> bool:
        """Whether it is to be compiled before the other: large ones first, lest one is left to a
        single process at the end."""
        return len(self.text) > len(other.text)


class Compilation:
    """Compiles functions that are added one by one. Worker processes, up to `jobs` (by default one
    per processor), start as soon as there is enough to do, and end with the context."""

    def __init__(
        self,
        target: Target,
        cache: KernelCache | None = None,
        jobs: int | None = None,
        progress: Progress = quietly,
    ) -> None:
        self._target, self._processor = target, processor_of(target)
        self._cache, self._progress = cache, progress
        self._allowed = jobs if jobs is not None else available_processors()
        self._codes: dict[int, bytes] = {}
        self._count = self._characters = self._missing = 0
        self._waiting: PriorityQueue[_Job] = PriorityQueue()
        self._workers: list[_Worker] = []
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        self._executor = ThreadPoolExecutor(max(1, self._allowed))
        self._futures: list[Future[tuple[_Job, bytes]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        # After an error or Ctrl-C, results under way are not awaited: their process is ended.
        for worker in self._workers:
            worker.stop()
        self._executor.shutdown(cancel_futures=True)

    def add(self, function: Function) -> None:
        """Have one more function compiled."""
        position, cache = self._count, self._cache
        self._count += 1
        key = kernel_key(function, self._target) if cache is not None else ""
        code = cache.get(key) if cache is not None else None
        if code is not None:
            self._codes[position] = code
            return
        job = _Job(position, function.name, key, llvm_text(function, self._target))
        self._waiting.put(job)
        self._missing += 1
        self._characters += len(job.text)
        self._start_workers()

    def codes(self) -> list[bytes]:
        """Object code of all functions, in the order in which they were added."""
        for future in as_completed(self._futures):
            self._finish(*future.result())
        while not self._waiting.empty():  # too little for processes
            job = self._waiting.get()
            self._finish(job, compile_text(job.text, self._processor))
        return [self._codes[position] for position in range(self._count)]

    def _finish(self, job: _Job, code: bytes) -> None:
        self._codes[job.position] = code
        if self._cache is not None:
            self._cache.put(job.key, code)
        self._progress(Stage("compiling kernels", len(self._codes), self._count, job.name))

    def _start_workers(self) -> None:
        """Start one worker per `WORTH_A_PROCESS` characters of text, none for less than two."""
        count = min(self._allowed, self._missing, self._characters // WORTH_A_PROCESS)
        if count > 1:
            while len(self._workers) < count:
                self._workers.append(_Worker())
                self._free.put(self._workers[-1])
            while len(self._futures) < self._missing:
                self._futures.append(self._executor.submit(self._compile_next))

    def _compile_next(self) -> tuple[_Job, bytes]:
        """Compile the largest function that waits, in a process that is free."""
        worker = self._free.get()
        job = self._waiting.get()
        try:
            return job, worker.compile(job, self._processor)
        finally:
            self._free.put(worker)


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

    def compile(self, job: _Job, processor: Processor) -> bytes:
        """Object code of one job."""
        sink, source = self._process.stdin, self._process.stdout
        if sink is None or source is None:
            raise InternalError("a compiling process has no pipes")
        with suppress(BrokenPipeError):
            sink.write(request(job.text, processor))
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
