"""The kernel templates in order of preference, and what compilation asks of their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Chain, KernelTemplate, Layout, Plan
from graft.backends.host.kernels.add_columns import add_columns
from graft.backends.host.kernels.attention import attention
from graft.backends.host.kernels.attention_bytes import attention_bytes
from graft.backends.host.kernels.batch_matmul import batch_matmul
from graft.backends.host.kernels.block_dense import block_dense
from graft.backends.host.kernels.conv import conv2d
from graft.backends.host.kernels.cumulative import cumulative
from graft.backends.host.kernels.deformable import blocked_windows, windows
from graft.backends.host.kernels.dense import dense
from graft.backends.host.kernels.depthwise import depthwise_conv2d
from graft.backends.host.kernels.depthwise_bytes import depthwise_bytes
from graft.backends.host.kernels.depthwise_project import depthwise_project
from graft.backends.host.kernels.determinant import determinant
from graft.backends.host.kernels.expand_depthwise import expand_depthwise
from graft.backends.host.kernels.expression.template import expression
from graft.backends.host.kernels.forest import forest
from graft.backends.host.kernels.fourier import fourier
from graft.backends.host.kernels.images.channel_norm import channel_norm
from graft.backends.host.kernels.images.concat import image_concat
from graft.backends.host.kernels.images.movement import image_movement
from graft.backends.host.kernels.images.pointwise import image_pointwise
from graft.backends.host.kernels.images.pool import pool2d
from graft.backends.host.kernels.images.reduce import image_reduce
from graft.backends.host.kernels.images.resize import image_resize
from graft.backends.host.kernels.inverted_residual import inverted_residual
from graft.backends.host.kernels.linear_attention import linear_attention
from graft.backends.host.kernels.recurrence import recurrence
from graft.backends.host.kernels.roi_align import blocked_roi_align, roi_align
from graft.backends.host.kernels.scatter import max_unpool, scatter
from graft.backends.host.kernels.search import distinct, nonzero
from graft.backends.host.kernels.selection import topk
from graft.backends.host.kernels.sizes import sizes
from graft.backends.host.kernels.suppression import suppression
from graft.backends.host.kernels.winograd import winograd
from graft.byoc.executable import Accuracy
from graft.ir.graph import Value
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Of several that take a group, the first one computes it: images in blocks before rows, kernels
# written by hand before scheduled expressions.
TEMPLATES: tuple[KernelTemplate, ...] = (
    *(inverted_residual, expand_depthwise, depthwise_project),
    *(winograd, conv2d, depthwise_bytes, depthwise_conv2d, pool2d),
    *(image_reduce, channel_norm, image_pointwise, image_concat, image_resize, image_movement),
    *(blocked_windows, windows),
    *(dense, block_dense, batch_matmul, attention, attention_bytes),
    *(
        add_columns,
        cumulative,
        determinant,
        distinct,
        forest,
        fourier,
        linear_attention,
        max_unpool,
        nonzero,
        recurrence,
    ),
    *(blocked_roi_align, roi_align, scatter, sizes, suppression, topk),
    expression,
)


def kernel_for(group: Group, stores: Stores, target: Target) -> Kernel | Refusal:
    """The kernel of the first template that takes the group, or all refusals in one."""
    plan = _first_plan(group, stores, target)
    return plan if isinstance(plan, Refusal) else plan()


def refusal(group: Group, stores: Stores, target: Target) -> Refusal | None:
    """Why no template takes the group, if none does. No kernel is written."""
    plan = _first_plan(group, stores, target)
    return plan if isinstance(plan, Refusal) else None


def choose_algorithm(group: Group, target: Target, accuracy: Accuracy) -> Group:
    """The group with the algorithm of its anchor; strict accuracy keeps to the definition.

    The choice is made before layouts are: how wide a halo an image needs follows from it."""
    if group.anchor is None or accuracy is Accuracy.STRICT:
        return group
    choices = (one.algorithm for one in TEMPLATES if one.is_for(group, one.layout))
    choose = next((choice for choice in choices if choice is not None), None)
    algorithm = Refusal("there is no other") if choose is None else choose(group, target)
    return group if isinstance(algorithm, Refusal) else replace(group, algorithm=algorithm)


def layouts_for(
    group: Group, block: int, target: Target
) -> list[tuple[Mapping[Value, tuple[int, ...]], float]]:
    """The layouts of operands in which kernels of images make such blocks, and what each costs."""
    for template in TEMPLATES:
        needs_anchor = isinstance(template.anchors, frozenset)
        if (needs_anchor and group.anchor is None) or not template.is_for(group, Layout.BLOCKED):
            continue
        candidates = list(template.layouts(group, block)) if template.layouts else []
        if candidates:
            cost = template.cost(group, block, target)
            return [(blocks, cost) for blocks in candidates]
    return []


def is_chain(*operators: str) -> bool:
    """Whether a template is for such anchors, one on the result of the other."""
    return any(one.anchors == Chain(operators) for one in TEMPLATES)


def chain_templates(group: Group) -> list[KernelTemplate]:
    """The templates for groups of such anchors, where there is a chain of them."""
    chains = (one for one in TEMPLATES if isinstance(one.anchors, Chain))
    return [chain for chain in chains if chain.is_for(group, chain.layout)]


def chain_cost(group: Group, stores: Stores, block: int, target: Target) -> float | Refusal:
    """What a group of several anchors costs in such blocks, or why no kernel takes it."""
    reasons: list[str] = []
    for template in chain_templates(group):
        plan = template.match(group, stores, target)
        if not isinstance(plan, Refusal):
            return template.cost(group, block, target)
        reasons.append(f"{template.name}: {plan.reason}")
    return Refusal("; ".join(reasons) or "no kernel is for such anchors")


def row_major_cost(group: Group, target: Target) -> float:
    """What the kernel of row-major tensors costs; it is the schedule's where no other is named."""
    rows = (one for one in TEMPLATES if one.is_for(group, Layout.ROW_MAJOR))
    named = (row for row in rows if isinstance(row.anchors, frozenset))
    return next(named, expression).cost(group, 0, target)


def _first_plan(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    is_blocked = any(storage.block for storage in stores.values())
    layout = Layout.BLOCKED if is_blocked else Layout.ROW_MAJOR
    reasons: list[str] = []
    for template in TEMPLATES:
        if not template.is_for(group, layout):
            continue
        plan = template.match(group, stores, target)
        if not isinstance(plan, Refusal):
            return plan
        reasons.append(f"{template.name}: {plan.reason}")
    return Refusal("; ".join(reasons))
