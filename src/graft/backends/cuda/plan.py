"""A region as a sequence of launches: groups of nodes -> kernels, storage and memory.

Nodes are grouped by the fusion pass. A group around a convolution or matrix product becomes the
tensor-core kernel with the rest as its epilogue; every other group a kernel of tensor expressions;
reshapes of what lies in rows are no kernel at all. Values get the storage that their readers ask
for; where one cannot be had from its producer, a kernel copies it into another form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from graft.backends.cuda.attention import LANES, Attention, Operand, attention_kernel
from graft.backends.cuda.epilogue import epilogue_of
from graft.backends.cuda.expression import expression_kernel
from graft.backends.cuda.operands import MOST_GRID_ROWS, Operands, product_of, shape_of
from graft.backends.cuda.problem import CHUNK, Epilogue, Product, ProductSchedule, in_panels
from graft.backends.cuda.product import product_kernel
from graft.backends.cuda.schedule import choose_schedule
from graft.base.dtypes import Array, DType
from graft.byoc.formats.buffers import Buffers, Strided, Tensors, plan_offsets, row_major, strided
from graft.byoc.formats.storage import CHANNELS_LAST, Storage
from graft.ir.graph import Graph, Node, Value, make_node
from graft.ir.op import Kind
from graft.ir.types import TensorType
from graft.llvm.gpu import Kernel
from graft.loop.build import call
from graft.loop.tensor import Tensor, placeholder
from graft.ops.expression import by_index, read
from graft.passes.group_fusion import fusion_groups

_BY_QUERIES = (0, 2, 1, 3)  # how results of attention lie: the heads of a query side by side
_IMAGES = ("nn.conv2d", "nn.max_pool2d", "nn.avg_pool2d", "nn.global_avg_pool2d")
_LARGEST_HEAD = 128  # elements
_LARGEST_OPERAND = 1 << 29  # elements of queries, keys or values, which may be a third of a tensor
_LAYOUT_FREE = (*_IMAGES, "concatenate", "nn.batch_norm", "image.resize2d", "nn.pad", "nn.bias_add")


@dataclass(frozen=True, slots=True)
class Options:
    """How values are stored between kernels, and whether tensor cores may round float32."""

    dtype: DType = DType.FLOAT32
    uses_tensor_cores: bool = True


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel on buffers, by name: a value's, a constant's, or memory of the region's own.

    `call` describes what a library does in the kernel's stead."""

    kernel: str
    buffers: tuple[str, ...]  # the last is written
    label: str = ""
    product: Product | None = None
    call: Mapping[str, Any] | None = None


class ProductLibrary(Protocol):
    """Whoever computes products by a library's kernels instead of generated ones."""

    name: str

    def call(
        self,
        operands: Operands,
        nodes: Sequence[Node],
        result: Storage,
        locate: Callable[[Value, tuple[int, ...] | None], tuple[str, Storage]],
    ) -> tuple[Mapping[str, Any], tuple[str, ...]] | None:
        """What the library is asked for: a product and the nodes behind it, the first of which is
        the product's, with the buffers of what these read; None where it cannot do them. `locate`
        gives the buffer and storage of a value whose axes lie in that order, if there is one."""


@dataclass
class RegionPlan:
    """What a region needs at run time; `sizes` are bytes of buffers of its own, `uses` tells which
    are in use together, where that is not launch by launch."""

    code: dict[str, Kernel] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    uses: Sequence[Sequence[str]] = ()

    def offsets(self) -> tuple[dict[str, int], int]:
        """Where buffers lie in one arena, and its size."""
        uses = self.uses or [launch.buffers for launch in self.launches]
        return plan_offsets(self.sizes, uses)


def plan_region(
    graph: Graph,
    options: Options,
    choose: Callable[[Product], ProductSchedule] = choose_schedule,
    library: ProductLibrary | None = None,
) -> RegionPlan:
    """The launches of a region; what cannot be put into kernels is refused with the reason.
    `choose` gives the schedules of products, unless a `library` computes them."""
    return _Planner(without_attention(graph, options), options, choose, library).run()


