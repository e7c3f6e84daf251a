"""Operators as loops in C: a node and the names of its operands in, statements out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from graft.backends.csource.scalars import statements
from graft.base.dtypes import DType
from graft.base.errors import GraftError
from graft.ir.graph import Node, Value
from graft.ir.op import Op
from graft.ir.types import TensorType
from graft.ops import OPS
from graft.ops.pointwise import scalar_of

# (node, C names of its operands, C name of its result) -> C statements
Emit = Callable[[Node, Sequence[str], str], str]
EMITTERS: dict[str, Emit] = {}  # of operators that are not pointwise


def emits(*names: str) -> Callable[[Emit], Emit]:
    """Register what writes these operators."""

    def register(emit: Emit) -> Emit:
        EMITTERS.update(dict.fromkeys(names, emit))
        return emit

    return register


def operators() -> list[str]:
    """The operators that are written: those with loops of their own, and all pointwise ones that
    make float32 of float32."""
    return sorted({*EMITTERS, *(name for name in OPS if _is_pointwise(OPS.get(name)))})


def _is_pointwise(op: Op) -> bool:
    count = sum(not operand.optional for operand in op.operands)
    given = tuple(TensorType(DType.FLOAT32, (2,) if n else (2, 2)) for n in range(count))
    try:
        types = op.scalar is not None and op.result_types(op.attrs(), given)
    except (GraftError, TypeError):  # other operands, or attributes without a default
        return False
    return types == given[:1]


def emit(node: Node, names: Sequence[str], out: str) -> str:
    """A node as C."""
    return EMITTERS.get(node.op.name, _pointwise)(node, names, out)


def extents(value: Value) -> tuple[int, ...]:
    """A static shape."""
    shape = value.tensor.shape or ()
    return tuple(extent for extent in shape if isinstance(extent, int))


def why_not(node: Node) -> str:
    """Why the loops below do not serve a node; empty where they do."""
    required = [operand for operand in node.op.operands if not operand.optional]
    if node.op.name != "concatenate" and len(node.args) > len(required):
        return f"operands of {node.op.name} are known at run time only"
    attrs = node.attrs
    if node.op.scalar is not None and scalar_of(node) is None:
        return f"{node.op.name} has no formula on {node.output.dtype}"
    if node.op.name == "nn.avg_pool2d" and (attrs.count_include_pad or attrs.ceil_mode):
        return "averages that count padding are not written"
    if node.op.name == "mean" and attrs.axes not in ((2, 3), (-2, -1)):
        return "only means over the last two of four axes are written"
    if node.op.name == "mean" and len(extents(node.args[0])) != 4:
        return "only means over images are written"
    if node.op.name == "nn.softmax" and attrs.axis not in (-1, len(extents(node.output)) - 1):
        return "only softmax along the last axis is written"
    return ""


def loops(shape: Iterable[int], body: str) -> str:
    """Nested loops over a shape around a body that uses i0, i1, ..."""
    heads = [f"for (long i{n} = 0; i{n} < {e}; i{n}++)" for n, e in enumerate(shape)]
    return "\n".join([*(f"{'  ' * n}{head}" for n, head in enumerate(heads)), f"{{ {body} }}"])


def at(shape: Sequence[int], indices: Sequence[str]) -> str:
    """A row-major position, indices along axes of extent 1 left out."""
    terms, step = [], 1
    for extent, index in zip(reversed(shape), reversed(indices), strict=True):
        if extent != 1:
            terms.append(f"({index}) * {step}")
        step *= extent
    return " + ".join(reversed(terms)) or "0"


def _broadcast(value: Value, rank: int) -> str:
    """Where an operand is read at the point i0, i1, ... of a result of that rank."""
    shape = extents(value)
    return at(shape, [f"i{n + rank - len(shape)}" for n in range(len(shape))])


def _pointwise(node: Node, names: Sequence[str], out: str) -> str:
    """The operator's scalar expression, inside loops over the result."""
    expr, shape = scalar_of(node), extents(node.output)
    assert expr is not None
    lines = []
    for n, (name, value) in enumerate(zip(names, node.args, strict=True)):
        index = _broadcast(value, len(shape))
        if node.op.name == "nn.bias_add" and n == 1:  # runs along an axis
            index = f"i{node.attrs.axis % len(shape)}"
        lines.append(f"const float x{n} = {name}[{index}];")
    operations, result = statements(expr)
    store = f"{out}[{_broadcast(node.output, len(shape))}] = {result};"
    return loops(shape, " ".join([*lines, *operations, store]))


