"""The kernel templates in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping

from graft.backends.host.group import Group, group_of
from graft.backends.host.kernel import Kernel, Stores, Template
from graft.backends.host.kernels.attention import attention
from graft.backends.host.kernels.batch_matmul import INTEGER as BATCH_INTEGER
from graft.backends.host.kernels.batch_matmul import batch_matmul
from graft.backends.host.kernels.channel_norm import channel_norm
from graft.backends.host.kernels.conv import conv2d
from graft.backends.host.kernels.dense import INTEGER, STRASSEN, dense
from graft.backends.host.kernels.depthwise import depthwise_conv2d
from graft.backends.host.kernels.determinant import determinant
from graft.backends.host.kernels.distinct import distinct
from graft.backends.host.kernels.expression import expression, unexpressed
from graft.backends.host.kernels.forest import forest
from graft.backends.host.kernels.image_channels import image_channels
from graft.backends.host.kernels.image_concat import image_concat
from graft.backends.host.kernels.image_movement import image_movement
from graft.backends.host.kernels.image_pointwise import image_pointwise
from graft.backends.host.kernels.image_reduce import image_reduce
from graft.backends.host.kernels.image_resize import image_resize
from graft.backends.host.kernels.joining import joining
from graft.backends.host.kernels.layer_norm import layer_norm
from graft.backends.host.kernels.linear_attention import linear_attention
from graft.backends.host.kernels.movement import movement
from graft.backends.host.kernels.nonzero import nonzero
from graft.backends.host.kernels.pool import pool2d
from graft.backends.host.kernels.recurrence import recurrence
from graft.backends.host.kernels.reduce import reduce
from graft.backends.host.kernels.roi_align import roi_align
from graft.backends.host.kernels.rows import rows
from graft.backends.host.kernels.scatter import scatter
from graft.backends.host.kernels.sizes import sizes
from graft.backends.host.kernels.softmax import softmax
from graft.backends.host.kernels.suppression import suppression
from graft.backends.host.kernels.topk import topk
from graft.backends.host.kernels.totals import totals
from graft.backends.host.kernels.winograd import winograd
from graft.backends.host.storage import row_major
from graft.ir.graph import Node
from graft.ir.op import Kind
from graft.ir.types import TensorType
from graft.ops.pointwise import has_scalar
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Those for images in blocks, whose batch, height and width may be known only at run time.
IMAGE_TEMPLATES: tuple[Template, ...] = (
    winograd,
    conv2d,
    depthwise_conv2d,
    pool2d,
    image_reduce,
    channel_norm,
    image_channels,
    image_pointwise,
    image_concat,
    image_resize,
    image_movement,
)

# Those whose rows may be counted only at run time, by the operator that they are for.
ROW_TEMPLATES: Mapping[str, Template] = {
    **dict.fromkeys(("nn.dense", STRASSEN, INTEGER), dense),
    **dict.fromkeys(("nn.batch_matmul", BATCH_INTEGER), batch_matmul),
    "nn.attention": attention,
    **dict.fromkeys(("nn.softmax", "nn.log_softmax"), softmax),
    **dict.fromkeys(("nn.layer_norm", "nn.rms_norm"), layer_norm),
    **dict.fromkeys(("max", "mean", "min", "prod", "sum"), reduce),
}

# Those for sizes that are numbers.
TEMPLATES: tuple[Template, ...] = (
    *IMAGE_TEMPLATES,
    *dict.fromkeys(ROW_TEMPLATES.values()),
    rows,
    movement,
)

# Those of single nodes that take any sizes, known or not.
SYMBOLIC_TEMPLATES: Mapping[str, Template] = {
    "bounded_unique": distinct,
    "concatenate": joining,
    "cumprod": totals,
    "cumsum": totals,
    "det": determinant,
    "ml.tree_ensemble": forest,
    "nn.linear_attention": linear_attention,
    "nn.recurrence": recurrence,
    "nonzero": nonzero,
    "scatter_elements": scatter,
    "scatter_nd": scatter,
    "shape_of": sizes,
    "topk": topk,
    "vision.bounded_non_max_suppression": suppression,
    "vision.roi_align": roi_align,
}


def kernel_for(group: Group, stores: Stores, target: Target) -> Kernel | Refusal:
    """The first template's kernel that takes the group, or all refusals in one."""
    pointwise = [n for n in group.nodes if n.op.kind in (Kind.ELEMENTWISE, Kind.BROADCAST)]
    # Templates that compute element by element know nothing but the table of formulas.
    fits = all(map(has_scalar, pointwise))
    of_images = IMAGE_TEMPLATES if any(store.block for store in stores.values()) else ()
    of_rows = ROW_TEMPLATES.get((group.anchor or group.node).op.name)
    possible = TEMPLATES if _is_static(group) else (*of_images, *((of_rows,) if of_rows else ()))
    hand_written = possible if fits else ()
    own = SYMBOLIC_TEMPLATES.get(group.node.op.name)
    reasons: list[str] = []
    for template in (*hand_written, *((own,) if own else ()), expression):
        made = template(group, stores, target)
        if isinstance(made, Kernel):
            return made
        reasons.append(f"{template.__name__}: {made.reason}")
    return Refusal("; ".join(reasons))


def why_not_symbolic(node: Node, target: Target) -> str:
    """Why a node with sizes that are known only when it runs has no kernel; empty where it has."""
    stores = {value: row_major(value) for value in (*node.args, *node.outputs)}
    group = group_of(node, {})
    own = SYMBOLIC_TEMPLATES.get(node.op.name)
    made = None if own is None else own(group, stores, target)
    if isinstance(made, Refusal):
        return unexpressed(node, target) and made.reason
    return unexpressed(node, target) if made is None else ""


def why_not_static(node: Node, target: Target) -> str:
    """Why a node with known sizes has no kernel; empty where it has.

    A stretch may mix known sizes with others, and has no place for the evaluator then."""
    if not why_not_symbolic(node, target):
        return ""
    stores = {value: row_major(value) for value in (*node.args, *node.outputs)}
    made = kernel_for(group_of(node, {}), stores, target)
    return made.reason if isinstance(made, Refusal) else ""


def _is_static(group: Group) -> bool:
    """Whether all extents that the group has to do with are numbers."""
    types = (value.type for node in group.nodes for value in (*node.args, *node.outputs))
    return all(isinstance(type_, TensorType) and type_.is_static for type_ in types)
