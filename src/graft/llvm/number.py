"""Values with Python's operators, in which math kernels and conversions read like formulas.

Nothing is contracted or reordered: each operator is one instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graft.llvm.text import Builder, Value, constant


def _operator(integers: str, floats: str = "") -> Callable[[Number, Number | float], Number]:
    """Python's operator for an instruction on integers and one on floats."""

    def operate(self: Number, other: Number | float) -> Number:
        operation = floats if self.value.is_float else integers
        return self._new(self.builder.binary(operation, self.value, self._of(other)))

    return operate


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

    def _of(self, other: Number | float) -> Value:
        """The value of a number, or a constant of the same type."""
        return (other if isinstance(other, Number) else self.like(other)).value

    __add__, __sub__ = _operator("add", "fadd"), _operator("sub", "fsub")
    __mul__, __truediv__ = _operator("mul", "fmul"), _operator("sdiv", "fdiv")
    __lshift__, __rshift__ = _operator("shl"), _operator("ashr")
    __and__, __or__, __xor__ = _operator("and"), _operator("or"), _operator("xor")
    logical_right = _operator("lshr")

    def fma(self, factor: Number | float, addend: Number | float) -> Number:
        """self * factor + addend, rounded once where the processor can."""
        name = "fma" if self.builder.target.has_fma else "fmuladd"
        right, last = self._of(factor), self._of(addend)
        return self._new(self.builder.elementwise(name, self.value, right, last))

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
        return self.builder.compare(predicate, self.value, self._of(other))

    def where(self, condition: Value, other: Number | float) -> Number:
        """Self where the condition holds, the other elsewhere."""
        return self._new(self.builder.select(condition, self.value, self._of(other)))

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
