"""The two snippets of the paper, as they are printed there, partition ResNet-18."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import graft
from graft.base.dtypes import Array
from graft.byoc import Backend, Cost, is_op, register_op_attr, register_pattern_table, wildcard
from graft.byoc.annotate import unregister
from graft.byoc.contract import Runner
from graft.byoc.discover import register_backend, unregister_backend
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.printer import to_text


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


def test_the_papers_snippets_partition_resnet18(accel: MyAccel, models_dir: Path) -> None:
    module = graft.compile(models_dir / "resnet18.onnx", target=["myAccel", "host"], check=False)
    placed = module.placement
    # How much of it depends on how fast the host happens to be; residual sums always stay there.
    assert placed.nodes["myAccel"] >= 10
    assert sum(region.macs for region in placed.regions) > 0.4 * placed.macs
    assert {region.backend for region in placed.regions} == {"myAccel"}
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
    feeds = {module.get_inputs()[0].name: x}
    expected = graft.compile(models_dir / "resnet18.onnx").run(None, feeds)
    np.testing.assert_allclose(module.run(None, feeds)[0], expected[0], rtol=1e-3, atol=1e-4)
