"""Cases of sampling and of spectra."""

from __future__ import annotations

from tests.ops.expression.specs import Case, case, f16, f32, f64, i8


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
    ]


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
    ]


SIGNALS: tuple[Case, ...] = (*_sampling(), *_spectra())
