"""A backend that fails as it is told to, in this process and in others: by a file that says how."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graft import ops  # noqa: F401  (registers the operators)
from graft.base.dtypes import Array
from graft.byoc.contract import Backend, Cost, PatternTable, Runner
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.rewrite.pattern import is_op
from graft.runtime.loaders import versioned

TOLD = "SHAKY_FAULT"  # the environment's word for the file
NAP = 1.5  # seconds that it hangs


def fault() -> str:
    path = Path(os.environ[TOLD])
    return path.read_text() if path.exists() else ""


class Shaky(Backend):
    """Runs `exp` on the evaluator."""

    name = "shaky"
    version = "1"
    simulated = True  # so that it is not raced against the host, which would win

    def patterns(self) -> PatternTable:
        return [("exp", is_op("exp"))]

    def price(self, region: Graph) -> Cost:
        _nap_at("hangs at price")
        return Cost(1e-9)

    def compile(self, region: Graph) -> bytes:
        _nap_at("hangs at compile")
        return to_text(region).text.encode()

    def load(self, blob: bytes) -> Runner:
        return load(blob)


class Isolated(Shaky):
    """The same in a process of its own."""

    isolation = "process"


@versioned("1")
def load(blob: bytes) -> Runner:
    """What files load it by."""
    _nap_at("hangs at load")
    region = from_text(blob.decode())

    def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> Any:
        results = [np.asarray(item) for item in evaluate(region, inputs)]
        return FAULTS.get(fault(), _right)(inputs, outputs, results)

    return run


def _nap_at(what: str) -> None:
    if fault() == what:
        time.sleep(NAP)


def _right(_inputs: Sequence[Array], _outputs: Sequence[Array], results: list[Array]) -> Any:
    return results


def _raises(*_: Any) -> Any:
    raise RuntimeError("the device is on fire")


def _wrong_shape(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    return [result[:, :-1] for result in results]


def _wrong_numbers(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    results[0][..., -1] += 3
    return results


def _nan(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    results[0][..., -1] = np.nan
    return results


def _unwritten(*_: Any) -> Any:
    return None


def _overwrites(inputs: Sequence[Array], _outputs: Any, results: list[Array]) -> Any:
    ctypes.memset(inputs[0].ctypes.data, 0, inputs[0].nbytes)
    return results


def _hangs(_inputs: Any, outputs: Sequence[Array], _results: Any) -> Any:
    time.sleep(NAP)
    outputs[0][...] = 7  # too late


def _crashes(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def _runs_out_of_memory(*_: Any) -> Any:
    raise MemoryError("6 GiB wanted")


def _loses_the_device(*_: Any) -> Any:
    raise OSError(19, "No such device")


def _is_killed(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS: dict[str, Callable[..., Any]] = {
    "raises": _raises,
    "wrong shape": _wrong_shape,
    "wrong numbers": _wrong_numbers,
    "NaN": _nan,
    "unwritten output": _unwritten,
    "overwritten input": _overwrites,
    "hangs": _hangs,
    "crash": _crashes,
    "out of memory": _runs_out_of_memory,
    "lost device": _loses_the_device,
    "killed worker": _is_killed,
}
IN_A_PROCESS = ("crash", "killed worker")  # others would take this one along
