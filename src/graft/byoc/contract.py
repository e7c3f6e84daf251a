"""The contract between the compiler and the authors of backends.

A backend is one class. It says what it can run (`patterns`, `supports`), what that costs (`price`,
`limits`), compiles regions (`process`, `compile`) and runs them (`load`). A region is a pure
function: a closed graph with static meaning, which is compiled, priced, checked against the host
and kept as the fallback, always the same object.

The host is such a class, too. What it does beyond regions (`configured`, `lower`, `specialize`,
`time_groups`) has defaults here, which fit backends that only run regions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any

from graft.base.callbacks import author_code
from graft.base.dtypes import Array, DType
from graft.base.errors import Location, UnsupportedError, UserError
from graft.byoc.executable import Executable, Lowering, Settings
from graft.byoc.region import for_backend
from graft.ir.graph import Graph, Node, Value, closed_graph, make_node
from graft.ir.literal import Literal
from graft.ops.layout import block_of
from graft.quantize.scheme import Scheme
from graft.rewrite.pattern import Formula, Pattern
from graft.rewrite.rule import Refusal
from graft.runtime.loaders import installed_version, load_for
from graft.runtime.regions import HOST_SPACE
from graft.runtime.spaces import Device, Runner, with_transfers

HOST_BACKEND = "host"
REFERENCE = "reference"  # the evaluator's name

_SHOWN = 6  # operators of a region, in messages


class Source(StrEnum):
    """Where a price comes from."""

    MEASURED = "measured"
    DECLARED = "declared"
    ROOFLINE = "roofline"


@dataclass(frozen=True, slots=True)
class Cost:
    """What running something once takes; `spread` is half the width of its interval, `workspace`
    what `Backend.workspace` says. Of a kernel in a run of a whole graph (`Backend.time_groups`) it
    is what all its executions take."""

    seconds: float
    source: Source = Source.DECLARED
    spread: float = 0.0
    workspace: int = 0
    executions: float = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device has and wants, as far as placement is concerned.

    Regions read and write tensors of `space`; bringing one there or back takes `latency` and then
    a second per `bytes_per_second`. Images (tensors of rank 4) cross the border in `layout`, and
    float32 tensors as `dtype`. Operands of float32 may be rounded to `rounding` inside regions, by
    which results are then judged. `computes_in` is what float32 may be computed in should a user
    ask for it, of which `configured` is told. `quantized` are the integers that it multiplies in
    quantised units, the best first, which quantisation writes for it. The constants of all regions,
    which stay there, the values that are there at once and the workspace of a region have to fit
    `memory_bytes`. Peak rates serve as a roofline where nothing is measured or declared.
    """

    space: str = HOST_SPACE
    memory_bytes: int | None = None
    launch_seconds: float = 0.0
    latency: float = 0.0
    bytes_per_second: float = math.inf
    layout: str = "NCHW"
    dtype: DType = DType.FLOAT32  # its name will do
    rounding: DType = DType.FLOAT32
    computes_in: tuple[DType, ...] = (DType.FLOAT32,)
    quantized: tuple[Scheme, ...] = ()
    peak_flops: float | None = None
    peak_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", DType(self.dtype))
        if not self.dtype.is_float:
            raise UserError(
                f"limits.dtype is {self.dtype}, and float32 is cast to nothing but floats",
                hint="integers have scales: match quantised units (byoc/formats/quantized.py)",
            )
        block_of(self.layout)  # refuses what is no layout


