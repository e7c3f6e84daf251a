"""What a kernel is for, declared once: the groups it computes, their layouts, and what that costs.

A template declares the operators that it anchors on, the layouts and dtypes of its tensors, which
operands have to be constant, its schedule space, its cost and the algorithms to choose from; a
function checks what remains of a group and returns a *plan*, which writes the kernel when it is
called. Fusion, layout choice, dispatch and `strict` compilation ask `match` whether there is a
kernel; only dispatch calls the plan. Layout choice compares the `cost` of the `layouts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from graft.backends.host.cost import Cost, streamed_cost
from graft.backends.host.group import Algorithm, Group
from graft.backends.host.kernel import Kernel, Parameters, Stores
from graft.base.dims import UNKNOWN
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.llvm.types import SMALL_FLOATS
from graft.loop.ir import Stmt
from graft.ops.pointwise import SCALAR_DTYPES, has_scalar
from graft.rewrite.rule import Refusal
from graft.target.target import Target

FLOATS = SCALAR_DTYPES
# Dtypes that machine code computes with, directly or in a wider one.
HELD = frozenset(
    {
        *(DType.BOOL, *FLOATS, *SMALL_FLOATS),
        *(DType.INT8, DType.INT16, DType.INT32, DType.INT64),
        *(DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64),
    }
)

# Writes the kernel of a group that a template has accepted.
Plan = Callable[[], Kernel]
Matcher = Callable[[Group, Stores, Target], "Plan | Refusal"]
# For a result in blocks of so many channels (0: row-major), the layouts in which operands can be
# read: per candidate, the blocks of some operands, best first. Other images have the result's.
OperandLayouts = Callable[[Group, int], Iterable[Mapping[Value, tuple[int, ...]]]]
# How the anchor of a group is best computed, or why as its definition says.
AlgorithmChoice = Callable[[Group, Target], "Algorithm | Refusal"]


class Layout(Enum):
    """How a template's tensors lie in memory."""

    ROW_MAJOR = "row-major"
    BLOCKED = "images in blocks of channels"


