"""Cases of sampling, spectra and attention, and of operators whose numbers are operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.ops.expression.specs import Case, bf16, case, f16, f32, f64, i8, i32, i64, truth

from graft.base.dtypes import DType
from graft.ir.literal import Literal


def _sampling() -> list[Case]:
    found: list[Case] = []
    for method in ("nearest", "linear", "cubic"):
        for mode in ("zeros", "border", "reflection"):
            for corners in (True, False):
                attrs = {"method": method, "padding_mode": mode, "align_corners": corners}
                operands = f32(2, 2, 4, 5), f32(2, 3, 2, 2)
                found.append(case("grid_sample", *operands, low=-1.9, high=1.9, **attrs))
    return [
        *found,
        case("grid_sample", f64(1, 1, 3, 4, 2), f64(1, 2, 2, 1, 3), low=-1.2, high=1.2),
        case("grid_sample", i8(1, 2, 3, 4), f32(1, 2, 5, 2), low=-1.5, high=1.5),
        case("grid_sample", f16(1, 1, 7), f16(1, 5, 1), low=-1.2, high=1.2),
        case("affine_grid", f32(2, 2, 3), size=(2, 3, 4, 5)),
        case("affine_grid", f64(1, 3, 4), size=(1, 3, 4, 1, 2), align_corners=True),
        *(
            case("vision.crop_and_resize", data, boxes, i32(5), low=0, high=1.2, **attrs)
            for data, boxes in ((f32(2, 3, 5, 4), f32(5, 4)), (f16(2, 1, 3, 7), f16(5, 4)))
            for attrs in ({"crop_size": (4, 3)}, {"crop_size": (1, 2), "method": "nearest"})
        ),
    ]


_MEL: dict[str, Any] = {
    "num_mel_bins": 8,
    "dft_length": 64,
    "sample_rate": 8192,
    "lower_edge_hertz": 20.0,
    "upper_edge_hertz": 4000.0,
}


def _spectra() -> list[Case]:
    return [
        case("dft", f32(2, 10, 1)),
        case("dft", f32(2, 7, 3, 2), axis=1, inverse=True),
        case("dft", f64(9, 1), onesided=True),
        case("dft", f32(3, 8, 1), onesided=True, dft_length=12),
        case("dft", f32(3, 8, 2), dft_length=5),
        case("dft", f32(2, 6, 2), onesided=True, inverse=True),
        case("dft", f32(2, 6, 2), onesided=True, inverse=True, dft_length=9),
        case("dft", f16(4, 5, 1), axis=0),
        case("stft", f32(2, 20, 1), frame_step=3, frame_length=8),
        case("stft", f32(1, 20, 2), frame_step=4, frame_length=7, onesided=False),
        case("stft", f64(1, 15, 1), None, f64(6), frame_step=5),
        case("mel_weight_matrix", **_MEL, dtype=DType.FLOAT64),
        case("mel_weight_matrix", **{**_MEL, "num_mel_bins": 40}),  # triangles that are one place
        case("mel_weight_matrix", **{**_MEL, "dft_length": 33}, dtype=DType.INT8),
        case("mel_weight_matrix", **_MEL, dtype=DType.FLOAT16),
    ]


def _attention() -> list[Case]:
    small = f32(2, 4, 3, 5), f32(2, 2, 6, 5), f32(2, 2, 6, 7)
    plain = f16(1, 2, 3, 4), f16(1, 2, 5, 4), f16(1, 2, 5, 4)
    found = [case("nn.attention", *small, scores=stage, softcap=2.0) for stage in _STAGES]
    return [
        *found,
        case("nn.attention", *plain, causal=True),
        case("nn.attention", *plain, softmax_dtype=DType.FLOAT64, scores="probabilities"),
        case("nn.attention", bf16(1, 1, 2, 4), bf16(1, 1, 3, 4), bf16(1, 1, 3, 4), scale=0.3),
        case("nn.attention", *small, truth(3, 6), scores="biased"),
        case("nn.attention", *small, f32(2, 1, 3, 6), i64(2), i64(2), causal=True, high=6),
        case("nn.attention", *small, left_window=1, right_window=0, offset=2, scores="raw"),
    ]


_STAGES = ("none", "raw", "capped", "biased", "probabilities")


def _scattered() -> list[Case]:
    steps: dict[str, Any] = {"strides": (2, 1), "padding": (1, 0, 0, 2), "dilation": (1, 2)}
    return [
        case("col2im", f32(2, 12, 12), image_shape=(5, 5), block_shape=(2, 3)),
        case("col2im", f16(1, 4, 12), image_shape=(6, 4), block_shape=(2, 2), **steps),
        case("col2im", i32(1, 24, 8), image_shape=(3, 3, 4), block_shape=(2, 2, 3)),
        case("tensor_scatter", f32(2, 7, 3), f32(2, 3, 3), i64(2), low=0, high=4),
        case("tensor_scatter", f32(2, 1, 5), f32(2, 1, 5), axis=1),
        case("tensor_scatter", i8(3, 5, 2), i8(3, 4, 2), i64(3), mode="circular", low=0),
        case("nn.deformable_conv2d", f32(2, 4, 6, 5), f32(2, 18, 4, 3), f32(3, 4, 3, 3)),
        case(
            "nn.deformable_windows",
            f32(1, 4, 6, 7),
            f32(1, 16, 3, 4),
            f32(1, 8, 3, 4),
            kernel_size=(2, 2),
            groups=2,
            deformable_groups=2,
            strides=(2, 2),
            padding=(0, 1, 1, 1),
            low=-1.5,
            high=1.5,
        ),
        case(
            "nn.deformable_conv2d",
            f32(1, 4, 6, 7),
            f32(1, 16, 3, 4),
            f32(2, 2, 2, 2),
            f32(1, 8, 3, 4),
            groups=2,
            deformable_groups=2,
            strides=(2, 2),
            padding=(0, 1, 1, 1),
            low=-1.5,
            high=1.5,
        ),
    ]


def _counted() -> list[Case]:
    pool: dict[str, Any] = {
        "pool": Literal(np.array([1, 2, 0, 0, 1, 2, 2], np.int64)),
        "counts": (0, 3),
    }
    attrs: dict[str, Any] = {
        **pool,
        "indexes": (0, 3, 1, 1, 2),
        "weights": (1.0, 2.0, 0.5, 3.0, 0.25),
    }
    return [
        case("nlp.tfidf", i64(3, 9), low=0, mode="TF", min_length=1, max_length=2, **attrs),
        case("nlp.tfidf", i32(7), mode="IDF", min_length=2, max_length=2, max_skip=3, **attrs),
        case("nlp.tfidf", i64(2, 5), low=0, mode="TFIDF", min_length=1, max_length=1, **attrs),
    ]


def _looked_up() -> list[Case]:
    near, far = Literal(np.array([4, -3, 1, 4, 0])), Literal(np.array([4, -3, 10**9, 1, 0]))
    some = Literal(np.array([0.5, np.nan, -1.0, 2.0, 0.0], np.float32))
    values = Literal(np.array([1, 2, 3, 4, 5], np.float32))
    none, seven = Literal(np.zeros(0, np.int64)), Literal(np.array(7))
    return [
        case("ml.label_map", i64(3, 9), keys=near, values=far, default=seven),
        case("ml.label_map", i64(3, 9), keys=far, values=near, default=seven),
        case("ml.label_map", f32(3, 9), keys=some, values=near, default=seven),
        case("ml.label_map", f32(3, 9), keys=values, values=near, default=seven),
        case("ml.label_map", i64(0, 9), keys=none, values=none, default=seven),
    ]


SIGNALS: tuple[Case, ...] = (
    *_sampling(),
    *_spectra(),
    *_attention(),
    *_scattered(),
    *_counted(),
    *_looked_up(),
)
