"""`graft compile`: a model in; a `.graft` file, or one stage of the compiler as text, out."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.base.progress import Progress, quietly
from graft.base.quantities import counted, number, size_text, time_text
from graft.byoc.contract import HOST_BACKEND
from graft.byoc.executable import Accuracy, Footprint, Lowering, Settings
from graft.cli.options import (
    UsageError,
    add_accuracy_argument,
    add_machine_argument,
    add_placement_arguments,
    add_strict_import_argument,
    asked,
    check_folders,
    check_placement,
    flag,
    given,
    others_than_host,
    positive,
    refuse_machine_with_accelerator,
)
from graft.cli.placement import check_targets, compiled_as_asked
from graft.cli.report import Block, Indented, pass_line, print_result, table
from graft.cli.terminal import print_note, spoken_warnings, status
from graft.compiler import Model, compile_options
from graft.ir.printer import to_text
from graft.module import Placement
from graft.passes.pipeline import PassReport
from graft.program.program import arena_bytes
from graft.runtime.artifact import SUFFIX
from graft.runtime.regions import Policy
from graft.stages import Imported, Optimized, import_graph, link, lower, optimize, place
from graft.target.target import HOST, known_targets

DESCRIPTION = """\
Compile a model for this machine or another one and save it, or print one stage of
the compiler. The stages, in order:
  graph        as imported, with the ONNX names
  optimized    after the frontend passes
  plan         which backend runs what (with --target)
  partitioned  the graph with a node for each backend's region (with --target)
  fused        after the passes for the machine and grouping what one kernel computes
  loops        the loops of each kernel
  llvm         each kernel as LLVM gets it
  asm          each kernel as assembly
  program      the instructions that run the kernels, and the memory they work in
The machines, with the instruction set that their code requires (all run Linux):
""" + "\n".join(f"  {name:<12} {summary}" for name, summary in known_targets().items())
EXAMPLES = """\
  graft compile model.onnx -o model.graft                  for `graft run`, `graft.load`
  graft compile model.onnx -o model.graft --json           sizes and times for programs
  graft compile model.onnx --emit graph                    the graph as imported
  graft compile model.onnx --emit optimized -v >after.txt  what each pass did, on stderr
  graft compile model.onnx --emit loops --output loops.txt
  graft compile model.onnx -o model.graft --machine aarch64  to be run on a 64-bit Arm
  graft compile model.onnx -o model.graft --shapes batch=1,8   variants for these sizes
  graft compile model.onnx -o model.graft --target onednn,host --save-plan model.plan
  graft compile model.onnx --emit plan --target onednn,host --pin "layer4/*=host"
"""

COMMON_STAGES = ("graph", "optimized")  # the same for every machine
PLACEMENT_STAGES = ("plan", "partitioned")
KERNEL_STAGES = ("loops", "llvm", "asm")
STAGES = (*COMMON_STAGES, *PLACEMENT_STAGES, "fused", *KERNEL_STAGES, "program")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help="the ONNX file")
    parser.add_argument(
        "--emit",
        metavar="STAGE",
        choices=STAGES,
        help=f"the stage to stop at and print: {', '.join(STAGES)}",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help=f"the {SUFFIX} file to save; with --emit, where to write the text",
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=positive,
        help="default number of threads of the file (default: one per core)",
    )
    add_machine_argument(parser, known_targets(), "one of those above")
    add_accuracy_argument(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="report each pass on standard error"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object about the file")
    add_placement_arguments(parser)
    add_strict_import_argument(parser)


def execute(options: argparse.Namespace) -> int:
    _check(options)
    check_targets(options.target or ())
    if options.emit is None:
        saved = _saved(options)
        print_result(options.json, saved.to_json(), saved.lines())
        return 0
    text = _text(options)
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other or leave the result open."""
    check_placement(options)
    check_folders(options.output)
    refuse_machine_with_accelerator(options)
    if options.emit is not None:
        _check_emit(options)
        for name, value in (("json", options.json), ("threads", options.threads is not None)):
            if value:
                raise UsageError(f"{flag(name)} is for saving a {SUFFIX} file, not for --emit")
        for name in ("machine", "accuracy"):
            common = (*COMMON_STAGES, "fused") if name == "accuracy" else COMMON_STAGES
            if getattr(options, name) is not None and options.emit in common:
                raise UsageError(f"--emit {options.emit} prints the same for every --{name}")
        return
    stages = ", ".join(f"--emit {name}" for name in STAGES)
    if options.output is None:
        hint = f"save it with -o FILE{SUFFIX}, or choose one of {stages}"
        raise UsageError("graft compile wants to know what to make of the model", hint=hint)
    if options.output.suffix != SUFFIX:
        raise UsageError(
            f"a compiled model goes to a file whose name ends in {SUFFIX},"
            f" and '{options.output}' does not",
            hint=f"-o FILE{SUFFIX}; for a file of text choose one of {stages}",
        )


