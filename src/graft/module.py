"""What `graft.compile` returns: a model that runs, and the answer to what runs where.

The interface is the one that users of ONNX Runtime have in their fingers.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from graft.base.dtypes import Array, dtype_of
from graft.base.errors import ReferenceWarning, UnsupportedError, UserError
from graft.base.names import printable
from graft.byoc.attachments import Attachments
from graft.byoc.candidates import placeable
from graft.byoc.contract import HOME, REFERENCE
from graft.byoc.executable import Executable
from graft.byoc.plan import Plan
from graft.byoc.sizes import node_work
from graft.byoc.trust import Demotion
from graft.ir.evaluate import Data
from graft.ir.graph import Graph, Value
from graft.ir.types import OptionalType, TensorType, Type, onnx_type
from graft.runtime.dispatch import Binding, Dispatcher, bind
from graft.runtime.flow_session import deliver_home
from graft.runtime.incidents import Incidents
from graft.runtime.loaded import restore
from graft.runtime.placement import BLOB, PlacedRegion, StoredPlacement
from graft.runtime.regions import Region, incidents_of
from graft.runtime.session import (
    as_array,
    check_homes,
    chosen,
    dispatched,
    extent_name,
    refuse_names,
    require_feeds,
)
from graft.stages import Linked


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output: name, shape (symbolic extents as strings) and type in ONNX's words."""

    name: str
    shape: list[int | str | None] | None
    type: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Which backend runs how many nodes, in which regions, and why some run on the reference
    evaluator. `python` are the host's nodes that are no machine code (strings are looked up, rows
    packed into maps). `plan` is what was chosen, `demotions` what did not hold."""

    nodes: Mapping[str, int]
    reasons: Mapping[str, str] = field(default_factory=dict)
    regions: tuple[PlacedRegion, ...] = ()
    macs: int = 0
    plan: Plan | None = None
    demotions: tuple[Demotion, ...] = ()
    simulated: tuple[str, ...] = ()  # backends whose times are a model's
    variants: Mapping[str, Placement] = field(default_factory=dict)  # those for some sizes, by name
    python: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, linked: Linked) -> Placement:
        """Of a graph that has been compiled."""
        left, python = linked.executable.reference_nodes, linked.executable.python_nodes
        if linked.offloaded is None:
            total = sum(1 for _ in linked.graph.walk())
            counts = {HOME: total - len(left), REFERENCE: len(left)}
            return cls(_counted(counts), left, python=python)
        macs = {node: node_work(node).macs for node in placeable(linked.graph)}
        placed = tuple(
            PlacedRegion(
                item.label,
                item.backend.name,
                tuple(node.output.name for node in item.nodes),
                sum(macs[node] for node in item.nodes),
            )
            for item in linked.compiled
        )
        evaluated = sum(node.output.name in left for node in macs)
        counts = {HOME: len(macs) - evaluated - sum(len(region.nodes) for region in placed)}
        for region in placed:
            counts[region.backend] = counts.get(region.backend, 0) + len(region.nodes)
        return cls(
            _counted({**counts, REFERENCE: evaluated}),
            left,
            placed,
            sum(macs.values()),
            linked.plan,
            linked.demotions,
            tuple({item.backend.name for item in linked.compiled if item.backend.simulated}),
            python=python,
        )

    def __str__(self) -> str:
        """One line; variants that are placed alike are told together."""
        names: dict[str, list[str]] = {}
        for name, variant in self.variants.items():
            names.setdefault(str(variant), []).append(name)
        alike = (f"{' or '.join(own)}: {text}" for text, own in names.items())
        return printable(" | ".join([self._line(), *alike]))

    def _line(self) -> str:
        total = sum(self.nodes.values())
        parts = [self._of(backend, count, total) for backend, count in self.nodes.items()]
        if self.python:
            parts[0] += f" ({len(self.python)} in Python)"
        plan = self.plan
        if plan is not None and plan.predicted:
            label = " (simulated)" if self.simulated else ""
            parts.append(f"predicted {_seconds(plan.predicted)}{label}")
            alone = plan.alternatives.get("host-only")
            if alone is not None and plan.method != "host-only":
                parts[-1] += f", host-only {_seconds(alone)}"
            if plan.method in plan.measured:
                parts[-1] += f"; measured {_seconds(plan.measured[plan.method])}"
        return "; ".join(parts)

    def _of(self, backend: str, count: int, total: int) -> str:
        own = [region for region in self.regions if region.backend == backend]
        if not own:
            return f"{backend}: {count} nodes"
        share = sum(region.macs for region in own) / max(self.macs, 1)
        regions = f"{len(own)} region{'s' if len(own) > 1 else ''}"
        name = f"{backend} (simulated)" if backend in self.simulated else backend
        return f"{name}: {count} of {total} nodes, {share:.1%} of MACs, {regions}"

    def to_json(self) -> str:
        """All of it, for machines."""
        return json.dumps(self._facts())

    def stored(self) -> StoredPlacement:
        """As a file holds it."""
        return StoredPlacement(str(self), self._facts())

    def _facts(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "nodes": dict(self.nodes),
            "reference": dict(self.reasons),
            "python": dict(self.python),
            "regions": [asdict(region) for region in self.regions],
            "demotions": [asdict(demotion) for demotion in self.demotions],
            "predicted_seconds": plan.predicted if plan else None,
            "alternatives": dict(plan.alternatives) if plan else {},
            "variants": {name: variant._facts() for name, variant in self.variants.items()},
        }


def _counted(nodes: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in nodes.items() if count}


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


@dataclass(frozen=True, slots=True)
class Signature:
    """What callers know of a model. The graph itself holds all weights, which the program has in
    a form of its own: a module that kept both would need twice the memory."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...]
    input_symbols: frozenset[str]

    @classmethod
    def of(cls, graph: Graph) -> Signature:
        return cls(graph.inputs, graph.outputs, graph.output_names, graph.input_symbols)