class Pattern(Enum):
    """Groups without one particular operator to anchor on."""

    POINTWISE = "pointwise nodes alone"
    ANY = "any nodes"


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that anchor one group together, each on the result of the one before."""

    operators: tuple[str, ...]


@dataclass(frozen=True)
class KernelTemplate:
    """The declaration of a kernel.

    `anchors` are the operators that it is for, each with the pointwise nodes around it unless it is
    `alone`, or a chain of them. `dtypes` are those of the anchors' results and `tensors` those of
    all tensors, where they matter; operands at the positions `constants` have to be constants.
    `symbolic` extents become scalars of the kernel. Tensors without elements are for templates that
    take `empty` ones. `schedule` is the class whose fields a search may vary. `layouts` and `cost`
    are what layout choice compares, and for chains fusion; of several templates for one anchor, one
    declares them. `algorithm` chooses among several for the anchor. `plan` decides on all that the
    declaration leaves open.
    """

    name: str
    plan: Matcher
    anchors: frozenset[str] | Chain | Pattern
    layout: Layout
    dtypes: frozenset[DType] | None = None
    tensors: frozenset[DType] | None = None
    constants: tuple[int, ...] = ()
    alone: bool = False
    symbolic: bool = True
    empty: bool = False
    schedule: type | None = None
    layouts: OperandLayouts | None = None
    cost: Cost = streamed_cost
    algorithm: AlgorithmChoice | None = None

    def is_for(self, group: Group, layout: Layout) -> bool:
        """Whether the template is for such operators, layouts and extents at all."""
        if self.layout is not layout or not (self.symbolic or group.is_static):
            return False
        if isinstance(self.anchors, Pattern):
            return self.anchors is Pattern.ANY or group.is_pointwise
        if isinstance(self.anchors, Chain):
            return tuple(node.op.name for node in group.anchors) == self.anchors.operators
        return (group.anchor or group.nodes[0]).op.name in self.anchors

    def match(self, group: Group, stores: Stores, target: Target) -> Plan | Refusal:
        """The plan of a kernel for the group, or why there is none. No kernel is written."""
        outer = (group.outer(value) for value in group.reads() if value not in group.constants)
        tensors = (*outer, *group.node.outputs)
        refusal = (
            self._unfit_operators(group)
            or self._unfit_layouts(tensors, stores)
            or self._unfit_extents(group, tensors)
        )
        return refusal or self.plan(group, stores, target)

    def __call__(self, group: Group, stores: Stores, target: Target) -> Kernel | Refusal:
        """The kernel of the group, or why there is none."""
        plan = self.match(group, stores, target)
        return plan if isinstance(plan, Refusal) else plan()

    def _unfit_operators(self, group: Group) -> Refusal | None:
        if not isinstance(self.anchors, Pattern):
            refusal = self._unfit_anchor(group)
            if refusal is not None:
                return refusal
        elif self.anchors is Pattern.POINTWISE and not group.is_pointwise:
            return Refusal("there is more than pointwise nodes")
        values = (v for node in group.nodes for v in (*node.args, *node.outputs))
        if self.tensors is not None:
            foreign = next((v for v in values if v.dtype not in self.tensors), None)
            if foreign is not None:
                return Refusal(f"machine code does not hold {foreign.dtype}")
        if self.alone or self.anchors is Pattern.ANY:
            return None
        # kernels that compute element by element know nothing but the table of formulas
        pointwise = (node for node in group.nodes if node.op.kind.is_pointwise)
        unknown = next((node for node in pointwise if not has_scalar(node)), None)
        return Refusal(f"{unknown.op.name} has no formula", unknown) if unknown else None

    def _unfit_anchor(self, group: Group) -> Refusal | None:
        lone = group.nodes[0] if len(group.nodes) == 1 else None
        anchor = lone if self.alone else group.anchor
        anchors = group.anchors if isinstance(self.anchors, Chain) else (anchor,)
        names = tuple(one.op.name for one in anchors if one is not None)
        if isinstance(self.anchors, Chain):
            if names != self.anchors.operators:
                return Refusal(f"the anchors are not {' and '.join(self.anchors.operators)}")
        elif isinstance(self.anchors, frozenset) and not self.anchors.intersection(names):
            alone = " for itself" if self.alone else ""
            return Refusal(f"there is no {' or '.join(sorted(self.anchors))}{alone}")
        for one in filter(None, anchors):
            if not all(one.args[position] in group.constants for position in self.constants):
                return Refusal("the weights are not constant", one)
            if self.dtypes is not None and one.output.dtype not in self.dtypes:
                return Refusal(f"the elements are {one.output.dtype}", one)
        return None

    def _unfit_layouts(self, tensors: Sequence[Value], stores: Stores) -> Refusal | None:
        blocked = next((value for value in tensors if stores[value].block), None)
        if self.layout is Layout.BLOCKED:
            return None if blocked else Refusal("there is no blocked image")
        if blocked is not None:
            return Refusal(f"%{blocked.name} is not row-major")
        return None

    def _unfit_extents(self, group: Group, tensors: Sequence[Value]) -> Refusal | None:
        for value in tensors:
            shape = value.shape
            if not self.empty and (shape is None or 0 in shape or UNKNOWN in shape):
                return Refusal(f"%{value.name} has no elements, or nobody knows how many")
        if not self.symbolic and not group.is_static:
            return Refusal("the extents are known only at run time")
        return None


def kernel_template(
    anchors: Iterable[str] | Chain | Pattern, layout: Layout, **declared: Any
) -> Callable[[Matcher], KernelTemplate]:
    """Declare the kernel that a function plans; `declared` are fields of `KernelTemplate`."""
    names = anchors if isinstance(anchors, Chain | Pattern) else frozenset(anchors)
    return lambda plan: KernelTemplate(plan.__name__, plan, names, layout, **declared)


def same_blocks(_group: Group, block: int) -> Iterable[Mapping[Value, tuple[int, ...]]]:
    """The layouts of a kernel that makes blocks from images in the same blocks."""
    return ({},) if block else ()


def plan_of(group: Group, stores: Stores, body: Callable[[Parameters], Stmt]) -> Plan:
    """The plan of a kernel whose body is written for the parameters that it collects."""

    def write() -> Kernel:
        parameters = Parameters(group, stores)
        return parameters.kernel(body(parameters))

    return write


def node_kernel(*ops: str) -> Callable[[Matcher], KernelTemplate]:
    """Declare the kernel of single nodes on row-major tensors of any sizes."""
    return kernel_template(ops, Layout.ROW_MAJOR, tensors=HELD, alone=True, empty=True)
