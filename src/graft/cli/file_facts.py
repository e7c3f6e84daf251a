"""Contents of a `.graft` file, for `graft inspect` (summary) and `graft explain` (placement and
memory). Files are not run, so those for other machines can be read, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graft.base.dims import Dim
from graft.base.errors import UserError
from graft.base.quantities import counted, number, size_text
from graft.cli.report import Block, Indented, dim_text, rows_text, section, table
from graft.cli.runnable import type_of
from graft.program import instructions as p
from graft.program.program import Program, arena_bytes, segment_arena
from graft.program.variants import variant_blocks
from graft.program.verify import nbytes_of
from graft.runtime.artifact import Artifact, examine
from graft.runtime.container import ArtifactError
from graft.runtime.evaluated import evaluator_runtime
from graft.runtime.grafted import MissingRuntime, StoredRegion, missing_runtimes, stored_regions
from graft.runtime.placement import StoredPlacement

_MOST_LISTED = 20  # nodes, regions or programs of a kind


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one segment in bytes, or of a whole static program; sizes that depend on the
    inputs are text."""

    name: str
    steps: int
    arena: int | str  # that its values share
    scratch: int | str  # per thread
    constants: int
    devices: int


@dataclass(frozen=True, eq=False)
class FileFacts:
    """Facts about a file; `problem` is why it cannot run here, empty if it can."""

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
        required = [one for one in missing if one.fallback == "error"]
        if required and not problem:
            problem = f"needs {_lacking(required)}"
        placement = StoredPlacement.from_blobs(artifact.blobs)
        return cls(path, artifact, problem, placement, regions, missing)

    @property
    def program(self) -> Program:
        """The program of the file."""
        return self.artifact.program

    @property
    def variants(self) -> list[str]:
        """The names of variants."""
        return [name for name in variant_blocks(self.program) if name]

    @property
    def arguments(self) -> dict[str, list[tuple[str, str]]]:
        """Names and types of inputs and outputs."""
        program = self.program
        outputs = zip(program.output_names, program.outputs, strict=True)
        return {
            "inputs": [(value.name, str(type_of(value))) for value in program.inputs],
            "outputs": [(name, str(type_of(value))) for name, value in outputs],
        }

    @property
    def memory(self) -> list[Memory]:
        """One entry per segment; one entry for all segments of a variant that share memory."""
        result: list[Memory] = []
        for variant, block in variant_blocks(self.program).items():
            segments = [one for one in p.walk(block) if isinstance(one, p.Segment)]
            devices = _device_bytes(block, self.program)
            if any(_shares(segment) for segment in segments):
                result.append(_shared_memory(variant or "0", devices, segments, self.program))
                segments = [one for one in segments if not _shares(one)]
                devices = 0
            for position, segment in enumerate(segments, start=len(result)):
                result.append(_memory(f"{variant} {position}".strip(), segment, self.program))
            if devices:
                name = f"{variant} between segments".strip()
                result.append(Memory(name, 0, 0, 0, 0, devices))
        return result

    @property
    def constants(self) -> list[int]:
        """Bytes of each constant."""
        arrays = {id(array): array for _, array in self.program.constants}
        return [array.nbytes for array in arrays.values()]

    @property
    def evaluated(self) -> list[tuple[str, str]]:
        """The steps of the reference evaluator: operator and, if known, the node."""
        return [
            (step.label.removesuffix(" (reference)"), step.location.node)
            for step in self.program.evaluated
        ]

    def to_json(self) -> dict[str, Any]:
        """All facts as JSON."""
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
            "variants": self.variants,
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


def _shares(segment: p.Segment) -> bool:
    """Whether a segment works in memory that it shares with others."""
    buffers = (buffer for call in segment.calls for buffer in call.buffers)
    return any(isinstance(one, p.Slot) and not one.pool for one in buffers)


def _memory(name: str, segment: p.Segment, program: Program) -> Memory:
    arena = segment_arena(segment)
    text = " + ".join(_pool(sizes) for sizes in segment.pools)
    scratch = _sole(segment.scratch)
    own = _constants([segment], program)
    return Memory(name, len(segment.calls), text if arena is None else arena, scratch, own, 0)


def _device_bytes(block: p.Block, program: Program) -> int:
    """Bytes of the values in the memory of devices."""
    numbers = {number for one in p.walk(block) for number in p.writes(one)}
    values = [program.values[number] for number in numbers]
    return sum(nbytes_of(value) for value in values if value.space)