def _check_emit(options: argparse.Namespace) -> None:
    """Refuse options on placement that do not apply to the stage."""
    if options.shapes:
        raise UsageError(f"--shapes is for saving a {SUFFIX} file, not for --emit")
    if options.emit not in PLACEMENT_STAGES:
        if given(options):
            stages = " and ".join(f"--emit {name}" for name in PLACEMENT_STAGES)
            raise UsageError(f"{given(options)[0]} is for {stages}, and for saving a {SUFFIX} file")
        return
    if not others_than_host(options):
        hint = "add --target NAME,host; `graft backends` lists the names"
        raise UsageError(f"--emit {options.emit} wants a backend beside the host", hint=hint)
    for name in ("save_plan", "measure", "fallback", "no_check", "verify", "accuracy"):
        if getattr(options, name):
            raise UsageError(f"{flag(name)} is for saving a {SUFFIX} file, not for --emit")
    if options.emit == "plan" and options.plan is not None:
        raise UsageError("--emit plan chooses a plan, and --plan is one already")


def _saved(options: argparse.Namespace) -> SavedFile:
    start = time.perf_counter()
    # With --verbose, passes run here, so that they can be reported.
    with _progress(options):
        imported = _imported(options)
        model = _optimized(imported, options) if options.verbose else imported
    settings = Settings(options.threads, options.machine or HOST, _accuracy(options))
    paths = options.model, options.output
    return save(model, paths, asked(options), settings, options.save_plan, start)


def _progress(options: argparse.Namespace) -> AbstractContextManager[Progress]:
    """A line of progress, unless reports of passes go to the same terminal."""
    return nullcontext(quietly) if options.verbose else status(f"compiling {options.model.name}")


def _text(options: argparse.Namespace) -> str:
    """The text of the requested stage."""
    with _progress(options) as tell:
        imported = _imported(options)
        if options.emit == "graph":
            return str(imported)
        optimized = _optimized(imported, options)
        if options.emit == "optimized":
            return str(optimized)
        if options.emit not in PLACEMENT_STAGES:
            return _lowered(optimized, options, tell)
    with status(f"placing {options.model.name}") as tell:
        wishes = {"pins": options.pin, "plan": options.plan}
        wishes["policy"] = Policy(deadline=options.deadline)
        settings = Settings(report=tell)
        placed = place(
            optimized, compile_options(options.target, settings, options.isolation, **wishes)
        )
    return str(placed) if options.emit == "plan" else to_text(placed.outlined).text


def _lowered(optimized: Optimized, options: argparse.Namespace, tell: Progress) -> str:
    """The text of the fused graph, its kernels, or the program; nodes without a kernel are noted on
    standard error."""
    settings = Settings(None, options.machine or HOST, _accuracy(options), tell)
    compile_request = compile_options(HOST_BACKEND, settings)
    lowered = lower(place(optimized, compile_request), compile_request)
    if options.verbose:
        _print_passes(lowered.lowering.passes)
    if options.emit == "fused":
        return str(lowered)
    if options.emit == "program":
        return str(link(lowered))
    _tell_of_reference(lowered.lowering)
    texts = lowered.lowering.kernels(options.emit)
    return "\n".join(text.rstrip("\n") + "\n" for text in texts)


