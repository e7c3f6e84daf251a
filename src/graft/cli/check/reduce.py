"""Reduces failing models: a model, its inputs and a test in, the smallest failing model out.

Any set of a model's nodes is a model, if the values that it reads from elsewhere become inputs,
with ONNX Runtime's tensors. Nodes are dropped by delta debugging (Zeller and Hildebrandt,
"Simplifying and isolating failure-inducing input", 2002), which finds a single culprit as fast as
bisection, and several that fail only together. After that, extents that are equal in inputs and
weights are reduced together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx.inliner

from graft.base.dims import UNKNOWN, AnyDim
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.cli.check.peer import Feeds, Peer, onnxruntime
from graft.cli.model_parts import NamedNode, named_nodes, sub_model
from graft.frontends.onnx.reader import read_model
from graft.frontends.onnx.scope import reads
from graft.ir.evaluate import Data
from graft.ir.types import TensorType, Type

MOST_TRIALS = 400
_SMALL = (1, 2, 3, 4, 8, 16)  # extents to try, besides a half
_MOST_PASSES = 3


@dataclass(frozen=True, eq=False)
class Case:
    """A model and its inputs."""

    model: onnx.ModelProto
    feeds: Feeds

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self.model.graph.node)


@dataclass
class Trials:
    """A test that can be called a limited number of times, and is False after that."""

    fails: Callable[[Case], bool]
    most: int = MOST_TRIALS
    count: int = 0

    def __call__(self, case: Case | None) -> bool:
        if case is None or self.count >= self.most:
            return False
        self.count += 1
        return self.fails(case)

    @property
    def exhausted(self) -> bool:
        return self.count >= self.most


def reduce_case(case: Case, types: Mapping[str, Type], trials: Trials) -> Case:
    """A case that fails like this one, with fewer nodes and smaller tensors; `types` are the types
    of its values by name."""
    if case.model.functions:
        inlined = replace(case, model=onnx.inliner.inline_local_functions(case.model))
        case = inlined if trials(inlined) else case
    parts = _Parts(case, types)
    failing = list(range(len(parts.nodes)))
    for alone in parts.before_each_output():
        if len(alone) < len(failing) and trials(parts.case(alone)):
            failing = alone
            break
    remaining = ddmin(failing, lambda indices: trials(parts.case(indices)))
    smallest = parts.case(remaining) if len(remaining) < len(parts.nodes) else None
    return shrink(smallest or case, trials)


def ddmin(items: list[int], fails: Callable[[list[int]], bool]) -> list[int]:
    """A part of the items that fails, and does not without any one of them."""
    granularity = 2
    while len(items) >= 2:
        size = -(-len(items) // granularity)
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        culprit = next((chunk for chunk in chunks if fails(chunk)), None)
        if culprit is not None:
            items, granularity = culprit, 2
            continue
        without = ([item for item in items if item not in chunk] for chunk in map(set, chunks))
        rest = next((one for one in without if fails(one)), None) if len(chunks) > 2 else None
        if rest is not None:
            items, granularity = rest, max(granularity - 1, 2)
        elif granularity >= len(items):
            break
        else:
            granularity = min(2 * granularity, len(items))
    return items


@dataclass
class _Parts:
    """Models of some of a model's nodes."""

    whole: Case
    types: Mapping[str, Type]
    nodes: list[NamedNode] = field(init=False)
    recorded: dict[str, Data] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = named_nodes(read_model(self.whole.model))
        self.recorded = dict(self.whole.feeds)
        graph = self.whole.model.graph
        self._declared: dict[str, onnx.ValueInfoProto] = {one.name: one for one in graph.input}
        self._constants = {tensor.name for tensor in graph.initializer}
        self._constants |= {sparse.values.name for sparse in graph.sparse_initializer}
        self._maker = {name: at for at, node in enumerate(self.nodes) for name in node.results}

    def before_each_output(self) -> Iterator[list[int]]:
        """The nodes that each output depends on."""
        for info in self.whole.model.graph.output:
            yield self._behind([info.name])

    def _behind(self, names: Sequence[str]) -> list[int]:
        """The nodes that values depend on."""
        result: set[int] = set()
        waiting = list(names)
        while waiting:
            at = self._maker.get(waiting.pop())
            if at is not None and at not in result:
                result.add(at)
                waiting.extend(reads(self.nodes[at].proto))
        return sorted(result)

    def case(self, indices: Sequence[int]) -> Case | None:
        """The model of these nodes; None if its inputs cannot be computed."""
        nodes = [self.nodes[at].proto for at in indices]
        own = {name for node in nodes for name in node.output}
        read: set[str] = set().union(*map(reads, nodes)) - {""}
        outside = sorted(read - own - self._constants, key=lambda name: self._maker.get(name, -1))
        try:
            feeds = self._values(outside)
            inputs = [self._input(name, feeds[name]) for name in outside]
        except UserError:
            return None
        output_names = {info.name for info in self.whole.model.graph.output}
        outputs = [
            name
            for node in nodes
            for name in node.output
            if name in output_names or (name and not read.intersection(node.output))
        ]
        infos = [onnx.ValueInfoProto(name=name) for name in outputs]
        return Case(sub_model(self.whole.model, nodes, inputs, infos), feeds)

    def _values(self, names: Sequence[str]) -> dict[str, Data]:
        """The values that ONNX Runtime computes."""
        missing = [name for name in names if name not in self.recorded]
        if missing:
            nodes = [self.nodes[at].proto for at in self._behind(missing)]
            peer = Peer(onnxruntime(), self.whole.model, None)
            self.recorded |= peer.values(missing, nodes, self.whole.feeds)
        return {name: self.recorded[name] for name in names}

    def _input(self, name: str, data: Data) -> onnx.ValueInfoProto:
        if name in self._declared:
            return self._declared[name]
        if not isinstance(data, np.ndarray):
            raise UserError(f"'{name}' is no tensor, and no input can be made of it")
        type_ = self.types.get(name)
        dims: Sequence[int | str | None] = data.shape
        if isinstance(type_, TensorType) and type_.rank == data.ndim:
            dims = [_onnx_dim(dim) for dim in type_.shape or ()]
        value_info: onnx.ValueInfoProto = onnx.helper.make_tensor_value_info(
            name, element(data), dims
        )
        return value_info


