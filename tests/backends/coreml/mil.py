"""Packages read back by coremltools, and evaluated without Core ML.

coremltools itself knows what most operators make of constants (its value inference); what it does
not is computed here as Apple's reference of MIL describes it, by other means than the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from graft.backends.coreml import runtime


def read_back(blob: bytes) -> Any:
    """The program of a package, with its weights, as coremltools' own reader sees it."""
    tools = runtime.tools()
    from coremltools.converters.mil.frontend.milproto.load import load

    with TemporaryDirectory() as folder:
        package = runtime.unpack(blob, folder)
        spec = tools.utils.load_spec(str(package))
        weights = package / "Data" / "com.apple.CoreML" / "weights"
        return load(spec, spec.specificationVersion, str(weights))


def operations(program: Any) -> list[Any]:
    return [op for op in program.functions["main"].operations if op.op_type != "const"]


def evaluate(program: Any, inputs: Sequence[Any]) -> tuple[list[Any], set[str]]:
    """Results, and the operators whose meaning is this file's."""
    runtime.tools()
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import Function, types

    main, own = program.functions["main"], set()
    values = {var.name: array for var, array in zip(main.inputs.values(), inputs, strict=True)}
    dummy = {"x": Builder.placeholder(shape=(1,), dtype=types.fp32)}
    with Function(dummy, opset_version=main.opset_version):
        for op in main.operations:
            name = op.outputs[0].name
            if op.op_type == "const":
                values[name] = op.outputs[0].val
                continue
            arguments = {key: _value(var, values) for key, var in op.inputs.items() if var}
            if op.op_type in MEANINGS:
                own.add(op.op_type)
                values[name] = MEANINGS[op.op_type](**arguments)
            else:
                values[name] = getattr(Builder, op.op_type)(**arguments).val
                assert values[name] is not None, f"nobody knows what {op.op_type} gives"
    return [np.asarray(values[var.name]) for var in main.outputs], own


def _value(var: Any, values: dict[str, Any]) -> Any:
    if isinstance(var, (list, tuple)):
        return [values[one.name] for one in var]
    return values[var.name]


def _padded(x: Any, pad: Any, fill: float) -> Any:
    return np.pad(x, ((0, 0), (0, 0), *np.reshape(pad, (-1, 2))), constant_values=fill)


def _windows(x: Any, sizes: Sequence[int], strides: Any, dilations: Any = None) -> Any:
    """[batch, channel, *results, *window]"""
    rank = len(sizes)
    dilations = [1] * rank if dilations is None else dilations
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    views = sliding_window_view(x, spans, axis=tuple(range(2, 2 + rank)))
    steps = [slice(None, None, int(step)) for step in (*strides, *dilations)]
    return views[(slice(None), slice(None), *steps)]


def _conv(x, weight, strides, pad, dilations, groups, pad_type="", bias=None):
    assert pad_type == "custom"
    assert bias is None
    views = _windows(_padded(x, pad, 0), weight.shape[2:], strides, dilations)
    rank, parts = x.ndim - 2, []
    for data, kernel in zip(
        np.split(views, groups, axis=1), np.split(weight, groups, axis=0), strict=True
    ):
        axes = [1, *range(2 + rank, 2 + 2 * rank)], list(range(1, 2 + rank))
        parts.append(np.moveaxis(np.tensordot(data, kernel, axes), -1, 1))
    return np.concatenate(parts, axis=1)


def _conv_transpose(x, weight, strides, pad, dilations, groups, pad_type=""):
    """Every pixel adds its kernel to the result, of which padding then takes the edges."""
    assert pad_type == "custom"
    batch, channels, *sizes = x.shape
    each, (_, outputs, *kernel) = channels // groups, weight.shape
    full = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(sizes, strides, kernel, dilations, strict=True)
    ]
    result = np.zeros((batch, outputs * groups, *full), x.dtype)
    for group in range(groups):
        data = x[:, group * each : (group + 1) * each]
        taps = weight[group * each : (group + 1) * each]
        for tap in np.ndindex(*kernel):
            part = np.einsum("nc...,co->no...", data, taps[(slice(None), slice(None), *tap)])
            reach = [
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, dilations, sizes, strides, strict=True)
            ]
            chosen = slice(group * outputs, (group + 1) * outputs)
            result[(slice(None), chosen, *reach)] += part
    ends = [slice(b, n - a) for (b, a), n in zip(np.reshape(pad, (-1, 2)), full, strict=True)]
    return result[(slice(None), slice(None), *ends)]


