"""The kernel templates in the order in which they are tried."""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores, Template
from graft.backends.host.kernels.conv import conv2d
from graft.backends.host.kernels.winograd import winograd
from graft.llvm.target import Target
from graft.rewrite.rule import Refusal

TEMPLATES: tuple[Template, ...] = (winograd, conv2d)


def kernel_for(group: Group, stores: Stores, target: Target) -> Kernel | Refusal:
    """The first template's kernel that takes the group, or all refusals in one."""
    reasons: list[str] = []
    for template in TEMPLATES:
        made = template(group, stores, target)
        if isinstance(made, Kernel):
            return made
        reasons.append(f"{template.__name__}: {made.reason}")
    return Refusal("; ".join(reasons))
