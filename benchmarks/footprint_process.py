"""One process of `footprint.py`: what to start in; seconds and bytes, as JSON, out.

    python benchmarks/footprint_process.py import|load|compile|onnxruntime [MODEL FEEDS THREADS]

FEEDS is a JSON object from input names to .npy files beside the model. Packages are imported only
while that is timed, and only those that are wanted: all that this process holds is counted.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUNS = 10
_KIB = 1024

Run = Callable[[Any], Any]


class Clock:
    """Tells the seconds since it was last asked."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        last, self._last = self._last, time.perf_counter()
        return self._last - last


def _load(clock: Clock, model: str, threads: int) -> tuple[float, Run]:
    load = importlib.import_module("graft").load
    imported = clock.lap()
    session = load(model, threads=threads)
    return imported, lambda feeds: session.run(None, feeds)


def _compile(clock: Clock, model: str, threads: int) -> tuple[float, Run]:
    compile_ = importlib.import_module("graft").compile
    imported = clock.lap()
    module = compile_(model, threads=threads)
    return imported, lambda feeds: module.run(None, feeds)


def _onnxruntime(clock: Clock, model: str, threads: int) -> tuple[float, Run]:
    onnxruntime = importlib.import_module("onnxruntime")
    imported = clock.lap()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return imported, lambda feeds: session.run(None, feeds)


KINDS = {"load": _load, "compile": _compile, "onnxruntime": _onnxruntime}


def started(kind: str, model: str, feed_files: str, threads: int) -> dict[str, float]:
    """Seconds of each part of a start, and the memory after some runs."""
    clock = Clock()
    imported, run = KINDS[kind](clock, model, threads)
    ready = clock.lap()
    numpy = importlib.import_module("numpy")  # there already
    files = json.loads(feed_files)
    feeds = {name: numpy.load(Path(model).parent / file) for name, file in files.items()}
    clock.lap()
    run(feeds)
    first = clock.lap()
    for _ in range(RUNS - 1):
        run(feeds)
    times = {"import": imported, "ready": ready, "first": first}
    return times | {"steady": _status("VmRSS"), "peak": _status("VmHWM")}


def imported_alone() -> dict[str, float]:
    """Seconds that `import graft` takes."""
    clock = Clock()
    importlib.import_module("graft")
    return {"import": clock.lap()}


def _status(field: str) -> int:
    """A number of bytes that the system knows of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    text = next(line for line in lines if line.startswith(f"{field}:"))
    return int(text.split()[1]) * _KIB


def main() -> None:
    kind, *rest = sys.argv[1:]
    if kind == "import":
        result = imported_alone()
    else:
        model, feeds, threads = rest
        result = started(kind, model, feeds, int(threads))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
