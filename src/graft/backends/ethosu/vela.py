"""Vela, Arm's compiler for Ethos-U: a TOSA graph in, a command stream and an estimate out.

What a region takes is Vela's estimate, in cycles of the clock of the system configuration that is
named here; the configurations are those that Vela ships (`Arm/vela.ini`).
"""

from __future__ import annotations

from collections.abc import Mapping
from configparser import ConfigParser
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from graft.base.errors import UnsupportedError

_MIB = 1 << 20
# Memory beside the SRAM: one bank of the DDR of Arm's boards MPS3 and MPS4.
_STORAGE = 256 * _MIB
_OPTIONS = """
[compiler]
output_format=Raw
cop_format=COP1
[scheduler]
optimize=Performance
arena_size_limit={sram}
cpu_tensor_alignment=16
tensor_allocator=HillClimb
"""


@dataclass(frozen=True)
class Device:
    """An accelerator in a system: sections of Vela's configuration, and its bytes of SRAM."""

    accelerator: str
    macs: int  # of a core, in a cycle
    cores: int
    system: str
    memory_mode: str
    sram_bytes: int

    @property
    def memory_bytes(self) -> int:
        """All that the accelerator can reach: weights are not in the SRAM."""
        return self.sram_bytes + _STORAGE

    @cached_property
    def clock(self) -> float:
        """Cycles a second."""
        return float(_sections()[f"System_Config.{self.system}"]["core_clock"])

    def compile(self, tosa: bytes) -> Any:
        """Vela's raw model; an `UnsupportedError` with Vela's reason where it makes none."""
        from ethosu import regor

        header = f"[architecture]\nmacs={self.macs}\ncores={self.cores}\n[vela]\n"
        names = f"system_config_name={self.system}\nmemory_mode_name={self.memory_mode}\n"
        system, options = header + names + _configuration(), _OPTIONS.format(sram=self.sram_bytes)
        try:
            model = regor.compile(self.accelerator, tosa, "TOSA", system, options=options)
        except RuntimeError as error:
            raise UnsupportedError(f"Vela refuses it: {_one_line(str(error))}") from error
        if model.perf_report.cpuOps:
            raise UnsupportedError(f"Vela leaves {model.perf_report.cpuOps} operators to the CPU")
        used = model.perf_report.memories["Sram"].peakUsage
        if used > self.sram_bytes:
            fits = f"and the device has {self.sram_bytes:,}"
            raise UnsupportedError(f"Vela's schedule needs {used:,} bytes of SRAM, {fits}")
        return model


def _family(name: str, sizes: tuple[int, ...], **system: Any) -> dict[str, Device]:
    return {f"{name}-{macs}": Device(f"Ethos{name.upper()}", macs, 1, **system) for macs in sizes}


_U55 = {"system": "Ethos_U55_High_End_Embedded", "memory_mode": "Shared_Sram"}
_U65 = {"system": "Ethos_U65_High_End", "memory_mode": "Dedicated_Sram_384KB"}
_U85 = {"system": "Ethos_U85_SYS_DRAM_Mid", "memory_mode": "Dedicated_Sram_512KB"}
DEVICES: Mapping[str, Device] = {
    **_family("u55", (32, 64, 128, 256), **_U55, sram_bytes=4 * _MIB),  # Corstone-300's
    **_family("u65", (256,), **_U65, sram_bytes=384 << 10),
    "u65-512": Device("EthosU65", 256, 2, **_U65, sram_bytes=384 << 10),
    **_family("u85", (128, 256, 512, 1024, 2048), **_U85, sram_bytes=512 << 10),
}


@cache
def _configuration() -> str:
    import ethosu.vela

    folder = Path(ethosu.vela.__file__).parents[1] / "config_files"
    return (folder / "Arm" / "vela.ini").read_text(encoding="utf-8")


@cache
def _sections() -> ConfigParser:
    parser = ConfigParser()
    parser.read_string(_configuration())
    return parser


def _one_line(message: str) -> str:
    """What Vela says, without the headline `Compilation failed`."""
    _, headline, rest = message.rpartition("Compilation failed: ")
    lines = [line.strip(" -") for line in (rest if headline else message).splitlines()]
    return "; ".join(line for line in lines if line).replace(":;", ":")