def _shared_memory(
    name: str, devices: int, segments: Sequence[p.Segment], program: Program
) -> Memory:
    """The memory of segments between which other backends run."""
    return Memory(
        name,
        sum(len(segment.calls) for segment in segments),
        arena_bytes(program) or 0,
        _sole(tuple(size for segment in segments for size in segment.scratch)),
        _constants(segments, program),
        devices,
    )


def _constants(segments: Sequence[p.Segment], program: Program) -> int:
    """Bytes of the constants that kernels read."""
    constant_arrays = dict(program.constants)
    read = {
        buffer
        for segment in segments
        for call in segment.calls
        for buffer in call.buffers
        if isinstance(buffer, int) and buffer in constant_arrays
    }
    return sum(constant_arrays[number].nbytes for number in read)


def _sole(sizes: Sequence[Dim]) -> int | str:
    numbers = [size for size in sizes if isinstance(size, int)]
    return max(numbers, default=0) if len(numbers) == len(sizes) else _pool(sizes)


def _pool(sizes: Sequence[Dim]) -> str:
    """The largest of some sizes, as an expression."""
    texts = list(dict.fromkeys(dim_text(size) for size in sizes))
    return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"


def summary_lines(facts: FileFacts) -> Iterator[Block]:
    """The report of `graft inspect`."""
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
    rows += [("variants", ", ".join(facts.variants))] if facts.variants else []
    yield from map(Indented, table(rows))
    for kind, own in facts.arguments.items():
        yield from section(kind.capitalize(), table(own) or ["none"])
    yield from _evaluator_lines(facts)
    yield from ("", _outcome(facts))


def _outcome(facts: FileFacts) -> str:
    """Whether the file can run here, and which backends are missing."""
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
    """The report of `graft explain`."""
    placement_facts = facts.placement.facts
    yield str(facts.path)
    yield f"  {facts.placement or 'the file contains no placement'}"
    regions = list(_region_rows(facts))
    if regions:
        header = ("region", "backend", "nodes", "MACs", "if it fails")
        listed = table(regions[:_MOST_LISTED], header, right=(2, 3))
        yield from section("Regions", _listed(listed, len(regions)))
    demotions = [
        f"{one['backend']}, {', '.join(one['nodes'])}: {one['reason']}"
        for one in placement_facts.get("demotions", ())
    ]
    if demotions:
        yield from section("Given back to the host", demotions)
    reasons = placement_facts.get("reference", {})
    if reasons:
        pairs = [*reasons.items()][:_MOST_LISTED]
        yield from section("On the reference evaluator", _listed(table(pairs), len(reasons)))
    yield from section("Memory", _memory_lines(facts.memory))


def _region_rows(facts: FileFacts) -> Iterator[tuple[str, ...]]:
    stored = {(v, one.label): one for v, own in facts.regions.items() for one in own}
    for variant, placement_facts in {"": facts.placement.facts, **_variants(facts)}.items():
        for region in placement_facts.get("regions", ()):
            file_region = stored.get((variant, region["label"]))
            backend = (
                region["backend"]
                if file_region is None
                else f"{file_region.backend} {file_region.version}"
            )
            fallback = (
                "the host runs it" if file_region is not None and file_region.host else "an error"
            )
            label = f"{variant} {region['label']}".strip()
            label += f" in {region['body']}" if region.get("body") else ""
            label += f" {rows_text(region['rows'])}" if region.get("rows") else ""
            yield label, backend, number(len(region["nodes"])), number(region["macs"]), fallback


def _variants(facts: FileFacts) -> Mapping[str, Any]:
    result: Mapping[str, Any] = facts.placement.facts.get("variants", {})
    return result


def _memory_lines(memory: Sequence[Memory]) -> list[Block]:
    if not memory:
        return ["none: nothing is native"]
    header = ("segment", "kernels", "constants", "on devices", "scratch per thread", "arena")
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
    """The backend of the node that computes a value."""
    for variant, placement_facts in {"": facts.placement.facts, **_variants(facts)}.items():
        where = f" ({variant})" if variant else ""
        for region in placement_facts.get("regions", ()):
            if name in region["nodes"]:
                return f"{name}: {region['backend']}, in {region['label']}{where}"
        if name in placement_facts.get("reference", {}):
            return f"{name}: the reference evaluator{where}: {placement_facts['reference'][name]}"
    raise UserError(
        f"no other backend than the host is told to make '{name}'",
        hint="the host's own nodes have no names in a file",
    )
