"""Makes convolutions and poolings over one axis those over two, of images one row high.

A graph enters; `nn.conv1d`, `qnn.conv1d`, transposes, `nn.max_pool1d` and `nn.avg_pool1d` leave as
their counterparts for images between two views that cost nothing. The views then move down past
what is computed element by element or summed over all columns, so that a chain of layers works on
images from end to end.
Images one column wide, as some exporters write signals, become such signals first: kernels work
along rows.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.backends.host.kernels.tile import REDUCTIONS
from graft.base.dims import AnyDim
from graft.ir.attrs import as_keywords
from graft.ir.graph import Graph, Value
from graft.ir.op import Kind
from graft.ops import OPS
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op, op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("widen_convolutions")

# The axis of rows that images have and signals [batch, channels, columns] have not.
ROWS = 2
COLUMNS = 3

_WIDENED = {
    "nn.conv1d": "nn.conv2d",
    "qnn.conv1d": "qnn.conv2d",
    "nn.conv1d_transpose": "nn.conv2d_transpose",
    "nn.max_pool1d": "nn.max_pool2d",
    "nn.avg_pool1d": "nn.avg_pool2d",
}
_NARROWED = {_WIDENED[name]: name for name in ("nn.conv1d", "nn.max_pool1d", "nn.avg_pool1d")}
# What a window of one row adds to attributes that have an entry per axis.
_FIRST = {"strides": 1, "dilation": 1, "pool_size": 1, "output_padding": 0}
_KINDS = (Kind.ELEMENTWISE, Kind.BROADCAST)
_POINTWISE = tuple(name for name in OPS if OPS.get(name).kind in _KINDS and name != "trilu")


def widen_convolutions(graph: Graph) -> Graph:
    """Apply the rules until none fits; views only ever move towards the outputs."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op(*_WIDENED))
def window_over_rows(site: Site) -> Replacement:
    node = site.node
    images, numbers = node.args[:2], node.args[2:]  # zero points are single numbers
    if not all(value.tensor.rank == 3 for value in (*images, node.output)):
        return Refusal("the rank is not known")
    attrs = as_keywords(node.attrs)
    for name, first in _FIRST.items():
        if name in attrs:
            attrs[name] = (first, *attrs[name])
    begin, end = attrs["padding"]
    attrs["padding"] = (0, begin, 0, end)
    operands = [*(_widened(site, value) for value in images), *numbers]
    return _narrowed(site, site.emit(_WIDENED[node.op.name], *operands, **attrs))


@RULES.rule(is_op(*_NARROWED))
def window_over_columns(site: Site) -> Replacement:
    node = site.node
    attrs = as_keywords(node.attrs)
    kernel = node.args[1].tensor.shape if len(node.args) > 1 else (0, 0, *attrs["pool_size"])
    top, left, bottom, right = attrs["padding"]
    sides = {_columns(value) for value in (node.args[0], node.output)}
    if sides != {1} or kernel is None or (kernel[3], left, right) != (1, 0, 0):
        return Refusal("it is not on images of one column")
    shape = node.args[0].tensor.shape
    if shape is not None and shape[ROWS] == 1:
        return Refusal("a single pixel is a row already")
    for name in _FIRST.keys() & attrs.keys():
        attrs[name] = attrs[name][:1]
    attrs["padding"] = top, bottom
    operands = [_without_column(site, value) for value in node.args]
    return _with_column(site, site.emit(_NARROWED[node.op.name], *operands, **attrs))


@RULES.rule(lambda x: op.squeeze(op.expand_dims(x, axes=(COLUMNS,)), axes=(COLUMNS,)))
def column_that_was_added(_site: Site, x: Value) -> Replacement:
    return x if x.tensor.rank == 3 else Refusal("it is no signal")


@RULES.rule(lambda x: op.expand_dims(op.squeeze(x, axes=(ROWS,)), axes=(ROWS,)))
def row_that_was_dropped(_site: Site, x: Value) -> Replacement:
    return x if x.tensor.rank == 4 else Refusal("it is no image")


@RULES.rule(is_op(*_POINTWISE))
def pointwise_on_images(site: Site) -> Replacement:
    node = site.node
    if not any(_drops_row(site, value) for value in node.args) or len(node.outputs) != 1:
        return Refusal("no operand is an image of one row")
    if node.output.tensor.rank != 3 or None in node.inputs:
        return Refusal("the result is not of the operands' rank")
    widened = _on_views(site, _aligned)
    return widened if isinstance(widened, Refusal) else _narrowed(site, widened)


