"""Dense layers by Strassen's algorithm: right on odd sizes, and chosen where it pays only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.backends.host import row_kernels
from tests.backends.host.row_kernels import AVX2, Case, check, made, results

from graft.backends.host.group import Strassen
from graft.backends.host.kernel import Kernel
from graft.backends.host.kernels.dense import dense
from graft.backends.host.kernels.strassen import chunk_depth, pack_quarters
from graft.backends.host.templates import choose_algorithm
from graft.base.dtypes import DType
from graft.byoc.executable import Accuracy
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.target.machine import MACHINES
from graft.target.target import named_target

# Cores with one and with two multiply-adds of 512 bits in a cycle: the second has no time to spare
# for the additions.
ZEN4 = replace(named_target("x86-64-v4"), machine=MACHINES["znver4"])
ICE_LAKE = replace(named_target("x86-64-v4"), machine=MACHINES["icelake-server"])


@pytest.mark.parametrize(
    ("shape", "units", "chunk"),
    [
        ((96, 256), 256, 256),
        ((1, 97, 258), 384, 258),  # a lower half without its last row, a depth no vector divides
        ((3, 67, 288), 512, 144),
        ((5, 12), 128, 2),
        ((131, 1536), 256, 512),  # several chunks of the depth
        ((20, 30), 72, 6),  # no halves of whole blocks: the plain product
    ],
)
def test_any_shape(shape: tuple[int, ...], units: int, chunk: int) -> None:
    case = Case()
    y = case("nn.dense", case.input(*shape), case.constant(units, shape[-1]))
    # sums of a thousand numbers around 1 have errors of a few millionths of their size
    check(dense, case, y, tolerance=3e-4, algorithm=Strassen(chunk))


@pytest.mark.parametrize("depth", [320, 1280])
def test_epilogue(depth: int) -> None:
    case = Case()
    x = case.input(2, 51, depth)
    weight = case.builder.constant(case.array(256, depth) / np.float32(depth**0.5))
    y = case("nn.dense", x, weight)
    y = case("nn.bias_add", y, case.constant(256), axis=2)
    y = case("nn.gelu", y)
    y = case("add", y, case.input(2, 51, 256))
    check(dense, case, y, tolerance=2e-5, algorithm=Strassen(320))


def test_error_beside_the_plain_product() -> None:
    """Rounding errors grow by less than a factor of four over the plain product's."""
    random = np.random.default_rng(0)
    x = random.standard_normal((128, 768), np.float32)
    weight = random.standard_normal((512, 768), np.float32)
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    errors = []
    for algorithm in (None, Strassen(768)):
        case = Case()
        graph = case.graph(case("nn.dense", case.given(x), case.builder.constant(weight)))
        kernel = made(dense, graph, algorithm=algorithm)
        assert isinstance(kernel, Kernel)
        ((found,), *_) = results(kernel, graph, [x], row_kernels.host_target())
        errors.append(float(np.abs(found - exact).max()))
    plain, strassen = errors
    assert 0 < strassen < 4 * plain


def test_packed_weights() -> None:
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    packed = pack_quarters(weight, 2, 4)
    assert packed.shape == (1, 1, 2, 4, 2)  # chunk, block, step, quarter, column
    w11, w21, w12, w22 = packed[0, 0].swapaxes(0, 1)
    np.testing.assert_array_equal(w11, weight[:2, :2].T)
    np.testing.assert_array_equal(w21, weight[:2, 2:].T)
    np.testing.assert_array_equal(w12, weight[2:, :2].T)
    np.testing.assert_array_equal(w22, weight[2:, 2:].T)


def test_where_it_pays() -> None:
    size = DType.FLOAT32
    assert chunk_depth(ZEN4, size, 197, 768, 768) > 0
    assert chunk_depth(ZEN4, size, 197, 768, 3072) <= 1024  # the weights stay in the cache
    assert chunk_depth(ZEN4, size, 32, 768, 768) == 0  # few rows read many weights
    assert chunk_depth(ZEN4, size, 197, 1000, 768) == 0  # no halves of whole blocks
    assert chunk_depth(ZEN4, size, 197, 768, 769) == 0  # an odd depth
    assert chunk_depth(ZEN4, size, 197, 768, 2 * 2003) == 0  # no chunk divides it
    assert chunk_depth(ZEN4, size, 5000, 768, 768) == 0
    assert chunk_depth(ZEN4, DType.FLOAT64, 197, 768, 768) == 0
    assert chunk_depth(AVX2, size, 197, 768, 768) > 0
    assert chunk_depth(ICE_LAKE, size, 197, 768, 768) == 0


def _layer(rows: int, units: int, inputs: int, *items: int) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", *(items or (1,)), rows, inputs))
    weight = np.random.default_rng(0).standard_normal((units, inputs), np.float32)
    return g.build(g("nn.dense", x, g.constant(weight)))


def _chosen(graph: Graph, accuracy: Accuracy = Accuracy.DEFAULT) -> int:
    """How much of the depth is summed up at a time; 0 for plain sums."""
    algorithm = choose_algorithm(row_kernels.only_group(graph), ZEN4, accuracy).algorithm
    return algorithm.chunk if isinstance(algorithm, Strassen) else 0


def test_small_layers_and_strict_accuracy_keep_plain_sums() -> None:
    small, large = _layer(8, 512, 256), _layer(256, 512, 768)
    assert _chosen(small) == 0
    assert _chosen(_layer(256, 512, 768, 2)) == 0  # a NaN in one item must not reach the other
    assert _chosen(large, Accuracy.STRICT) == 0
    assert _chosen(large) == 768