@dataclass(frozen=True, eq=False)
class Match:
    """What a pattern of a backend's has matched: the nodes, first to last, and their borders."""

    pattern: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]  # what the nodes read, in order of first use; no constants
    outputs: tuple[Value, ...]  # what others read of what they make
    constants: Mapping[Value, Array]  # by value, of those that the nodes read
    bound: Mapping[str, Value]  # what the pattern's named wildcards stand for
    # What the pattern's wildcards stand for in the order in which they are written (a formula's:
    # that of its parameters), constants included; None in an optional part that is not there.
    operands: tuple[Value | None, ...] = ()

    @property
    def root(self) -> Node:
        """The last node."""
        return self.nodes[-1]

    @property
    def region(self) -> Graph:
        """The match as a region of its own, with the constants that it reads."""
        constants = [
            make_node("constant", (), (value,), value=Literal(array))
            for value, array in self.constants.items()
        ]
        return closed_graph("region", self.inputs, (*constants, *self.nodes), self.outputs)

    def only(self, *names: str) -> Node:
        """The one node of these operators."""
        matching = [node for node in self.nodes if node.op.name in names]
        if len(matching) != 1:
            raise UnsupportedError(f"{self.pattern} has {len(matching)} of {' or '.join(names)}")
        return matching[0]


# What a pattern table holds: a pattern, a formula, or a function that makes one of them.
PatternLike = Pattern | Formula | Callable[..., Pattern]
PatternTable = Sequence[tuple[str, PatternLike]]


class Backend:
    """What to inherit from. `name`, `patterns`, `compile` and `load` are all a backend needs."""

    name: str = ""
    package: str = ""  # the Python package that makes code and has to load it, if there is one
    device: str = "cpu"
    limits: Limits = Limits()
    simulated: bool = False  # prices and profile are a model's, and are labelled so
    priced_by: str = ""  # the tool and clock that declared prices come from, for `explain`
    prices_regions: bool = False  # a region's price is not the sum of its candidates': ask for it
    isolation: str = "none"  # "process": all but patterns and predicates in one of its own
    keeps_deadlines: bool = False  # it answers or raises in time by itself
    has_variants: bool = False  # the target `family:device` is the class on the string "device"
    # The keyword arguments, as JSON has them, by which another process makes an equal backend.
    arguments: Mapping[str, Any] = MappingProxyType({})

    @cached_property
    def version(self) -> str:
        """What code depends on: code of another version is not loaded. Set it, or `package`."""
        return installed_version(self.package) if self.package else "0"

    def missing(self) -> str:
        """What this machine lacks to run the backend, and the remedy; empty where nothing."""
        return ""

    def patterns(self) -> PatternTable:
        """What the backend can run as one region: names and patterns, the largest first."""
        return ()

    def check_patterns(self, names: Sequence[str]) -> None:
        """Raise where the backend contradicts `names`, of all its patterns: those of `patterns` and
        those that were registered for it."""

    def supports(self, match: Match) -> Refusal | None:
        """Why a match is not for this backend after all, or None where it is."""
        return None

    def price(self, region: Graph) -> Cost | None:
        """What a region takes, if the backend knows without running it."""
        return None

    def workspace(self, region: Graph) -> int:
        """Bytes of device memory that a region needs while it runs, beside its constants, operands,
        results and intermediate values, which are counted already."""
        return 0

    def process(self, region: Graph) -> Graph:
        """The backend's own passes over a region before it is compiled.

        Inputs and outputs keep their types. Where they are in a form that `limits` wishes for, the
        region begins and ends with `layout_transform` and `cast` nodes, to be taken out here."""
        return region

    def compile(self, region: Graph) -> bytes:
        """Code for a region, in whatever form `load` reads.

        Names in a region are identifiers of letters, digits and underscores, whatever the model
        calls its values; nodes' source locations can stand in comments."""
        raise NotImplementedError(f"{type(self).__name__} does not compile")

    def code(self, region: Graph) -> bytes:
        """What `compile` makes of a region of a model, once it is fit to be handed over."""
        plain = for_backend(region)
        subject, location = _subject(plain)
        with author_code(f"{self.name}.process", self.process, subject, location):
            processed = self.process(plain)
        with author_code(f"{self.name}.compile", self.compile, subject, location):
            return self.compile(processed)

    def load(self, blob: bytes) -> Runner:
        """Compiled code, ready to run: a function of inputs and of memory for the outputs.

        Arrays are contiguous and in the host's memory. They are the program's own: inputs must not
        be written, and nothing may be kept beyond the call. The function writes the outputs, or
        returns arrays to be copied there.

        A function with an attribute `device` (see `Device`) works in the memory of that instead:
        it gets what the device has allocated, and writes its outputs there. Transfers are then
        steps of the program, and what regions of one `limits.space` hand each other stays.

        A `load` with a parameter `threads` is told how many threads the user allows, None for one
        per core. Calls may come from several threads at once."""
        raise NotImplementedError(f"{type(self).__name__} does not load")

    def loaded(self, blob: bytes, threads: int | None = None) -> Runner:
        """What `load` makes of code; it gets the number of threads if it has a parameter for it."""
        with author_code(f"{self.name}.load", self.load):
            return load_for(self.load, blob, threads)

    def runner(self, region: Graph) -> Runner:
        """A region compiled and loaded in this process, for arrays in the host's memory."""
        return with_transfers(self.loaded(self.code(region)))

    @property
    def options(self) -> Mapping[str, str]:
        """Settings that change what is compiled; part of every cache key and of the artifact."""
        return {}

    def configured(self, settings: Settings) -> Backend:
        """The backend as a user wants it; refuses settings that it cannot keep to."""
        return self

    def lower(self, graph: Graph, regions: Mapping[str, Runner] | None = None) -> Lowering:
        """A whole optimised graph, on its way to an executable program.

        It may have symbolic shapes, sizes that depend on data and nested graphs. `regions` runs
        what is left to other backends: the nodes `region`, by their labels."""
        raise UnsupportedError(f"'{self.name}' runs regions, and builds no programs around them")

    def specialize(
        self,
        general: Executable,
        symbols: Sequence[str],
        variants: Mapping[tuple[int, ...], Executable],
    ) -> Executable:
        """One program of a general one and others for some sizes of the symbols, all of which
        `lower` has made."""
        raise UserError(f"'{self.name}' has no variants for sizes, which shapes= asks for")

    def time_groups(self, graph: Graph, inputs: Sequence[Array]) -> Mapping[str, Cost]:
        """What parts of a graph, bodies included, take within a run of all of it, by the value that
        each makes, with the executions that it had: the prices of whoever builds programs. Empty:
        the roofline has to do."""
        return {}

    @property
    def machine_key(self) -> str:
        """What measured prices depend on besides backend and region: processor and threads."""
        return self.device

    def __repr__(self) -> str:
        return f"<backend {self.name} {self.version}>"


