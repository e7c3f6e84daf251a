"""The kernel templates in order of preference: which one takes a group, or why none does."""

from __future__ import annotations

from collections.abc import Sequence

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import KernelTemplate, Layout, Plan
from graft.backends.host.kernels.attention import attention
from graft.backends.host.kernels.batch_matmul import batch_matmul
from graft.backends.host.kernels.conv import conv2d
from graft.backends.host.kernels.dense import dense
from graft.backends.host.kernels.depthwise import depthwise_conv2d
from graft.backends.host.kernels.determinant import determinant
from graft.backends.host.kernels.expression.template import expression
from graft.backends.host.kernels.forest import forest
from graft.backends.host.kernels.images.channel_norm import channel_norm
from graft.backends.host.kernels.images.concat import image_concat
from graft.backends.host.kernels.images.movement import image_movement
from graft.backends.host.kernels.images.pointwise import image_pointwise
from graft.backends.host.kernels.images.pool import pool2d
from graft.backends.host.kernels.images.reduce import image_channels, image_reduce
from graft.backends.host.kernels.images.resize import image_resize
from graft.backends.host.kernels.joining import joining
from graft.backends.host.kernels.linear_attention import linear_attention
from graft.backends.host.kernels.movement import movement
from graft.backends.host.kernels.recurrence import recurrence
from graft.backends.host.kernels.reduce import reduce
from graft.backends.host.kernels.roi_align import roi_align
from graft.backends.host.kernels.scatter import scatter
from graft.backends.host.kernels.search import distinct, nonzero, topk
from graft.backends.host.kernels.sizes import sizes
from graft.backends.host.kernels.softmax import softmax
from graft.backends.host.kernels.suppression import suppression
from graft.backends.host.kernels.totals import totals
from graft.backends.host.kernels.winograd import winograd
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Of several that take a group, the first one computes it: images in blocks before rows, kernels
# written by hand before scheduled expressions.
TEMPLATES: tuple[KernelTemplate, ...] = (
    *(winograd, conv2d, depthwise_conv2d, pool2d, image_reduce, channel_norm, image_channels),
    *(image_pointwise, image_concat, image_resize, image_movement),
    *(dense, batch_matmul, attention, softmax, reduce, movement),
    *(determinant, distinct, forest, joining, linear_attention, nonzero, recurrence, roi_align),
    *(scatter, sizes, suppression, topk, totals),
    expression,
)

# One that takes the group is enough to know: those that are quick to say so are asked first.
_BY_EFFORT = (*(one for one in TEMPLATES if one is not movement), movement)


def kernel_for(group: Group, stores: Stores, target: Target) -> Kernel | Refusal:
    """The kernel of the first template that takes the group, or all refusals in one."""
    plan = _first_plan(TEMPLATES, group, stores, target)
    return plan if isinstance(plan, Refusal) else plan()


def refusal(group: Group, stores: Stores, target: Target) -> Refusal | None:
    """Why no template takes the group, if none does. No kernel is written."""
    plan = _first_plan(_BY_EFFORT, group, stores, target)
    return plan if isinstance(plan, Refusal) else None


def _first_plan(
    templates: Sequence[KernelTemplate], group: Group, stores: Stores, target: Target
) -> Plan | Refusal:
    is_blocked = any(storage.block for storage in stores.values())
    layout = Layout.BLOCKED if is_blocked else Layout.ROW_MAJOR
    reasons: list[str] = []
    for template in templates:
        if not template.is_for(group, layout):
            continue
        plan = template.match(group, stores, target)
        if not isinstance(plan, Refusal):
            return plan
        reasons.append(f"{template.name}: {plan.reason}")
    return Refusal("; ".join(reasons))
