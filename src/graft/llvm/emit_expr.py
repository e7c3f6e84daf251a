"""Expressions -> values.

Part of the emitter. Arithmetic means what the interpreter says it means: division rounds down,
NaN wins in minimum and maximum, shifts by too much give zero, and no input makes the code
undefined.
"""

from __future__ import annotations

from graft.base.dtypes import DType
from graft.base.errors import InternalError, UnsupportedError
from graft.llvm import emit_memory
from graft.llvm.context import Context
from graft.llvm.convert import cast, narrow, widen
from graft.llvm.emit_call import call
from graft.llvm.emit_integer import divided_shortly, floor_divide, floor_modulo, shift
from graft.llvm.narrow import fitted
from graft.llvm.text import CONTRACT, Builder, Value, constant, constants
from graft.llvm.types import NARROW_INTEGERS, WIDENED, register_type, small_float_bits
from graft.loop import ir
from graft.loop.vectors import is_mask, scalar_of

_FLOAT = {
    ir.BinaryKind.ADD: f"fadd {CONTRACT}",
    ir.BinaryKind.SUBTRACT: f"fsub {CONTRACT}",
    ir.BinaryKind.MULTIPLY: f"fmul {CONTRACT}",
    ir.BinaryKind.DIVIDE: f"fdiv {CONTRACT}",
}
_INTEGER = {
    ir.BinaryKind.ADD: "add",
    ir.BinaryKind.SUBTRACT: "sub",
    ir.BinaryKind.MULTIPLY: "mul",
    ir.BinaryKind.AND: "and",
    ir.BinaryKind.OR: "or",
    ir.BinaryKind.XOR: "xor",
}
_BOOL = {
    ir.BinaryKind.ADD: "or",
    ir.BinaryKind.MULTIPLY: "and",
    ir.BinaryKind.MINIMUM: "and",
    ir.BinaryKind.MAXIMUM: "or",
    ir.BinaryKind.AND: "and",
    ir.BinaryKind.OR: "or",
    ir.BinaryKind.XOR: "xor",
}
_SHORT = 1 << 31  # what fits into 32 bits with a sign is below

_FLOAT_COMPARE = {
    ir.CompareKind.EQUAL: "oeq",
    ir.CompareKind.NOT_EQUAL: "une",
    ir.CompareKind.LESS: "olt",
    ir.CompareKind.LESS_EQUAL: "ole",
    ir.CompareKind.GREATER: "ogt",
    ir.CompareKind.GREATER_EQUAL: "oge",
}
_INTEGER_COMPARE = {
    ir.CompareKind.EQUAL: "eq",
    ir.CompareKind.NOT_EQUAL: "ne",
    ir.CompareKind.LESS: "lt",
    ir.CompareKind.LESS_EQUAL: "le",
    ir.CompareKind.GREATER: "gt",
    ir.CompareKind.GREATER_EQUAL: "ge",
}


def expression(context: Context, expr: ir.Expr) -> Value:
    """The value of an expression."""
    builder = context.builder
    match expr:
        case ir.Const():
            return _constant(expr)
        case ir.Var():
            return context.variable(expr.name)
        case ir.Binary():
            left, right = expression(context, expr.left), expression(context, expr.right)
            if _is_short_division(context, expr):
                return divided_shortly(builder, expr.kind, left, right)
            return binary(builder, expr.kind, expr.dtype, left, right)
        case ir.Compare():
            return _compare(context, expr)
        case ir.Select():
            return _select(context, expr)
        case ir.Cast():
            value = expression(context, expr.value)
            return cast(builder, value, expr.value.dtype, expr.dtype)
        case ir.Call():
            arguments = [expression(context, argument) for argument in expr.arguments]
            return call(builder, expr.name, expr.arguments[0].dtype, arguments, binary)
        case ir.Ramp(base=single, lanes=1) | ir.Broadcast(value=single, lanes=1):
            return expression(context, single)
        case ir.Ramp():
            base = builder.splat(expression(context, expr.base), expr.lanes)
            steps = [lane * expr.stride for lane in range(expr.lanes)]
            return builder.binary("add", base, constants(steps, base.element))
        case ir.Broadcast():
            value = expression(context, expr.value)
            if value.lanes == 1:
                return builder.splat(value, expr.lanes)
            return builder.shuffle(value, value, [n % value.lanes for n in range(expr.lanes)])
        case ir.Load():
            return emit_memory.load(context, expr.buffer, expr.indices, expression)


def _is_short_division(context: Context, expr: ir.Binary) -> bool:
    """Whether a vector of indices is divided by a constant, and all of it fits into 31 bits."""
    if expr.kind not in (ir.BinaryKind.FLOOR_DIVIDE, ir.BinaryKind.FLOOR_MODULO) or expr.lanes == 1:
        return False
    match expr.right:
        case ir.Const(value=int(divisor), dtype=DType.INT64) if 0 < divisor < _SHORT:
            low, high = context.bounds(expr.left)
            return low >= 0 and high < _SHORT
    return False


def _select(context: Context, expr: ir.Select) -> Value:
    """One of two values; a mask also says which lanes of them may be read from memory."""
    condition = expression(context, expr.condition)
    if not is_mask(expr.condition):
        yes, no = expression(context, expr.yes), expression(context, expr.no)
    else:
        every = constant(True, "i1", condition.lanes)
        flipped = context.builder.binary("xor", condition, every)
        yes = _under(context, condition, expr.yes)
        no = _under(context, flipped, expr.no)
    return context.builder.select(condition, yes, no)


