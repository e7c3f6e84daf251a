"""Predicts what kernels of a model do on machines that are not at hand.

    python -m benchmarks.predict models/resnet50.onnx --machine icelake-server,znver3
    python -m benchmarks.predict models/resnet50.onnx --measure

A model and the names of machines in; out comes for each kernel, on one core, how many GFLOP/s it
will do, what bounds it, and its share of the core's peak. Cycles of the code are llvm-mca's for the
assembly that the compiler makes for that machine; traffic between the caches is that of a
simulation, which the kernels are run in. `--measure` sets the prediction for this machine beside
what is measured. Kernels below three quarters of what the machine allows are listed as findings.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from benchmarks.predict.code import PieceTime, block_cycles, code_bytes, code_times
from benchmarks.predict.here import with_measured_rates
from benchmarks.predict.traffic import LEVELS, Moved, Traffic
from graft.backends.host.lowering.builder import BuiltProgram, build_assembled
from graft.backends.host.lowering.segments import SegmentCompiler, why_not_native
from graft.base.dtypes import Array
from graft.base.errors import GraftError
from graft.byoc.executable import Accuracy
from graft.cli.report import lines_of, table
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.llvm.compile import optimized_text
from graft.loop.ir import Function
from graft.ops.indexed import IndexRanges
from graft.passes.pipeline import optimize
from graft.program.program import Program
from graft.program.program import Target as CompiledFor
from graft.runtime.driver import driver_object
from graft.runtime.session import Session
from graft.target.machine import LINE_BYTES, Machine
from graft.target.register_tile import RETRIED_LOADS, SCATTERED_LINES
from graft.target.target import HOST, Target, host_target, known_targets, named_target

FINDING = 0.75  # of what the machine allows; kernels below are listed
NEGLIGIBLE = 0.005  # of a model's time; kernels below are no findings
LONGEST_LABEL = 70
RUNS = 51
SHORT = 1e-5  # seconds; what starting a kernel takes counts in those below
# What a line takes on its own, in seconds, from the last cache and from memory, and how many lines
# of code come at a time: on the Zen 5, code that lies in a row comes at 6.5 to 8 cycles a line from
# the last cache and at 75 from memory.
_LATENCIES, _CODE_AT_ONCE = (1.5e-8, 1.2e-7), 8
_CLOCK_SECONDS = 2.2e-8  # of a measured time, what reading the clock takes there
_BEYOND, _EXPOSED = ("L3", "memory"), 0.5  # transfers that are not always hidden, and how much


@dataclass(frozen=True)
class Prediction:
    """A kernel on one core: what it does in all its calls, and how long that takes."""

    label: str  # its operators, and the node that the first one of its kind computes
    calls: int
    flops: int  # of the operators that it computes
    cycles: Mapping[str, float]  # by what they are spent waiting for
    least_cycles: float  # that the machine asks for this arithmetic and these tensors
    spills: int  # vectors that the hottest loop keeps on the stack
    gigahertz: float
    measured: float | None = None  # seconds

    @property
    def predicted_cycles(self) -> float:
        return sum(self.cycles.values())

    @property
    def seconds(self) -> float:
        return self.predicted_cycles / self.gigahertz / 1e9

    @property
    def bound(self) -> str:
        """What the kernel waits for most, and what it waits for at least half as long."""
        order = sorted(self.cycles, key=lambda name: -self.cycles[name])
        return "+".join(name for name in order[:2] if 2 * self.cycles[name] > self.cycles[order[0]])

    @property
    def of_bound(self) -> float:
        """Its rate, relative to what the machine allows."""
        return self.least_cycles / self.predicted_cycles


def main() -> int:
    options = _options()
    graph = static_graph(options.model)
    found = {}
    for name in options.machine:
        target = named_target(name)
        predictions = predict(graph, target, measure=options.measure and name == HOST)
        found[name] = predictions
        if not options.json:
            print("\n".join(report(options.model.stem, target, predictions)), end="\n\n")
    if options.json:
        print(json.dumps({name: [_plain(one) for one in all_] for name, all_ in found.items()}))
    return 0


def static_graph(model: Path) -> Graph:
    """The optimised graph of a model that kernels for known sizes compute, all of it."""
    try:
        graph = optimize(import_model(model))
    except GraftError as error:
        sys.exit(str(error))
    if reason := why_not_native(graph):
        sys.exit(f"{model} is no model with static shapes, which predictions need: {reason}")
    return graph


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model", type=Path, help="the ONNX file")
    parser.add_argument(
        "--machine",
        metavar="NAME[,NAME]",
        type=lambda text: text.split(","),
        default=[HOST],
        help=f"machines to predict, of {', '.join(known_targets())}; by default this one",
    )
    parser.add_argument("--measure", action="store_true", help="time the kernels on this machine")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def predict(graph: Graph, target: Target, measure: bool = False) -> list[Prediction]:
    """All kernels of a graph on a machine, those that take longest first."""
    compiler = SegmentCompiler(target, Accuracy.DEFAULT, {})
    fused, assembly, guards = compiler.assembled(graph, IndexRanges(graph), {})
    built = build_assembled(fused, assembly, compiler, guards)
    functions = list(assembly.functions.values())
    texts = [optimized_text(function, target) for function in functions]
    assemblies = [_assembly(text, target) for text in texts]
    if target.name == HOST:
        target = with_measured_rates(target)
    traffic, times = _simulated(built, texts, assemblies, target)
    seconds = _measured(built) if measure else {}
    predictions = [
        _prediction(function, times[number], traffic.bytes_below(number), target, built)
        for number, function in enumerate(functions)
    ]
    timed = [
        replace(one, measured=seconds.get(function.name))
        for one, function in zip(predictions, functions, strict=True)
    ]
    return sorted((one for one in timed if one.calls), key=lambda one: -one.seconds)


def _simulated(
    built: BuiltProgram, texts: Sequence[str], assemblies: Sequence[str], target: Target
) -> tuple[Traffic, list[list[PieceTime]]]:
    """The traffic of a run of the program, after another one that has filled the caches, and what
    the core takes for the code."""
    sizes = [code_bytes(assembly, target) for assembly in assemblies]
    is_alone = target.name == HOST
    line_cycles = [LINE_BYTES * factor for factor in _cycles_per_byte(target.machine).values()]
    traffic = Traffic(texts, target.machine, line_cycles, sizes, is_alone)
    here = host_target()
    program = built.program
    own = CompiledFor(here.triple, here.features)
    objects = (*traffic.objects, driver_object(here.triple))
    program = replace(program, target=own, objects=objects)
    session, feeds = Session(program, 1, built.supplied), _feeds(program)
    session.run(None, feeds)
    runs = [traffic.block_runs(number) for number in range(len(texts))]
    times = [code_times(*one, target) for one in zip(assemblies, runs, strict=True)]
    traffic.clear([block_cycles(*one) for one in zip(times, runs, strict=True)])
    session.run(None, feeds)
    return traffic, times


def _measured(built: BuiltProgram) -> dict[str, float]:
    """Seconds of all calls of each kernel on one thread, the median of many runs for each call.

    The best of them would be less than what is predicted, by what happened to be left in caches
    and, of calls of some 100 ns, by the clock's resolution of 10 ns."""
    session, feeds = Session(built.program, 1, built.supplied), _feeds(built.program)
    session.run(None, feeds)
    runs = [[one.busy[0] for one in session.profile(feeds).calls] for _ in range(RUNS)]
    seconds: dict[str, float] = {}
    for call, taken in zip(built.program.calls, np.median(runs, axis=0).tolist(), strict=True):
        seconds[call.symbol] = seconds.get(call.symbol, 0.0) + max(0.0, taken - _CLOCK_SECONDS)
    return seconds


