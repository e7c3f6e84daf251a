"""Normalisations with sums and embeddings fused in front of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call, cast_to, counted, extent
from graft.frontends.onnx.lower.activation import swish
from graft.frontends.onnx.lower.microsoft.activation import with_bias
from graft.frontends.onnx.lower.microsoft.contract import lowers_microsoft
from graft.frontends.onnx.lower.microsoft.product import channels_first, channels_last
from graft.frontends.onnx.lower.norm import statistics
from graft.ir.graph import Value

_SMALL = 1e-12  # the epsilon of all but the plain normalisations


@lowers_microsoft("SimplifiedLayerNormalization", "X scale", "axis epsilon stash_type", domain="")
def _simplified_layer_normalization(call: Call) -> tuple[Value, ...]:
    """By the root of the mean square alone; ONNX Runtime knows it in ONNX's own domain."""
    x, scale, axis = call.input(0), call.input(1), call.int("axis", -1)
    wide = cast_to(call, x, scale.dtype) if x.dtype.bits < scale.dtype.bits else x
    same = cast_to(call, scale, wide.dtype)
    epsilon = call.float("epsilon", 1e-5)
    normal = call.op("nn.rms_norm", wide, same, axis=axis, epsilon=epsilon)
    result = cast_to(call, normal, scale.dtype)
    return (
        (result, statistics(call, x, axis, epsilon, False)[1]) if call.has_output(1) else (result,)
    )


def _sum_with_skip(call: Call, bias: Value | None) -> Value:
    return with_bias(call, call.op("add", call.input(0), call.input(1)), bias)


def _results(call: Call, result: Value, total: Value, centred: bool) -> tuple[Value | None, ...]:
    """The result, the statistics if the node names them, and the sum that was normalised."""
    if not (call.has_output(1) or call.has_output(2)):
        return result, None, None, total
    return result, *statistics(call, total, -1, call.float("epsilon", _SMALL), centred), total


@lowers_microsoft("SkipLayerNormalization", "input skip gamma beta? bias?", "epsilon")
def _skip_layer_normalization(call: Call) -> tuple[Value | None, ...]:
    total = _sum_with_skip(call, call.optional(4))
    epsilon = call.float("epsilon", _SMALL)
    operands = total, call.input(2), call.optional(3)
    result = call.op("nn.layer_norm", *operands, axis=-1, epsilon=epsilon)
    return _results(call, result, total, True)


@lowers_microsoft("SkipSimplifiedLayerNormalization", "input skip gamma bias?", "epsilon")
def _skip_simplified_layer_normalization(call: Call) -> tuple[Value | None, ...]:
    total = _sum_with_skip(call, call.optional(3))
    epsilon = call.float("epsilon", _SMALL)
    result = call.op("nn.rms_norm", total, call.input(2), axis=-1, epsilon=epsilon)
    return _results(call, result, total, False)


@lowers_microsoft(
    "EmbedLayerNormalization",
    "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta"
    " mask? position_ids?",
    "epsilon mask_index_type",
)
def _embed_layer_normalization(call: Call) -> tuple[Value, ...]:
    return embedded(call, [call.optional(i) for i in range(2, 7)], call.optional(8))


def embedded(
    call: Call, tables: Sequence[Value | None], positions: Value | None
) -> tuple[Value, ...]:
    """The normalised sum of embeddings, how many words the mask leaves, and the sum itself.

    The tables are those of words, positions and segments, then gamma and beta; the last of the
    three may be missing.
    """
    word_table, position_table, segment_table, gamma, beta = tables
    words, segments = call.input(0), call.optional(1)
    assert word_table is not None
    assert position_table is not None
    if (segments is None) != (segment_table is None):
        call.fail("segment_ids and segment_embedding come together or not at all")
    total = call.op("take", word_table, words, axis=0)
    if positions is None:
        positions = counted(call, extent(call, words, 1))
    total = call.op("add", total, call.op("take", position_table, positions, axis=0))
    if segments is not None and segment_table is not None:
        total = call.op("add", total, call.op("take", segment_table, segments, axis=0))
    epsilon = call.float("epsilon", _SMALL)
    result = call.op("nn.layer_norm", total, gamma, beta, axis=-1, epsilon=epsilon)
    return result, _word_count(call, words, call.optional(7)), total


def _word_count(call: Call, words: Value, mask: Value | None) -> Value:
    """How many ones each row of the mask has; nothing is counted where there is no mask."""
    if mask is None:
        batch = call.op("strided_slice", call.op("shape_of", words), begin=[0], end=[1], axes=[0])
        return call.op("full", call.constant(np.int32(0)), batch)
    ones = call.op("equal", mask, call.scalar(1, mask))
    return call.op("sum", call.op("cast", ones, dtype=DType.INT32), axes=[1])


@lowers_microsoft(
    "QEmbedLayerNormalization",
    "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask?"
    " word_embedding_scale position_embedding_scale segment_embedding_scale? gamma_scale beta_scale"
    " word_embedding_zero_point position_embedding_zero_point segment_embedding_zero_point?"
    " gamma_zero_point beta_zero_point",
    "epsilon",
)
def _qembed_layer_normalization(call: Call) -> tuple[Value, ...]:
    """Tables and parameters are quantised; their scales, then their zero points follow."""
    return embedded(call, [_table(call, 2 + i, 8 + i, 13 + i) for i in range(5)], None)


def _table(call: Call, position: int, scale_at: int, zero_at: int) -> Value | None:
    stored = call.optional(position)
    if stored is None:
        return None
    return call.op("qnn.dequantize", stored, call.input(scale_at), call.optional(zero_at))


_GROUPS = "activation channels_last epsilon groups"


@lowers_microsoft("GroupNorm", "X gamma beta", _GROUPS)
def _group_norm(call: Call) -> Value:
    return _grouped(call, call.input(0))


@lowers_microsoft("SkipGroupNorm", "X gamma beta skip bias?", _GROUPS)
def _skip_group_norm(call: Call) -> tuple[Value, Value]:
    """The skip of a whole image may have extents of 1, or be missing them."""
    x, skip, bias = call.input(0), call.input(3), call.optional(4)
    last = bool(call.int("channels_last", 1))
    if call.rank(skip) == 2:
        skip = call.op("expand_dims", skip, axes=(1, 2) if last else (2, 3))
    total = call.op("add", x, skip)
    if bias is not None:
        total = call.op("nn.bias_add", total, bias, axis=-1 if last else 1)
    return _grouped(call, total), total


def _grouped(call: Call, x: Value) -> Value:
    last = bool(call.int("channels_last", 1))
    activation = call.int("activation")
    if activation not in (0, 1):
        call.fail(f"activation is {activation}, neither 0 nor 1")
    parameters = (cast_to(call, call.input(i), x.dtype) for i in (1, 2))
    data = channels_first(call, x) if last else x
    groups, epsilon = call.int("groups"), call.float("epsilon", 1e-5)
    result = call.op("nn.group_norm", data, *parameters, num_groups=groups, epsilon=epsilon)
    if activation:
        result = swish(call, result)
    return channels_last(call, result) if last else result
