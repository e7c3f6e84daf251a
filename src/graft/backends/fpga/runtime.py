"""Regions on the accelerator at run time: its RTL, translated by Verilator and run cycle by cycle.

The simulator is built when the first region is loaded, and kept in Graft's cache under the hash of
all that it is made from. How long it runs says nothing about the accelerator: what a call takes is
a number of cycles.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from graft.base.cache_folder import default_folder, is_private, keep_bytes
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.runtime.loaders import versioned
from graft.runtime.memory import address_of
from graft.runtime.native import host_architecture

VERSION = "1"
LANES = 16  # rows and columns of the array, and bytes in a word
CLOCK = 200e6
MEMORY_LATENCY = 32  # cycles from an address to its word
LAUNCH_SECONDS = 1e-5  # assumed: a register written by the processor, and an interrupt

FOLDER = Path(__file__).with_name("rtl")
TOP = "accelerator"
MODULES = ("isa", "ram", "delay", "pe", "systolic", "conv", "load", "store", TOP)
_HARNESS = FOLDER / "simulate.cpp"
_VERILATE = ("--cc", "-O3", "--x-assign", "fast", "--x-initial", "fast", "--top-module", TOP)
_COMPILE = ("-std=c++17", "-O1", "-fPIC", "-shared", "-pthread")
_TOOLS = ("verilator", "g++")  # which are Debian's packages, too
_FAILURES = {-1: "reads or writes outside of its memory", -2: "does not end"}
_PATIENCE = 8  # times the cycles that a program takes, after which it does not end


def missing() -> str:
    """The Debian packages to install, or nothing."""
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    install = f"apt-get install -y {' '.join(lacking)}"
    return f"it needs Verilator and a C++ compiler: {install}" if lacking else ""


def pack(
    program: Array, constants: bytes, words: int, tensors: Sequence[Sequence[int]], cycles: int
) -> bytes:
    """A program, the constants at the end of its memory of so many words, and its operands and
    results: of each the address, and then images, channels, height and width."""
    image = np.frombuffer(constants, np.uint8)
    file = io.BytesIO()
    np.savez(file, program=program, constants=image, words=words, tensors=tensors, cycles=cycles)
    return file.getvalue()


class Region:
    """A region on the simulated accelerator. `seconds` is what its cycles take at `CLOCK`."""

    simulated = True
    launch_seconds = LAUNCH_SECONDS

    def __init__(self, blob: bytes) -> None:
        with np.load(io.BytesIO(blob)) as parts:
            self.program, self._constants = parts["program"], parts["constants"]
            self._words, self.cycles = int(parts["words"]), int(parts["cycles"])
            self._tensors = parts["tensors"]
        self.seconds = self.cycles / CLOCK
        self._simulate = simulator().simulate

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.run(inputs, outputs)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], stall: int = 0) -> int:
        """As a call; returns the cycles that it took. With `stall` memory accepts nothing in every
        cycle of that multiple. Calls share nothing, and may come from several threads."""
        memory = np.zeros(self._words * LANES, np.uint8)
        memory[memory.size - self._constants.size :] = self._constants
        places = [self._place(memory, *row) for row in self._tensors.tolist()]
        for array, place in zip(inputs, places, strict=False):
            np.copyto(place, blocked(array))
        code = (address_of(self.program), self.program.size)
        limits = (MEMORY_LATENCY, stall, _PATIENCE * self.cycles)
        took = self._simulate(address_of(memory), self._words, *code, *limits)
        if took < 0:
            raise RuntimeError(f"the program {_FAILURES[took]}")
        for array, place in zip(outputs, places[len(inputs) :], strict=True):
            _unblock(place, array)
        return int(took)

    @staticmethod
    def _place(
        memory: Array, address: int, images: int, channels: int, height: int, width: int
    ) -> Array:
        """A tensor in memory."""
        shape = (images, -(-channels // LANES), height, width, LANES)
        return memory[address * LANES :][: int(np.prod(shape))].reshape(shape)


def blocked(array: Array) -> Array:
    """Bytes as the accelerator has them: [images, blocks, height, width, 16 channels]."""
    if array.ndim == 5:  # NCHW16c already
        return array.view(np.uint8)
    pixels = _images(array.view(np.uint8))
    images, channels, height, width = pixels.shape
    blocks = -(-channels // LANES)
    padded = np.zeros((images, blocks * LANES, height, width), np.uint8)
    padded[:, :channels] = pixels
    return padded.reshape(images, blocks, LANES, height, width).transpose(0, 1, 3, 4, 2)


def _unblock(place: Array, array: Array) -> None:
    if array.ndim == 5:
        np.copyto(array.view(np.uint8), place)
        return
    images, blocks, height, width, _ = place.shape
    plain = place.transpose(0, 1, 4, 2, 3).reshape(images, blocks * LANES, height, width)
    target = _images(array.view(np.uint8))
    np.copyto(target, plain[:, : target.shape[1]])


def _images(array: Array) -> Array:
    """Images as [images, channels, height, width]; of others the rows are pixels of one column."""
    if array.ndim == 4:
        return array
    return array.reshape(-1, array.shape[-1] if array.ndim else 1).T[None, :, :, None]


@cache
def simulator() -> ctypes.CDLL:
    """The simulator of the accelerator, built unless it is in the cache."""
    if missing():
        raise UserError(f"the accelerator cannot be simulated: {missing()}")
    sources = [FOLDER / f"{name}.sv" for name in MODULES]
    version = _run(["verilator", "--version"])
    facts = [version, host_architecture(), *_VERILATE, *_COMPILE]
    digest = hashlib.sha256("\0".join(facts).encode())
    for path in (*sources, _HARNESS):
        digest.update(path.read_bytes())
    kept = default_folder() / "fpga" / f"{digest.hexdigest()}.so"
    is_usable = is_private(default_folder())
    if is_usable and kept.exists():
        return _opened(kept)
    with tempfile.TemporaryDirectory() as folder:
        built = _built(sources, Path(folder))
        if is_usable:
            keep_bytes(kept, built.read_bytes())
        return _opened(built)


def _built(sources: Sequence[Path], folder: Path) -> Path:
    root = Path(_run(["verilator", "--getenv", "VERILATOR_ROOT"]).strip(), "include")
    _run(["verilator", *_VERILATE, "-Mdir", str(folder), *map(str, sources)])
    library = folder / "simulator.so"
    run_time = [root / "verilated.cpp", root / "verilated_threads.cpp"]
    files = [*sorted(folder.glob("*.cpp")), _HARNESS, *run_time]
    _run(["g++", *_COMPILE, f"-I{folder}", f"-I{root}", *map(str, files), "-o", str(library)])
    return library


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines() or ["it does not say why"]
        raise UserError(f"{command[0]} cannot build the simulator: {lines[0]}", details=lines[1:])
    return done.stdout


def _opened(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    library.simulate.argtypes = [pointer, number, pointer, *[number] * 4]
    library.simulate.restype = ctypes.c_int64
    return library


@versioned(VERSION)
def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