def without_attention(graph: Graph, options: Options) -> Graph:
    """The graph with attention that has no kernel as two products and a softmax."""
    nodes: list[Node] = []
    for node in graph.nodes:
        is_whole = node.op.name != "nn.attention" or _has_kernel(node, options)
        nodes += [node] if is_whole else _attention_parts(node)
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes))


def _has_kernel(node: Node, options: Options) -> bool:
    """Whether attention is for the kernel: heads of whole fragments that registers can hold, no
    more than a grid has rows, in operands whose elements 32 bits can count."""
    shapes = [shape_of(value) for value in node.args]
    sizes = {shape[3] for shape in shapes}
    size, heads = max(sizes), math.prod(shapes[0][:2])
    fits = len(sizes) == 1 and size % 16 == 0 and size <= _LARGEST_HEAD and heads <= MOST_GRID_ROWS
    fits = fits and max(map(math.prod, shapes)) < _LARGEST_OPERAND
    return fits and options.uses_tensor_cores and node.output.dtype is DType.FLOAT32


def is_plain_attention(node: Node) -> bool:
    """Whether attention has no mask, window, shared heads or the like."""
    attrs, (query, key, *_), extras = node.attrs, node.args, node.args[3:]
    plain: bool = type(attrs)(scale=attrs.scale) == attrs
    return plain and shape_of(query)[1] == shape_of(key)[1] and not extras


def _attention_parts(node: Node) -> Iterator[Node]:
    query, key, value = node.args
    shape = (*shape_of(query)[:3], shape_of(key)[2])
    scale = node.attrs.scale if node.attrs.scale is not None else shape_of(query)[3] ** -0.5
    kind, base = TensorType(query.dtype, shape), node.output.name

    def made(op: str, inputs: Sequence[Value], name: str, **attrs: object) -> Node:
        output = Value(f"{base}_{name}", TensorType(query.dtype, shape)) if name else node.output
        return make_node(op, inputs, (output,), node.location, **attrs)

    factor = np.asarray(scale, query.dtype.numpy)
    scalar = Value(f"{base}_scale", TensorType(query.dtype, ()))
    yield make_node("constant", (), (scalar,), node.location, value=factor)
    scores = made("nn.batch_matmul", (query, key), "scores", transpose_b=True)
    scaled = made("multiply", (scores.output, scalar), "scaled")
    weights = made("nn.softmax", (scaled.output,), "weights", axis=-1)
    assert kind == weights.output.type
    yield from (scores, scaled, weights)
    yield made("nn.batch_matmul", (weights.output, value), "")


