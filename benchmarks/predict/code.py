"""What a core takes for a kernel's code: assembly and how often its blocks run in, cycles out.

Loops are found in the comments of LLVM's assembly, which name the basic blocks and the loops that
they are in. llvm-mca says how many cycles an iteration takes on a model of the core; where LLVM's
model of a core is missing or wrong, one that is close takes its place, and the machine's own rates
of multiply-adds, loads and stores are kept to in any case.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby

from graft.target.machine import LINE_BYTES, Machine
from graft.target.target import Target

_ITERATIONS = 60
# Instructions of an iteration of a loop around short ones. Where it has more, what overlaps at the
# ends of the short ones is a small part: a core looks at 224 to 512 instructions at once.
_LONGEST_TRACE, _TRACES = 2000, 12
_PREDICTED_TRIPS = 32  # of a loop, whose end a core foresees: others end with a misprediction

# Whose scheduling model stands for a machine, and how many instructions it dispatches in a cycle.
# LLVM (19) gives Ice Lake and Sapphire Rapids one 512-bit multiply-add a cycle, lets sums of theirs
# and Alder Lake's wait for operands from memory, has none of Cortex-A76 and Apple's cores. Zen 5's
# is Zen 4's, which has units, loads and stores of half the width: see `_zen5`.
_MODELS = {
    "icelake-server": ("skylake-avx512", 5),
    "sapphirerapids": ("skylake-avx512", 6),
    "alderlake": ("skylake", 6),
    "znver5": ("znver4", 8),
    "cortex-a76": ("neoverse-n1", 4),
    "apple-m1": ("neoverse-v2", 8),
}
# Skylake's window of 224 operations stands for one of 352 to 512: with it, short loops would
# overlap less with what is around them than they do.
_SMALL_WINDOWS = ("icelake-server", "sapphirerapids", "alderlake")
_NEWEST, _OLDEST = 25, 14
# Bytes of an instruction in kernels, by whether it is x86 and whether vectors are of 512 bits.
_INSTRUCTION_BYTES = {(True, True): 7, (True, False): 6, (False, False): 4}
_LABELS = r"(\.LBB|\.LCPI|\.LJTI)\d+_\d+"
_UNFOLLOWED = ("call", "ret", "bl\t", "data16", "{", "lock")

_LABEL = re.compile(r"^(\.LBB\d+_\d+|# %bb\.\d+|// %bb\.\d+):(?:\s*(?:#|//) %\"?([^\"\s]+)\"?)?")
_FUNCTION = re.compile(r'^"?([A-Za-z_][\w.$]*)"?:')
_HEADER = re.compile(r"=>\s*This (Inner )?Loop Header: Depth=(\d+)")
_AROUND = re.compile(r"Parent Loop (BB\d+_\d+) Depth=")
_INSIDE = re.compile(r"in Loop: Header=(BB\d+_\d+) Depth=(\d+)")
_MEMORY_X86 = re.compile(r"\(%\w+|\(,%\w+|%rip\)")
_SPILL = re.compile(r"\(%rsp\).*%[xyz]mm|%[xyz]mm.*\(%rsp\)|\b[qv]\d+.*\[sp")
# LLVM's Zen 4 has the arithmetic units broadcast what is loaded; the load units do (kernels of a
# Zen 4 core were predicted at up to 1.5 times what they took). Its Zen 3, which that model was made
# from, has the same class of instructions for it, and the cores' vector units are alike: it is
# corrected likewise, which no Zen 3 has confirmed. Both have loads and stores of vectors share two
# units, where the cores load two vectors and store one in a cycle (since Zen 2, as published; on a
# Zen 5, 8 loads and 4 stores take 4.9 cycles, not 6): stores are only dispatched there, and
# `_least_cycles` keeps to the machine's rate of them.
_ZEN = ("znver3", "znver4", "znver5")
_BROADCAST = re.compile(r"^vbroadcasts[sd]\t(.*\)), %[yz]mm(\d+)")
_VECTOR_STORE = re.compile(r"^v?mov\w+\t%[xyz]mm\d+, .*\)(?: \{%k\d\})?$")
# LLVM's Skylake has loads of whole vectors take two operations; they are one, as the one is that
# stands for them (uops.info).
_LOAD = re.compile(r"^v(?:broadcasts[sd]|movaps|movups)\t(.*\)), %zmm(\d+)")
_VECTOR_X86 = re.compile(r"%[xyz]mm\d+")
# Cores that store twice in a cycle what is no wider than 256 bits and goes to one line (measured on
# a Zen 5: 2.0 of 4 bytes in a row, 1.0 of 4 bytes 64 apart; Intel's manual of Ice Lake has the same
# condition). The models that stand for them store once.
_TWO_NARROW_STORES = ("icelake-server", "sapphirerapids", "znver5")
_NARROW_STORE = re.compile(r"^v?mov\w+\t%(?!zmm)[\w]+, (-?\d*)(\(.*\))$")
# What LLVM's Zen 4 gets wrong for a Zen 5 (measured there: independent instructions, and chains):
# scalar multiply-adds take one unit of two in its model, 512-bit halves are extracted and elements
# repeated once in a cycle instead of twice, and `vscalefps` takes 3 cycles instead of 6 and goes on
# twice in a cycle instead of once. Others take their places that behave as measured.
_ZEN5 = (
    (re.compile(r"^imulq\t(%\w+)$"), r"movq\t%rax, %rdx\nimulq\t\1, %rdx"),
    (re.compile(r"\{1to16\}"), "{1to8}"),
    (re.compile(r"^(vf\w+)ss\t(.*\), |)(?=%)"), r"\1ps\t\2"),
    (
        re.compile(r"^vextract[fi]\d+(?:x\d)?\t\$\d+, %ymm(\d+), %[xy]mm(\d+)$"),
        r"vaddps\t%ymm\1, %ymm\1, %ymm\2",
    ),
    (
        re.compile(r"^vinsert[fi]\d+(?:x\d)?\t\$\d+, %[xy]mm(\d+), (%ymm\d+), "),
        r"vunpcklps\t%ymm\1, \2, ",
    ),
    (re.compile(r"^vinsert([fi])\d+x\d\t"), r"vinsert\g<1>128\t"),
    (
        re.compile(
            r"^v(?:perm[ti]2p[sd]|permp[sd]|perm[dq]|shuff\d+x\d)\t(?:\$\d+, )?(.*, .*, .*)$"
        ),
        r"vunpcklps\t\1",
    ),
    (re.compile(r"^v(?:p?broadcast\w+)\t%xmm(\d+), %ymm(\d+)$"), r"vpermilps\t$0, %ymm\1, %ymm\2"),
    (
        re.compile(r"^vscalefps\t(.*), (%ymm\d+), (%ymm\d+)$"),
        r"vmulps\t\1, \2, \3\nvmulps\t\3, \3, \3",
    ),
)


@dataclass
class AsmBlock:
    """A basic block of assembly."""

    label: str
    name: str  # of LLVM's block
    header: str = ""  # of the innermost loop around it
    innermost: bool = False  # whether no loop is inside of that one
    outer: str = ""  # header of the loop around that one
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Counts:
    """Instructions of a kind in a piece of code; multiply-adds in units of whole vectors."""

    fmas: float = 0
    arithmetic: float = 0  # other vector arithmetic
    loads: float = 0
    stores: float = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.fmas + other.fmas,
            self.arithmetic + other.arithmetic,
            self.loads + other.loads,
            self.stores + other.stores,
        )

    def times(self, factor: float) -> Counts:
        return Counts(*(factor * x for x in (self.fmas, self.arithmetic, self.loads, self.stores)))


@dataclass(frozen=True)
class Piece:
    """Code that runs so often as a whole: an iteration of an innermost loop, or a single block."""

    blocks: tuple[str, ...]  # LLVM's
    lines: tuple[str, ...]
    runs: float
    is_loop: bool
    header: str = ""  # of the innermost loop that it is in, or is


@dataclass(frozen=True)
class Trace:
    """The code that an iteration of a loop around innermost ones runs through."""

    headers: frozenset[str]  # of the loops in it
    lines: tuple[str, ...]
    runs: int


@dataclass(frozen=True)
class PieceTime:
    """What the core takes for all runs of a piece when its data are in the first cache."""

    blocks: tuple[str, ...]
    cycles: float
    limit: str  # what the cycles go to
    counts: Counts
    spills: int  # accesses of vectors on the stack, per run


def code_times(assembly: str, runs: Mapping[str, int], target: Target) -> list[PieceTime]:
    """The pieces of a kernel that ran, with the core's time for each."""
    blocks = _blocks(assembly)
    pieces = [piece for piece in _pieces(blocks, runs) if piece.runs and piece.lines]
    summaries = _summaries([piece.lines for piece in pieces], target)
    times = [
        _time(piece, *summary, target) for piece, summary in zip(pieces, summaries, strict=True)
    ]
    if target.machine.name in _SMALL_WINDOWS:
        return times
    return _as_traced(pieces, times, list(_traces(blocks, runs)), target)


