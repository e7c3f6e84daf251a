"""Prices of crossing borders, and the problem in numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.byoc.fakes import IMAGE, Fake, conv_relu, flat

from graft.base.dtypes import DType
from graft.byoc.candidates import find_candidates
from graft.byoc.contract import Cost, Limits
from graft.byoc.place import (
    Placement,
    carry_seconds,
    converts,
    form_of,
    placement_of,
)
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import SequenceType, tensor
from graft.rewrite.pattern import is_op

PICTURE = Value("picture", IMAGE)  # 1 x 3 x 9 x 7 floats
BYTES = 3 * 9 * 7 * 4
ROW = Value("row", tensor("float32", 5))
STEP = 0.25  # seconds around each region, on the host
HOST = Limits(launch_seconds=STEP, peak_flops=1e9, peak_bytes_per_second=1e7)
FAR = Limits(space="device", latency=1e-3, bytes_per_second=1e6)


def test_on_the_hosts_own_memory_rows_are_for_nothing() -> None:
    assert carry_seconds(ROW, Limits(), HOST) == 0.0
    assert carry_seconds(PICTURE, Limits(), HOST, in_rows=True) == 0.0


def test_images_leave_the_hosts_layout() -> None:
    assert carry_seconds(PICTURE, Limits(), HOST) == pytest.approx(2 * BYTES / 1e7)


def test_another_memory_takes_latency_and_bandwidth() -> None:
    assert carry_seconds(ROW, FAR, HOST) == pytest.approx(1e-3 + 20 / 1e6)
    assert carry_seconds(PICTURE, FAR, HOST, in_rows=True) == pytest.approx(1e-3 + BYTES / 1e6)


def test_a_device_that_tells_no_bandwidth_takes_its_latency() -> None:
    assert carry_seconds(ROW, Limits(space="device", latency=2.0), HOST) == 2.0
    assert math.isinf(Limits().bytes_per_second)


CONVERTED = [
    (PICTURE, Limits(layout="NHWC"), True),
    (ROW, Limits(layout="NHWC"), False),  # no image
    (ROW, Limits(dtype=DType.FLOAT16), True),
    (Value("i", tensor("int64", 5)), Limits(dtype=DType.FLOAT16), False),
    (PICTURE, Limits(), False),
]


@pytest.mark.parametrize(("value", "limits", "expected"), CONVERTED)
def test_conversions(value: Value, limits: Limits, expected: bool) -> None:
    assert converts(value, limits) is expected


def test_sequences_have_no_layout() -> None:
    words = Value("words", SequenceType(tensor("float32", 5)))
    assert carry_seconds(words, Limits(), HOST) == 0.0


def placed(*backends: Fake) -> Placement:
    found = find_candidates(conv_relu(), backends)
    return placement_of(found, dict.fromkeys(found.candidates, Cost(1.0)), backends, HOST)


def fake(name: str, limits: Limits) -> Fake:
    return Fake(name, [("relu", is_op("nn.relu"))], price=flat(1.0), limits=limits)


def test_backends_that_agree_share_a_form() -> None:
    same = Limits(space="device", latency=1.0)
    problem = placed(fake("a", same), fake("b", same), fake("c", Limits(layout="NHWC"))).problem
    assert [site.form for site in problem.sites] == [0, 1, 1, 2]
    assert all(len(flow.bring) == len(flow.fetch) == 3 for flow in problem.flows)
    assert all(flow.bring[0] == flow.fetch[0] == 0.0 for flow in problem.flows)


def test_forms_are_space_layout_and_dtype() -> None:
    assert form_of(Limits()) == ("host", "NCHW", DType.FLOAT32)
    others = Limits(space="d"), Limits(layout="NHWC"), Limits(dtype=DType.FLOAT16)
    assert len({form_of(limits) for limits in (Limits(), *others)}) == 4


def test_sites_memory_and_launches() -> None:
    limits = Limits(launch_seconds=0.5, memory_bytes=77)
    problem = placed(fake("a", limits)).problem
    assert problem.sites[1].launch == 0.5 + STEP
    assert problem.sites[1].capacity == 77
    assert problem.sites[1].space == ""
    result = 1 * 4 * 7 * 5 * 4
    assert [flow.sizes for flow in problem.flows] == [(BYTES, BYTES), *[(result, result)] * 3]
    assert problem.held == (4 * 3 * 3 * 3 * 4, 4 * 4, 0)  # weights


def test_flows() -> None:
    flows = placed(fake("a", FAR)).problem.flows
    image, conv, bias, relu = flows
    assert (image.producer, image.consumers, image.leaves) == (None, (0,), False)
    assert (conv.producer, conv.consumers) == (0, (1,))
    assert (bias.producer, bias.consumers) == (1, (2,))
    assert (relu.producer, relu.consumers, relu.leaves) == (2, (), True)
    # at the model's own borders images are rows, inside they are rearranged, too
    assert image.bring[1] == pytest.approx(1e-3 + BYTES / 1e6)
    assert conv.bring[1] > 1e-3 + 560 / 1e6
    assert relu.fetch[1] == pytest.approx(1e-3 + 560 / 1e6)


def test_candidates_without_a_price_are_left_out() -> None:
    backend = fake("a", Limits())
    found = find_candidates(conv_relu(), [backend])
    prices = {c: Cost(1.0) for c in found.candidates if c.backend == "host"}
    placement = placement_of(found, prices, [backend], HOST)
    assert all(option.site == 0 for option in placement.problem.options)
    assert len(placement.priced) == len(placement.problem.options)


def test_values_that_nobody_reads_take_memory_only() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2, 4))
    values, _places = g.call("topk", x, k=2)
    graph = g.build(g("add", values, g.constant(np.float32(1))))
    found = find_candidates(graph, [])
    placement = placement_of(found, dict.fromkeys(found.candidates, Cost(1.0)), [], HOST)
    flows = placement.problem.flows  # x, the values, their places, the sum
    assert [len(flow.consumers) for flow in flows] == [1, 1, 0, 0]
    assert [flow.leaves for flow in flows] == [False, False, False, True]
    assert flows[2].sizes == (2 * 2 * 8,)