class _Planner(Buffers):
    def __init__(
        self,
        graph: Graph,
        options: Options,
        choose: Callable[[Product], ProductSchedule],
        library: ProductLibrary | None,
    ) -> None:
        super().__init__(graph)
        self.options = options
        self.plan = RegionPlan(constants=self.constants, sizes=self.sizes)
        self._choose, self._library = choose, library
        self._channels_last = _channels_last(graph)
        self._operands: dict[Node, Operands] = {}
        self._wanted: dict[Value, Storage] = {}
        self._elided = _moved_for_attention(graph)
        self._slices: dict[Value, tuple[Value, int]] = {}
        is_float32 = options.dtype is DType.FLOAT32 and options.uses_tensor_cores
        self._rounds = is_float32 and library is None
        self._multiplied: set[Value] = set()  # only products read them: they are stored as TF32
        self._rounded: set[str] = set()  # buffers of such values
        self._exponents = _exponents(graph)
        for value in graph.inputs:
            self.places[value] = value.name, row_major(value)

    def run(self) -> RegionPlan:
        order = {node: position for position, node in enumerate(self.graph.nodes)}
        groups = [
            [node for node in group if node.op.name != "constant"]
            for group in fusion_groups(self.graph)
        ]
        groups = sorted((group for group in groups if group), key=lambda one: order[one[-1]])
        for group in groups if self.options.uses_tensor_cores else ():
            for node in group:
                operands = product_of(node, self.options.dtype, self.literals)
                if operands is not None:
                    self._operands[node] = operands
                    for wanted in (operands.a, operands.b):
                        if isinstance(wanted, tuple):
                            self._wanted.setdefault(*wanted)
        if self._rounds:
            self._multiplied = _only_multiplied(self.graph, self._operands)
        if self._library is None:
            self._slices = _joined(self.graph, groups, set(self._operands), self._channels_last)
        for group in groups:
            self._group(group)
        for value in self.graph.outputs:
            self._deliver(value)
        return self.plan

    # Buffers and storage.

    def located(self, value: Value, order: tuple[int, ...] | None = None) -> tuple[str, Storage]:
        """The buffer and the storage of a value, its axes in this order if there is one."""
        if order is not None:
            storage = Storage(self.located(value)[1].dtype, shape_of(value), order)
            return self.require(value, storage), storage
        if value in self.places:
            return self.places[value]
        array, shape = self.literals[value], shape_of(value)
        storage = Storage.row_major(value.dtype, shape)
        readers = self.graph.users.get(value, ())
        if any(one.op.name == "nn.conv2d" and one not in self._operands for one in readers):
            storage = Storage(self._stored_dtype(value), shape, (2, 3, 1, 0))
        self.places[value] = self.constant(storage.pack(array)), storage
        return self.places[value]

    def _stored_dtype(self, value: Value) -> DType:
        narrows = value.dtype is DType.FLOAT32 and value not in self._exponents
        return self.options.dtype if narrows else value.dtype

    def storage_for(self, value: Value) -> Storage:
        shape = shape_of(value)
        if value in self.graph.outputs:
            return Storage.row_major(value.dtype, shape)
        if value in self._wanted:
            return self._wanted[value]
        order = CHANNELS_LAST if value in self._channels_last else tuple(range(len(shape)))
        return Storage(self._stored_dtype(value), shape, order)

    def make(self, value: Value, storage: Storage) -> str:
        """A buffer for a value that a kernel writes, or writes a part of."""
        if value in self.places:
            return self.places[value][0]
        name = value.name
        if value not in self.graph.outputs or storage != row_major(value):
            name = self.own(storage.nbytes)
        if value in self._multiplied:
            self._rounded.add(name)
        self.places[value] = name, storage
        return name

    def _deliver(self, value: Value) -> None:
        """See to it that an output is where the caller wants it."""
        name, _ = self.located(value)
        if name != value.name:
            tensors = Tensors(self)
            self.compute(tensors, tensors.get(value), row_major(value), value.name)

    # Groups.

    def _group(self, nodes: list[Node]) -> None:
        if all(value in self._elided for node in nodes for value in node.outputs):
            return
        if nodes[0].args and nodes[0].args[0] in self._slices:
            return  # all parts have been written in place
        if nodes[-1].outputs[0] not in self.graph.outputs and self.view(nodes, only_rows=True):
            return
        if nodes[0].op.name == "nn.attention" and self._attention(nodes):
            return
        anchors = [node for node in nodes if node in self._operands]
        if anchors:
            anchor = anchors[0]
            if anchor is nodes[0] and self._product(nodes):
                return
            self._product([anchor])
            nodes = [node for node in nodes if node is not anchor]
        if nodes:
            self.express(nodes)

    def compute(
        self, tensors: Tensors, value: Tensor, storage: Storage, target: str, label: str = "copy"
    ) -> None:
        # Copies in memory of the region's own are made for tensor cores.
        if (
            self._rounds
            and storage.dtype is DType.FLOAT32
            and label == "copy"
            and target in self.sizes
        ):
            self._rounded.add(target)
        value = _tf32(value) if target in self._rounded else value
        super().compute(tensors, value, storage, target, label)

    def run_kernel(
        self, inputs: Sequence[Tensor], result: Tensor, buffers: tuple[str, ...], label: str
    ) -> None:
        self._launch(expression_kernel(inputs, result), buffers, label)

    def _launch(
        self,
        kernel: Kernel,
        buffers: tuple[str, ...],
        label: str,
        product: Product | None = None,
    ) -> None:
        """Append a launch; equal kernels are made once."""
        self.plan.code.setdefault(kernel.name, kernel)
        self.plan.launches.append(Launch(kernel.name, buffers, label, product))

    # Products.

    def _product(self, nodes: Sequence[Node]) -> bool:
        """A product and what follows it, by a kernel or by the library."""
        operands, root = self._operands[nodes[0]], nodes[-1].output
        storage, a = self._product_storage(root, operands.order), self.require(*operands.a)
        product = replace(operands.product, is_rounded=a in self._rounded)
        schedule = self._choose(product) if self._library is None else ProductSchedule()
        described: tuple[Epilogue | Mapping[str, Any], Sequence[str]] | None
        if self._library is None:
            described = self._epilogue(nodes, storage, schedule.lanes(product))
        else:
            described = self._library.call(operands, nodes, storage, self.located)
        if described is None:
            return False
        call, names = described
        if isinstance(operands.b, tuple):
            b = self.require(*operands.b)
        else:
            packed = in_panels(operands.b, product) if self._library is None else operands.b
            b = self.constant(packed)
        whole, _ = self._slices.get(root, (root, 0))
        buffers = (a, b, *names, self.make(whole, replace(storage, shape=shape_of(whole))))
        label = "+".join(node.op.name for node in nodes)
        if isinstance(call, Epilogue):
            self._launch(product_kernel(product, schedule, call), buffers, label, product)
        elif self._library is not None:
            launch = Launch(self._library.name, buffers, label, product, call)
            self.plan.launches.append(launch)
        return True

    def _attention(self, nodes: Sequence[Node]) -> bool:
        query, key, _ = nodes[0].args
        (batch, heads, queries, size), dtype = shape_of(query), self.options.dtype
        storage = self._product_storage(nodes[-1].output, _BY_QUERIES)
        described = self._epilogue(nodes, storage, LANES)
        if described is None:
            return False
        epilogue, names = described
        places = [self._operand(value) for value in nodes[0].args]
        scale = nodes[0].attrs.scale
        scale = size**-0.5 if scale is None else scale
        strides = tuple(Operand(one.offset, *one.strides[:3]) for one in places)
        keys = shape_of(key)[2]
        problem = Attention(batch, heads, queries, keys, size, scale, dtype, strides)
        target = self.make(nodes[-1].output, storage)
        label = "+".join(node.op.name for node in nodes)
        buffers = (*(one.buffer for one in places), *names, target)
        self._launch(attention_kernel(problem, epilogue), buffers, label)
        return True

    def _epilogue(
        self, nodes: Sequence[Node], storage: Storage, lanes: int
    ) -> tuple[Epilogue, Sequence[str]] | None:
        """What follows the first of some nodes, and the buffers that it reads; None where it needs
        other sums."""
        (anchor, *rest), root = nodes, nodes[-1].output
        tensors, sums = Tensors(self), placeholder("sums", shape_of(anchor.output))
        tensors.set(anchor.output, sums)
        for position, node in enumerate(rest):
            tensors.add(node, f"t{position}")
        whole, start = self._slices.get(root, (root, 0))
        value = tensors.get(root)
        result = storage.result("result", _tf32(value) if whole in self._multiplied else value)
        columns = (start, shape_of(whole)[1]) if whole is not root else None
        epilogue = epilogue_of(tensors.complete(result), result, sums, lanes, columns)
        if epilogue is None:
            return None
        return epilogue, [tensors.buffers[buffer.name] for buffer in epilogue.buffers[:-1]]

    def _operand(self, value: Value) -> Strided:
        """Where an operand of attention lies: as it is moved from, or else in rows."""
        chain: list[Node] = []
        pending = [value]
        while pending:
            source = self.graph.producers.get(pending.pop())
            if source is not None and source.output in self._elided and source not in chain:
                chain.insert(0, source)
                pending += source.args
        chunk = CHUNK // self.options.dtype.numpy.itemsize
        if chain:
            found = strided(self, chain, value)
            if found is not None and found.has_rows_of(self.options.dtype, chunk):
                return found
            self.express(chain, [value])
        storage = Storage.row_major(self.options.dtype, shape_of(value))
        steps = [math.prod(storage.shape[axis + 1 :]) for axis in range(4)]
        return Strided(self.require(value, storage), storage.dtype, 0, tuple(steps))

    def _product_storage(self, value: Value, order: tuple[int, ...]) -> Storage:
        """How a kernel can store its results: with its columns last."""
        shape = shape_of(value)
        plain = Storage.row_major(value.dtype, shape)
        if value in self.graph.outputs and Storage(value.dtype, shape, order).serves(plain):
            return replace(plain, order=order)
        return Storage(self._stored_dtype(value), shape, order)