@RULES.rule(is_op(*_POINTWISE))
def pointwise_on_signals(site: Site) -> Replacement:
    node = site.node
    if not any(_adds_column(site, value) for value in node.args) or len(node.outputs) != 1:
        return Refusal("no operand is a signal with a column")
    viewed = node.args[:1] if node.op.name == "nn.bias_add" else node.args
    if None in node.inputs or not all(_columns(value) == 1 for value in viewed):
        return Refusal("the operands are not all of one column")
    widened = _on_views(site, _without_column)
    return widened if isinstance(widened, Refusal) else _with_column(site, widened)


def _on_views(site: Site, view: Callable[[Site, Value], Value]) -> Value | Refusal:
    """A pointwise node on views of its operands; a bias runs along the channels as before."""
    node = site.node
    is_bias = node.op.name == "nn.bias_add"
    channels = (1, 1 - (node.output.tensor.rank or 0))
    if hasattr(node.attrs, "axis") and not (is_bias and node.attrs.axis in channels):
        return Refusal("it works along an axis")
    if is_bias:
        return site.again(node, view(site, node.args[0]), node.args[1], axis=1)
    return site.again(node, *(view(site, value) for value in node.args))


@RULES.rule(is_op("concatenate"))
def concatenation_of_images(site: Site) -> Replacement:
    node = site.node
    if not all(_drops_row(site, value) for value in node.args):
        return Refusal("not all operands are images of one row")
    axis = node.attrs.axis % 3
    operands = [_widened(site, value) for value in node.args]
    return _narrowed(site, site.again(node, *operands, axis=axis + (axis >= ROWS)))


@RULES.rule(is_op(*REDUCTIONS))
def reduction_over_columns(site: Site) -> Replacement:
    """Over all pixels of the image, whose one row adds nothing."""
    node = site.node
    if len(node.args) != 1 or not _drops_row(site, node.args[0]):
        return Refusal("the operand is not an image of one row")
    if {axis % 3 for axis in node.attrs.axes or ()} != {2}:
        return Refusal("it is not over the columns alone")
    image = site.again(node, _widened(site, node.args[0]), axes=(ROWS, COLUMNS))
    return _narrowed(site, image) if node.attrs.keepdims else image


def _drops_row(site: Site, value: Value) -> bool:
    """Whether a value is an image without its only row."""
    node = site.producer(value)
    if node is None or node.op.name != "squeeze" or node.attrs.axes != (ROWS,):
        return False
    return node.args[0].tensor.rank == 4


def _columns(value: Value) -> AnyDim | None:
    """How many columns an image has; None of what is none."""
    shape = value.tensor.shape
    return shape[COLUMNS] if shape is not None and len(shape) == 4 else None


def _adds_column(site: Site, value: Value) -> bool:
    """Whether a value is a signal that was made an image of one column."""
    node = site.producer(value)
    if node is None or node.op.name != "expand_dims" or node.attrs.axes != (COLUMNS,):
        return False
    return node.args[0].tensor.rank == 3


def _without_column(site: Site, value: Value) -> Value:
    """[..., rows, 1] as [..., rows]."""
    array = site.array(value)
    if array is not None:
        return site.constant(array.reshape(array.shape[:-1]))
    return site.emit("squeeze", value, axes=(COLUMNS,))


def _with_column(site: Site, signal: Value) -> Value:
    return site.emit("expand_dims", signal, axes=(COLUMNS,))


def _aligned(site: Site, value: Value) -> Value:
    """An operand of rank 3, or less by broadcasting, as it is broadcast to images."""
    if value.tensor.rank in (2, 3):
        return _widened(site, value)
    return value


def _widened(site: Site, value: Value) -> Value:
    """[..., columns] as [..., 1, columns]."""
    array = site.array(value)
    rank = value.tensor.rank
    assert rank is not None
    if array is not None:
        return site.constant(array.reshape(*array.shape[:-1], 1, array.shape[-1]))
    return site.emit("expand_dims", value, axes=(rank - 1,))


def _narrowed(site: Site, image: Value) -> Value:
    return site.emit("squeeze", image, axes=(ROWS,))
