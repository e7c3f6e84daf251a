"""Scalar expressions as C: an expression of loop IR in, statements that compute it out."""

from __future__ import annotations

import math

from graft.base.dtypes import DType
from graft.loop.ir import Binary, BinaryKind, Call, Cast, Compare, Const, Expr, Select, Var
from graft.loop.traverse import children

_TYPES = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.INT32: "int",
    DType.INT64: "long",
    DType.BOOL: "int",
}
# What is not written between its operands as it is printed.
_BINARY = {BinaryKind.MAXIMUM: "MAX({0}, {1})", BinaryKind.MINIMUM: "MIN({0}, {1})"}
# Functions that C calls otherwise, or has not; {f} is the suffix of those on float.
_FUNCTIONS = {
    "abs": "fabs{f}({0})",
    "round": "rint{f}({0})",
    "isnan": "isnan({0})",
    "isinf": "(isinf({0}) != 0)",
    "sigmoid": "1 / (1 + exp{f}(-{0}))",
    "gelu": "{0} == -INFINITY ? 0 : {0} * erfc{f}({0} * -0.70710678118654752{f}) / 2",
}


def statements(expr: Expr) -> tuple[list[str], str]:
    """Declarations, one per operation, and the name of the last; variables keep theirs."""
    lines: list[str] = []
    names: dict[int, str] = {}

    def name(expr: Expr) -> str:
        if isinstance(expr, Var):
            return expr.name
        if isinstance(expr, Const):
            return number(expr)
        if id(expr) not in names:
            operands = [name(child) for child in children(expr)]
            names[id(expr)] = f"t{len(names)}"
            operation = _operation(expr, operands)
            lines.append(f"const {_TYPES[expr.dtype]} {names[id(expr)]} = {operation};")
        return names[id(expr)]

    return lines, name(expr)


def number(const: Const) -> str:
    """A constant."""
    if not const.dtype.is_float:
        return str(int(const.value))
    if math.isnan(const.value):
        return "NAN"
    if math.isinf(const.value):
        return "INFINITY" if const.value > 0 else "-INFINITY"
    return f"{float(const.value)!r}{_suffix(const.dtype)}"


def _operation(expr: Expr, operands: list[str]) -> str:
    match expr:
        case Binary():
            return _BINARY.get(expr.kind, f"{{0}} {expr.kind.value} {{1}}").format(*operands)
        case Compare():
            return f" {expr.kind.value} ".join(operands)
        case Select():
            condition, yes, no = operands
            return f"{condition} ? {yes} : {no}"
        case Cast():
            return f"({_TYPES[expr.dtype]}){operands[0]}"
        case Call():
            suffix = _suffix(expr.arguments[0].dtype)
            default = f"{expr.name}{suffix}({', '.join(operands)})"
            return _FUNCTIONS.get(expr.name, default).format(*operands, f=suffix)
        case _:
            raise KeyError(type(expr).__name__)


def _suffix(dtype: DType) -> str:
    return "f" if dtype is DType.FLOAT32 else ""
