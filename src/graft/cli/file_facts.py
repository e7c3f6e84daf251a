"""What a `.graft` file tells of itself: a path in; a summary (`graft inspect`) and who runs what in
which memory (`graft explain`) out. Nothing of it is run, so files for other machines are read, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graft.base.dims import Dim
from graft.base.errors import UserError
from graft.cli.report import (
    Block,
    Indented,
    counted,
    dim_text,
    number,
    section,
    size_text,
    table,
)
from graft.cli.runnable import type_of
from graft.cli.usage import UsageError
from graft.runtime.artifact import SUFFIX, Artifact, examine
from graft.runtime.container import ArtifactError
from graft.runtime.evaluated import evaluator_runtime
from graft.runtime.flow import Kind
from graft.runtime.flow_program import FlowProgram
from graft.runtime.grafted import (
    MissingRuntime,
    StoredRegion,
    missing_runtimes,
    stored_regions,
)
from graft.runtime.placement import StoredPlacement
from graft.runtime.program import Program, TensorSpec
from graft.runtime.shaped import ShapedProgram
from graft.runtime.specialized import (
    AnyProgram,
    SpecializedProgram,
    evaluated_steps,
    output_names,
)

_MOST_LISTED = 20  # nodes, regions or programs of a kind


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse options that are about compiling; those given are true, by name."""
    for name, is_given in options.items():
        if is_given:
            raise UsageError(f"{name} is for models, and a {SUFFIX} file is compiled already")


@dataclass(frozen=True, slots=True)
class Memory:
    """What one native program works in, in bytes; sizes that depend on the inputs are text."""

    name: str
    steps: int
    arena: int | str  # that its values share
    scratch: int | str  # per thread
    constants: int
    devices: int


@dataclass(frozen=True, eq=False)
class FileFacts:
    """A file in facts; `problem` is why it cannot run here, empty where it can."""

    path: Path
    artifact: Artifact
    problem: str
    placement: StoredPlacement
    regions: Mapping[str, Sequence[StoredRegion]]  # by variant
    missing: Sequence[MissingRuntime]

    @classmethod
    def of(cls, path: Path) -> FileFacts:
        artifact, problem = examine(path)
        if artifact.operators and not problem:
            try:
                evaluator_runtime(artifact.operators, artifact.origin.graft)
            except ArtifactError as error:
                problem = error.message.removeprefix("this file ")
        regions = {name: own for name, (_, own) in stored_regions(artifact.blobs).items()}
        missing = missing_runtimes(artifact.blobs)
        needed = [one for one in missing if one.fallback == "error"]
        if needed and not problem:
            problem = f"needs {_lacking(needed)}"
        placement = StoredPlacement.from_blobs(artifact.blobs)
        return cls(path, artifact, problem, placement, regions, missing)

    @property
    def parts(self) -> dict[str, AnyProgram]:
        """The general program, by an empty name, and its variants."""
        program = self.artifact.program
        if not isinstance(program, SpecializedProgram):
            return {"": program}
        variants = {program.name(key): one for key, one in program.variants.items()}
        return {"": program.general, **variants}

    @property
    def arguments(self) -> dict[str, list[tuple[str, str]]]:
        """Names and types of inputs and outputs."""
        general = self.parts[""]
        outputs: list[TensorSpec | Kind] = []
        outputs += general.outputs if isinstance(general, FlowProgram) else general.results
        types = (str(type_of(spec)) for spec in outputs)
        return {
            "inputs": [(spec.name, str(type_of(spec))) for spec in general.inputs],
            "outputs": list(zip(output_names(general), types, strict=True)),
        }

    @property
    def memory(self) -> list[Memory]:
        """One entry per native program."""
        found: list[Memory] = []
        for variant, part in self.parts.items():
            own = part.programs if isinstance(part, FlowProgram) else (part,)
            found += [_memory(f"{variant} {n}".strip(), one) for n, one in enumerate(own)]
        return found

    @property
    def constants(self) -> list[int]:
        """Bytes of each constant of native code; those of several programs once."""
        arrays = (array for part in self.parts.values() for array in _constants(part))
        return [array.nbytes for array in {id(array): array for array in arrays}.values()]

    @property
    def evaluated(self) -> list[tuple[str, str]]:
        """The steps of the reference evaluator: operator and, where known, the node."""
        return [
            (step.label.removesuffix(" (reference)"), step.place.node)
            for step, _ in evaluated_steps(self.artifact.program)
        ]

    def to_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        artifact = self.artifact
        named = {
            kind: [{"name": name, "type": type_} for name, type_ in own]
            for kind, own in self.arguments.items()
        }
        return {
            "file": str(self.path),
            "file_bytes": len(artifact.image),
            "format": artifact.format,
            "graft": artifact.origin.graft,
            "backends": dict(artifact.origin.backends),
            "target": asdict(artifact.program.target),
            "runs_here": not self.problem,
            "problem": self.problem or None,
            "missing": [asdict(one) for one in self.missing],
            "threads": artifact.program.threads,
            **named,
            "variants": [name for name in self.parts if name],
            "placement": dict(self.placement.facts),
            "evaluator": {
                "operators": list(artifact.operators),
                "nodes": [{"operator": op, "node": node} for op, node in self.evaluated],
            },
            "regions": [
                {"variant": variant, **asdict(region)}
                for variant, own in self.regions.items()
                for region in own
            ],
            "memory": [asdict(one) for one in self.memory],
        }