@dataclass(frozen=True)
class Module:
    """A compiled model. It can be pickled; what `bind` gives cannot, since it is about arrays of
    this process."""

    signature: Signature
    placement: Placement
    program: Executable
    regions: Mapping[str, Region] = field(default_factory=dict)
    attachments: Attachments | None = None  # what a file holds of the regions

    @property
    def incidents(self) -> Incidents:
        """What failed on accelerators while the model ran, and was run on the host instead: the
        latest, and how many there were in all (`total`)."""
        return incidents_of(self.regions)

    def get_inputs(self) -> list[Argument]:
        """The inputs in order."""
        return [_argument(value.name, value.type) for value in self.signature.inputs]

    def get_outputs(self) -> list[Argument]:
        """The outputs in order."""
        pairs = zip(self.signature.output_names, self.signature.outputs, strict=True)
        return [_argument(name, value.type) for name, value in pairs]

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        outputs: Mapping[str, Array] | None = None,
    ) -> list[Data]:
        """Run on named inputs; gives the named outputs, or all of them for None.

        Inputs are arrays, or whatever speaks the buffer protocol or DLPack. `outputs` may hold
        arrays to write results into; other results are fresh arrays.
        """
        wanted = None if output_names is None else chosen(output_names, self.signature.output_names)
        results: list[Data] | None = None
        if not outputs and self._dispatcher is not None:
            results = dispatched(self._dispatcher, feeds)
        if results is None:
            inputs = self._ordered(feeds)
            results = self._delivered(inputs, outputs) if outputs else self.program(inputs)
        return results if wanted is None else [results[position] for position in wanted]

    def bind(self, feeds: Mapping[str, Any], outputs: Mapping[str, Array] | None = None) -> Binding:
        """Bind the model to these very arrays, for loops that use the same ones again and again.

        Each call of what is returned runs the model on what the inputs hold by then and gives all
        results: in `outputs`, or in arrays of its own, the same ones every time. (Where sizes
        depend on data, or not all of the model is native, the latter are fresh arrays.) Wrong
        arrays are refused here, not by the calls. Calls from several threads take turns.
        """
        self._ordered(feeds)
        if outputs:
            self._check_homes(outputs)
        return bind(self.run, self._dispatcher, feeds, outputs)

    def variant(self, feeds: Mapping[str, Any]) -> str:
        """Which of the variants that `shapes=` asked for runs these feeds, as "batch=8"; empty
        where it is the general program."""
        return self.program.variant(self._ordered(feeds))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled model to a `.graft` file, which `graft.load` reads.

        Where nodes run on the reference evaluator, a warning says what loading the file needs."""
        operators = self._write(path)
        if operators:
            count = len(self.program.reference_nodes)
            message = (
                f"of '{path}', {count} {'nodes run' if count != 1 else 'node runs'} on the"
                f" reference evaluator: loading it needs this version of Graft, with the"
                f" operators {', '.join(operators)}"
            )
            warnings.warn(printable(message), ReferenceWarning, stacklevel=2)

    def _write(self, path: str | os.PathLike[str]) -> list[str]:
        placement = {BLOB: self.placement.stored().to_blob()}
        if self.attachments is None:
            return self.program.save(path, placement)
        own = self.attachments
        return self.program.save(path, {**own.blobs(), **placement}, own.versions)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """By the file that `save` writes: what comes back is what `graft.load` gives of it."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "module.graft"
            self._write(path)
            return restore, (path.read_bytes(), {})

    def _delivered(self, inputs: Sequence[Data], homes: Mapping[str, Array]) -> list[Data]:
        """The results, those that have a home written into it."""
        self._check_homes(homes)
        results = self.program(inputs, homes)
        return deliver_home(self.signature.output_names, results, homes)

    def _check_homes(self, homes: Mapping[str, Array]) -> None:
        chosen(homes, self.signature.output_names)
        check_homes(homes)
        for name, value in zip(self.signature.output_names, self.signature.outputs, strict=True):
            if name in homes:
                _check_type("output", name, value.type, homes[name])

    @cached_property
    def _dispatcher(self) -> Dispatcher | None:
        session = self.program.session
        return None if session is None else session.dispatcher

    def _ordered(self, feeds: Mapping[str, Any]) -> list[Data]:
        slots = self._slots
        require_feeds(feeds)
        if feeds.keys() != slots.keys():
            refuse_names(feeds, list(slots))
        return [slot.accept(feeds[name]) for name, slot in slots.items()]

    @cached_property
    def _slots(self) -> dict[str, _Slot]:
        return {value.name: _Slot(value) for value in self.signature.inputs}


