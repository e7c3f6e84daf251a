"""The two snippets of the paper, as they are printed there, partition ResNet-18."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import graft
from graft.backends.host.backend import HostBackend
from graft.base.dtypes import Array
from graft.byoc import Backend, Cost, is_op, register_op_attr, register_pattern_table, wildcard
from graft.byoc.annotate import unregister
from graft.byoc.contract import Runner
from graft.byoc.discover import register_backend, unregister_backend
from graft.byoc.executable import Settings
from graft.byoc.partition import PartitionOptions, partition
from graft.byoc.price import Pricing
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.printer import to_text
from graft.passes.pipeline import optimize


# fmt: off
def conv2d_pattern():  # type: ignore[no-untyped-def]
    data, weight, bias = wildcard(), wildcard(), wildcard()
    conv = is_op("nn.conv2d")(data, weight)
    bias_optional = conv.optional(lambda x: is_op("nn.bias_add")(x, bias))
    return is_op("nn.relu")(bias_optional)
pattern_table = [(conv2d_pattern, "conv2d_pattern")]
# fmt: on


class MyAccel(Backend):
    """Says that it is fast, and evaluates."""

    name = "myAccel"
    simulated = True  # its speed is claimed, not measured

    def __init__(self) -> None:
        self.regions: dict[bytes, Graph] = {}

    def price(self, region: Graph) -> Cost:
        return Cost(1e-7 * len(region.nodes))

    def compile(self, region: Graph) -> bytes:
        blob = to_text(region).text.encode()
        self.regions[blob] = region
        return blob

    def load(self, blob: bytes) -> Runner:
        region = self.regions[blob]

        def run(inputs: Sequence[Array], _outputs: Sequence[Array]) -> list[Array]:
            return [np.asarray(item) for item in evaluate(region, inputs)]

        return run


@pytest.fixture
def accel() -> Iterator[MyAccel]:
    backend = MyAccel()
    register_backend(backend)
    register_pattern_table("myAccel", pattern_table)

    # fmt: off
    @register_op_attr("nn.conv2d", "codegen.myAccel")
    def annotate_conv2d(expr):  # type: ignore[no-untyped-def]
        attrs, args = expr.attrs, expr.args  # noqa: F841
        if any([x.dtype != "float32" for x in args]):  # noqa: C419, SIM103
            return False
        return True
    # fmt: on

    yield backend
    unregister_backend("myAccel")
    unregister("myAccel")


def block(name: str, *more: str) -> set[str]:
    """What of a block the accelerator runs: the pattern, and the next convolution behind it."""
    layer = name.partition(".")[0]
    parts = ("conv1/Conv", "bn1/BatchNormalization", "relu/Relu", "conv2/Conv", *more)
    return {f"/{layer}/{name}/{part}" for part in parts}


def test_the_papers_snippets_partition_resnet18(accel: MyAccel, models_dir: Path) -> None:
    graph = optimize(import_model(models_dir / "resnet18.onnx"))
    # Declared prices and a named machine's roofline, nothing measured: the same plan everywhere.
    host = HostBackend(Settings(1, "x86-64-v3"))
    found = partition(graph, [accel], Pricing(host, {}), PartitionOptions())
    # Sums, and the activations behind them, fit no pattern and are the host's.
    assert [set(region.nodes) for region in found.plan.regions] == [
        {"/conv1/Conv", "/bn1/BatchNormalization", "/relu/Relu"},
        *(block(f"layer1.{number}") for number in (0, 1)),
        *(
            found
            for layer in (2, 3, 4)
            for found in (
                block(f"layer{layer}.0", "downsample/downsample.0/Conv"),
                block(f"layer{layer}.1"),
            )
        ),
    ]
    assert found.plan.gap == pytest.approx(0, abs=1e-6)
    assert found.plan.predicted < 0.2 * found.plan.alternatives["host-only"]
    module = graft.compile(graph, target=["myAccel", "host"], plan=found.plan, check=False)
    assert module.placement.nodes == {"myAccel": 38, "host": 32}
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
    feeds = {module.get_inputs()[0].name: x}
    expected = graft.compile(graph).run(None, feeds)
    np.testing.assert_allclose(module.run(None, feeds)[0], expected[0], rtol=1e-3, atol=1e-4)
