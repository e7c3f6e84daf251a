"""A call of each operator, as types of operands and attributes, to show its type rule by.

Operators whose rule is said in words (see `graft.ops.rules`), or which hold graphs or large tables,
have none. Symbols stand for any extent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IMAGE, INTS = "float32[n, 16, h, w]", "int64[k]"

# name -> types of operands ("" is left out), attributes
Example = tuple[tuple[str, ...], Mapping[str, Any]]


def _call(*types: str, **attrs: Any) -> Example:
    return types, attrs


def _ranked(stem: str, *types: str, suffix: str = "d", **attrs: Any) -> dict[str, Example]:
    """The same for one to three spatial axes; `S` stands for these axes, `K` for a window's."""
    result = {}
    for rank in (1, 2, 3):
        axes = {"S": ", ".join("dhw"[3 - rank :]), "K": ", ".join("3" * rank)}
        shown = [type_.replace("S", axes["S"]).replace("K", axes["K"]) for type_ in types]
        own = {name: (value,) * rank for name, value in attrs.items()}
        result[f"{stem}{rank}{suffix}"] = _call(*shown, **own)
    return result


_CHANNELS = ("float32[16]",) * 2

EXAMPLES: dict[str, Example] = {
    # shapes, and tensors from nothing
    "arange": _call("", "int64[]", start=0, delta=1),
    "shape_of": _call(IMAGE),
    "full": _call("float32[]", shape=(2, 3)),
    "eye": _call(shape=(3, 4)),
    "cast": _call("float32[n]", dtype="int8"),
    "bitcast": _call("float32[n]", dtype="int32"),
    "random.normal": _call(shape=(2, 3)),
    "random.uniform": _call(shape=(2, 3)),
    "random.multinomial": _call("float32[n, 10]", sample_size=4),
    # movement
    "reshape": _call("float32[n, 12]", shape=(-1, 3, 4)),
    "transpose": _call("float32[n, h, w]", axes=(0, 2, 1)),
    "expand_dims": _call("float32[n, h]", axes=(1,)),
    "squeeze": _call("float32[n, 1, h]", axes=(1,)),
    "concatenate": _call("float32[n, a]", "float32[n, b]", axis=1),
    "split": _call("float32[n, 7]", axis=1, sizes=(3, 4)),
    "broadcast_to": _call("float32[1, h]", shape=(5, 1)),
    "tile": _call("float32[n, h]", reps=(1, 2)),
    "layout_transform": _call(IMAGE, src_layout="NCHW", dst_layout="NCHW8c"),
    "strided_slice": _call("float32[n, 10]", begin=(1,), end=(9,), axes=(1,), strides=(2,)),
    "nn.pad": _call("float32[n, w]", pad_width=(0, 0, 2, 3)),
    "depth_to_space": _call(IMAGE, block_size=2),
    "space_to_depth": _call("float32[n, 4, 8, 6]", block_size=2),
    "trilu": _call("float32[n, h, w]", k=0),
    "reverse_sequence": _call("float32[t, n]", "int64[n]"),
    "take": _call("float32[n, h]", "int64[k, 2]", axis=1),
    "gather": _call("float32[n, h]", "int64[n, k]", axis=1),
    "gather_nd": _call("float32[n, h, w]", "int64[k, 2]"),
    "scatter_elements": _call("float32[n, h]", "int64[n, k]", "float32[n, k]", axis=1),
    "scatter_nd": _call("float32[n, h, w]", "int64[k, 2]", "float32[k, w]"),
    "one_hot": _call("int64[n]", "float32[2]", depth=10),
    # arithmetic that is not element by element of one dtype
    "where": _call("bool[n, 1]", "float32[n, h]", "float32[h]"),
    "clip": _call("float32[n]", a_min=0.0, a_max=6.0),
    "power": _call("float32[n, h]", "int64[h]"),
    "nn.prelu": _call(IMAGE, "float32[16, 1, 1]"),
    "nn.softmax": _call("float32[n, c]"),
    "nn.log_softmax": _call("float32[n, c]"),
    **{name: _call(IMAGE, axes=(2, 3)) for name in ("sum", "prod", "mean", "max", "min")},
    **{name: _call("float32[n, c]", axis=1) for name in ("argmax", "argmin", "cumsum", "cumprod")},
    "topk": _call("float32[n, c]", k=5),
    "nonzero": _call("float32[n, h]"),
    "unique": _call("float32[n]"),
    "det": _call("float32[n, 3, 3]"),
    "einsum": _call("float32[b, i, j]", "float32[b, j, k]", equation="bij,bjk->bik"),
    "nn.dense": _call("float32[n, 128]", "float32[64, 128]"),
    "nn.batch_matmul": _call("float32[n, 1, i, j]", "float32[h, j, k]"),
    "nn.bias_add": _call(IMAGE, "float32[16]"),
    "nn.batch_norm": _call(IMAGE, *_CHANNELS, *_CHANNELS),
    "nn.instance_norm": _call(IMAGE, *_CHANNELS),
    "nn.group_norm": _call(IMAGE, *_CHANNELS, num_groups=4),
    "nn.layer_norm": _call("float32[n, t, 768]", "float32[768]", "float32[768]"),
    "nn.rms_norm": _call("float32[n, t, 768]", "float32[768]"),
    "nn.lrn": _call(IMAGE, size=5),
    "nn.lp_normalize": _call("float32[n, c]"),
    "nn.attention": _call(*("float32[n, 12, t, 64]",) * 3),
    # windows
    **_ranked("nn.conv", "float32[n, 16, S]", "float32[32, 16, K]"),
    **_ranked("nn.conv", "float32[n, 16, S]", "float32[16, 32, K]", suffix="d_transpose"),
    **_ranked("nn.max_pool", "float32[n, 16, S]", pool_size=2),
    **_ranked("nn.max_pool", "float32[n, 16, S]", suffix="d_with_indices", pool_size=2),
    **_ranked("nn.avg_pool", "float32[n, 16, S]", pool_size=2),
    **_ranked("nn.lp_pool", "float32[n, 16, S]", pool_size=2),
    "resize": _call("float32[n, 3, 7, 9]", scales=(2.0, 2.0), axes=(2, 3)),
    "vision.roi_align": _call(IMAGE, "float32[k, 4]", INTS, pooled_size=(7, 7)),
    "vision.roi_pool": _call(IMAGE, "float32[k, 5]", pooled_size=(7, 7)),
    "vision.non_max_suppression": _call("float32[n, boxes, 4]", "float32[n, classes, boxes]"),
    "grid_sample": _call(IMAGE, "float32[n, a, b, 2]"),
    "affine_grid": _call("float32[n, 2, 3]", size=(4, 3, 8, 9)),
    # narrow integers
    "qnn.quantize": _call(IMAGE, "float32[]", "uint8[]", dtype="uint8"),
    "qnn.dequantize": _call("uint8[n, 16, h, w]", "float32[]", "uint8[]"),
    # sequences, strings, signals
    "sequence.construct": _call("float32[n]", "float32[m]"),
    "sequence.at": _call("sequence<float32[n]>", "int64[]"),
    "sequence.insert": _call("sequence<float32[n]>", "float32[n]"),
    "sequence.erase": _call("sequence<float32[n]>"),
    "sequence.length": _call("sequence<float32[n]>"),
    "sequence.concatenate": _call("sequence<float32[n, 3]>", axis=1),
    "sequence.split": _call("float32[n, 3]", axis=1, chunk=1),
    "optional.has_element": _call("optional<float32[n]>"),
    "optional.get_element": _call("optional<float32[n]>"),
    "string.regex_full_match": _call("string[n]", pattern="a*"),
    "string.split": _call("string[n]"),
    "dft": _call("float32[n, t, 1]", axis=1),
    "stft": _call("float32[n, 1024, 1]", frame_step=256, frame_length=512),
    "ml.squared_distance": _call("float32[n, 4]", "float32[m, 4]"),
    "image.decode": _call("uint8[n]"),
}