class _Slot:
    """How data for one input are taken; mostly they are arrays as the type says."""

    def __init__(self, value: Value) -> None:
        self._value = value
        type_ = value.type
        shape = type_.shape if isinstance(type_, TensorType) else None
        self._dtype = None if shape is None else value.dtype.numpy
        self._rank = len(shape or ())
        numbered = enumerate(shape or ())
        self._fixed = [(axis, dim) for axis, dim in numbered if isinstance(dim, int)]

    def accept(self, data: Any) -> Data:
        """The data as an array, refused where that does not fit."""
        plain = self._dtype is not None and type(data) is np.ndarray
        if plain and data.dtype == self._dtype and data.ndim == self._rank:
            shape = data.shape
            if all(shape[axis] == dim for axis, dim in self._fixed):
                return data
        return _fed(self._value, data)


def _fed(value: Value, data: Any) -> Data:
    """The data for an input, refused where its type does not fit."""
    type_ = value.type
    if isinstance(type_, OptionalType) and data is None:
        return None
    element = type_.element if isinstance(type_, OptionalType) else type_
    if not isinstance(element, TensorType):
        return data
    array = as_array(value.name, data)
    if array.dtype.kind in "US":
        array = array.astype(object)
    _check_type("input", value.name, element, array)
    return array


def _check_type(kind: str, name: str, wanted: Type, array: Array) -> None:
    """Refuse an array that is not of the type, as far as that is known before a run."""
    if not isinstance(wanted, TensorType):
        raise UserError(f"the {kind} '{name}' is a {wanted}, not an array")
    try:
        actual = TensorType(dtype_of(array.dtype), tuple(array.shape))
    except UnsupportedError as error:
        raise UserError(f"the {kind} '{name}' wants {wanted}: {error.message}") from None
    if actual.dtype != wanted.dtype:
        hint = f"convert it with .astype('{wanted.dtype}')" if kind == "input" else ""
        raise UserError(f"the {kind} '{name}' wants {wanted}, not {actual}", hint=hint)
    if not _fits(wanted, actual):
        raise UserError(f"the {kind} '{name}' wants {wanted}, not {actual}")


def _fits(wanted: TensorType, actual: TensorType) -> bool:
    if wanted.shape is None:
        return True
    if actual.shape is None or len(wanted.shape) != len(actual.shape):
        return False
    pairs = zip(wanted.shape, actual.shape, strict=True)
    return all(dim == extent or not isinstance(dim, int) for dim, extent in pairs)


def _argument(name: str, type_: Type) -> Argument:
    shape: list[int | str | None] | None = None
    if isinstance(type_, TensorType) and type_.shape is not None:
        shape = [*map(extent_name, type_.shape)]
    return Argument(name, shape, onnx_type(type_))
