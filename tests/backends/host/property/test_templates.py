"""Every kernel template on random groups that it accepts.

Each example is a group with odd extents, an epilogue and data, for one of the machines that this
one can stand in for; `check.py` says what is asked of its kernel. How many groups a template took
and how many of them were interpreted is counted, so that no strategy passes by being refused.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.backends.host.property import images, moves, rows
from tests.backends.host.property.check import Tally, Template, check_template, check_unknown
from tests.backends.host.property.sketch import Draw, Sample, Sketch, is_one_group, samples
from tests.backends.host.property.unknown import with_unknown_rows, with_unknowns
from tests.examples import examples

from graft.backends.host.kernel_template import Chain, Layout
from graft.backends.host.templates import TEMPLATES
from graft.target.target import host_target, named_target


def draw_expressed(s: Sketch) -> Sample:
    """Anything row-major that has tensor expressions, which is all but attention."""
    pointwise = (rows.draw_rows, moves.draw_movement)
    heavy = (rows.draw_reduce, rows.draw_dense, rows.draw_batch_matmul)
    normal = (rows.draw_softmax, rows.draw_layer_norm)
    return s.pick((*pointwise, *heavy, *normal))(s)


DRAWN: dict[str, Draw] = {
    "winograd": images.draw_winograd,
    "conv2d": images.draw_conv2d,
    "depthwise_conv2d": images.draw_depthwise,
    "pool2d": images.draw_pool2d,
    "image_reduce": images.draw_image_reduce,
    "channel_norm": images.draw_channel_norm,
    "image_channels": images.draw_image_channels,
    "image_pointwise": images.draw_image_pointwise,
    "image_concat": images.draw_image_concat,
    "image_resize": images.draw_image_resize,
    "image_movement": images.draw_image_movement,
    "dense": rows.draw_dense,
    "batch_matmul": rows.draw_batch_matmul,
    "attention": rows.draw_attention,
    "softmax": rows.draw_softmax,
    "reduce": rows.draw_reduce,
    "movement": moves.draw_movement,
    "relayout": moves.draw_relayout,
    "expression": draw_expressed,
}
KNOWN: dict[str, Template] = {one.name: one for one in TEMPLATES if one.name in DRAWN}
KNOWN |= dict.fromkeys(("movement", "reduce", "softmax"), KNOWN["expression"])
KNOWN["image_channels"] = KNOWN["image_reduce"]
KNOWN |= {"relayout": moves.relayout_template}

HOST = host_target()
NAMES = ["host", "x86-64-v3"]
MACHINES = [name for name in NAMES if set(named_target(name).features) <= set(HOST.features)]

# A kernel takes a tenth of a second to compile: many times more examples would take an hour.
EXAMPLES = examples(240, short=6)
LEAST_ACCEPTED = examples(200, short=5)
LEAST_INTERPRETED = examples(80, short=2)


@pytest.mark.parametrize("name", list(KNOWN))
def test_template(name: str) -> None:
    tally = Tally()

    @settings(max_examples=EXAMPLES)
    @given(samples(DRAWN[name]), st.sampled_from(MACHINES))
    def kernel_is_right(sample: Sample, machine: str) -> None:
        assume(is_one_group(sample.graph))
        check_template(KNOWN[name], sample, named_target(machine), tally)

    kernel_is_right()
    assert tally.accepted >= LEAST_ACCEPTED, tally
    assert tally.interpreted >= LEAST_INTERPRETED, tally


# Chains of convolutions are for known sizes; they, windows over bytes, boxes (`test_roi_align.py`)
# and the windows of deformable convolutions (`test_deformable.py`) have tests of their own.
IMAGES = [
    one.name
    for one in TEMPLATES
    if one.layout is Layout.BLOCKED and not isinstance(one.anchors, Chain) and one.name in DRAWN
]
assert {one.name for one in TEMPLATES if one.layout is Layout.BLOCKED} - {*IMAGES} == {
    *("depthwise_bytes", "depthwise_project", "expand_depthwise", "inverted_residual"),
    *("blocked_roi_align", "blocked_windows"),
}
IMAGES.append("relayout")
UNKNOWN_AXES = st.sampled_from([(0,), (2,), (3,), (2, 3), (0, 2, 3)])
# Pixels are moved by tables, which are made of numbers.
UNKNOWN_AXES_OF = {"image_movement": st.just((0,))}


@pytest.mark.parametrize("name", IMAGES)
def test_template_of_unknown_extents(name: str) -> None:
    tally = Tally()

    @settings(max_examples=EXAMPLES)
    @given(samples(DRAWN[name]), UNKNOWN_AXES_OF.get(name, UNKNOWN_AXES), st.sampled_from(MACHINES))
    def kernel_is_right(sample: Sample, axes: tuple[int, ...], machine: str) -> None:
        unknown = with_unknowns(sample, axes)
        if unknown is not None:
            check_unknown(KNOWN[name], unknown, named_target(machine), tally)

    kernel_is_right()
    assert tally.accepted >= LEAST_ACCEPTED // 4, tally
    assert tally.interpreted >= LEAST_INTERPRETED // 4, tally


ROWS = ["attention", "batch_matmul", "dense", "reduce", "softmax"]


@pytest.mark.parametrize("name", ROWS)
def test_template_of_rows_that_nobody_has_counted(name: str) -> None:
    tally = Tally()

    @settings(max_examples=EXAMPLES)
    @given(samples(DRAWN[name]), st.integers(0, 3), st.sampled_from(MACHINES))
    def kernel_is_right(sample: Sample, remainder: int, machine: str) -> None:
        unknown = with_unknown_rows(sample, remainder)
        if unknown is not None and unknown.binding:
            check_unknown(KNOWN[name], unknown, named_target(machine), tally)

    kernel_is_right()
    assert tally.accepted >= LEAST_ACCEPTED // 16, tally
    assert tally.interpreted >= LEAST_INTERPRETED // 16, tally
