"""Regions on the accelerator at run time: its RTL, translated by Verilator and run cycle by cycle.

The simulator is built when the first region is loaded, and kept in the cache folder under the hash
of all that it is made from. How long it runs says nothing about the accelerator: what a call takes
is a number of cycles.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from graft.base.cache_folder import default_folder, kept_bytes
from graft.base.dtypes import Array
from graft.runtime.array_file import unpack_arrays
from graft.runtime.loaders import versioned
from graft.runtime.memory import address_of
from graft.runtime.native import host_architecture
from graft.runtime.tools import open_library, run_tool

VERSION = "2"
LANES = 16  # rows and columns of the array, and bytes in a word
CLOCK = 200e6
MEMORY_LATENCY = 32  # cycles from an address to its word
LAUNCH_SECONDS = 1e-5  # assumed: a register written by the processor, and an interrupt

FOLDER = Path(__file__).with_name("rtl")
SOURCES = ("isa.sv", "accelerator.sv")  # the others are found by their modules' names
_TOOLS = ("verilator", "g++", "make")  # which are Debian's packages, too
_FLAGS = (
    *("--cc", "--exe", "--build", "--prefix", "Vaccelerator", "-O3", "--x-initial", "fast"),
    *("-CFLAGS", "-fPIC", "-MAKEFLAGS", "OPT_FAST=-O1", "-LDFLAGS", "-shared"),
)
_FAILURES = {-1: "reads or writes outside of its memory", -2: "does not end"}
_PATIENCE = 8  # times the cycles that a program takes, after which it does not end


@dataclass(frozen=True, slots=True)
class Tensor:
    """Images in memory, as [images, blocks, height, width, 16 channels]; addresses are of words."""

    address: int
    signed: bool
    images: int
    channels: int
    height: int
    width: int

    @property
    def blocks(self) -> int:
        return -(-self.channels // LANES)

    @property
    def words(self) -> int:
        return self.images * self.blocks * self.height * self.width

    def at(self, image: Any, block: Any, row: Any) -> Any:
        """The address of a row, or of rows; one image is the same for all of the result."""
        plane = image % self.images * self.blocks + block
        return self.address + (plane * self.height + row) * self.width

    def places(self, shape: tuple[int, ...]) -> Array:
        """Where the bytes of an array lie. Of arrays that are no images the last axis is that of
        the channels, and rows are pixels; one of five axes is in blocks already."""
        if len(shape) == 5:
            return self.address * LANES + np.arange(math.prod(shape)).reshape(shape)
        image, c, y, x = np.ogrid[: self.images, : self.channels, : self.height, : self.width]
        pixels: Array = (self.at(image, c // LANES, y) + x) * LANES + c % LANES
        return (pixels if len(shape) == 4 else pixels[0, ..., 0].T).reshape(shape)


class Region:
    """A region on the simulated accelerator. `seconds` is what its cycles take at `CLOCK`."""

    simulated = True
    launch_seconds = LAUNCH_SECONDS

    def __init__(self, blob: bytes) -> None:
        parts = unpack_arrays(blob)
        self.program, self._constants = parts["program"], parts["constants"]
        self._words, self.cycles = int(parts["words"]), int(parts["cycles"])
        self._tensors = [Tensor(*numbers) for numbers in parts["tensors"].tolist()]
        self.seconds = self.cycles / CLOCK
        self._simulate = simulator().simulate

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array], stall: int = 0) -> None:
        """Run it; `took` then says how many cycles the last call took. With `stall` memory accepts
        nothing in every cycle of that multiple. Calls may come from several threads."""
        memory = np.zeros(self._words * LANES, np.uint8)
        memory[memory.size - self._constants.size :] = self._constants
        for array, tensor in zip(inputs, self._tensors, strict=False):
            memory[tensor.places(array.shape)] = array.view(np.uint8)
        code = (address_of(self.program), self.program.size)
        limits = (MEMORY_LATENCY, stall, _PATIENCE * self.cycles)
        took = self._simulate(address_of(memory), self._words, *code, *limits)
        if took < 0:
            raise RuntimeError(f"the program {_FAILURES[took]}")
        for array, tensor in zip(outputs, self._tensors[len(inputs) :], strict=True):
            np.copyto(array.view(np.uint8), memory[tensor.places(array.shape)])
        self.took = int(took)


def missing() -> str:
    """The Debian packages to install, or nothing."""
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    install = f"apt-get install -y {' '.join(lacking)}"
    return f"it needs Verilator and a C++ compiler: {install}" if lacking else ""


@cache
def simulator() -> ctypes.CDLL:
    """The accelerator as Verilator has translated it, built unless it is in the cache."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())]
    facts = [_verilator("--version"), host_architecture(), *_FLAGS, *sources]
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    code = kept_bytes(default_folder() / "fpga" / f"{digest}.so", build)
    library = open_library(code, "the simulator of fpga")
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    library.simulate.argtypes = [pointer, number, pointer, *[number] * 4]
    library.simulate.restype = ctypes.c_int64
    return library


def build() -> bytes:
    """The library: the design in C++, compiled with the harness that calls it cycle by cycle."""
    with TemporaryDirectory() as folder:
        files = [str(FOLDER / name) for name in (*SOURCES, "simulate.cpp")]
        _verilator(*_FLAGS, "-y", str(FOLDER), "-Mdir", folder, "-o", "simulator.so", *files)
        return Path(folder, "simulator.so").read_bytes()


def _verilator(*options: str) -> str:
    return run_tool(("verilator", *options), missing() or "Verilator cannot build the simulator")


@versioned(VERSION, missing=missing)
def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