def code_bytes(assembly: str, target: Target) -> dict[str, int]:
    """About how many bytes of code each block has, by LLVM's name for it."""
    size = _INSTRUCTION_BYTES[target.is_x86, target.vector_bits > 256]
    sizes: dict[str, int] = {}
    name = ""
    for block in _blocks(assembly):
        name = block.name or name  # one without a name is a part of the one before
        sizes[name] = sizes.get(name, 0) + size * len(block.lines)
    return sizes


def block_cycles(times: Sequence[PieceTime], runs: Mapping[str, int]) -> dict[str, float]:
    """Cycles of one run of each block."""
    cycles: dict[str, float] = {}
    for piece in times:
        for name in piece.blocks:
            share = piece.cycles / len(piece.blocks) / max(1, runs.get(name, 0))
            cycles[name] = cycles.get(name, 0.0) + share
    return cycles


def _time(piece: Piece, taken: float, throughput: float, target: Target) -> PieceTime:
    """Cycles by llvm-mca, and no fewer than the machine's rates ask for."""
    counts = _counts(piece.lines, target)
    limit, cycles = _least_cycles(counts, target.machine)
    # A block outside of the innermost loops overlaps with what is around it: no chain of
    # dependent instructions from one of its runs to the next holds it up.
    expected = taken if piece.is_loop else throughput
    if expected > cycles * 1.05:
        limit, cycles = ("latency" if expected > throughput * 1.15 else "ports"), expected
    spills = sum(_SPILL.search(line) is not None for line in piece.lines)
    return PieceTime(piece.blocks, cycles * piece.runs, limit, counts.times(piece.runs), spills)