def _constants(part: AnyProgram) -> Iterator[Any]:
    programs = part.programs if isinstance(part, FlowProgram) else (part,)
    for program in programs:
        yield from program.constants
    if isinstance(part, FlowProgram):
        yield from (array for _, array in part.flow.constants)


def _memory(name: str, program: Program | ShapedProgram) -> Memory:
    constants = sum(array.nbytes for array in program.constants)
    steps = len(program.steps)
    if isinstance(program, ShapedProgram):
        arena = " + ".join(_shelf(sizes) for sizes in program.shelves)
        scratch = _shelf(program.scratch) if program.scratch else 0
        return Memory(name, steps, arena or 0, scratch, constants, 0)
    devices = sum(one.dtype.numpy.itemsize * math.prod(one.shape) for one in program.remotes)
    return Memory(name, steps, program.arena_bytes, program.scratch_bytes, constants, devices)


def _shelf(sizes: Sequence[Dim]) -> str:
    """The largest of some sizes, which follow from the inputs'."""
    texts = list(dict.fromkeys(dim_text(size) for size in sizes))
    return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"


def summary_lines(facts: FileFacts) -> Iterator[Block]:
    """What `graft inspect` prints."""
    artifact = facts.artifact
    target = artifact.program.target
    backends = (f"{name} {version}" for name, version in artifact.origin.backends.items())
    constants = facts.constants
    yield str(facts.path)
    rows = [
        ("file size", size_text(len(artifact.image))),
        ("format", f"{artifact.format}, written by Graft {artifact.origin.graft}"),
        ("backends", ", ".join(backends)),
        ("machine", target.triple or "any: nothing in it is native"),
        ("processor", ", ".join(target.features) or "no features beyond the architecture's"),
        ("threads", str(artifact.program.threads or "one per core")),
        ("constants", f"{number(len(constants))} ({size_text(sum(constants))})"),
        ("placement", str(facts.placement) or "not told"),
    ]
    variants = [name for name in facts.parts if name]
    rows += [("variants", ", ".join(variants))] if variants else []
    yield from map(Indented, table(rows))
    for kind, own in facts.arguments.items():
        yield from section(kind.capitalize(), table(own) or ["none"])
    yield from _evaluator_lines(facts)
    yield from ("", _outcome(facts))


def _outcome(facts: FileFacts) -> str:
    """Whether the file can run here, and without which backends."""
    if facts.problem:
        return f"It cannot run here: it {facts.problem}"
    if not facts.missing:
        return "It can run here"
    count = sum(one.regions for one in facts.missing)
    whose = f"{counted(count, 'region')} that the host runs instead"
    return f"It can run here, with {whose}: it lacks {_lacking(facts.missing)}"


