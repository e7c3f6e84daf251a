"""The code generator and its cycle model, without the RTL: programs are looked at."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from tests.backends.fpga import units
from tests.backends.fpga.units import UNITS, layer, on, residual

from graft.backends.fpga import isa, runtime
from graft.backends.fpga.backend import Fpga
from graft.backends.fpga.isa import Instruction, Op, Reg, Unit
from graft.backends.fpga.lower import Lowering
from graft.backends.fpga.schedule import Emitter, generate
from graft.base.errors import UnsupportedError, UserError
from graft.byoc.boundary import wished
from graft.byoc.candidates import find_candidates
from graft.byoc.formats.integer_units import fixed_point
from graft.ir.graph import Graph
from graft.ir.printer import to_text
from graft.runtime.loaders import check_loader

FAMILIES = {0: "activations", 1: "weights", 2: "parameters"}
Span = tuple[str, int, int]  # which memory, from, to


def program_of(graph: Graph) -> tuple[list[Instruction], Lowering]:
    lowering = Lowering(wished(graph, Fpga.limits))
    return generate(lowering.layers), lowering


def overlap(one: Span, others: Sequence[Span]) -> bool:
    return any(one[0] == o[0] and one[1] < o[2] and o[1] < one[2] for o in others)


class Watch:
    """Walks over a program with the worst in mind: a unit runs until the program has waited for it.

    `reads` and `writes` are what each unit may still be reading and writing."""

    def __init__(self) -> None:
        self.regs = dict.fromkeys(Reg, 0)
        self.reads: dict[Unit, list[Span]] = {unit: [] for unit in Unit}
        self.writes: dict[Unit, list[Span]] = {unit: [] for unit in Unit}
        self.stored: list[Span] = []
        self.macs = 0

    def walk(self, program: Sequence[Instruction]) -> None:
        for one in program:
            for unit in one.needs:
                self.reads[unit], self.writes[unit] = [], []
            if one.op is Op.SET:
                self.regs[Reg(one.register)] = one.value
            elif one.op in (Op.LOAD, Op.CONV, Op.STORE):
                self.start(one)

    def start(self, one: Instruction) -> None:
        reads, writes = getattr(self, one.op.name.lower())()
        for unit in Unit:
            for span in reads:
                assert not overlap(span, self.writes[unit]), f"{one} reads {span} while it is made"
            for span in writes:
                busy = (*self.reads[unit], *self.writes[unit])
                assert not overlap(span, busy), f"{one} writes over {span}, which is in use"
        self.reads[one.needs], self.writes[one.needs] = reads, writes

    def load(self) -> tuple[list[Span], list[Span]]:
        r = self.regs
        starts = [r[Reg.LOAD_FROM] + n * r[Reg.LOAD_STRIDE] for n in range(r[Reg.LOAD_RUNS])]
        count = r[Reg.LOAD_RUN] * r[Reg.LOAD_RUNS]
        to = r[Reg.LOAD_TO]
        first = to & 0x3FFF
        most = isa.PAR_WORDS if to >> 14 == 2 else isa.ACT_WORDS
        assert count > 0
        assert first + count <= most
        reads = [("memory", start, start + r[Reg.LOAD_RUN]) for start in starts]
        return reads, [(FAMILIES[to >> 14], first, first + count)]

    def conv(self) -> tuple[list[Span], list[Span]]:
        r = self.regs
        tiles = r[Reg.BLOCKS] * (r[Reg.KERNEL] >> 16) * (r[Reg.KERNEL] & 0xFFFF)
        assert r[Reg.WGT] + tiles * 16 <= isa.WGT_WORDS
        assert 0 < r[Reg.PIXELS] <= isa.ACC_WORDS
        self.macs += tiles * r[Reg.PIXELS] * 256
        words = r[Reg.BLOCKS] * r[Reg.PLANE]
        height, width = r[Reg.IN_SIZE] >> 16, r[Reg.IN_SIZE] & 0xFFFF
        y, x = (
            int(np.int16(np.uint16(half))) for half in (r[Reg.ORIGIN] >> 16, r[Reg.ORIGIN] & 0xFFFF)
        )
        first = (r[Reg.ACT] - y * width - x) % isa.ACT_WORDS
        assert height * width == r[Reg.PLANE]
        assert first + words <= isa.ACT_WORDS
        reads = [("activations", first, first + words)]
        reads.append(("weights", r[Reg.WGT], r[Reg.WGT] + tiles * 16))
        return reads, [("accumulators", r[Reg.ACC], r[Reg.ACC] + r[Reg.PIXELS])]

    def store(self) -> tuple[list[Span], list[Span]]:
        r = self.regs
        count = r[Reg.STORE_COUNT]
        target = ("memory", r[Reg.STORE_TO], r[Reg.STORE_TO] + count)
        assert not overlap(target, self.stored), "a word is stored twice"
        self.stored.append(target)
        reads = [("accumulators", r[Reg.STORE_FROM], r[Reg.STORE_FROM] + count)]
        return [*reads, ("parameters", r[Reg.STORE_PAR], r[Reg.STORE_PAR] + 9)], [target]


@pytest.mark.parametrize("name", UNITS)
def test_programs_keep_to_their_memories(name: str) -> None:
    """Nothing is read before it is there or written while it is in use; every word of the result is
    stored once, and the array is given at least the multiplications that there are."""
    _, graph, wanted = units.unit_named(name)
    program, lowering = program_of(graph)
    watch = Watch()
    watch.walk(program)
    (layer,) = lowering.layers
    assert sum(end - start for _, start, end in watch.stored) == layer.result.words
    assert watch.macs >= wanted.size
    assert program[-1].op is Op.STOP


def test_chains_wait_for_what_they_read() -> None:
    unit = units.Unit()
    first = unit.call("nn.conv2d", unit.data("x", 1, 32, 8, 8), unit.weights(32, 32, 1, 1))
    scale, zero = unit.parameters("out")
    codes = unit.bytes("qnn.quantize", first[0], scale, zero, dtype="int8", axis=1)
    again = unit.bytes("qnn.dequantize", codes, scale, zero)
    second = unit.bytes("nn.conv2d", again, unit.weights(16, 32, 3, 3)[0], padding=(1, 1, 1, 1))
    graph = unit.bytes.build(unit.bytes("qnn.quantize", second, scale, zero, dtype="int8", axis=1))
    program, lowering = program_of(graph)
    watch = Watch()
    watch.walk(program)
    assert watch.macs == (32 * 32 + 9 * 32 * 16) * 64
    assert len(lowering.layers) == 2
    # Without the wait for the first layer's results the second would read them too early.
    waits = [
        n for n, one in enumerate(program) if one == Instruction(Op.WAIT, Unit.STORE, 0, Unit.STORE)
    ]
    broken = [one for n, one in enumerate(program) if n != waits[-1]]
    with pytest.raises(AssertionError, match=r"LOAD.* reads .*'memory'.* while it is made"):
        Watch().walk(broken)


def test_registers_are_those_of_the_hardware() -> None:
    text = (runtime.FOLDER / "isa.sv").read_text(encoding="utf-8")
    numbers = {name: int(n) for name, n in re.findall(r"^\s+([A-Z_]+)\s*=\s*(\d+)", text, re.M)}
    assert numbers == {one.name: one.value for one in (*Op, *Reg)}
    sizes = {name: int(n) for name, n in re.findall(r"int ([A-Z_]+) = (\d+);", text)}
    assert sizes["REGISTERS"] == len(Reg)
    assert sizes["LANES"] == runtime.LANES
    words = [1 << sizes[f"{name}_BITS"] for name in ("ACT", "WGT", "PAR", "ACC")]
    assert words == [isa.ACT_WORDS, isa.WGT_WORDS, isa.PAR_WORDS, isa.ACC_WORDS]


def test_cycles_follow_from_the_program() -> None:
    """Three loads, a tile of 16 pixels, a store: each unit's closed form, one after the other."""
    program = Emitter()
    program.start(Unit.LOAD, LOAD_RUN=16, LOAD_RUNS=2)
    program.wait(Unit.LOAD)
    program.start(Unit.CONV, PIXELS=20, KERNEL=(3, 3), BLOCKS=2)
    program.wait(Unit.CONV)
    program.start(Unit.STORE, STORE_COUNT=20)
    program.stop()
    instructions = len(program.instructions)
    load, conv, store = 32 + 32 + 1, 16 + 18 * 20 + 34, 10 + 20 + 6
    assert isa.cycles(program.instructions) == 1 + instructions + load + conv + store
    words = isa.encode(program.instructions)
    assert words[0] == Reg.LOAD_RUN << 48 | 16
    assert words[2] == 1 << 56


