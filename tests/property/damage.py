"""Damages ONNX models the way bad exporters, bad editors and bad luck do, and feeds what is left.

In goes a valid model; out comes one with a few things wrong (or, now and then, merely different),
and data for whatever inputs it still has. Every choice follows from a seed, so that a damaged model
can be made again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from tests.property.damage_fields import damage_field
from tests.property.data import counts, tame, wild

from graft.base.dtypes import dtype_of
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.ir.types import OptionalType, SequenceType, TensorType, Type

Feeds = Mapping[str, Any]
Damage = Callable[[Random, onnx.ModelProto, Feeds], None]

INTS = (0, 1, -1, 2, 3, -2, 4, 5, 7, 100, 1 << 31, -(1 << 31), 1 << 62, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, math.nan, math.inf, -math.inf, 1e30, 1e-30)
WORDS = (
    "", "nonsense", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "nearest", "linear", "cubic",
    "constant", "edge", "reflect", "wrap", "none", "add", "mul", "min", "max", "sum", "mean",
    "half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize", "floor", "ceil", "LEFT",
    "RIGHT", "DCR", "CRD", "forward", "reverse", "bidirectional", "Tanh", "Sigmoid", "Affine",
    "bij,bjk->bik", "...ii->...i", "ij->", "zeros", "border", "reflection", "not_larger", "LINEAR",
    "RBF", "SOFTMAX", "PROBIT", "BRANCH_LEQ", "LEAF", "UPPER", "LOWER", "TF", "TFIDF", "(a|b)*",
)  # fmt: skip
ELEMENT_TYPES = (*TensorProto.DataType.values(), 99)

# How many elements an input may have, and still be fed.
MOST_FED = 1 << 16


def damaged(
    model: onnx.ModelProto, feeds: Feeds, damages: Sequence[tuple[Damage, int]]
) -> onnx.ModelProto:
    """A copy of the model with damages, each with the seed of its choices."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for damage, seed in damages:
        damage(Random(seed), copy, feeds)
    return copy


def graphs_in(model: onnx.ModelProto) -> list[Any]:
    """All that has nodes: the graph, those nested in it, and functions."""
    found: list[Any] = [model.graph, *model.functions]
    for graph in found:
        for node in graph.node:
            for attribute in node.attribute:
                found.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
    return found


def _node(random: Random, model: onnx.ModelProto) -> Any:
    nodes = [node for graph in graphs_in(model) for node in graph.node]
    return random.choice(nodes) if nodes else model.graph.node.add(op_type="Relu")


def _names(model: onnx.ModelProto) -> list[str]:
    names = ["", "nowhere"]
    for graph in graphs_in(model):
        for node in graph.node:
            names += [*node.input, *node.output]
    names += [info.name for info in model.graph.input]
    return names + [tensor.name for tensor in model.graph.initializer]


def _shuffle_list(random: Random, items: Any, news: list[Any]) -> None:
    """Delete, repeat, swap, replace or add entries of a list of plain values."""
    entries = list(items)
    place = random.randrange(len(entries)) if entries else 0
    action = random.randrange(5)
    if action == 0 or not entries:
        entries.insert(place, random.choice(news))
    elif action == 1:
        del entries[place]
    elif action == 2:
        entries.insert(place, entries[place])
    elif action == 3:
        other = random.randrange(len(entries))
        entries[place], entries[other] = entries[other], entries[place]
    else:
        entries[place] = random.choice(news)
    del items[:]
    items.extend(entries)