def _tf32(value: Tensor) -> Tensor:
    """A value rounded as tensor cores multiply it."""
    return by_index("rounded", value.shape, lambda *at: call("to_tf32", read(value, at)))


def _only_multiplied(graph: Graph, products: Mapping[Node, Operands]) -> set[Value]:
    """Values that products alone read, moved or pooled on the way: that they are rounded when they
    are stored changes nothing."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        for value in node.outputs:
            readers = graph.users.get(value, ())
            fits = value.dtype is DType.FLOAT32 and readers and value not in graph.outputs
            if fits and all(reader in products or _selects(reader, found) for reader in readers):
                found.add(value)
    return found


def _selects(node: Node, found: set[Value]) -> bool:
    """Whether a node hands on some of what it reads, to values of the set alone."""
    selects = node.op.kind is Kind.INJECTIVE or node.op.name in ("nn.max_pool2d", "nn.relu")
    return selects and all(value in found for value in node.outputs)


def _exponents(graph: Graph) -> set[Value]:
    """What only softmax reads, directly or behind pointwise nodes. It stays float32: float16
    overflows where softmax does not, and an absolute error of an exponent is a relative one of the
    result."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        for value in node.outputs:
            readers = graph.users.get(value, ())
            if readers and all(_exponentiates(reader, found) for reader in readers):
                found.add(value)
    return found - set(graph.outputs)