def _under(context: Context, mask: Value, expr: ir.Expr) -> Value:
    outer = context.mask_for(mask.lanes)
    if outer is not None:
        mask = context.builder.binary("and", outer, mask)
    with context.under(mask):
        return expression(context, expr)


def _constant(const: ir.Const) -> Value:
    element = register_type(const.dtype)
    if const.dtype in WIDENED:
        return constant(small_float_bits(const.value, const.dtype), element, const.lanes)
    return constant(const.value, element, const.lanes)


def binary(builder: Builder, kind: ir.BinaryKind, dtype: DType, left: Value, right: Value) -> Value:
    """An operation on two values of one dtype."""
    if dtype in NARROW_INTEGERS:
        whole = DType.INT8 if dtype.is_signed_integer else DType.UINT8
        return fitted(builder, binary(builder, kind, whole, left, right), dtype)
    if dtype in WIDENED:
        wide = (widen(builder, side, dtype) for side in (left, right))
        return narrow(builder, binary(builder, kind, DType.FLOAT32, *wide), dtype)
    if dtype.is_float:
        return _float_binary(builder, kind, left, right)
    if dtype is DType.BOOL:
        if kind not in _BOOL:
            raise UnsupportedError(f"'{kind}' has no meaning for bool")
        return builder.binary(_BOOL[kind], left, right)
    signed = dtype.is_signed_integer
    if kind in _INTEGER:
        return builder.binary(_INTEGER[kind], left, right)
    if kind in (ir.BinaryKind.MINIMUM, ir.BinaryKind.MAXIMUM):
        name = ("s" if signed else "u") + kind.value
        return builder.elementwise(name, left, right)
    if kind is ir.BinaryKind.FLOOR_DIVIDE:
        return floor_divide(builder, signed, left, right)
    if kind is ir.BinaryKind.FLOOR_MODULO:
        return floor_modulo(builder, signed, left, right)
    if kind in (ir.BinaryKind.SHIFT_LEFT, ir.BinaryKind.SHIFT_RIGHT):
        return shift(builder, kind is ir.BinaryKind.SHIFT_LEFT, signed, left, right)
    raise UnsupportedError(f"'{kind}' has no meaning for {dtype}", hint="integers divide by '//'")


def _float_binary(builder: Builder, kind: ir.BinaryKind, left: Value, right: Value) -> Value:
    if kind in _FLOAT:
        return builder.binary(_FLOAT[kind].rstrip(), left, right)
    if kind in (ir.BinaryKind.MINIMUM, ir.BinaryKind.MAXIMUM):
        return _extremum(builder, kind is ir.BinaryKind.MAXIMUM, left, right)
    raise UnsupportedError(f"'{kind}' has no meaning for floating-point numbers")


def _extremum(builder: Builder, largest: bool, left: Value, right: Value) -> Value:
    """The larger or smaller of two floats; NaN wins."""
    if builder.target.is_aarch64:  # which has an instruction for exactly this
        return builder.elementwise("maximum" if largest else "minimum", left, right)
    # x86 keeps the second operand if either is NaN, so a constant has to be the first.
    if right.text.startswith(("0x", "splat")):
        left, right = right, left
    better = builder.compare("ogt" if largest else "olt", left, right)
    result = builder.select(better, left, right)
    if left.text.startswith(("0x", "splat")) and "0x7FF8" not in left.text:
        return result
    return builder.select(builder.compare("uno", left, left), left, result)


def _compare(context: Context, expr: ir.Compare) -> Value:
    builder, dtype = context.builder, expr.left.dtype
    by_lane = _compare_lanes(context, expr)
    if by_lane is not None:
        return by_lane
    left, right = (
        widen(builder, expression(context, side), dtype) for side in (expr.left, expr.right)
    )
    if dtype.is_float:
        return builder.compare(_FLOAT_COMPARE[expr.kind], left, right)
    predicate = _INTEGER_COMPARE[expr.kind]
    if predicate not in ("eq", "ne"):
        predicate = ("s" if dtype.is_signed_integer else "u") + predicate
    return builder.compare(predicate, left, right)


def _compare_lanes(context: Context, expr: ir.Compare) -> Value | None:
    """`base + lane < limit` and its like, as a comparison of the lane with `limit - base`.

    Such are the masks of tails and borders. 32 bits are enough for that, and compare faster than
    64, if the difference is first brought to between -1 and the number of lanes.
    """
    ramp, limit = expr.left, scalar_of(expr.right)
    if not isinstance(ramp, ir.Ramp) or ramp.stride != 1 or limit is None:
        return None
    if ramp.dtype is not DType.INT64:
        return None
    builder, lanes = context.builder, ramp.lanes
    end, base = expression(context, limit), expression(context, ramp.base)
    count = builder.elementwise("ssub.sat", end, base)
    count = builder.elementwise("smax", count, constant(-1, "i64"))
    count = builder.elementwise("smin", count, constant(lanes, "i64"))
    limits = builder.splat(builder.convert("trunc", count, "i32"), lanes)
    predicate = _INTEGER_COMPARE[expr.kind]
    if predicate not in ("eq", "ne"):
        predicate = "s" + predicate
    return builder.compare(predicate, constants(list(range(lanes)), "i32"), limits)


def scalar(context: Context, expr: ir.Expr) -> Value:
    """The value of an expression that has to be a scalar."""
    if expr.lanes != 1:
        raise InternalError(f"{context.function}: a scalar is needed, not {expr.lanes} lanes")
    return expression(context, expr)
