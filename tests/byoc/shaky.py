"""A backend that fails as it is told to, in this process and in others: by a file that says how."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
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
        return {**FAULTS, **HARMLESS, MEETS: _meets}.get(fault(), _right)(inputs, outputs, results)

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


def _wrong_dtype(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    return [result.astype(np.float64) for result in results]


def _objects(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    return [result.astype(object) for result in results]


class Panic(BaseException):
    """As a panic of Rust code arrives in Python."""


def _panics(*_: Any) -> Any:
    raise Panic("index out of bounds")


def _interrupts(*_: Any) -> Any:
    raise KeyboardInterrupt


def _exits(*_: Any) -> Any:
    sys.exit("the licence has expired")


class UnreadableError(Exception):
    """An error that has nothing to show."""

    def __str__(self) -> str:
        raise RuntimeError("the driver is gone")


def _raises_the_unreadable(*_: Any) -> Any:
    raise UnreadableError


def _raises_at_length(*_: Any) -> Any:
    raise RuntimeError("x" * 10_000_000)


def _overwrites_and_raises(inputs: Sequence[Array], *_: Any) -> Any:
    ctypes.memset(inputs[0].ctypes.data, 0, inputs[0].nbytes)
    raise RuntimeError("half way through")


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


def _ends_its_process(*_: Any) -> Any:
    os._exit(3)


def _closes_descriptors(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    os.closerange(3, 1024)
    return results


def _holds_the_interpreter(*_: Any) -> Any:
    ctypes.PyDLL(None).sleep(3600)  # which does not give the lock away


def _is_killed(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS: dict[str, Callable[..., Any]] = {
    "raises": _raises,
    "wrong shape": _wrong_shape,
    "wrong dtype": _wrong_dtype,
    "array of objects": _objects,
    "panics (`BaseException`)": _panics,
    "raises `KeyboardInterrupt`": _interrupts,
    "raises `SystemExit`": _exits,
    "raises what cannot be printed": _raises_the_unreadable,
    "raises a message of 10 MB": _raises_at_length,
    "overwrites its input, then raises": _overwrites_and_raises,
    "wrong numbers": _wrong_numbers,
    "NaN": _nan,
    "unwritten output": _unwritten,
    "overwritten input": _overwrites,
    "hangs": _hangs,
    "crash": _crashes,
    "out of memory": _runs_out_of_memory,
    "lost device": _loses_the_device,
    "killed worker": _is_killed,
    "ends its process (`os._exit`)": _ends_its_process,
    "closes all descriptors": _closes_descriptors,
    "hangs with the interpreter's lock": _holds_the_interpreter,
}
# What would take this process along.
IN_A_PROCESS = (
    "crash",
    "killed worker",
    "ends its process (`os._exit`)",
    "closes all descriptors",
    "hangs with the interpreter's lock",
)


_shared: dict[tuple[int, ...], Array] = {}


def _shared_buffer(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    """Into memory of its own, which its next call writes over."""
    buffer = _shared.setdefault(results[0].shape, np.empty_like(results[0]))
    buffer[...] = results[0]
    return [buffer]


def _strided(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    wide = np.zeros((*results[0].shape, 2), results[0].dtype)
    wide[..., 0] = results[0]
    return [wide[..., 0]]


def _column_major(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    return [np.asfortranarray(results[0])]


def _takes_lists_apart(inputs: Any, outputs: Any, results: list[Array]) -> Any:
    inputs.clear()
    outputs.clear()
    return results


def _reshapes(inputs: Any, outputs: Any, results: list[Array]) -> Any:
    for operand in (*inputs, *outputs):
        operand.shape = (-1,)
    outputs[0][...] = results[0].reshape(-1)


def _read_only(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    results[0].flags.writeable = False
    return tuple(results)


MEETS = "meets"
together = threading.Barrier(2)  # of two calls of this process


def _meets(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    """Answers when another call has got as far."""
    together.wait(60.0)
    return results


def _forks(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    child = os.fork()
    if child:
        with (Path(os.environ[TOLD]).parent / "children").open("a") as file:
            file.write(f"{child}\n")
    return results


def _rounds_upwards(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    ctypes.PyDLL(None).fesetround(UPWARDS)
    return results


def _changes_numpy(_inputs: Any, _outputs: Any, results: list[Array]) -> Any:
    np.seterr(all="raise")
    return results


UPWARDS = 0x800 if platform.machine() == "x86_64" else 0x400000
# What a backend may do: results are right, and what it would leave behind is undone.
HARMLESS: dict[str, Callable[..., Any]] = {
    "returns its own buffer": _shared_buffer,
    "strided result": _strided,
    "column-major result": _column_major,
    "read-only result": _read_only,
    "empties the lists of its operands": _takes_lists_apart,
    "reshapes its operands in place": _reshapes,
    "forks": _forks,
    "changes the rounding mode": _rounds_upwards,
    "changes NumPy's error modes": _changes_numpy,
}