def _exponentiates(node: Node, found: set[Value]) -> bool:
    passes = node.op.kind.is_pointwise and all(value in found for value in node.outputs)
    return passes or node.op.name in ("nn.softmax", "nn.log_softmax")


def _joined(
    graph: Graph, groups: Sequence[Sequence[Node]], products: set[Node], images: set[Value]
) -> dict[Value, tuple[Value, int]]:
    """Results of products that are written where a concatenation of channels wants them, with what
    they become a part of and their first channel there."""
    made = {
        group[-1].output
        for group in groups
        if group[0] in products and all(node.op.kind.is_pointwise for node in group[1:])
    }
    found: dict[Value, tuple[Value, int]] = {}
    for group in groups:
        node, parts = group[0], group[0].args
        alone = len(group) == 1 and node.op.name == "concatenate" and node.attrs.axis == 1
        if not alone or node.output in graph.outputs or node.output not in images:
            continue
        only = all(len(graph.users[value]) == 1 and value in made for value in parts)
        if only and len(set(parts)) == len(parts) and not set(parts) & set(graph.outputs):
            start = 0
            for value in parts:
                found[value] = node.output, start
                start += shape_of(value)[1]
    return found


def _moved_for_attention(graph: Graph) -> set[Value]:
    """Values that movement makes and that only attention reads, moved further at most."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        if node.op.kind is not Kind.INJECTIVE or node.op.name == "constant":
            continue
        readers = [user for value in node.outputs for user in graph.users.get(value, ())]
        kept = any(value in graph.outputs for value in node.outputs)
        if readers and not kept and all(_reads_strided(reader, found) for reader in readers):
            found |= set(node.outputs)
    return found


def _reads_strided(node: Node, elided: set[Value]) -> bool:
    return node.op.name == "nn.attention" or all(value in elided for value in node.outputs)


def _channels_last(graph: Graph) -> set[Value]:
    """Values that convolutions and pooling work on, and what is computed with them: images, of
    which the channels of a pixel are neighbours."""
    parent: dict[Value, Value] = {}

    def find(value: Value) -> Value:
        while parent.setdefault(value, value) is not value:
            value = parent[value]
        return value

    images: list[Value] = []
    for node in graph.nodes:
        if node.op.name not in _LAYOUT_FREE and not node.op.kind.is_pointwise:
            continue
        values = [v for v in (*node.args[:1], *node.outputs) if _is_image(v)]
        if node.op.kind.is_pointwise or node.op.name == "concatenate":
            values = [v for v in (*node.args, *node.outputs) if _is_image(v)]
        for value in values[1:]:
            parent[find(value)] = find(values[0])
        if node.op.name in _IMAGES:
            images += values
    roots = {find(value) for value in images}
    return {value for value in parent if find(value) in roots}


def _is_image(value: Value) -> bool:
    return value.dtype is DType.FLOAT32 and len(value.tensor.shape or ()) == 4
