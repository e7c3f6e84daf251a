"""Small graphs, and a convolution by many schedules, on a GPU: skipped where there is none."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tests.backends.cuda.cases import Cases, relative_error

from graft.backends.cuda import driver, runtime
from graft.backends.cuda.backend import Cuda, blob_of
from graft.backends.cuda.operands import shape_of
from graft.backends.cuda.plan import plan_region
from graft.backends.cuda.problem import Product, ProductSchedule
from graft.backends.cuda.schedule import schedules
from graft.backends.cuda.selftest import PRECISIONS, WAYS, backend_for, run_on_gpu
from graft.backends.cudnn.backend import Cudnn
from graft.base.dtypes import Array
from graft.byoc.region import for_backend
from graft.ir.evaluate import run_graph
from graft.ir.graph import Graph

NO_GPU = driver.missing()
# What results may differ by, of the largest: units of rounding times what a few layers gather.
TOLERANCE = {"float32": 5e-3, "float16": 5e-3, "bfloat16": 4e-2, "strict": 1e-5}
# No side of it is a multiple of any tile's.
CONVOLUTION = Cases().convolution((2, 72, 13, 15), 216, (3, 3), padding=(1, 1, 1, 1))[1]
SCHEDULES = [
    *[one for one in schedules() if not one.by_warpgroup][::97],
    *[one for one in schedules() if one.by_warpgroup][::5],
]

pytestmark = pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU)


def _error(graph: Graph, region: runtime.Region) -> float:
    random = np.random.default_rng(1)
    inputs = [random.standard_normal(shape_of(one)).astype(np.float32) for one in graph.inputs]
    expected = [np.ascontiguousarray(one) for one in run_graph(graph, inputs)]
    outputs: list[Array] = [np.empty_like(one) for one in expected]
    run_on_gpu(region, inputs, outputs)
    return max(map(relative_error, outputs, expected))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", [Cuda, Cudnn], ids=lambda kind: kind.name)
def test_small_regions(kind: type[Cuda], precision: str, way: str) -> None:
    backend = backend_for(precision, kind, way)
    if backend.missing():
        pytest.skip(backend.missing())
    errors = {
        name: _error(graph, backend.load(backend.compile(for_backend(graph))))
        for name, graph in Cases().all()
    }
    assert not {name: one for name, one in errors.items() if one > TOLERANCE[precision]}


def _given(schedule: ProductSchedule, _product: Product) -> ProductSchedule:
    return schedule


@pytest.mark.parametrize("precision", PRECISIONS[:3])
def test_schedules(precision: str) -> None:
    backend, region = backend_for(precision), for_backend(CONVOLUTION)
    errors: dict[ProductSchedule, float] = {}
    for schedule in SCHEDULES:
        plan = plan_region(region, backend.plan_options, partial(_given, schedule))
        blob = blob_of(region, plan, backend.limits.rounding)
        errors[schedule] = _error(CONVOLUTION, runtime.load(blob))
    assert not {schedule: one for schedule, one in errors.items() if one > TOLERANCE[precision]}
