"""Hexagon regions at run time: a process under QEMU that keeps the region's memory.

Constants are sent once, when a region is loaded; a call sends inputs, runs the steps and gets the
outputs. On a board the same executable would be a process of the DSP, and the pipes FastRPC. QEMU
proves what is computed and counts the packets of instructions. It says nothing about time: what a
call takes is the count at the clock named here.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.array_file import unpack_arrays
from graft.runtime.loaders import installed_version, lacking, versioned
from graft.runtime.tools import run_tool

CLOCK = 1e9  # cycles a second; a packet of instructions takes at least one
_EMULATORS = ("qemu-hexagon-static", "qemu-hexagon")
_WRITE, _RUN, _READ = range(3)  # as `worker.c` numbers them


def emulator() -> str:
    """The path of QEMU for Hexagon; empty where there is none."""
    return next((found for name in _EMULATORS if (found := shutil.which(name))), "")


@cache
def emulator_version() -> str:
    """What QEMU calls its version."""
    if not emulator():
        return "(not installed)"
    return run_tool([emulator(), "--version"], "QEMU does not say its version").split()[2]


def version() -> str:
    """Of this backend's code, and of what links it."""
    return f"2 (ziglang {installed_version('ziglang')})"


def missing() -> str:
    """What to install, or nothing."""
    return lacking("ziglang", "hexagon") or missing_emulator()


def missing_emulator() -> str:
    """The same for code that is linked already."""
    needed = f"it needs {' or '.join(_EMULATORS)} on the PATH: apt install qemu-user-static"
    return "" if emulator() else needed


class Region:
    """A region in a process of its own. `packets` are those of the last call, by step."""

    simulated = True
    launch_seconds = 0.0

    def __init__(self, blob: bytes) -> None:
        parts = unpack_arrays(blob)
        self._program, self._constants = (parts[n].tobytes() for n in ("program", "constants"))
        self._inputs, self._outputs = parts["inputs"].tolist(), parts["outputs"].tolist()
        self._steps = int(parts["steps"])
        self.packets: tuple[int, ...] = ()
        self._lock = Lock()
        self._start()

    @property
    def seconds(self) -> float:
        """What the packets of the last call take at the clock."""
        return sum(self.packets) / CLOCK

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with self._lock:
            try:
                for offset, array in zip(self._inputs, inputs, strict=True):
                    self._command(_WRITE, offset, array.nbytes, array.tobytes())
                self.run()
                for offset, array in zip(self._outputs, outputs, strict=True):
                    self._command(_READ, offset, array.nbytes)
                    data = np.frombuffer(self._receive(array.nbytes), array.dtype)
                    np.copyto(array, data.reshape(array.shape))
            except OSError as error:
                self._process.kill()
                status = self._process.wait()
                self._start()  # the next call finds a process again
                raise RuntimeError(f"QEMU ended with status {status} within a region") from error

    def run(self) -> None:
        """Run the steps on what is in memory: inputs that are zero, before the first call."""
        self._command(_RUN)
        self.packets = struct.unpack(f"<{self._steps}I", self._receive(4 * self._steps))

    def _start(self) -> None:
        """Start the process, which is all that has to be there, and send the constants."""
        with tempfile.TemporaryDirectory(prefix="graft-hexagon-") as folder:
            path, pipe = Path(folder) / "region", subprocess.PIPE
            path.write_bytes(self._program)
            path.chmod(0o700)
            self._process = subprocess.Popen([emulator(), str(path)], stdin=pipe, stdout=pipe)
            self._command(_WRITE, 0, len(self._constants), self._constants)
            self._command(_READ, 0, 4)  # it has begun when it answers, and the file may go
            self._receive(4)
        weakref.finalize(self, _end, self._process)

    def _command(self, kind: int, offset: int = 0, size: int = 0, data: bytes = b"") -> None:
        """Send a command, and what it is to write."""
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack("<3I", kind, offset, size) + data)
        self._process.stdin.flush()

    def _receive(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise OSError("the process has ended")
        return data


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:  # which closes the pipes and waits
        process.kill()


@versioned(version, lambda made_by: made_by.split()[0] == "2", missing_emulator)
def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
