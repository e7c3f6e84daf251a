"""Integer number formats that a device multiplies: what quantisation stores numbers in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graft.base.dtypes import DType
from graft.base.errors import UserError


@dataclass(frozen=True, slots=True)
class Scheme:
    """The dtypes of activations, with one scale per tensor, and of weights, symmetric with a scale
    per output channel. `symmetric` puts the zero of activations in the middle of their codes;
    otherwise a zero point shifts it."""

    activations: DType = DType.UINT8
    weights: DType = DType.INT8
    symmetric: bool = False

    def __post_init__(self) -> None:
        known = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)
        if self.activations not in known or self.weights not in (DType.INT8, DType.INT4):
            raise UserError(
                f"{self.activations} by {self.weights} is no scheme of integers",
                hint="activations of 8 or 16 bits by weights of int8 or int4",
            )

    @property
    def name(self) -> str:
        """The name of the precision for users."""
        if self.weights.bits < 8:
            return f"int{self.weights.bits}"
        return f"int{self.activations.bits}"

    @property
    def lowest(self) -> int:
        """The lowest code of activations."""
        return -1 << self.activations.bits - 1 if self.activations.is_signed_integer else 0

    @property
    def levels(self) -> int:
        """The number of codes of activations."""
        return 1 << self.activations.bits

    @property
    def most_weight(self) -> int:
        """The largest magnitude of a weight's code."""
        return (1 << self.weights.bits - 1) - 1

    def __str__(self) -> str:
        kind = "symmetric" if self.symmetric else "affine"
        return f"{kind} {self.activations} by {self.weights}"


BYTES = Scheme()
# The scheme of a precision if no target requires one.
DEFAULTS = {
    one.name: one
    for one in (BYTES, Scheme(DType.INT16, symmetric=True), Scheme(weights=DType.INT4))
}


def scheme_for(
    name: str, targets: Mapping[str, Sequence[Scheme]]
) -> tuple[Scheme, tuple[str, ...]]:
    """The scheme of a precision that the first target supports; if none does, the default one, with
    a note on each target."""
    supported = [one for schemes in targets.values() for one in schemes if one.name == name]
    if supported:
        return supported[0], ()
    scheme = DEFAULTS[name]
    listed = {target: ", ".join(map(str, own)) or "no integers" for target, own in targets.items()}
    return scheme, tuple(
        f"'{target}' does not multiply {scheme}, but {others}: such units run in float"
        for target, others in listed.items()
    )
