"""Budgets, names of precisions, and the report of quantisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from graft.base.dtypes import DType
from graft.base.errors import UserError

FLOAT, HALF, BRAIN, INTEGER, AUTO = "float32", "fp16", "bf16", "int8", "auto"
# Activations of 16 bits by weights of 8, and of 8 by weights of 4.
WIDE, NIBBLE = "int16", "int4"
INTEGERS = (INTEGER, WIDE, NIBBLE)
PRECISIONS = (FLOAT, HALF, BRAIN, *INTEGERS, AUTO)
# Precisions that only round: they need no samples to calibrate on.
HALVES: Mapping[str, DType] = {HALF: DType.FLOAT16, BRAIN: DType.BFLOAT16}
DEFAULT_BUDGET = 0.05
_WIDE = 0.03  # a margin that is reported


@dataclass(frozen=True, slots=True)
class Budget:
    """The error budget: a relative error of the outputs, or a share of samples whose largest output
    stays the same."""

    error: float | None = None
    agreement: float | None = None

    @staticmethod
    def parse(given: float | str | Budget | None) -> Budget:
        """0.01, "1%" or "top1=0.99"."""
        if isinstance(given, Budget):
            return given
        text = str(DEFAULT_BUDGET if given is None else given).strip()
        kind, _, amount = text.rpartition("=")
        try:
            value = float(amount.removesuffix("%")) / (100 if amount.endswith("%") else 1)
        except ValueError:
            value = math.nan
        if kind not in ("", "top1") or not 0 < value <= 1:
            raise UserError(
                f"the budget {text!r} is no share of 1",
                hint='0.01 (or "1%") of relative output error, or "top1=0.99" of agreement',
            )
        return Budget(agreement=value) if kind else Budget(error=value)

    def __str__(self) -> str:
        if self.error is not None:
            return f"relative output error {self.error:.3g}"
        return f"top-1 agreement {self.agreement:.3g}"


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of results on held-out samples, compared with the float program's.

    `agreement` is the share of rows whose largest element is the same; None without such rows. Each
    has a bound that holds for similar data with the confidence of `confidence.py`."""

    error: float
    error_bound: float
    agreement: float | None = None
    agreement_bound: float | None = None

    def meets(self, budget: Budget | None) -> bool:
        """Whether unseen data are within the budget. If all rows agree, they are, even if too few
        to prove it: that takes hundreds for 99 %."""
        if budget is None:
            return math.isfinite(self.error)
        if budget.error is not None:
            return self.error_bound <= budget.error
        if self.agreement is None or self.agreement_bound is None:
            return False
        assert budget.agreement is not None
        return self.agreement == 1 or self.agreement_bound >= budget.agreement


EXACT = Quality(0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class UnitReport:
    """The precision of a unit, and why; by precision, its time and its squared error, as far as
    measured."""

    name: str
    op: str
    precision: str
    reason: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A choice on the Pareto front of predicted time and error."""

    seconds: float  # of all units
    error: float
    counts: Mapping[str, int]  # units by precision


@dataclass(frozen=True, slots=True)
class Report:
    """The report of quantisation."""

    units: tuple[UnitReport, ...]
    samples: int
    held_out: int
    quality: Quality
    float_seconds: float
    seconds: float  # of the result; that of float where nothing changed
    budget: Budget | None = None
    attempts: int = 0
    front: tuple[FrontPoint, ...] = ()
    random: bool = False
    equalized: int = 0  # values whose channels were scaled against each other
    refusals: tuple[str, ...] = ()  # targets that do not compute in what was asked for, and why
    warnings: tuple[str, ...] = ()  # of the data

    def count(self, precision: str) -> int:
        """The number of units in a precision."""
        return sum(unit.precision == precision for unit in self.units)

    @property
    def narrow_units(self) -> int:
        """The number of units that are not in float32."""
        return len(self.units) - self.count(FLOAT)

    @property
    def advice(self) -> str:
        """What more samples would improve; empty if nothing."""
        quality, budget = self.quality, self.budget
        if budget is None or self.random:
            return ""
        if budget.agreement is not None:
            if quality.agreement != 1 or (quality.agreement_bound or 0) >= budget.agreement:
                return ""
            return (
                f"all rows of {self.held_out} samples agree, which proves"
                f" {quality.agreement_bound:.1%}: more samples would prove more"
            )
        is_held_back = self.count(FLOAT) + sum(map(self.count, HALVES)) > 0
        if not is_held_back or self.margin < _WIDE:
            return ""
        return (
            f"{self.held_out} samples measured on leave a margin of {self.margin:.0%} below the"
            " budget: more samples allow a faster choice"
        )

    @property
    def margin(self) -> float:
        """The relative margin of the error's bound over the error."""
        return self.quality.error_bound / self.quality.error - 1 if self.quality.error else 0.0
