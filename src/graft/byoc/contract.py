"""The contract between the compiler and the authors of backends.

A backend is one class. It declares what it runs (`patterns`, `supports`) and what that costs
(`price`, `limits`), compiles regions (`process`, `compile`) and loads their code (`load`). A region
is a pure function: the same closed graph is compiled, priced, checked against the host and kept as
the fallback.

The host is such a class, too. Its methods beyond regions (`configured`, `lower`, `specialize`,
`time_groups`) have defaults for backends that only run regions.
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
    """The source of a price."""

    MEASURED = "measured"
    DECLARED = "declared"
    ROOFLINE = "roofline"


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of one execution; `spread` is half the width of its confidence interval, `workspace`
    as in `Backend.workspace`. The cost of a kernel in a run of a graph (`Backend.time_groups`) is
    that of all its executions."""

    seconds: float
    source: Source = Source.DECLARED
    spread: float = 0.0
    workspace: int = 0
    executions: float = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Capacities and requirements of a device, as far as placement is concerned.

    Regions read and write tensors of `space`; a transfer takes `latency` plus its bytes divided by
    `bytes_per_second`. Images (tensors of rank 4) cross the border in `layout`, and float32 tensors
    as `dtype`. Float32 operands may be rounded to `rounding` inside regions, and results are
    compared accordingly. `computes_in` are the dtypes in which float32 may be computed if the user
    asks for one, which `configured` is passed. `quantized` are the integer formats of quantised
    units that it multiplies, the best first. Constants of all regions, live values, and the
    workspace of one region have to fit `memory_bytes`. Peak rates are a roofline for prices that
    are neither measured nor declared."""

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
    """A match of a backend's pattern: the nodes, first to last, and their borders."""

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
        """The only node with one of these operators; an error if there is not exactly one."""
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
    prices_regions: bool = False  # `price` whole regions, too: not the sum of candidates
    isolation: str = "none"  # "process": all but patterns and predicates in one of its own
    keeps_deadlines: bool = False  # it answers or raises in time by itself
    has_variants: bool = False  # the target `family:device` is the class on the string "device"
    # The keyword arguments, as JSON has them, by which another process makes an equal backend.
    arguments: Mapping[str, Any] = MappingProxyType({})

    @cached_property
    def version(self) -> str:
        """The version that code depends on: code of another version is not loaded. Set it, or
        `package`."""
        return installed_version(self.package) if self.package else "0"

    def missing(self) -> str:
        """What this machine lacks to run the backend, and the remedy; empty if nothing."""
        return ""

    def patterns(self) -> PatternTable:
        """Names and patterns of what the backend runs as one region, the largest first."""
        return ()

    def check_patterns(self, names: Sequence[str]) -> None:
        """Raise if `names`, of the backend's own and of registered patterns, contradict the
        backend."""

    def supports(self, match: Match) -> Refusal | None:
        """Reject a match with a reason, or accept it (None)."""
        return None

    def price(self, region: Graph) -> Cost | None:
        """The price of a region, if the backend knows it without running it."""
        return None

    def workspace(self, region: Graph) -> int:
        """Bytes of device memory that a region needs while it runs, in addition to constants,
        operands, results and intermediate values."""
        return 0

    def process(self, region: Graph) -> Graph:
        """The backend's own passes over a region before it is compiled.

        Inputs and outputs keep their types. If they are in a form that `limits` requires, the
        region begins and ends with `layout_transform` and `cast` nodes, which can be removed
        here."""
        return region

    def compile(self, region: Graph) -> bytes:
        """Compile a region to code, in any form that `load` reads.

        Names in a region are identifiers of letters, digits and underscores, whatever the model's
        names are; nodes' source locations can stand in comments."""
        raise NotImplementedError(f"{type(self).__name__} does not compile")

    def code(self, region: Graph) -> bytes:
        """Rename, process and compile a region of a model."""
        plain = for_backend(region)
        subject, location = _subject(plain)
        with author_code(f"{self.name}.process", self.process, subject, location):
            processed = self.process(plain)
        with author_code(f"{self.name}.compile", self.compile, subject, location):
            return self.compile(processed)

    def load(self, blob: bytes) -> Runner:
        """Load compiled code: a function of inputs and of memory for the outputs.

        Arrays are contiguous and in the host's memory. Inputs must not be written, and nothing may
        be kept after the call. The function writes the outputs, or returns arrays to be copied
        there.

        A function with an attribute `device` (see `Device`) works in the memory of that device: it
        gets inputs and outputs that the device has allocated. Transfers are then steps of the
        program, and values stay there between regions of one `limits.space`.

        A `load` with a parameter `threads` is passed the number of threads that the user allows,
        None for one per core. Calls may come from several threads at once."""
        raise NotImplementedError(f"{type(self).__name__} does not load")

    def loaded(self, blob: bytes, threads: int | None = None) -> Runner:
        """Call `load`, with the number of threads if it has a parameter for that."""
        with author_code(f"{self.name}.load", self.load):
            return load_for(self.load, blob, threads)

    def runner(self, region: Graph) -> Runner:
        """Compile and load a region in this process, for arrays in the host's memory."""
        return with_transfers(self.loaded(self.code(region)))

    @property
    def options(self) -> Mapping[str, str]:
        """Settings that change what is compiled; part of every cache key and of the artifact."""
        return {}

    def configured(self, settings: Settings) -> Backend:
        """The backend configured with the user's settings; an error if it cannot satisfy them."""
        return self

    def lower(self, graph: Graph, regions: Mapping[str, Runner] | None = None) -> Lowering:
        """Lower a whole optimised graph to an executable program.

        The graph may have symbolic shapes, data-dependent sizes and nested graphs. `regions` are
        the runners of other backends' regions (nodes `region`), by label."""
        raise UnsupportedError(f"'{self.name}' runs regions, and builds no programs around them")

    def specialize(
        self,
        general: Executable,
        symbols: Sequence[str],
        variants: Mapping[tuple[int, ...], Executable],
    ) -> Executable:
        """Combine a general program and variants for some sizes of the symbols, all of them made by
        `lower`, into one program."""
        raise UserError(f"'{self.name}' has no variants for sizes, which shapes= asks for")

    def time_groups(self, graph: Graph, inputs: Sequence[Array]) -> Mapping[str, Cost]:
        """The costs of the kernels in a run of the whole graph, bodies included, by their results'
        names, with all executions. Empty: the roofline is used."""
        return {}

    @property
    def machine_key(self) -> str:
        """What measured prices depend on besides backend and region: processor and threads."""
        return self.device

    def __repr__(self) -> str:
        return f"<backend {self.name} {self.version}>"


def declared(backend: Backend, region: Graph) -> Cost | None:
    """The price that a backend declares for a region."""
    with author_code(f"{backend.name}.price", backend.price, *_subject(region)):
        return backend.price(region)


def variant_of(kind: type[Backend], name: str, family: str) -> Backend:
    """The device with that name of a family of devices."""
    if not kind.has_variants:
        raise UserError(f"'{family}' is one backend, so that there is no '{family}:{name}'")
    make: Callable[[str], Backend] = kind
    return make(name)


def _subject(region: Graph) -> tuple[str, Location | None]:
    """A region in words, and the location of its node if it has only one."""
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