def declared(backend: Backend, region: Graph) -> Cost | None:
    """What a backend's `price` says of a region."""
    with author_code(f"{backend.name}.price", backend.price, *_subject(region)):
        return backend.price(region)


def variant_of(kind: type[Backend], name: str, family: str) -> Backend:
    """The device of that name of a family of devices."""
    if not kind.has_variants:
        raise UserError(f"'{family}' is one backend, so that there is no '{family}:{name}'")
    make: Callable[[str], Backend] = kind
    return make(name)


def _subject(region: Graph) -> tuple[str, Location | None]:
    """A region in words; a single node with where it comes from. Of several none is to blame
    before others."""
    nodes = [node for node in region.nodes if node.op.name != "constant"]
    names = [node.op.name for node in nodes]
    shown = "+".join(names if len(names) <= _SHOWN else [*names[:_SHOWN], "..."])
    if len(nodes) == 1:
        return f"%{nodes[0].output.name} ({shown})", nodes[0].location
    return (f"the region {shown}" if nodes else ""), None


__all__ = [
    "HOST_BACKEND",
    "REFERENCE",
    "Backend",
    "Cost",
    "Device",
    "Limits",
    "Match",
    "PatternLike",
    "PatternTable",
    "Runner",
    "Source",
    "declared",
    "variant_of",
]