def _max_pool(x, kernel_sizes, strides, pad, pad_type="", ceil_mode=False):
    assert pad_type == "custom"
    assert not ceil_mode
    views = _windows(_padded(x, pad, -np.inf), kernel_sizes, strides)
    return views.max(axis=tuple(range(-len(kernel_sizes), 0)))


def _avg_pool(x, exclude_padding_from_average, kernel_sizes, strides, pad, pad_type, ceil_mode):
    assert pad_type == "custom"
    assert not ceil_mode
    axes = tuple(range(-len(kernel_sizes), 0))
    sums = _windows(_padded(x, pad, 0), kernel_sizes, strides).sum(axis=axes)
    ones = _padded(np.ones_like(x), pad, 0 if exclude_padding_from_average else 1)
    return (sums / _windows(ones, kernel_sizes, strides).sum(axis=axes)).astype(x.dtype)


def _norm(x, mean, variance, gamma, beta, epsilon):
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def _batch_norm(x, mean, variance, gamma, beta, epsilon):
    spread = [a.reshape(-1, *[1] * (x.ndim - 2)) for a in (mean, variance, gamma, beta)]
    return _norm(x, *spread, epsilon)


def _layer_norm(x, axes, epsilon, gamma=None, beta=None):
    assert list(axes) == list(range(x.ndim))[axes[0] :]
    wide, over = x.astype(np.float64), tuple(axes)
    mean, variance = (f(wide, axis=over, keepdims=True) for f in (np.mean, np.var))
    gamma, beta = (1 if gamma is None else gamma), (0 if beta is None else beta)
    return _norm(wide, mean, variance, gamma, beta, epsilon).astype(x.dtype)


def _gelu(x, mode):
    from math import erf

    if mode == "EXACT":
        return (x / 2 * (1 + np.vectorize(erf)(x / np.sqrt(2)))).astype(x.dtype)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return (x / 2 * (1 + np.tanh(inner))).astype(x.dtype)


def _nearest(x, scale_factor_height, scale_factor_width):
    return x.repeat(scale_factor_height, axis=-2).repeat(scale_factor_width, axis=-1)


def _bilinear(x, scale_factor_height, scale_factor_width, align_corners, half_pixel_centers):
    for axis, factor in ((-2, scale_factor_height), (-1, scale_factor_width)):
        old = x.shape[axis]
        new, at = int(old * factor), np.arange(int(old * factor))
        if align_corners:
            spots = at * (old - 1) / max(new - 1, 1)
        else:
            assert half_pixel_centers
            spots = np.clip((at + 0.5) / factor - 0.5, 0, old - 1)
        low = np.floor(spots).astype(int)
        share = (spots - low)[:, None] if axis == -2 else spots - low
        high = np.minimum(low + 1, old - 1)
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x.astype(np.float32)


def _reduce(function: Any) -> Callable[..., Any]:
    """coremltools 9 computes reductions itself, but not with NumPy 2.4. No axes are all of them."""

    def reduce(x: Any, keep_dims: Any, axes: Any = None) -> Any:
        axis = None if axes is None else tuple(axes)
        return function(x, axis=axis, keepdims=bool(keep_dims))

    return reduce


def _pad(x, pad, mode, constant_val):
    assert mode == "constant"
    return np.pad(x, np.reshape(pad, (-1, 2)), constant_values=constant_val)


MEANINGS: dict[str, Callable[..., Any]] = {
    "avg_pool": _avg_pool,
    "batch_norm": _batch_norm,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "gelu": _gelu,
    "layer_norm": _layer_norm,
    "linear": lambda x, weight, bias=None: x @ weight.T + (0 if bias is None else bias),
    "matmul": lambda x, y, transpose_x=False, transpose_y=False: (
        (x.swapaxes(-1, -2) if transpose_x else x) @ (y.swapaxes(-1, -2) if transpose_y else y)
    ),
    "max_pool": _max_pool,
    "pad": _pad,
    **{f"reduce_{name}": _reduce(getattr(np, name)) for name in ("max", "mean", "min")},
    **{f"reduce_{name}": _reduce(getattr(np, name)) for name in ("prod", "sum")},
    "upsample_bilinear": _bilinear,
    "upsample_nearest_neighbor": _nearest,
}
