"""A mixed-integer linear programme, written row by row and solved by HiGHS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

_INTEGER = highspy.HighsVarType.kInteger
_CONTINUOUS = highspy.HighsVarType.kContinuous

# A linear expression: variable -> factor. The constant part is under CONSTANT.
CONSTANT = -1
Linear = Mapping[int, float]


def minus(left: Linear, right: Linear) -> dict[int, float]:
    """A difference of expressions."""
    result = dict(left)
    for variable, factor in right.items():
        result[variable] = result.get(variable, 0.0) - factor
        if not result[variable]:
            del result[variable]
    return result


def plus(parts: Sequence[Linear]) -> dict[int, float]:
    """A sum of expressions."""
    result: dict[int, float] = {}
    for part in parts:
        for variable, factor in part.items():
            result[variable] = result.get(variable, 0.0) + factor
    return {variable: factor for variable, factor in result.items() if factor}


def evaluate(expression: Linear, values: Sequence[float]) -> float:
    """The value of an expression."""
    return sum(f if v == CONSTANT else values[v] * f for v, f in expression.items())


def scaled(expression: Linear, factor: float) -> dict[int, float]:
    """An expression times a number."""
    return {variable: part * factor for variable, part in expression.items() if factor}


@dataclass(frozen=True, slots=True)
class Solution:
    """What the solver found: values if there are any, and a bound on the objective."""

    values: Sequence[float] | None
    bound: float


@dataclass
class Programme:
    """Minimise a sum over bounded variables subject to rows `expression >= 0` or `== 0`."""

    costs: list[float] = field(default_factory=list)
    highest: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    indices: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    constant: float = 0.0  # of the objective
    contradicts: bool = False  # a row without variables does not hold

    def variable(self, cost: float = 0.0, integer: bool = False, upper: float = 1.0) -> int:
        """A new variable between 0 and `upper`."""
        self.costs.append(cost)
        self.highest.append(upper)
        self.integer.append(integer)
        return len(self.costs) - 1

    def at_least_zero(self, expression: Linear) -> None:
        self._row(expression, math.inf)

    def zero(self, expression: Linear) -> None:
        self._row(expression, 0.0)

    def _row(self, expression: Linear, highest: float) -> None:
        constant = expression.get(CONSTANT, 0.0)
        terms = {v: f for v, f in expression.items() if v != CONSTANT and f}
        if not terms:
            self.contradicts |= not -1e-9 <= constant <= highest + 1e-9
            return
        self.indices += terms.keys()
        self.factors += terms.values()
        self.starts.append(len(self.indices))
        self.lower.append(-constant)
        self.upper.append(highest - constant)

    def add_cost(self, expression: Linear, price: float) -> None:
        """Let a linear expression cost its value times the price."""
        for variable, factor in expression.items():
            if variable == CONSTANT:
                self.constant += factor * price
            else:
                self.costs[variable] += factor * price

    def solve(self, seconds: float) -> Solution:
        """Solve within the time."""
        if self.contradicts:
            return Solution(None, math.inf)
        if not self.costs:
            return Solution([], self.constant)
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.silent()
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("random_seed", 0)
        solver.setOptionValue("time_limit", max(seconds, 0.01))
        solver.setOptionValue("mip_rel_gap", 1e-7)
        solver.setOptionValue("mip_abs_gap", 1e-9)
        solver.passModel(self._model())
        solver.run()
        return _read(solver, any(self.integer))

    def _model(self) -> highspy.HighsLp:
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.costs), len(self.lower)
        model.offset_ = self.constant
        model.col_cost_ = np.array(self.costs)
        model.col_lower_ = np.zeros(len(self.costs))
        model.col_upper_ = np.array(self.highest)
        model.row_lower_ = np.array(self.lower)
        model.row_upper_ = np.array(self.upper)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(self.starts)
        model.a_matrix_.index_ = np.array(self.indices)
        model.a_matrix_.value_ = np.array(self.factors)
        model.integrality_ = [_INTEGER if whole else _CONTINUOUS for whole in self.integer]
        return model


def _read(solver: highspy.Highs, is_mixed: bool) -> Solution:
    status = solver.getModelStatus()
    info = solver.getInfo()
    solved = status == highspy.HighsModelStatus.kOptimal
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = list(solver.getSolution().col_value) if solved or feasible else None
    if status == highspy.HighsModelStatus.kInfeasible:
        return Solution(None, math.inf)
    bound = info.mip_dual_bound if is_mixed else info.objective_function_value
    proven = math.isfinite(bound) and (is_mixed or solved)
    return Solution(values, bound if proven else -math.inf)