def test_units_run_side_by_side() -> None:
    """Loading the next operands takes nothing while the array is longer at work."""
    program = Emitter()
    program.start(Unit.CONV, PIXELS=1000, KERNEL=(1, 1), BLOCKS=4)
    alone = list(program.instructions)
    program.start(Unit.LOAD, LOAD_RUN=500, LOAD_RUNS=2)
    program.stop()
    both = program.instructions
    assert isa.cycles(both) == isa.cycles([*alone, both[-1]])


def test_the_array_is_used_well() -> None:
    """3x3 on 64 channels of 56x56: 451,584 cycles of products alone."""
    make = layer("nn.conv2d", (1, 64, 56, 56), (64, 64, 3, 3), padding=(1, 1, 1, 1))
    unit = units.Unit()
    graph, _ = unit.finish(make(unit))
    program, _ = program_of(graph)
    assert 451_584 <= isa.cycles(program) < 451_584 / 0.98
    cost = Fpga().price(wished(graph, Fpga.limits))
    assert cost.seconds == isa.cycles(program) / 200e6


def test_fixed_point_has_31_bits() -> None:
    factors = np.array([0.5, 1.0, 3.0, 0.1, 1e-30, 2.0**-40])
    multipliers, shifts = fixed_point(factors)
    assert np.all((shifts >= 0) & (shifts <= 62))
    assert np.all((multipliers >= 0) & (multipliers < 1 << 31))
    np.testing.assert_allclose(multipliers / 2.0**shifts, factors, rtol=2**-31, atol=2.0**-62)
    with pytest.raises(UnsupportedError, match="cannot be multiplied by"):
        fixed_point(np.array([2.0**33]))