def _as_traced(
    pieces: Sequence[Piece], times: Sequence[PieceTime], traces: Sequence[Trace], target: Target
) -> list[PieceTime]:
    """The times of pieces, where short loops have a loop around them by what an iteration of that
    one takes as a whole.

    Short loops do not overlap with themselves as endless ones do: they begin when the code before
    has what they need, and what follows waits for them."""
    changed = list(times)
    summaries = _summaries([trace.lines for trace in traces], target, _TRACES)
    for trace, (taken, _) in zip(traces, summaries, strict=True):
        parts = [n for n, piece in enumerate(pieces) if piece.header in trace.headers]
        apart = sum(times[n].cycles for n in parts)
        factor = taken * trace.runs / apart
        for n in parts:
            least = _least_cycles(times[n].counts, target.machine)[1]
            cycles = max(least, factor * times[n].cycles)
            limit = "latency" if cycles > times[n].cycles * 1.05 else times[n].limit
            changed[n] = replace(times[n], cycles=cycles, limit=limit)
    return changed


def _traces(blocks: Sequence[AsmBlock], runs: Mapping[str, int]) -> Iterator[Trace]:
    """Iterations of loops around innermost ones, where they are short."""
    first = {block.label: block for block in blocks}
    outer = {block.header: block.outer for block in blocks if block.label == block.header}
    for header in dict.fromkeys(outer.values()):
        inner = {name for name, around in outer.items() if around == header}
        times = runs.get(first[header].name, 0) if header in first else 0
        if not times or not all(first[name].innermost for name in inner):
            continue
        trips = [runs.get(first[name].name, 0) / times for name in inner]
        lines: list[str] = []
        for name, group in groupby(blocks, lambda block: block.header):
            if name == header or name in inner:
                lines += _repeated(list(group), runs, times)
        if max(trips) <= _PREDICTED_TRIPS and len(lines) <= _LONGEST_TRACE:
            yield Trace(frozenset({header, *inner}), tuple(lines), times)


def _repeated(blocks: Sequence[AsmBlock], runs: Mapping[str, int], times: int) -> list[str]:
    """The code of blocks as often as it runs when a loop around it does so `times`."""
    counts = [runs.get(block.name, times) for block in blocks]
    most = max(counts)
    often = [block for block, count in zip(blocks, counts, strict=True) if 2 * count > most]
    return [line for block in often for line in block.lines] * round(most / times)