@emits("nn.dense")
def _dense(node: Node, names: Sequence[str], out: str) -> str:
    *rows, depth = extents(node.args[0])
    columns = extents(node.output)[-1]
    body = (
        f"float sum = 0.0f; for (long k = 0; k < {depth}; k++)"
        f" sum += {names[0]}[i0 * {depth} + k] * {names[1]}[i1 * {depth} + k];"
        f" {out}[i0 * {columns} + i1] = sum;"
    )
    return loops([math.prod(rows), columns], body)


@emits("nn.conv2d")
def _conv2d(node: Node, names: Sequence[str], out: str) -> str:
    data, weight = (extents(value) for value in node.args)
    attrs, result = node.attrs, extents(node.output)
    inputs, outputs = weight[1], weight[0] // attrs.groups
    pixel = at(data, ["i0", f"i1 / {outputs} * {inputs} + c", "y", "x"])
    tap = at(weight, ["i1", "c", "ky", "kx"])
    body = (
        f"float sum = 0.0f; for (long c = 0; c < {inputs}; c++)"
        f" {_window(attrs, data, weight[2:])} sum += {names[0]}[{pixel}] * {names[1]}[{tap}]; }} }}"
        f" {out}[{at(result, ['i0', 'i1', 'i2', 'i3'])}] = sum;"
    )
    return loops(result, body)


def _window(attrs: object, data: Sequence[int], size: Sequence[int]) -> str:
    """The opening of loops over a window, with y and x inside the image."""
    strides, padding, dilation = (getattr(attrs, n) for n in ("strides", "padding", "dilation"))
    lines = ""
    for axis, (name, index) in enumerate((("y", "i2"), ("x", "i3"))):
        start = f"{index} * {strides[axis]} - {padding[axis]}"
        lines += f"for (long k{name} = 0; k{name} < {size[axis]}; k{name}++) {{ "
        lines += f"const long {name} = {start} + k{name} * {dilation[axis]};"
        lines += f" if ({name} < 0 || {name} >= {data[axis + 2]}) continue; "
    return lines


@emits("nn.max_pool2d", "nn.avg_pool2d")
def _pool2d(node: Node, names: Sequence[str], out: str) -> str:
    data, attrs = extents(node.args[0]), node.attrs
    result = extents(node.output)
    value = f"{names[0]}[{at(data, ['i0', 'i1', 'y', 'x'])}]"
    target = f"{out}[{at(result, ['i0', 'i1', 'i2', 'i3'])}]"
    opened = _window(attrs, data, attrs.pool_size)
    if node.op.name == "nn.max_pool2d":
        body = f"float best = -INFINITY; {opened} best = MAX(best, {value}); }} }} {target} = best;"
        return loops(result, body)
    body = f"float sum = 0.0f; long n = 0; {opened} sum += {value}; n++; }} }} {target} = sum / n;"
    return loops(result, body)


@emits("mean")
def _mean(node: Node, names: Sequence[str], out: str) -> str:
    batch, channels, height, width = extents(node.args[0])
    body = (
        f"float sum = 0.0f; for (long k = 0; k < {height * width}; k++)"
        f" sum += {names[0]}[i0 * {height * width} + k]; {out}[i0] = sum / {height * width};"
    )
    return loops([batch * channels], body)


@emits("nn.softmax")
def _softmax(node: Node, names: Sequence[str], out: str) -> str:
    *rows, count = extents(node.output)
    body = (
        f"const float *x = {names[0]} + i0 * {count}; float *y = {out} + i0 * {count};"
        f" float best = -INFINITY, sum = 0.0f;"
        f" for (long k = 0; k < {count}; k++) best = MAX(best, x[k]);"
        f" for (long k = 0; k < {count}; k++) sum += y[k] = expf(x[k] - best);"
        f" for (long k = 0; k < {count}; k++) y[k] /= sum;"
    )
    return loops([math.prod(rows)], body)


@emits("reshape", "squeeze", "expand_dims")
def _copy(node: Node, names: Sequence[str], out: str) -> str:
    return f"memcpy({out}, {names[0]}, {4 * math.prod(extents(node.output))});"


@emits("concatenate")
def _concatenate(node: Node, names: Sequence[str], out: str) -> str:
    result = extents(node.output)
    axis = node.attrs.axis % len(result)
    inner = math.prod(result[axis + 1 :])
    text, start = [], 0
    for name, value in zip(names, node.args, strict=True):
        part = extents(value)[axis] * inner
        target = f"{out} + i0 * {result[axis] * inner} + {start}"
        copy = f"memcpy({target}, {name} + i0 * {part}, {4 * part});"
        text.append(loops([math.prod(result[:axis])], copy))
        start += part
    return "\n".join(text)
