"""Floating-point values with Python's operators.

Part of the math kernels, which read like formulas this way. Nothing is contracted or reordered:
each operator is one instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graft.llvm.text import Builder, Value, constant


@dataclass(frozen=True, slots=True)
class Number:
    """A float or an integer in each lane, and the builder that computes with it."""

    builder: Builder
    value: Value

    def like(self, number: float) -> Number:
        """A constant of the same type."""
        return self._new(constant(number, self.value.element, self.value.lanes))

    def _new(self, value: Value) -> Number:
        return Number(self.builder, value)

    def _operate(self, operation: str, other: Number | float) -> Number:
        right = other if isinstance(other, Number) else self.like(other)
        kind = ("f" if self.value.is_float else "") + operation
        return self._new(self.builder.binary(kind, self.value, right.value))

    def __add__(self, other: Number | float) -> Number:
        return self._operate("add", other)

    def __sub__(self, other: Number | float) -> Number:
        return self._operate("sub", other)

    def __mul__(self, other: Number | float) -> Number:
        return self._operate("mul", other)

    def __truediv__(self, other: Number | float) -> Number:
        return self._operate("div", other)

    def __lshift__(self, amount: int) -> Number:
        return self._new(self.builder.binary("shl", self.value, self.like(amount).value))

    def __rshift__(self, amount: int) -> Number:
        return self._new(self.builder.binary("ashr", self.value, self.like(amount).value))

    def __and__(self, mask: int) -> Number:
        return self._new(self.builder.binary("and", self.value, self.like(mask).value))

    def fma(self, factor: Number | float, addend: Number | float) -> Number:
        """self * factor + addend, rounded once where the processor can."""
        right, last = (
            other if isinstance(other, Number) else self.like(other) for other in (factor, addend)
        )
        name = "fma" if self.builder.target.has_fma else "fmuladd"
        return self._new(self.builder.elementwise(name, self.value, right.value, last.value))

    def polynomial(self, coefficients: Sequence[float]) -> Number:
        """The polynomial in self, coefficients from the constant term on."""
        result = self.like(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = result.fma(self, coefficient)
        return result

    def apply(self, name: str, *others: Number) -> Number:
        """An intrinsic of LLVM: fabs, copysign, ..."""
        values = [other.value for other in others]
        return self._new(self.builder.elementwise(name, self.value, *values))

    def test(self, predicate: str, other: Number | float) -> Value:
        """A comparison, by LLVM's predicate."""
        right = other if isinstance(other, Number) else self.like(other)
        return self.builder.compare(predicate, self.value, right.value)

    def where(self, condition: Value, other: Number | float) -> Number:
        """Self where the condition holds, the other elsewhere."""
        right = other if isinstance(other, Number) else self.like(other)
        return self._new(self.builder.select(condition, self.value, right.value))

    def within(self, low: float, high: float) -> Number:
        """Self moved into a range; NaN stays NaN."""
        above = self.like(low).where(self.test("olt", low), self)
        return above.like(high).where(above.test("ogt", high), above)

    def to(self, operation: str, element: str) -> Number:
        """Converted: bitcast, sitofp, fpext, ..."""
        return self._new(self.builder.convert(operation, self.value, element))


def two_sum(left: Number, right: Number) -> tuple[Number, Number]:
    """The sum, and exactly what its rounding lost."""
    total = left + right
    virtual = total - left
    return total, (left - (total - virtual)) + (right - virtual)


def two_product(left: Number, right: Number) -> tuple[Number, Number]:
    """The product of float64 numbers of moderate size, and exactly what its rounding lost."""
    product = left * right
    if left.builder.target.has_fma:
        return product, left.fma(right, product.like(-0.0) - product)
    (a, b), (c, d) = _halves(left), _halves(right)
    return product, b * d - (((product - a * c) - b * c) - a * d)


def _halves(number: Number) -> tuple[Number, Number]:
    """A float64 as two of at most 26 bits each."""
    scaled = number * 134217729.0
    high = scaled - (scaled - number)
    return high, number - high
