"""Conversions between element types: by value (`cast`) and bit for bit (`bitcast`).

Any dtype enters and any leaves, strings included; ONNX's rules say what becomes of values that the
new type does not hold. Rounding is to nearest even except into float8_e8m0fnu, which has a mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import EvaluationError
from graft.ir.attrs import Attrs
from graft.ir.op import Kind
from graft.ir.types import TensorType, Type
from graft.loop.build import Term, call, cast, maximum, minimum, select
from graft.ops.pointwise import pointwise
from graft.ops.rules import operator, require

_ROUND_MODES = ("up", "down", "nearest")
# The types into which a value that is too large may saturate, and the largest number of each.
LARGEST = {
    DType.FLOAT8E4M3FN: 448.0,
    DType.FLOAT8E4M3FNUZ: 240.0,
    DType.FLOAT8E5M2: 57344.0,
    DType.FLOAT8E5M2FNUZ: 57344.0,
}


@dataclass(frozen=True, slots=True)
class CastAttrs(Attrs):
    """`saturate` matters for float8 types only, `round_mode` for float8_e8m0fnu only."""

    dtype: DType
    saturate: bool = True
    round_mode: str = "up"


def _cast_type(attrs: CastAttrs, data: TensorType) -> TensorType:
    real = attrs.dtype.is_complex or not data.dtype.is_complex
    require(real, f"a complex number has no value in {attrs.dtype}")
    is_mode = attrs.round_mode in _ROUND_MODES
    require(is_mode, f"round_mode is '{attrs.round_mode}', not one of {', '.join(_ROUND_MODES)}")
    return TensorType(attrs.dtype, data.shape)


def _cast(attrs: CastAttrs, data: Array) -> Array:
    source, target = dtype_of(data.dtype), attrs.dtype
    if source is target:
        return data
    if target is DType.STRING:
        return _to_strings(data, source)
    if source is DType.STRING:
        data = _from_strings(data, target)
    elif source.bits < 32:
        data = data.astype(np.float32 if source.is_float else np.int32)
    if target is DType.BOOL:
        return np.asarray(data != 0)
    if target is DType.FLOAT8E8M0FNU:
        return _to_exponents(data.astype(np.float64), attrs)
    if target in LARGEST and attrs.saturate:
        largest = LARGEST[target]
        data = np.clip(data.astype(np.float64), -largest, largest)
    return data.astype(target.numpy)


def _to_exponents(numbers: Array, attrs: CastAttrs) -> Array:
    """The powers of two next to the numbers, as the biased exponents that float8_e8m0fnu holds."""
    mantissa, exponent = np.frexp(numbers)  # numbers = mantissa * 2**exponent, 0.5 <= mantissa < 1
    threshold = {"up": np.nextafter(0.5, 1), "nearest": 0.75, "down": 1.0}[attrs.round_mode]
    biased = exponent + (126 + (mantissa >= threshold))
    smallest, largest, nan = 0, 254, 255
    biased = np.where(numbers == 0, smallest - 1, np.where(np.isinf(numbers), largest + 1, biased))
    if attrs.saturate:
        biased = np.clip(biased, smallest, largest)
    fits = (biased >= smallest) & (biased <= largest) & (numbers >= 0)
    return np.where(fits, biased, nan).astype(np.uint8).view(DType.FLOAT8E8M0FNU.numpy)


def _to_strings(data: Array, source: DType) -> Array:
    texts = np.empty(data.shape, dtype=object)
    write = _float_text if source.is_float else _integer_text
    widened = data.astype(np.float32) if source.is_float and source.bits < 16 else data
    texts.reshape(-1)[:] = [write(item) for item in widened.reshape(-1)]
    return texts


def _float_text(number: Any) -> str:
    """As few digits as give the number back, never in scientific notation.

    NumPy counts digits for its own types only; the others print as the float32 they equal.
    """
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "INF" if number > 0 else "-INF"
    if isinstance(number, ml_dtypes.bfloat16):
        number = np.float32(number)
    return str(np.format_float_positional(number, trim="-"))


def _integer_text(number: Any) -> str:
    return str(int(number))


def _from_strings(texts: Array, target: DType) -> Array:
    wide: Any = np.complex128 if target.is_complex else np.float64
    if target.is_integer:
        wide = np.uint64 if target.is_unsigned_integer else np.int64
    read = _integer if target.is_integer else complex if target.is_complex else float
    numbers = []
    for text in texts.reshape(-1).tolist():
        try:
            numbers.append(read(text))
        except (ValueError, OverflowError):
            raise EvaluationError(f"the text {text!r} is no {target}") from None
    return np.array(numbers, dtype=wide).reshape(texts.shape)


def _integer(text: str) -> int:
    """Exact where the text is an integer; "100.5" gives 100."""
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _cast_of_dims(
    attrs: CastAttrs, known: Sequence[Array | None], _types: Sequence[Type | None]
) -> Array | None:
    """Dims stay what they are in the integer types that hold every extent."""
    return known[0] if attrs.dtype in (DType.INT64, DType.INT32) else None


# The powers of two that an exponent of eight bits holds.
_POWERS = 2.0**-127, 2.0**127


def _to_power(attrs: CastAttrs, x: Term) -> Term:
    """The power of two next to a number in a direction, as float8_e8m0fnu; saturated."""
    wide = x if x.dtype is DType.FLOAT64 else cast(DType.FLOAT32, x)
    # The least power is a denormal float32, and programs have zeros for such results: it is
    # compared, but never computed.
    clamped = minimum(maximum(call("abs", wide), _POWERS[0]), _POWERS[1])
    near = cast(wide.dtype, cast(attrs.dtype, clamped))
    match attrs.round_mode:
        case "up":
            power = select(near < clamped, near * 2.0, near)
        case "down":
            power = select(near > clamped, near * 0.5, near)
        case _:
            power = select((clamped - near) * 2.0 >= near, near * 2.0, near)
    return cast(attrs.dtype, select(wide < 0.0, float("nan"), power))


def _cast_scalar(attrs: CastAttrs, x: Term) -> Term:
    """Into float8 types, what is too large becomes the largest number unless that is unwanted."""
    if attrs.dtype is DType.FLOAT8E8M0FNU:
        return _to_power(attrs, x)
    largest = LARGEST.get(attrs.dtype)
    if largest is None or not attrs.saturate:
        return cast(attrs.dtype, x)
    wide = x if x.dtype in (DType.FLOAT32, DType.FLOAT64) else cast(DType.FLOAT32, x)
    return cast(attrs.dtype, minimum(maximum(wide, -largest), largest))


pointwise(
    "cast",
    "data",
    _cast_scalar,
    infer=_cast_type,
    evaluate=_cast,
    attrs=CastAttrs,
    symbolic=_cast_of_dims,
    summary="each element converted to another dtype, by value",
)


@dataclass(frozen=True, slots=True)
class BitcastAttrs(Attrs):
    dtype: DType


def _bitcast_type(attrs: BitcastAttrs, data: TensorType) -> TensorType:
    require(DType.STRING not in (data.dtype, attrs.dtype), "strings have no fixed bits")
    have, want = data.dtype.bits, attrs.dtype.bits
    require(have == want, f"{data.dtype} has {have} bits, {attrs.dtype} has {want}")
    return TensorType(attrs.dtype, data.shape)


@operator("bitcast", "data", _bitcast_type, kind=Kind.ELEMENTWISE)
def _bitcast(attrs: BitcastAttrs, data: Array) -> Array:
    """The same bits as elements of another dtype of the same size."""
    return data.view(attrs.dtype.numpy)
