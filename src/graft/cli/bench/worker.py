"""The process of a contender: commands on standard input, answers on standard output.

Both are JSON, one object per line; tensors are files. `prepare` prepares the contender and runs it
once, `measure` runs it for a slice of time. Between commands the parent stops the process.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO, Any

from graft.base.errors import GraftError
from graft.cli.arrays import read_data, write_data
from graft.cli.bench.contenders import Infer, Ready, Task
from graft.cli.bench.rounds import Slice

_LONGEST_REASON = 300
# Caches are cold after the others' slices, which one warm-up run mends; for a run that takes this
# long it makes no difference.
_LONG_RUN = 0.1
_PR_SET_PDEATHSIG = 1


def main() -> None:
    answers = _take_over_stdout()
    _end_with_parent()
    contender = _Worker()
    for line in sys.stdin:
        try:
            answer = {"ok": True, **contender.obey(json.loads(line))}
        except GraftError as error:
            answer = {"ok": False, "reason": error.message, "hint": error.hint}
        except Exception as error:  # noqa: BLE001 (the parent reports it)
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            answer = {"ok": False, "reason": text[:_LONGEST_REASON], "hint": ""}
        print(json.dumps(answer), file=answers, flush=True)


class _Worker:
    """A contender after `prepare`."""

    def __init__(self) -> None:
        self._infer: Infer | None = None
        self._seconds = 0.0  # that the last run took

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute a command; gives the rest of the answer."""
        if command.pop("do") == "prepare":
            return self._prepare(**command)
        return self._measure(Slice(**command))

    def _prepare(
        self,
        function: str,
        model: str,
        folder: str,
        feeds: Any,
        threads: int,
        asked: dict[str, Any] | None = None,
        save_plan: str | None = None,
    ) -> dict[str, Any]:
        start = time.perf_counter()
        beside = Path(model).parent
        data = {name: read_data(beside, description) for name, description in feeds}
        module, _, name = function.partition(":")
        prepare = getattr(importlib.import_module(module), name)
        plan = None if save_plan is None else Path(save_plan)
        task = Task(Path(model), data, threads, Path(folder), asked or {}, plan)
        ready: Ready = prepare(task)
        self._infer = ready.infer
        outputs = list(ready.infer())
        described = [write_data(Path(folder), f"output-{n}", one) for n, one in enumerate(outputs)]
        answer = {
            "version": ready.version,
            "outputs": described,
            "seconds": time.perf_counter() - start,
        }
        return {**answer, "run_seconds": self._timed_run(ready.infer)}

    def _measure(self, portion: Slice) -> dict[str, Any]:
        assert self._infer is not None, "prepare comes first"
        if self._seconds < _LONG_RUN:
            self._timed_run(self._infer)
        times: list[float] = []
        before = time.process_time()
        start = now = time.perf_counter()
        while not times or not _is_done(len(times), now - start, portion):
            times.append(self._timed_run(self._infer))
            now = time.perf_counter()
        return {"times": times, "processor_seconds": time.process_time() - before}

    def _timed_run(self, infer: Infer) -> float:
        start = time.perf_counter()
        infer()
        self._seconds = time.perf_counter() - start
        return self._seconds


def _is_done(runs: int, seconds: float, portion: Slice) -> bool:
    enough = runs >= portion.least_runs and seconds >= portion.least_seconds
    return enough or seconds >= portion.most_seconds


def _take_over_stdout() -> IO[str]:
    """Reserve standard output for answers: output of packages goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _end_with_parent() -> None:
    """Die with the parent: a stopped process would not notice its end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
