"""What a user may ask of the host backend, beyond the model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from graft.base.errors import UserError
from graft.target.target import HOST


class Accuracy(Enum):
    """How exact results have to be."""

    DEFAULT = "default"  # algorithms with a stated bound on their rounding are allowed
    STRICT = "strict"  # sums are what the operator's definition adds up, in some order

    @staticmethod
    def named(name: str) -> Accuracy:
        """The accuracy of that name."""
        known = {one.value: one for one in Accuracy}
        if name not in known:
            names = ", ".join(known)
            raise UserError(f"there is no accuracy '{name}'", hint=f"known accuracies: {names}")
        return known[name]


@dataclass(frozen=True, slots=True)
class HostOptions:
    """`threads`: how many share the work, None for one per core; `machine`: whose code it is;
    `accuracy`: which algorithms are allowed."""

    threads: int | None = None
    machine: str = HOST
    accuracy: Accuracy = Accuracy.DEFAULT
