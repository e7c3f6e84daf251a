"""ONNX's own cases with branches, loops and scans, with all that a backend knows of their bodies on
that backend, in the host's memory and in another one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx.backend.test.case.node import collect_testcases
from tests.byoc.test_bodies import Inner
from tests.byoc.test_transfers import Counting, Remote

import graft
from graft.byoc.contract import Backend
from graft.byoc.discover import register_backend, unregister_backend
from graft.passes.name_apart import name_apart
from graft.runtime.regions import RegionWarning
from graft.stages import import_graph, optimize

pytestmark = pytest.mark.full

KNOWN = (
    *("exp", "tanh", "add", "subtract", "multiply", "divide", "nn.relu", "negative", "sqrt"),
    *("sum", "max", "nn.softmax", "take", "concatenate", "expand_dims", "squeeze", "reshape"),
    *("cast", "less", "equal", "logical_and", "transpose"),
)


@cache
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    control = {"If", "Loop", "Scan"}
    return {
        one.name: one
        for one in found
        if one.model is not None and control & {node.op_type for node in one.model.graph.node}
    }


NAMES = (
    *("test_if", "test_loop11", "test_loop13_seq", "test_loop16_seq_none", "test_scan_sum"),
    *("test_scan9_sum", "test_scan9_multi_state", "test_scan9_scalar", "test_if_seq"),
    *("test_linear_attention_linear_expanded", "test_linear_attention_gated_delta_gqa_expanded"),
    *("test_linear_attention_fp16_expanded", "test_linear_attention_decode_step_expanded"),
    *("test_range_float_type_positive_delta_expanded", "test_affine_grid_3d_expanded"),
    *("test_range_int32_type_negative_delta_expanded",),
    *("test_sequence_map_add_2_sequences_expanded",),
)


@pytest.fixture(params=["inner", "remote"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    own: Backend = Inner(*KNOWN)
    if request.param == "remote":
        own = Remote("remote", Counting(), *KNOWN)
    register_backend(own)
    yield own
    unregister_backend(own.name)


@pytest.mark.parametrize("name", NAMES)
def test_results_are_the_hosts(name: str, backend: Backend) -> None:
    case = cases()[name]
    graph = name_apart(optimize(import_graph(case.model)).graph)
    pins = [f"{n.output.name}={backend.name}" for n in graph.walk() if n.op.name in KNOWN]
    options: dict[str, Any] = {"threads": 1, "fallback": "host", "pins": pins}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RegionWarning)  # what only data tell the size of goes back
        module = graft.compile(case.model, backend.name, **options)
    names = (value.name for value in case.model.graph.input)
    feeds = dict(zip(names, case.data_sets[0][0], strict=True))
    expected = graft.compile(case.model, threads=1).run(None, feeds)
    for _ in range(2):
        for ours, theirs in zip(module.run(None, feeds), expected, strict=True):
            for one, other in zip(_parts(ours), _parts(theirs), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert not module.incidents


def _parts(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]