def _lacking(missing: Sequence[MissingRuntime]) -> str:
    return "; ".join(f"{one.backend} {one.version} ({one.reason})" for one in missing)


def _evaluator_lines(facts: FileFacts) -> Iterator[Block]:
    operators = facts.artifact.operators
    if not operators:
        return
    needs = f"loading it needs Graft {facts.artifact.origin.graft} with {', '.join(operators)}"
    rows = [(operator, node) for operator, node in facts.evaluated]
    title = f"On the reference evaluator: {counted(len(rows), 'step')}"
    yield from section(title, [*_listed(table(rows[:_MOST_LISTED]), len(rows)), needs])


def placement_lines(facts: FileFacts) -> Iterator[Block]:
    """What `graft explain` prints."""
    told = facts.placement.facts
    yield str(facts.path)
    yield f"  {facts.placement or 'the file does not tell who runs what'}"
    regions = list(_region_rows(facts))
    if regions:
        header = ("region", "backend", "nodes", "MACs", "if it fails")
        listed = table(regions[:_MOST_LISTED], header, right=(2, 3))
        yield from section("Regions", _listed(listed, len(regions)))
    demotions = [
        f"{one['backend']}, {', '.join(one['nodes'])}: {one['reason']}"
        for one in told.get("demotions", ())
    ]
    if demotions:
        yield from section("Given back to the host", demotions)
    reasons = told.get("reference", {})
    if reasons:
        pairs = [*reasons.items()][:_MOST_LISTED]
        yield from section("On the reference evaluator", _listed(table(pairs), len(reasons)))
    yield from section("Memory", _memory_lines(facts.memory))


def _region_rows(facts: FileFacts) -> Iterator[tuple[str, ...]]:
    stored = {(v, one.label): one for v, own in facts.regions.items() for one in own}
    for variant, told in {"": facts.placement.facts, **_variants(facts)}.items():
        for region in told.get("regions", ()):
            kept = stored.get((variant, region["label"]))
            backend = region["backend"] if kept is None else f"{kept.backend} {kept.version}"
            fallback = "the host runs it" if kept is not None and kept.host else "an error"
            label = f"{variant} {region['label']}".strip()
            yield label, backend, number(len(region["nodes"])), number(region["macs"]), fallback


def _variants(facts: FileFacts) -> Mapping[str, Any]:
    found: Mapping[str, Any] = facts.placement.facts.get("variants", {})
    return found


def _memory_lines(memory: Sequence[Memory]) -> list[Block]:
    if not memory:
        return ["none: nothing is native"]
    header = ("program", "steps", "constants", "on devices", "scratch per thread", "arena")
    rows = [
        (
            one.name,
            number(one.steps),
            *map(_size, (one.constants, one.devices, one.scratch, one.arena)),
        )
        for one in memory[:_MOST_LISTED]
    ]
    return _listed(table(rows, header, right=(1, 2, 3)), len(memory))


def _size(size: int | str) -> str:
    return f"{size} B" if isinstance(size, str) else size_text(size)


def _listed(lines: list[Block], count: int) -> list[Block]:
    left = count - _MOST_LISTED
    return [*lines, f"and {number(left)} more"] if left > 0 else lines


def node_line(facts: FileFacts, name: str) -> str:
    """Who runs the node that makes a value."""
    for variant, told in {"": facts.placement.facts, **_variants(facts)}.items():
        where = f" ({variant})" if variant else ""
        for region in told.get("regions", ()):
            if name in region["nodes"]:
                return f"{name}: {region['backend']}, in {region['label']}{where}"
        if name in told.get("reference", {}):
            return f"{name}: the reference evaluator{where}: {told['reference'][name]}"
    raise UserError(
        f"no other backend than the host is told to make '{name}'",
        hint="the host's own nodes have no names in a file",
    )