def _feeds(program: Program) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {one.name: draw.random(one.shape).astype(one.dtype.numpy) for one in program.inputs}


def _prediction(
    function: Function,
    pieces: Sequence[PieceTime],
    moved: Mapping[str, Moved],
    target: Target,
    built: BuiltProgram,
) -> Prediction:
    steps = [call for call in built.program.calls if call.symbol == function.name]
    tensors = sum(step.bytes for step in steps)
    return Prediction(
        " ".join(function.notes) or function.name,
        len(steps),
        sum(step.flops for step in steps),
        _cycles(pieces, moved, target.machine),
        _least_cycles(pieces, moved, tensors, target.machine),
        max(pieces, key=lambda piece: piece.cycles).spills if pieces else 0,
        target.machine.gigahertz,
    )


def _cycles(
    pieces: Sequence[PieceTime], moved: Mapping[str, Moved], machine: Machine
) -> dict[str, float]:
    """Cycles by what each piece of the code waits for: the core, or one level of memory.

    What is posted goes on whenever the levels that it crosses have nothing else to do, in this
    piece or a later one; what then is left of it is waited for, too."""
    left = dict(moved)
    cycles: dict[str, float] = {}
    busy = _Busy(machine)
    for piece in pieces:
        parts = [left.pop(name) for name in piece.blocks if name in left]
        transfers = _transfers([part.waited for part in parts], machine)
        stored = _transfers([part.stored for part in parts], machine)
        if machine.fills_beside_loads:
            transfers = _added(transfers, stored)
            waits = _overlapped(piece, _windows(parts, machine))
        else:
            late = _transfers([part.scattered for part in parts], machine)
            near = next(iter(transfers))
            transfers = _added(transfers, late, 1 / SCATTERED_LINES - 1)
            transfers = _added(transfers, stored) | {near: transfers[near]}
            waits = _apart(piece, transfers, _far_bursts(parts, machine), machine)
        for name, waited in waits.items():
            cycles[name] = cycles.get(name, 0.0) + waited
        busy.add(piece, transfers)
    for part in moved.values():
        for name, waited in _waited(part, machine).items():
            cycles[name] = cycles.get(name, 0.0) + waited
    posted = _posted(list(moved.values()), machine)
    for name, waited in busy.left(posted, sum(cycles.values())).items():
        cycles[name] = cycles.get(name, 0.0) + waited
    return {name: waited for name, waited in cycles.items() if waited}


