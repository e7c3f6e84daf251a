"""ONNX models that are easy to write and hard to compile: long, wide, deep, shared.

Each family is a function from a number of nodes to a model of about so many, small in data: what
compiling it takes should grow with the number of nodes and with nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Family = Callable[[int], onnx.ModelProto]
FAMILIES: dict[str, Family] = {}
SHAPE = (2, 8)
# Messages within messages that protobuf reads, and how many of them a nested graph takes.
_DEEPEST = 100 // 3 - 3


class Sketch:
    """A model while it is written."""

    def __init__(self, shape: tuple[int | str, ...] = SHAPE) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shape = shape

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one result, whose name is returned."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def weight(self, array: Any) -> str:
        """Add an initialiser, whose name is returned."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self, *results: str) -> onnx.ModelProto:
        """The model with these results."""
        graph = helper.make_graph(
            self.nodes,
            "adversarial",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def family(write: Callable[[Sketch, int], list[str]]) -> Callable[[Sketch, int], list[str]]:
    """Add a family: a function that writes nodes and returns the names of the results."""

    def model(nodes: int) -> onnx.ModelProto:
        sketch = Sketch(_SHAPES.get(write.__name__, SHAPE))
        return sketch.model(*write(sketch, nodes))

    FAMILIES[write.__name__] = model
    return write


_SHAPES: dict[str, tuple[int | str, ...]] = {
    "symbolic_chain": ("n", 8),
    "symbolic_shapes": ("n", "m"),
    "convolutions": (1, 8, 4, 4),
    "products": (8, 8),
    "einsums": (8, 8),
}


@family
def chain(sketch: Sketch, nodes: int) -> list[str]:
    """One operator over and over."""
    last = "x"
    for _ in range(nodes):
        last = sketch.node("Sin", last)
    return [last]


@family
def alternating(sketch: Sketch, nodes: int) -> list[str]:
    """Two operators in turn."""
    last = "x"
    for number in range(nodes):
        last = sketch.node(("Neg", "Sin")[number % 2], last)
    return [last]


@family
def symbolic_chain(sketch: Sketch, nodes: int) -> list[str]:
    """A chain over a dim that is known when the model runs."""
    return alternating(sketch, nodes)


@family
def squares(sketch: Sketch, nodes: int) -> list[str]:
    """An operand used twice by each node: 2^nodes paths."""
    last = "x"
    for _ in range(nodes):
        last = sketch.node("Mul", last, last)
    return [last]


@family
def diamonds(sketch: Sketch, nodes: int) -> list[str]:
    """Two nodes that read one and are read by one."""
    last = "x"
    for _ in range(nodes // 3):
        last = sketch.node("Add", sketch.node("Sin", last), sketch.node("Cos", last))
    return [last]


@family
def ladder(sketch: Sketch, nodes: int) -> list[str]:
    """Each node reads the two before it, as Fibonacci's numbers do."""
    before, last = "x", sketch.node("Sin", "x")
    for _ in range(nodes - 1):
        before, last = last, sketch.node("Add", before, last)
    return [last]


@family
def activations(sketch: Sketch, nodes: int) -> list[str]:
    """Formulas that mention their operand several times, in a chain."""
    kinds = ("Sigmoid", "Tanh", "Elu", "Softplus", "Erf", "HardSwish", "Selu", "Asinh")
    last = "x"
    for number in range(nodes):
        last = sketch.node(kinds[number % len(kinds)], last)
    return [last]


@family
def selections(sketch: Sketch, nodes: int) -> list[str]:
    """Comparisons, choices and conversions."""
    last, zero = "x", sketch.weight(np.float32(0.25))
    for number in range(nodes // 4):
        test = sketch.node(("Less", "Greater")[number % 2], last, zero)
        other = sketch.node("Cast", sketch.node("Cast", last, to=11), to=1)
        last = sketch.node("Where", test, last, other)
    return [last]


@family
def fan_out(sketch: Sketch, nodes: int) -> list[str]:
    """One value with as many readers as there are nodes, each a result."""
    step = [sketch.weight(np.float32(number)) for number in range(nodes)]
    return [sketch.node("Add", "x", one) for one in step]


@family
def fan_in(sketch: Sketch, nodes: int) -> list[str]:
    """One node that reads all others."""
    step = [sketch.weight(np.float32(number)) for number in range(nodes)]
    return [sketch.node("Sum", *[sketch.node("Mul", "x", one) for one in step])]


@family
def joined(sketch: Sketch, nodes: int) -> list[str]:
    """All nodes side by side in one tensor."""
    step = [sketch.weight(np.float32(number)) for number in range(nodes)]
    return [sketch.node("Concat", *[sketch.node("Add", "x", one) for one in step], axis=0)]


@family
def split(sketch: Sketch, nodes: int) -> list[str]:
    """A tensor in as many slices as there are nodes, and together again."""
    wide = sketch.node("Concat", *["x"] * max(1, nodes // SHAPE[1]), axis=1)
    names = [f"s{number}" for number in range(SHAPE[1] * max(1, nodes // SHAPE[1]))]
    sketch.nodes.append(helper.make_node("Split", [wide], names, axis=1))
    return [sketch.node("Concat", *[sketch.node("Sin", name) for name in names], axis=1)]


@family
def initialisers(sketch: Sketch, nodes: int) -> list[str]:
    """A chain in which every node has a tensor of its own."""
    last = "x"
    for number in range(nodes):
        last = sketch.node(
            ("Add", "Mul")[number % 2], last, sketch.weight(np.full(8, 1.0 + number, np.float32))
        )
    return [last]


@family
def concats(sketch: Sketch, nodes: int) -> list[str]:
    """Tensors joined with themselves and cut again."""
    last = "x"
    zero, two, axis = (sketch.weight(np.array([n], np.int64)) for n in (0, SHAPE[0], 0))
    for _ in range(nodes // 2):
        last = sketch.node("Slice", sketch.node("Concat", last, last, axis=0), zero, two, axis)
    return [last]


@family
def growing(sketch: Sketch, nodes: int) -> list[str]:
    """A concatenation of a concatenation of a concatenation."""
    last = "x"
    for _ in range(nodes):
        last = sketch.node("Concat", last, "x", axis=0)
    return [last]


@family
def nested(sketch: Sketch, nodes: int) -> list[str]:
    """Ten copies of ten copies, each cut again so that it stays small."""
    last = "x"
    zero, two, axis = (sketch.weight(np.array([n], np.int64)) for n in (0, SHAPE[0], 0))
    for _ in range(nodes // 3):
        many = sketch.node("Concat", *[last] * 10, axis=0)
        last = sketch.node("Slice", sketch.node("Concat", *[many] * 10, axis=0), zero, two, axis)
    return [last]


@family
def integers(sketch: Sketch, nodes: int) -> list[str]:
    """Squares of sums of int64 numbers, which are indices' type."""
    last, one = sketch.node("Cast", "x", to=7), sketch.weight(np.array(1, np.int64))
    for _ in range(nodes // 2):
        more = sketch.node("Add", last, one)
        last = sketch.node("Mul", more, more)
    return [sketch.node("Cast", last, to=1)]


@family
def slices(sketch: Sketch, nodes: int) -> list[str]:
    """Borders added and cut off."""
    one, two = (sketch.weight(np.array([n], np.int64)) for n in (1, 1 + SHAPE[1]))
    pads, last = sketch.weight(np.array([0, 1, 0, 1], np.int64)), "x"
    for _ in range(nodes // 2):
        last = sketch.node("Slice", sketch.node("Pad", last, pads), one, two, one)
    return [last]


@family
def reshapes(sketch: Sketch, nodes: int) -> list[str]:
    """Views of views."""
    last = "x"
    shapes = [sketch.weight(np.array(shape, np.int64)) for shape in ([4, 4], [2, 8], [16, 1])]
    for number in range(nodes):
        last = sketch.node("Reshape", last, shapes[number % 3])
    return [last]


@family
def transposes(sketch: Sketch, nodes: int) -> list[str]:
    """Transposes between pointwise operators."""
    last = "x"
    for _ in range(nodes // 2):
        last = sketch.node("Sin", sketch.node("Transpose", last, perm=[1, 0]))
    return [last]


@family
def movements(sketch: Sketch, nodes: int) -> list[str]:
    """Movement of many kinds between pointwise operators."""
    last = "x"
    shapes = [sketch.weight(np.array(shape, np.int64)) for shape in ([8, 2], [2, 8])]
    pads = sketch.weight(np.array([0, 1, 0, 1], np.int64))
    one, end = (sketch.weight(np.array([n], np.int64)) for n in (1, 3))
    for _ in range(nodes // 6):
        last = sketch.node("Transpose", sketch.node("Reshape", last, shapes[1]), perm=[1, 0])
        last = sketch.node("Sin", sketch.node("Pad", last, pads))
        last = sketch.node("Reshape", sketch.node("Slice", last, one, end, one), shapes[0])
    return [last]


@family
def conditions(sketch: Sketch, nodes: int) -> list[str]:
    """`If` in `If`, as deep as a file can have it, one such nest after the other."""
    last, zero = "x", sketch.weight(np.float32(0.0))
    depth = min(_DEEPEST, max(1, nodes // 3))
    for number in range(max(1, nodes // (3 * depth))):
        total = sketch.node("ReduceSum", last, keepdims=0)
        test = sketch.node("Less", total, zero)
        then = _branch(f"c{number}t", last, test, depth, "Sin")
        other = _branch(f"c{number}e", last, test, 0, "Cos")
        last = sketch.node("If", test, then_branch=then, else_branch=other)
    return [last]


def _branch(name: str, last: str, test: str, depth: int, kind: str) -> onnx.GraphProto:
    inner = f"{name}_{depth}"
    nodes = [helper.make_node(kind, [last], [inner])]
    result = inner
    if depth > 0:
        then = _branch(name, inner, test, depth - 1, kind)
        other = _branch(f"{name}o{depth}", inner, test, 0, "Cos")
        result = f"{inner}i"
        nodes += [helper.make_node("If", [test], [result], then_branch=then, else_branch=other)]
    info = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, inner, [], [info])


@family
def convolutions(sketch: Sketch, nodes: int) -> list[str]:
    """Convolutions, each with weights of its own."""
    last = "x"
    random = np.random.default_rng(0)
    for _ in range(nodes // 2):
        weight = sketch.weight(random.normal(0, 0.3, (8, 8, 1, 1)).astype(np.float32))
        last = sketch.node("Relu", sketch.node("Conv", last, weight))
    return [last]


@family
def products(sketch: Sketch, nodes: int) -> list[str]:
    """Matrix products of what came before, with itself."""
    last = "x"
    for _ in range(nodes // 2):
        last = sketch.node("Tanh", sketch.node("MatMul", last, last))
    return [last]


@family
def einsums(sketch: Sketch, nodes: int) -> list[str]:
    """Einstein sums of one value and the input."""
    last = "x"
    for _ in range(nodes // 2):
        last = sketch.node("Tanh", sketch.node("Einsum", last, "x", equation="ij,jk->ik"))
    return [last]


@family
def reductions(sketch: Sketch, nodes: int) -> list[str]:
    """Softmaxes and normalisations."""
    last = "x"
    for _ in range(nodes // 3):
        mean = sketch.node("ReduceMean", last, axes=[-1], keepdims=1)
        last = sketch.node("Softmax", sketch.node("Sub", last, mean), axis=-1)
    return [last]


@family
def symbolic_shapes(sketch: Sketch, nodes: int) -> list[str]:
    """Shapes taken apart and put together, of dims that are known when the model runs."""
    last, first = "x", sketch.weight(np.array([0], np.int64))
    second = sketch.weight(np.array([1], np.int64))
    for _ in range(nodes // 6):
        shape = sketch.node("Shape", last)
        rows = sketch.node("Gather", shape, first)
        columns = sketch.node("Gather", shape, second)
        last = sketch.node("Reshape", last, sketch.node("Concat", columns, rows, axis=0))
        last = sketch.node("Sin", last)
    return [last]


@family
def unused(sketch: Sketch, nodes: int) -> list[str]:
    """A chain that nobody reads, beside one node that somebody does."""
    chain(sketch, nodes)
    return [sketch.node("Cos", "x")]


@family
def repeated(sketch: Sketch, nodes: int) -> list[str]:
    """The same chain four times."""
    ends = [chain(sketch, nodes // 4)[0] for _ in range(4)]
    return [sketch.node("Sum", *ends)]


@family
def constants(sketch: Sketch, nodes: int) -> list[str]:
    """A chain that does not depend on the input."""
    last = sketch.weight(np.ones(SHAPE, np.float32))
    for number in range(nodes):
        last = sketch.node(("Sin", "Cos")[number % 2], last)
    return [sketch.node("Add", last, "x")]


@family
def forest(sketch: Sketch, nodes: int) -> list[str]:
    """Decision trees of 127 nodes each, in one operator."""
    return [_forest(sketch, max(1, nodes // 127))]


@family
def forests(sketch: Sketch, nodes: int) -> list[str]:
    """An operator for each tree, as isolation forests are exported, and the sum of all."""
    return [sketch.node("Sum", *[_forest(sketch, 1) for _ in range(max(1, nodes // 127))])]


def _forest(sketch: Sketch, trees: int) -> str:
    random = np.random.default_rng(len(sketch.nodes))
    inner, count = 63, 127
    ids = np.tile(np.arange(count), trees)
    owners = np.repeat(np.arange(trees), count)
    leaf = ids >= inner
    leaves = [(int(t), int(i)) for t, i in zip(owners[leaf], ids[leaf], strict=True)]
    return sketch.node(
        "TreeEnsembleRegressor",
        "x",
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=owners.tolist(),
        nodes_nodeids=ids.tolist(),
        nodes_featureids=random.integers(0, SHAPE[1], len(ids)).tolist(),
        nodes_modes=["LEAF" if one else "BRANCH_LEQ" for one in leaf],
        nodes_values=random.normal(size=len(ids)).astype(np.float32).tolist(),
        nodes_truenodeids=np.where(leaf, 0, 2 * ids + 1).tolist(),
        nodes_falsenodeids=np.where(leaf, 0, 2 * ids + 2).tolist(),
        nodes_hitrates=[1.0] * len(ids),
        nodes_missing_value_tracks_true=[0] * len(ids),
        target_treeids=[t for t, _ in leaves],
        target_nodeids=[i for _, i in leaves],
        target_ids=[0] * len(leaves),
        target_weights=random.normal(size=len(leaves)).astype(np.float32).tolist(),
    )