def _onnx_dim(dim: AnyDim) -> int | str | None:
    return dim if isinstance(dim, int) else None if dim is UNKNOWN else str(dim)


def element(data: Array) -> int:
    """ONNX's number for the dtype of an array."""
    if data.dtype == object:
        return onnx.TensorProto.STRING
    return int(onnx.helper.np_dtype_to_tensor_dtype(data.dtype))


def shrink(case: Case, trials: Trials) -> Case:
    """The case with static and smaller extents, as far as it still fails."""
    shaped = with_known_shapes(case)
    if shaped.model != case.model and trials(shaped):
        case = shaped
    for _ in range(_MOST_PASSES):
        before = case
        for change in _changes(case):
            smaller = _resized(case, change)
            if smaller is not None and trials(smaller):
                case = smaller
        if case is before:
            return case
    return case


def with_known_shapes(case: Case) -> Case:
    """The case with inputs of the shapes of its data."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for info in model.graph.input:
        data = case.feeds.get(info.name)
        if isinstance(data, np.ndarray):
            typed = onnx.helper.make_tensor_value_info(info.name, element(data), data.shape)
            info.type.CopyFrom(typed.type)
    return replace(case, model=model)


@dataclass(frozen=True, slots=True)
class _Change:
    """A reduction of extents: of all equal ones, or of one axis of an input."""

    extent: int
    smaller: int
    weights: bool = False
    axis: tuple[str, int] | None = None

    def applies(self, name: str, axis: int, extent: int) -> bool:
        return extent == self.extent and self.axis in (None, (name, axis))


def _changes(case: Case) -> Iterator[_Change]:
    """Reductions to try, the largest first."""
    tensors = {name: data for name, data in case.feeds.items() if isinstance(data, np.ndarray)}
    fed = Counter(extent for data in tensors.values() for extent in data.shape)
    weight_extents = {extent for tensor in case.model.graph.initializer for extent in tensor.dims}
    for extent in sorted((fed.keys() | weight_extents) - {0, 1}, reverse=True):
        for smaller in _smaller(extent):
            if extent in weight_extents:
                yield _Change(extent, smaller, weights=True)
            if extent in fed:
                yield _Change(extent, smaller)
    for name, data in tensors.items():
        for axis, extent in enumerate(data.shape):
            if fed[extent] > 1:  # else it has been tried
                yield from (_Change(extent, one, axis=(name, axis)) for one in _smaller(extent))


def _smaller(extent: int) -> list[int]:
    return sorted({one for one in (*_SMALL, extent // 2) if 0 < one < extent})


def _resized(case: Case, change: _Change) -> Case | None:
    """The case after a change; None if it changes nothing."""
    changed = False

    def cut(name: str, array: Array) -> Array:
        nonlocal changed
        for axis, extent in enumerate(array.shape):
            if change.applies(name, axis, extent):
                changed = True
                array = array.take(range(change.smaller), axis)
        return array

    feeds = {
        name: cut(name, data) if isinstance(data, np.ndarray) else data
        for name, data in case.feeds.items()
    }
    weights: dict[str, Array] = {}
    if change.weights:
        for tensor in case.model.graph.initializer:
            if change.extent in tensor.dims:
                weights[tensor.name] = cut(tensor.name, onnx.numpy_helper.to_array(tensor))
    if not changed:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            array = np.ascontiguousarray(weights[tensor.name])
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for info in model.graph.input:
        # names of extents stay: they are what makes a size dynamic
        dims = info.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            if dim.HasField("dim_value") and change.applies(info.name, axis, dim.dim_value):
                dim.dim_value = change.smaller
    return Case(model, feeds)