def _waited(part: Moved, machine: Machine) -> dict[str, float]:
    """What a block's code waits for with nothing beside it: what prefetches have asked for faster
    than it comes, the first line of what it loads in a call, and its own code."""
    names = [name for name, _ in _levels(machine)]
    waits = dict(zip(names, part.stalls, strict=False))
    lines = [amount / LINE_BYTES for amount in part.fetched[1 : len(names)]]
    near, far = (seconds * machine.gigahertz * 1e9 for seconds in _LATENCIES)

    def apart(lines: Sequence[float]) -> float:
        return near * sum(lines[:-1]) + far * sum(lines[-1:])

    waits["start"] = apart(part.starts[1 : len(names)])
    waits["code"] = apart(lines) / _CODE_AT_ONCE
    return waits


def _posted(moved: Sequence[Moved], machine: Machine) -> dict[str, float]:
    """Cycles by level of what no instruction waits for: prefetches, and on Intel's cores stores and
    written lines.

    There, lines that stores ask for come from beyond the second cache as those of loads
    do, and lines are written there on a path of their own: one Cascade Lake core at 2.5 GHz reads
    23.9 GB/s from the last cache, and when it copies or updates what lies there, reads and what
    stores ask for together are 23.6 GB/s, with up to as much written beside them (the measurements
    in kerncraft's machine file of a Xeon Gold 6248; the same holds in its memory)."""
    asked = _transfers([part.posted for part in moved], machine)
    if machine.fills_beside_loads:
        return asked
    others = [amounts for part in moved for amounts in (part.stored, part.evicted)]
    every = _added(asked, _transfers(others, machine))
    near = next(iter(every))
    return asked | {near: every[near]}


def _transfers(amounts: Sequence[Sequence[int]], machine: Machine) -> dict[str, float]:
    """Cycles by level in which bytes come from it, or go there."""
    factors = _cycles_per_byte(machine)
    return {
        name: factor * sum(sizes)
        for (name, factor), *sizes in zip(factors.items(), *amounts, strict=False)
    }


def _added(
    transfers: Mapping[str, float], more: Mapping[str, float], factor: float = 1.0
) -> dict[str, float]:
    return {name: cycles + factor * more[name] for name, cycles in transfers.items()}


def _cycles_per_byte(machine: Machine) -> dict[str, float]:
    """Cycles that a byte from each level takes.

    Where the levels beyond the second cache are read one after the other, a level's rate is that of
    bytes on all their way from there, of which the levels between have counted their part."""
    factors: dict[str, float] = {}
    above = math.inf
    for number, (name, rate) in enumerate(_levels(machine)):
        factors[name] = 1 / rate
        if number and not machine.fills_beside_loads:
            factors[name] -= 1 / above
            above = rate
    return factors


def _far_bursts(parts: Sequence[Moved], machine: Machine) -> Array:
    """Cycles by windows of a piece's runs in which bytes come from beyond the second cache."""
    factors = list(_cycles_per_byte(machine).values())
    return _bursts(parts).sum(axis=1)[:, 1 : len(factors)] @ factors[1:]


def _windows(parts: Sequence[Moved], machine: Machine) -> dict[str, Array]:
    """Cycles by level in which lines that loads and stores ask for come from there, by windows of
    a piece's runs."""
    come = _bursts(parts).sum(axis=1)
    come[:, :-1] -= come[:, 1:]  # those that come from farther away count there
    return {name: come[:, number] / rate for number, (name, rate) in enumerate(_levels(machine))}


