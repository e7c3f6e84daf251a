"""Matrix products, quantised ones included, Einstein sums and determinants."""

from __future__ import annotations

from graft.base.dim_questions import provably_different, provably_equal
from graft.base.dims import UNKNOWN
from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call, cast_to
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.ir.graph import Value
from graft.ops.rules import require_broadcasts_to

lowers_to("Einsum", "einsum", "equation")
lowers_to("Det", "det")


@lowers("MatMul")
def _matmul(call: Call) -> Value:
    return matmul(call, call.input(0), call.input(1))


def matmul(call: Call, a: Value, b: Value) -> Value:
    """`numpy.matmul`: a vector is a row on the left and a column on the right, and then dropped."""
    rank = call.rank(b)
    if rank == 2:
        return call.op("nn.dense", a, call.op("transpose", b, axes=(1, 0)))
    if rank == 1:
        product = call.op("nn.dense", a, call.op("expand_dims", b, axes=(0,)))
        return call.op("squeeze", product, axes=(-1,))
    if call.rank(a) == 1:
        product = call.op("nn.batch_matmul", call.op("expand_dims", a, axes=(0,)), b)
        return call.op("squeeze", product, axes=(-2,))
    return call.op("nn.batch_matmul", a, b)


@lowers("Gemm")
def _gemm(call: Call) -> Value:
    a, b, c = call.input(0), call.input(1), call.optional(2)
    if a.shape is not None and len(a.shape) != 2:
        call.fail(f"A has rank {len(a.shape)}, not 2")
    if call.int("transA", 0):
        a = call.op("transpose", a, axes=(1, 0))
    weight = b if call.int("transB", 0) else call.op("transpose", b, axes=(1, 0))
    product = _scaled(call, call.op("nn.dense", a, weight), "alpha")
    # As in BLAS, a factor of zero means that the third operand is not looked at.
    if c is None or call.float("beta", 1.0) == 0:
        return product
    return _with_bias(call, product, _scaled(call, c, "beta"))


def _scaled(call: Call, value: Value, attribute: str) -> Value:
    factor = call.float(attribute, 1.0)
    if factor == 1:
        return value
    if value.dtype.is_integer and not float(factor).is_integer():
        call.unsupported(f"{attribute} is {factor:g}, which integers cannot be multiplied by")
    return call.op("multiply", value, call.scalar(factor, value))


def _with_bias(call: Call, product: Value, bias: Value) -> Value:
    require_broadcasts_to(bias.tensor, product.tensor, "C")
    columns = product.shape[-1] if product.shape else UNKNOWN
    if bias.shape and len(bias.shape) == 1 and provably_equal(bias.shape[0], columns):
        return call.op("nn.bias_add", product, bias, axis=-1)
    return call.op("add", product, bias)


@lowers("MatMulInteger")
def _matmul_integer(call: Call) -> Value:
    return integer_matmul(
        call, (call.input(0), call.optional(2)), (call.input(1), call.optional(3))
    )


Centred = tuple[Value, "Value | None"]  # a tensor and its zero point


def integer_matmul(call: Call, left: Centred, right: Centred) -> Value:
    """The exact product of integers less their zero points, in int32.

    Bytes times a matrix of bytes, with one zero point for all data, are a dense layer of integers.
    """
    (a, a_zero), (b, b_zero) = left, right
    single = a_zero is None or (a_zero.shape is not None and all(d == 1 for d in a_zero.shape))
    if call.rank(b) == 2 and single and a.dtype.bits == b.dtype.bits == 8:
        weight = call.op("transpose", without_zero_point(call, b, b_zero), axes=(1, 0))
        return call.op("qnn.dense", a, weight, *(() if a_zero is None else (a_zero,)))
    if a_zero is not None and call.rank(a) > 1:
        a_zero = per_row(call, a_zero)
    wide = [centred(call, *pair, DType.INT32) for pair in ((a, a_zero), (b, b_zero))]
    return matmul(call, *wide)


def without_zero_point(call: Call, weight: Value, zero_point: Value | None) -> Value:
    """8-bit weights less their zero point, in 16 bits where 8 may not do."""
    if zero_point is None and weight.dtype is DType.INT8:
        return weight
    return centred(call, weight, zero_point, DType.INT16)


def per_row(call: Call, parameter: Value) -> Value:
    """A parameter that broadcasts against a matrix's rows, where it is a list of one per row."""
    return call.op("expand_dims", parameter, axes=(1,)) if call.rank(parameter) == 1 else parameter


def centred(call: Call, value: Value, zero_point: Value | None, dtype: DType) -> Value:
    """A quantised value less its zero point, in a dtype in which no difference overflows."""
    wide = cast_to(call, value, dtype)
    if zero_point is None:
        return wide
    return call.op("subtract", wide, cast_to(call, zero_point, dtype))


@lowers("QLinearMatMul")
def _qlinear_matmul(call: Call) -> Value:
    """The sums are exact where both operands are integers; float32 scales them."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (call.input(i) for i in range(8))
    row, column = call.rank(a) == 1, call.rank(b) == 1
    if row:
        a = call.op("expand_dims", a, axes=(0,))
    if column:
        b = call.op("expand_dims", b, axes=(1,))
    real_dtype = DType.FLOAT32
    if a.dtype.is_integer and b.dtype.is_integer:
        sums = integer_matmul(call, (a, a_zero), (b, b_zero))
    else:
        pairs = ((a, per_row(call, a_zero)), (b, b_zero))
        sums = matmul(call, *(centred(call, *pair, real_dtype) for pair in pairs))
    sums = cast_to(call, sums, real_dtype)
    scales = [cast_to(call, v, real_dtype) for v in (per_row(call, a_scale), b_scale, y_scale)]
    real = call.op("multiply", sums, call.op("multiply", *scales[:2]))
    y_scale, y_zero = _per_tensor(call, scales[2]), _per_tensor(call, y_zero)
    quantized = call.op("qnn.quantize", real, y_scale, y_zero, dtype=y_zero.dtype)
    dropped = (*((-2,) if row else ()), *((-1,) if column else ()))
    return call.op("squeeze", quantized, axes=dropped) if dropped else quantized


def _per_tensor(call: Call, parameter: Value) -> Value:
    """The parameter as a scalar; refuses one with several elements."""
    rank = call.rank(parameter)
    if any(provably_different(dim, 1) for dim in parameter.shape or ()):
        call.fail(f"the result's scale or zero point is {parameter.type}, not one number")
    return call.op("squeeze", parameter, axes=tuple(range(rank))) if rank else parameter