def _least_cycles(counts: Counts, machine: Machine) -> tuple[str, float]:
    """The cycles that the machine's rates ask for, and which of them."""
    limits = {
        "multiply-adds": counts.fmas / machine.vector_fmas,
        "arithmetic": (counts.fmas + counts.arithmetic) / machine.vector_operations,
        "loads": counts.loads / machine.vector_loads,
        "stores": counts.stores / machine.vector_stores,
    }
    worst = max(limits, key=lambda name: limits[name])
    return worst, limits[worst]


def _blocks(assembly: str) -> list[AsmBlock]:
    blocks: list[AsmBlock] = []
    inner: dict[str, bool] = {}
    is_kernel = True
    for line in assembly.splitlines():
        if function := _FUNCTION.match(line):
            is_kernel = not function[1].startswith("graft.")  # barriers and claims are no work
        if not is_kernel:
            continue
        if label := _LABEL.match(line):
            blocks.append(AsmBlock(label[1].lstrip(".L"), label[2] or ""))
        if not blocks:
            continue
        if around := _AROUND.search(line):
            blocks[-1].outer = around[1]  # the innermost one comes last
        if header := _HEADER.search(line):
            blocks[-1].header = blocks[-1].label
            inner[blocks[-1].label] = header[1] is not None
        elif inside := _INSIDE.search(line):
            blocks[-1].header = inside[1]
        code = re.split(r"\s(?:#|//)", line)[0].strip()
        if code and not code.endswith(":") and not code.startswith((".", "#", "//")):
            blocks[-1].lines.append(code)
    for block in blocks:
        block.innermost = inner.get(block.header, False)
    return blocks


def _pieces(blocks: Sequence[AsmBlock], runs: Mapping[str, int]) -> Iterator[Piece]:
    """Iterations of innermost loops, and all other blocks each on its own."""
    loops: dict[str, list[AsmBlock]] = {}
    last = 0
    for block in blocks:
        if block.innermost:
            loops.setdefault(block.header, []).append(block)
            continue
        last = runs.get(block.name, last)  # one without a name is a part of the one before
        yield Piece((block.name,), tuple(block.lines), last, False, block.header)
    for header, parts in loops.items():
        times = [runs.get(block.name, 0) for block in parts]
        most = max(times)
        often = [block for block, count in zip(parts, times, strict=True) if 2 * count > most]
        names = tuple(block.name for block in often)
        lines = tuple(line for block in often for line in block.lines)
        yield Piece(names, lines, most, True, header)
        for block, count in zip(parts, times, strict=True):
            if 2 * count <= most:
                yield Piece((block.name,), tuple(block.lines), count, False)


def _counts(lines: Sequence[str], target: Target) -> Counts:
    beside = _paired_stores(lines, target.machine)
    return sum(
        (_count(line, target) for number, line in enumerate(lines) if number not in beside),
        Counts(),
    )


def _paired_stores(lines: Sequence[str], machine: Machine) -> set[int]:
    """Stores that a core makes beside the one before, since both are narrow and in one line."""
    paired: set[int] = set()
    if machine.name not in _TWO_NARROW_STORES:
        return paired
    last = None
    for number, line in enumerate(lines):
        if not (store := _NARROW_STORE.match(line)):
            continue
        offset, register = int(store[1] or 0), store[2]
        if last and last[1] == register and offset // LINE_BYTES == last[0] // LINE_BYTES:
            paired.add(number)
            last = None
        else:
            last = offset, register
    return paired


def _count(line: str, target: Target) -> Counts:
    operation, _, operands = line.partition("\t")
    return (_count_x86 if target.is_x86 else _count_arm)(operation.strip(), operands, target)


def _count_x86(operation: str, operands: str, target: Target) -> Counts:
    if operation.startswith(("lea", "prefetch", "nop", "call", "push", "pop")):
        return Counts()
    vectors = _VECTOR_X86.findall(operands)
    widths = {"x": 128, "y": 256, "z": 512}
    width = max((widths[name[1]] for name in vectors), default=0)
    # Narrower vectors take a unit as whole ones do, unless a wide one is made of two halves.
    share = max(0.5, width / target.vector_bits) if target.machine.name == "znver4" else 1.0
    memory = _MEMORY_X86.search(operands) is not None
    writes = memory and operands.rstrip().endswith(")") and "mov" in operation
    scale = share if width else 0.5
    counts = Counts(loads=scale if memory and not writes else 0, stores=scale if writes else 0)
    if not width or "mov" in operation or "broadcast" in operation:
        return counts
    if "xor" in operation and len({name[1:] for name in vectors}) == 1:
        return counts  # a zero, which takes no unit
    if re.match(r"v?f(n?m)(add|sub)", operation) or operation.startswith(("vfm", "vfnm", "vpdp")):
        return counts + Counts(fmas=share)
    if operation.startswith(("vmulp", "mulp")):
        return counts + Counts(fmas=share)
    return counts + Counts(arithmetic=share)