def damage_operands(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    _shuffle_list(random, _node(random, model).input, _names(model))


def damage_results(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    _shuffle_list(random, _node(random, model).output, _names(model))


def damage_attributes(random: Random, model: onnx.ModelProto, feeds: Feeds) -> None:
    node = _node(random, model)
    if not node.attribute:
        value: Any = random.choice((random.choice(INTS), random.choice(FLOATS), [1, 2], "x"))
        names = _attribute_names(node, model)
        node.attribute.append(helper.make_attribute(random.choice(names), value))
        return
    place = random.randrange(len(node.attribute))
    attribute = node.attribute[place]
    action = random.randrange(10)
    if action == 0:
        del node.attribute[place]
    elif action == 1:
        node.attribute.append(attribute)
    elif action == 2:
        attribute.name = random.choice(_attribute_names(node, model))
    elif action == 3:
        attribute.type = random.choice(AttributeProto.AttributeType.values())
    elif action == 4:
        attribute.ref_attr_name = "alpha"
    else:
        damage_attribute(random, attribute, feeds)


def _attribute_names(node: onnx.NodeProto, model: onnx.ModelProto) -> list[str]:
    """The attributes that the operator has, and one that none has."""
    version = next((entry.version for entry in model.opset_import), 1)
    try:
        schema = helper.defs.get_schema(node.op_type, min(max(version, 1), 30), node.domain)
    except onnx.defs.SchemaError:
        return ["nonsense"]
    return [*schema.attributes, "nonsense"]


def damage_attribute(random: Random, attribute: onnx.AttributeProto, feeds: Feeds) -> None:
    """Give an attribute another value of its type."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = random.choice(INTS)
    elif kind == AttributeProto.FLOAT:
        attribute.f = random.choice(FLOATS)
    elif kind == AttributeProto.STRING:
        attribute.s = random.choice(WORDS).encode()
    elif kind == AttributeProto.INTS:
        _shuffle_list(random, attribute.ints, list(INTS))
    elif kind == AttributeProto.FLOATS:
        _shuffle_list(random, attribute.floats, list(FLOATS))
    elif kind == AttributeProto.STRINGS:
        _shuffle_list(random, attribute.strings, [word.encode() for word in WORDS])
    elif kind == AttributeProto.TENSOR:
        damage_tensor(random, attribute.t)
    elif kind == AttributeProto.GRAPH and attribute.g.node:
        _shuffle_nodes(random, attribute.g)
    else:
        attribute.ClearField("t")


def damage_tensor(random: Random, tensor: onnx.TensorProto) -> None:
    """Change a tensor's shape, type or elements."""
    action = random.randrange(4)
    if action == 0:
        _shuffle_list(random, tensor.dims, [0, 1, 2, 3, -1, 1 << 40])
    elif action == 1:
        tensor.data_type = random.choice(ELEMENT_TYPES)
    elif action == 2:
        tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]
    else:
        shape = tuple(random.choice((0, 1, 1, 2, 3)) for _ in range(random.randrange(4)))
        fresh = numpy_helper.from_array(_array(random, np.float32, shape), tensor.name)
        if random.random() < 0.7:
            try:
                known = helper.tensor_dtype_to_np_dtype(tensor.data_type)
                dims = tuple(tensor.dims) if max(tensor.dims, default=1) < 100 else shape
                fresh = numpy_helper.from_array(_array(random, known, dims), tensor.name)
            except (KeyError, ValueError):
                pass  # what it was is nothing that elements could be made of
        tensor.CopyFrom(fresh)


def _array(random: Random, dtype: Any, shape: tuple[int, ...]) -> Any:
    fill = random.choice((tame, tame, wild))
    numpy_dtype = np.dtype(dtype)
    if numpy_dtype.kind in "iu" and random.random() < 0.5:
        return counts(shape, random.randrange(1000)).astype(numpy_dtype)
    return fill(dtype_of(numpy_dtype), shape, random.randrange(1000))


def damage_weights(random: Random, model: onnx.ModelProto, feeds: Feeds) -> None:
    weights = model.graph.initializer
    if not weights:
        fix_input(random, model, feeds)
    if not weights:
        return
    place = random.randrange(len(weights))
    if random.random() < 0.2:
        del weights[place]
    elif random.random() < 0.1:
        weights.append(weights[place])
    else:
        damage_tensor(random, weights[place])


def fix_input(random: Random, model: onnx.ModelProto, feeds: Feeds) -> None:
    """Make an input a constant, so that import knows its value."""
    fixed = {tensor.name for tensor in model.graph.initializer}
    arrays = {
        name: data
        for name, data in feeds.items()
        if isinstance(data, np.ndarray) and name not in fixed
    }
    if arrays:
        name = random.choice(sorted(arrays))
        model.graph.initializer.append(numpy_helper.from_array(arrays[name], name))


def damage_declarations(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    graphs = [graph for graph in graphs_in(model) if isinstance(graph, onnx.GraphProto)]
    graph = random.choice(graphs)
    infos = [*graph.input, *graph.input, *graph.output, *graph.value_info]
    if not infos:
        return
    info = random.choice(infos)
    action = random.randrange(8)
    tensor = info.type.tensor_type
    if action == 0:
        tensor.elem_type = random.choice(ELEMENT_TYPES)
    elif action == 1:
        tensor.ClearField("shape")
    elif action == 2:
        inner = onnx.TypeProto()
        inner.CopyFrom(info.type)
        outer = random.choice(("sequence_type", "optional_type"))
        info.type.Clear()
        getattr(info.type, outer).elem_type.CopyFrom(inner)
    elif action == 3:
        info.name = random.choice(_names(model))
    else:
        _damage_dims(random, tensor.shape.dim)


def forget_shapes(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    """Inputs no longer tell their shapes, so that only running can tell what does not fit."""
    for info in (*model.graph.input, *model.graph.output):
        tensor = info.type.tensor_type
        if info.type.HasField("tensor_type") and random.random() < 0.5:
            tensor.ClearField("shape")
        elif info.type.HasField("tensor_type"):
            for dim in tensor.shape.dim:
                dim.Clear()


def _damage_dims(random: Random, dims: Any) -> None:
    action = random.randrange(4)
    if action == 0 or not dims:
        dims.add().dim_value = random.choice((0, 1, 2, 3, -1))
    elif action == 1:
        del dims[random.randrange(len(dims))]
    elif action == 2:
        random.choice(dims).dim_param = random.choice(("n", "m", "n"))
    else:
        random.choice(dims).dim_value = random.choice((0, 0, 1, 2, 3, 5, -1, 1 << 40, 1 << 62))


def _shuffle_nodes(random: Random, graph: Any) -> None:
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    if not nodes:
        return
    place, other = random.randrange(len(nodes)), random.randrange(len(nodes))
    action = random.randrange(5)
    if action == 0:
        del nodes[place]
    elif action == 1:
        nodes.append(nodes[place])
    elif action == 2:
        random.shuffle(nodes)
    elif action == 3:
        one, two = nodes[place], nodes[other]
        one.op_type, two.op_type = two.op_type, one.op_type
    else:
        nodes[place].domain = random.choice(("", "ai.onnx", "ai.onnx.ml", "my"))
    del graph.node[:]
    graph.node.extend(nodes)


def damage_nodes(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    _shuffle_nodes(random, random.choice(graphs_in(model)))


def replace_operator(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    node = _node(random, model)
    names = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == node.domain})
    node.op_type = random.choice(names or ["Relu"])
    if random.random() < 0.7:
        del node.attribute[:]


def damage_opsets(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    if not model.opset_import:
        return
    entry = random.choice(model.opset_import)
    if random.random() < 0.1:
        model.opset_import.append(helper.make_opsetid(entry.domain, random.randrange(1, 29)))
    else:
        entry.version = random.randrange(1, 30) if random.random() < 0.9 else random.choice(INTS)


def rename(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    """One name becomes another everywhere in one graph."""
    names = _names(model)
    old, new = random.choice(names), random.choice(names)
    graph = random.choice(graphs_in(model))
    for node in graph.node:
        for listed in (node.input, node.output):
            listed[:] = [new if name == old else name for name in listed]


INSERTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Identity", {}),
    ("Shape", {}),
    ("Flatten", {"axis": 1}),
    ("Neg", {}),
    ("Not", {}),
    ("Transpose", {}),
    ("Cast", {"to": TensorProto.INT64}),
    ("Cast", {"to": TensorProto.FLOAT}),
    ("Cast", {"to": TensorProto.STRING}),
    ("NonZero", {}),
    ("SequenceConstruct", {}),
    ("Optional", {}),
    ("ReduceSum", {"keepdims": 0}),
    ("Size", {}),
)


def insert_node(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    """Put an operator before another one's operand."""
    graph = random.choice([g for g in graphs_in(model) if g.node] or [model.graph])
    if not graph.node:
        return
    place = random.randrange(len(graph.node))
    node = graph.node[place]
    if not node.input:
        return
    position = random.randrange(len(node.input))
    op_type, attributes = random.choice(INSERTED)
    made = helper.make_node(op_type, [node.input[position]], ["inserted"], **attributes)
    node.input[position] = "inserted"
    nodes = [*graph.node[:place], made, *graph.node[place:]]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def nest_in_branch(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    """All nodes go into both branches of an If."""
    graph = model.graph
    body = helper.make_graph(list(graph.node), "nested", [], list(graph.output))
    condition = helper.make_tensor("condition", TensorProto.BOOL, [], [True])
    if random.random() < 0.3:
        graph.initializer.append(condition)
    else:
        graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    outputs = [info.name for info in graph.output]
    made = helper.make_node("If", ["condition"], outputs, then_branch=body, else_branch=body)
    del graph.node[:]
    graph.node.append(made)


def nest_in_loop(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    """All nodes go into the body of a Loop that stacks their results."""
    graph = model.graph
    flags = [
        helper.make_tensor_value_info("turn", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
    ]
    still = helper.make_node("Identity", ["go"], ["go_on"])
    go_on = helper.make_tensor_value_info("go_on", TensorProto.BOOL, [])
    body = helper.make_graph([*graph.node, still], "nested", flags, [go_on, *graph.output])
    graph.initializer.append(helper.make_tensor("turns", TensorProto.INT64, [], [2]))
    outputs = [info.name for info in graph.output]
    made = helper.make_node("Loop", ["turns", ""], outputs, body=body)
    for info in graph.output:
        info.ClearField("type")
    del graph.node[:]
    graph.node.append(made)


def nest_in_function(random: Random, model: onnx.ModelProto, _feeds: Feeds) -> None:
    """All nodes go into a local function."""
    graph = model.graph
    names = [info.name for info in graph.input] + [tensor.name for tensor in graph.initializer]
    inputs = list(dict.fromkeys(names))
    outputs = [info.name for info in graph.output]
    opsets = list(model.opset_import)
    made = helper.make_function("my", "f", inputs, outputs, list(graph.node), opsets)
    model.functions.append(made)
    model.opset_import.append(helper.make_opsetid("my", 1))
    del graph.node[:]
    graph.node.append(helper.make_node("f", inputs, outputs, domain="my"))


DAMAGES: tuple[Damage, ...] = (
    damage_operands,
    damage_operands,
    damage_results,
    damage_attributes,
    damage_attributes,
    damage_attributes,
    damage_weights,
    damage_weights,
    damage_weights,
    damage_declarations,
    damage_declarations,
    damage_declarations,
    damage_nodes,
    damage_opsets,
    rename,
    replace_operator,
    insert_node,
    insert_node,
    fix_input,
    fix_input,
    forget_shapes,
    forget_shapes,
    nest_in_branch,
    nest_in_loop,
    nest_in_function,
    damage_field,
    damage_field,
    damage_field,
)


def data_for(graph: Graph, feeds: Feeds, random: Random) -> list[Data] | None:
    """Data for the graph's inputs, the valid model's own where they fit; None where too large."""
    symbols: dict[str, int] = {}
    found: list[Data] = []
    for value in graph.inputs:
        given = feeds.get(value.name)
        if given is not None and random.random() < 0.8:
            found.append(given)
            continue
        made = list(_made(value.type, symbols, random))
        if not made:
            return None
        found.append(made[0])
    return found


def _made(type_: Type, symbols: dict[str, int], random: Random) -> Iterator[Data]:
    """One value of the type, or none where it would be too large."""
    if isinstance(type_, TensorType):
        dims = type_.shape
        if dims is None:
            dims = tuple(random.randrange(4) for _ in range(random.randrange(5)))
        shape = tuple(
            dim if isinstance(dim, int) else symbols.setdefault(str(dim), random.randrange(4))
            for dim in dims
        )
        if math.prod(max(extent, 1) for extent in shape) <= MOST_FED:
            yield _array(random, type_.dtype.numpy, shape)
    elif isinstance(type_, SequenceType):
        yield [
            item for _ in range(random.randrange(3)) for item in _made(type_.element, {}, random)
        ]
    elif isinstance(type_, OptionalType):
        yield from [None] if random.random() < 0.3 else _made(type_.element, symbols, random)
    else:
        yield {}