def _bursts(parts: Sequence[Moved]) -> Array:
    """Bytes that loads and stores ask for, by windows of a piece's runs."""
    whole = np.zeros((max((len(part.bursts) for part in parts), default=0), 2, LEVELS))
    for part in parts:
        whole[: len(part.bursts)] += part.bursts
    return whole


class _Busy:
    """Cycles in which the levels of memory have something to do that is waited for."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._cycles: dict[str, float] = {}

    def add(self, piece: PieceTime, transfers: Mapping[str, float]) -> None:
        for name, cycles in transfers.items():
            self._cycles[name] = self._cycles.get(name, 0.0) + cycles
        if not self._machine.fills_beside_loads:
            loads = _retried_loads(piece, self._machine)
            self._cycles["loads"] = self._cycles.get("loads", 0.0) + loads

    def left(self, posted: Mapping[str, float], whole: float) -> dict[str, float]:
        """What does not go on beside the `whole` code, on the resource that is busiest.

        Each level is one, unless the first cache is not filled while it is read: then loads and
        the second cache are one, and all that is beyond another."""
        resources: list[tuple[str, ...]] = [(name,) for name in posted]
        if not self._machine.fills_beside_loads:
            near, *far = posted
            resources = [("loads", near), tuple(far)]
        worst = max(resources, key=lambda names: self._beyond(names, posted, whole))
        every = sum(posted.get(name, 0.0) for name in worst)
        share = min(1.0, self._beyond(worst, posted, whole) / every) if every else 0.0
        return {name: posted[name] * max(0.0, share) for name in worst if name in posted}

    def _beyond(self, names: Sequence[str], posted: Mapping[str, float], whole: float) -> float:
        return sum(self._cycles.get(name, 0.0) + posted.get(name, 0.0) for name in names) - whole


def _retried_loads(piece: PieceTime, machine: Machine) -> float:
    return RETRIED_LOADS * piece.counts.loads / machine.vector_loads


def _overlapped(piece: PieceTime, windows: Mapping[str, Array]) -> dict[str, float]:
    """In each window of a piece's runs, transfers go on beside the code.

    Those of different levels do not overlap: a Zen 5 that loads a line and stores another takes 3.5
    cycles where both are in the second cache, 4.7 where one is in the last, and 5.2 where both are.
    What is written back has a path of its own: reading, writing and copying in the second cache
    come to 48 bytes a cycle each, 25 to 31 in the last. Where code keeps the load ports busy,
    prefetching does not hide all of what comes from beyond the second cache; half of it is taken
    to be waited for.
    """
    count = max(1, *(len(each) for each in windows.values()))
    code = piece.cycles / count
    moving = np.sum(list(windows.values()), axis=0)
    is_late = moving > code
    late = {name: float(each[is_late].sum()) for name, each in windows.items()}
    cycles = late | {piece.limit: code * (count - float(is_late.sum()))}
    if piece.limit == "loads":
        for name in _BEYOND:
            if name in windows:
                hidden = windows[name][~is_late].sum()
                cycles[name] += float(hidden) * _EXPOSED
    return cycles


def _apart(
    piece: PieceTime, transfers: Mapping[str, float], bursts: Array, machine: Machine
) -> dict[str, float]:
    """The first cache either loads or is filled.

    What comes from beyond the second cache comes there beside that, but not faster than it can: in
    windows in which more comes than fits beside the code, the rest is waited for."""
    (near, filling), *far = transfers.items()
    waits = {"loads": _retried_loads(piece, machine), near: filling}
    if sum(waits.values()) <= piece.cycles:
        waits = {piece.limit: piece.cycles}
    beside = sum(waits.values()) / max(1, len(bursts))
    beyond = float(np.maximum(bursts - beside, 0).sum())
    every = sum(cycles for _, cycles in far)
    return waits | {name: beyond * cycles / every for name, cycles in far if every}


def _least_cycles(
    pieces: Sequence[PieceTime],
    moved: Mapping[str, Moved],
    tensors: int,
    machine: Machine,
) -> float:
    """What the machine asks for the arithmetic, and for moving each tensor once, level by level.

    Transforms, as of Winograd's algorithm, add more than they multiply: where additions have no
    units of their own, they take their share of the multiply-adds'."""
    fmas = sum(piece.counts.fmas for piece in pieces)
    others = sum(piece.counts.arithmetic for piece in pieces)
    least = max(fmas / machine.vector_fmas, (fmas + others) / machine.vector_operations)
    parts = list(moved.values())
    fetched = [amounts for part in parts for amounts in (part.waited, part.posted, part.stored)]
    levels = _levels(machine)
    crossing = [sum(amounts[number] for amounts in fetched) for number in range(len(levels))]
    if not machine.fills_beside_loads:  # lines are written to the second cache on the same path
        crossing[0] += sum(part.evicted[0] for part in parts)
    crossing = [min(amount, tensors) for amount in crossing]
    transfers = 0.0
    for (_, rate), amount, beyond in zip(levels, crossing, [*crossing[1:], 0], strict=True):
        transfers += max(0, amount - beyond) / rate
    return max(least, transfers)