def _count_arm(operation: str, operands: str, target: Target) -> Counts:
    if operation.startswith(("ldp", "ldr", "ldur", "ld1", "ld2", "ld3", "ld4")):
        names = re.findall(r"\b[qv]\d+", operands.split("[")[0])
        return Counts(loads=len(names) or 0.5)
    if operation.startswith(("stp", "str", "stur", "st1", "st2")):
        return Counts(stores=len(re.findall(r"\b[qv]\d+", operands.split("[")[0])) or 0.5)
    if operation in ("fmla", "fmls", "sdot", "udot"):
        return Counts(fmas=1)
    if operation == "fmul" and "v" in operands:
        return Counts(fmas=1)
    is_arithmetic = re.match(r"v\d+\.", operands) and operation not in ("movi", "mov")
    return Counts(arithmetic=1) if is_arithmetic else Counts()


def _summaries(
    pieces: Sequence[Sequence[str]], target: Target, iterations: int = _ITERATIONS
) -> list[tuple[float, float]]:
    """Cycles of each piece when it runs again and again, and those that its ports need."""
    if not pieces:
        return []
    text = "\n".join(
        "\n".join([f"# LLVM-MCA-BEGIN {n}", *_plain(lines, target), "# LLVM-MCA-END"])
        for n, lines in enumerate(pieces)
    )
    if not target.is_x86:
        text = text.replace("# LLVM-MCA", "// LLVM-MCA")
    cpu, dispatch = _MODELS.get(target.machine.name, (target.machine.name, 0))
    command = [
        *(find_mca(), f"-mtriple={target.triple}", f"-mcpu={cpu}", f"-dispatch={dispatch}"),
        *("-json", f"-iterations={iterations}", "-skip-unsupported-instructions=any"),
        "-instruction-info=false",
    ]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"llvm-mca fails: {done.stderr.strip()[:400]}")
    regions = json.loads(done.stdout)["CodeRegions"]
    by_name = {region["Name"]: region["SummaryView"] for region in regions}
    empty = {"TotalCycles": 0, "BlockRThroughput": 0}
    views = [by_name.get(str(n), empty) for n in range(len(pieces))]
    return [(v["TotalCycles"] / iterations, v["BlockRThroughput"]) for v in views]


def _plain(lines: Sequence[str], target: Target) -> Iterator[str]:
    """Code without what llvm-mca cannot follow: calls and jumps to labels it does not see. One of
    two stores that go on side by side stands for both."""
    name = target.machine.name
    beside = _paired_stores(lines, target.machine)
    for number, line in enumerate(lines):
        if number in beside or line.startswith(_UNFOLLOWED):
            continue
        labels, number_instead = (r"\.L\w+", "64") if "(%rip)" in line else (_LABELS, "0")
        line = re.sub(labels, number_instead, line)
        if name == "znver5":
            line = _zen5(line)
        if name in _ZEN:
            line = _BROADCAST.sub(r"vmovups\t\1, %ymm\2", line)
            line = _VECTOR_STORE.sub("nop", line)
        elif _MODELS.get(name, (name,))[0] == "skylake-avx512":
            line = _LOAD.sub(r"vmovntdqa\t\1, %zmm\2", line)
        yield line


def _zen5(line: str) -> str:
    """An instruction of Zen 5 as one of Zen 4, whose vectors of 256 bits take one unit as those of
    512 bits do here, with the same latency in multiply-adds, loads and stores."""
    if "%zmm" in line:
        line = line.replace("%ymm", "%xmm").replace("%zmm", "%ymm")
    for pattern, instead in _ZEN5:
        line = pattern.sub(instead, line)
    return line


@cache
def find_mca() -> str:
    """The newest llvm-mca there is."""
    names = [f"llvm-mca-{version}" for version in range(_NEWEST, _OLDEST - 1, -1)]
    for name in (*names, "llvm-mca"):
        if path := shutil.which(name):
            return path
    sys.exit("predict.py needs llvm-mca: apt install llvm-19 (or the newest there is)")