def reasons(make: object) -> set[str]:
    unit = units.Unit("uint8")
    assert callable(make)
    graph, _ = unit.finish(make(unit))
    found = find_candidates(graph, [Fpga()])
    (last,) = (node for node in graph.nodes if node.op.name == "qnn.quantize")
    assert found.refused_matches, to_text(graph).text
    return {one.reason for one in found.refused_matches.get(last, ())}


def test_refusals_carry_the_numbers() -> None:
    wide = on("mean", (1, 3, 20, 20), axes=(2, 3), keepdims=True)
    (reason,) = reasons(wide)
    assert reason == (
        "its smallest tile does not fit on the chip: it needs 1 of 1024 accumulators, "
        "400 of 4096 words of activations, 6400 of 4096 words of weights"
    )
    long_rows = layer("nn.conv2d", (1, 3, 3, 1100), (4, 3, 3, 3), padding=(1, 1, 1, 1))
    assert any("1100 of 1024 accumulators" in one for one in reasons(long_rows))
    assert reasons(on("mean", (2, 3, 4, 4), axes=(1,))) == {
        "a mean over the axes (1,), which are not an image's"
    }
    assert reasons(on("add", (2, 3, 4, 4), (4, 4))) == {
        "no uint8[4, 4] is broadcast to uint8[2, 3, 4, 4]"
    }
    # In memory this lies as a number for each channel would.
    assert reasons(on("subtract", (1, 2, 1, 1), (2,))) == {
        "no uint8[2] is broadcast to uint8[1, 2, 1, 2]"
    }
    assert reasons(residual(20, 1, 1)) == {"no uint8[20, 1, 1] is broadcast to uint8[2, 20, 9, 8]"}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    command = "apt-get install -y verilator g\\+\\+ make"
    assert re.search(command, Fpga().missing())
    with pytest.raises(UserError, match=command):
        runtime.simulator.__wrapped__()
    with pytest.raises(UserError, match=command):
        check_loader(runtime.load, runtime.VERSION)