def _levels(machine: Machine) -> list[tuple[str, float]]:
    """What is below each cache, and bytes per cycle from there."""
    rates = [cache.bytes_per_cycle for cache in machine.caches[1:]]
    names = [f"L{level + 2}" for level in range(len(rates))]
    return list(zip([*names, "memory"], [*rates, machine.memory_bytes_per_cycle], strict=True))


def _assembly(text: str, target: Target) -> str:
    """Optimised LLVM text as assembly that names blocks and loops."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        target.baseline, target.feature_text, 3, reloc="pic", codemodel="small"
    )
    machine.set_asm_verbosity(True)
    return str(machine.emit_assembly(llvm.parse_assembly(text)))


def report(model: str, target: Target, predictions: Sequence[Prediction]) -> Iterator[str]:
    """A table of the kernels, and findings."""
    machine = target.machine
    total = sum(prediction.seconds for prediction in predictions)
    flops = sum(prediction.flops for prediction in predictions)
    yield (
        f"{model} on {machine.summary}, one core, peak {machine.peak_flops / 1e9:.0f} GFLOP/s:"
        f" {total * 1e3:.2f} ms, {flops / total / 1e9:.0f} GFLOP/s"
    )
    header = ["kernel", "calls", "ms", "GFLOP/s", "of peak", "of bound", "bound"]
    measured = any(prediction.measured is not None for prediction in predictions)
    rows = []
    for prediction in predictions:
        rate = prediction.flops / prediction.seconds
        row = [
            prediction.label[-LONGEST_LABEL:],
            str(prediction.calls),
            f"{prediction.seconds * 1e3:.3f}",
            f"{rate / 1e9:.0f}",
            f"{rate / machine.peak_flops:.0%}",
            f"{prediction.of_bound:.0%}",
            prediction.bound,
        ]
        if measured:
            row += _beside(prediction)
        rows.append(row)
    if measured:
        header += ["measured ms", "predicted/measured"]
    yield from lines_of(table(rows, header, right=range(1, 6)))
    if measured:
        yield _agreement(predictions)
    yield from _findings(predictions, total)


def _beside(one: Prediction) -> list[str]:
    if not one.measured:
        return ["", ""]
    return [f"{one.measured * 1e3:.3f}", f"{one.seconds / one.measured:.2f}"]


def _agreement(predictions: Sequence[Prediction]) -> str:
    ratios = [one.seconds / one.measured for one in predictions if one.measured]
    near = sum(map(_is_near, ratios))
    long = [one.seconds / one.measured for one in predictions if (one.measured or 0) > SHORT]
    whole = sum(one.seconds for one in predictions) / sum(one.measured or 0 for one in predictions)
    middle = math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
    return (
        f"within 20 % of measured: {near} of {len(ratios)} kernels, {sum(map(_is_near, long))} of"
        f" the {len(long)} above {SHORT * 1e6:.0f} µs; predicted/measured of all together"
        f" {whole:.2f}, geometric mean {middle:.2f}"
    )


def _is_near(ratio: float) -> bool:
    return 1 / 1.2 <= ratio <= 1.2


def _findings(predictions: Sequence[Prediction], total: float) -> Iterator[str]:
    slow = [
        one for one in predictions if one.of_bound < FINDING and one.seconds > NEGLIGIBLE * total
    ]
    yield ""
    yield f"findings: {len(slow)} kernels below {FINDING:.0%} of what the machine allows"
    for one in slow:
        lost = one.seconds * (1 - one.of_bound)
        yield (
            f"  {one.label[-LONGEST_LABEL:]}: {one.of_bound:.0%}, bound by {one.bound},"
            f" {lost / total:.1%} of the model's time to be had"
            + (f", {one.spills} spills in the hottest loop" if one.spills else "")
        )


def _plain(one: Prediction) -> dict[str, object]:
    return {
        "kernel": one.label,
        "calls": one.calls,
        "flops": one.flops,
        "seconds": one.seconds,
        "cycles": dict(one.cycles),
        "bound": one.bound,
        "of_bound": one.of_bound,
        "spills": one.spills,
        "measured": one.measured,
    }