def _tell_of_reference(lowering: Lowering) -> None:
    left = lowering.reference_nodes
    if left:
        name, reason = next(iter(left.items()))
        steps = counted(len(left), "step")
        print_note("note", f"{steps} on the reference evaluator; the first is %{name}: {reason}")


def _accuracy(options: argparse.Namespace) -> Accuracy:
    return Accuracy.named(options.accuracy or Accuracy.DEFAULT.value)


def _imported(options: argparse.Namespace) -> Imported:
    start = time.perf_counter()
    imported = import_graph(options.model, options.strict_import)
    if options.verbose:
        seconds = time_text(time.perf_counter() - start)
        print(f"import: {len(imported.graph.nodes)} nodes, {seconds}", file=sys.stderr)
    return imported


def _optimized(imported: Imported, options: argparse.Namespace) -> Optimized:
    optimized = optimize(imported)
    if options.verbose:
        _print_passes(optimized.passes)
    return optimized


def _print_passes(reports: Iterable[PassReport]) -> None:
    for report in reports:
        print(pass_line(report), file=sys.stderr)


@dataclass(frozen=True, slots=True)
class SavedFile:
    """Facts about a compiled file."""

    model: Path
    path: Path
    machine: str
    placement: Placement
    size: Footprint
    file_bytes: int
    seconds: float

    def lines(self) -> Iterator[Block]:
        """The facts as text."""
        yield f"{self.model} -> {self.path}"
        arena = "as large as the inputs make it"
        held, bound = self.size.arena_bytes, self.size.arena_bound
        if held is not None and bound is not None:
            arena = f"{size_text(held)} (at least {size_text(bound)} needed)"
        rows = (
            ("machine", self.machine),
            ("placement", str(self.placement)),
            ("kernels", f"{number(self.size.kernels)}, called {counted(self.size.calls, 'time')}"),
            ("file", size_text(self.file_bytes)),
            ("arena", arena),
        )
        yield from map(Indented, table(rows))
        yield f"compiled in {time_text(self.seconds)}"

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON."""
        return {
            "model": str(self.model),
            "file": str(self.path),
            "machine": self.machine,
            "placement": dict(self.placement.nodes),
            "variants": {
                name: dict(variant.nodes) for name, variant in self.placement.variants.items()
            },
            "kernels": self.size.kernels,
            "kernel_calls": self.size.calls,
            "file_bytes": self.file_bytes,
            "arena_bytes": self.size.arena_bytes,
            "arena_bound_bytes": self.size.arena_bound,
            "compile_seconds": self.seconds,
        }


def save(
    model: Model,
    paths: tuple[Path, Path],
    asked: dict[str, Any],
    settings: Settings,
    save_plan: Path | None,
    start: float,
) -> SavedFile:
    """Compile a model and save it; `paths` are the model's and the file's, `asked` are options on
    placement, `start` is when the work began."""
    source, path = paths
    module = compiled_as_asked(
        model,
        f"compiling {source.name}",
        asked,
        save_plan,
        threads=settings.threads,
        machine=settings.machine,
        accuracy=settings.accuracy.value,
    )
    with status(f"saving {path.name}"), spoken_warnings():
        module.save(path)
    seconds = time.perf_counter() - start
    symbols = [call.symbol for call in module.program.calls]
    bound, placement = module.arena_bound, module.placement
    assert isinstance(placement, Placement)
    arena = None if bound is None else arena_bytes(module.program)
    size, file_bytes = Footprint.of(symbols, arena, bound), path.stat().st_size
    return SavedFile(source, path, settings.machine, placement, size, file_bytes, seconds)
