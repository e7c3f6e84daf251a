"""The kit finds what is wrong with a backend and shows it on a small graph."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.byoc.fakes import chain
from tests.byoc.kit.wrong import (
    Diamond,
    Fused,
    Results,
    Wrong,
    dislikes_empty,
    interleaved_groups,
    keeps_first,
    one_branch,
    results,
    shares_memory,
    shifted_padding,
    wider,
    without,
    without_broadcasting,
    writes_inputs,
    writes_late,
)

from graft.base.dtypes import Array
from graft.byoc.annotate import register_op_attr, unregister
from graft.byoc.contract import Backend, Limits, Match, Runner
from graft.byoc.kit import Report, conformance
from graft.byoc.kit.recipes import RECIPES
from graft.byoc.kit.report import ConformanceError
from graft.byoc.kit.trial import attempt
from graft.byoc.probe import shape_at
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node
from graft.ir.parser import from_text
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.ops import OPS
from graft.rewrite.rule import Refusal


def checked(backend: Backend, examples: int = 30) -> Report:
    report = conformance(backend, examples, seed=0)
    for failure in report.failures:
        if failure.text:
            verify(from_text(failure.text, {}))
    return report


def smallest(report: Report) -> Graph:
    shown = [from_text(failure.text, {}) for failure in report.failures]
    return min(shown, key=lambda graph: len(graph.nodes))


def test_a_right_backend_passes() -> None:
    report = checked(Wrong("nn.conv2d", "add", "nn.relu", "concatenate", "nn.max_pool2d"), 12)
    report.assert_ok()
    assert report.untested == ()
    assert all(pattern.accepted >= 12 for pattern in report.patterns)
    assert report.combined.accepted == 24


def test_ignored_strides_are_found_on_a_small_graph() -> None:
    report = checked(Wrong("nn.conv2d", behave=without("strides", (1, 1))))
    assert not report.ok
    assert "%conv2d differs from the reference's" in report.failures[0].reason
    graph = smallest(report)
    (conv,) = (node for node in graph.nodes if node.op.name == "nn.conv2d")
    assert sorted(conv.attrs.strides) == [1, 2]
    assert conv.attrs.groups == 1
    assert conv.attrs.padding == (0, 0, 0, 0)
    assert np.prod(conv.output.shape) <= 4
    assert conv.output.shape is not None
    assert "strides" in report.failures[0].text


def test_ignored_dilation_is_found() -> None:
    report = checked(Wrong("nn.conv2d", behave=without("dilation", (1, 1))), 40)
    (conv,) = (node for node in smallest(report).nodes if node.op.name == "nn.conv2d")
    assert sorted(conv.attrs.dilation) == [1, 2]
    assert conv.args[1].tensor.size == 2


def test_wrong_groups_are_found_on_two_groups_of_two_channels() -> None:
    report = checked(Wrong("nn.conv2d", behave=interleaved_groups), 60)
    assert not report.ok
    (conv,) = (node for node in smallest(report).nodes if node.op.name == "nn.conv2d")
    assert conv.attrs.groups == 2
    assert conv.args[0].shape == (1, 4, 1, 1)
    assert conv.args[1].shape == (2, 2, 1, 1)
    assert conv.attrs.strides == conv.attrs.dilation == (1, 1)


@pytest.mark.parametrize("name", ["nn.conv2d", "nn.max_pool2d", "nn.avg_pool1d"])
def test_padding_that_is_off_by_one_is_found_on_a_pixel_or_two(name: str) -> None:
    report = checked(Wrong(name, behave=shifted_padding))
    assert not report.ok
    (node,) = (node for node in smallest(report).nodes if node.op.name == name)
    assert sum(node.attrs.padding) <= 3
    assert node.args[0].tensor.size <= 2
    assert node.output.tensor.size <= 4


def test_a_branch_that_is_dropped_is_found_on_the_smallest_diamond() -> None:
    assert conformance(Diamond(), 30).patterns[0].accepted >= 30
    report = checked(Diamond(behave=one_branch))
    assert not report.ok
    graph = smallest(report)
    names = [node.op.name for node in graph.nodes]
    assert names[0] == "exp"
    assert names[-1] == "add"
    assert len(names) <= 3
    assert all(node.output.tensor.size == 1 for node in graph.nodes)


def test_wrong_broadcasting_is_found() -> None:
    graph = smallest(checked(Wrong("add", behave=without_broadcasting)))
    assert len(graph.nodes) == 1
    assert sum(len(value.shape or ()) for value in graph.inputs) <= 5
    assert max(max(value.shape or (1,)) for value in graph.inputs) == 2


def test_written_inputs_are_found() -> None:
    report = checked(Wrong("add", behave=writes_inputs), 5)
    assert report.failures[0].reason.startswith("it writes its input %")


def test_kept_inputs_are_found() -> None:
    report = checked(Wrong("nn.relu", behave=keeps_first()), 5)
    assert report.failures[0].reason.startswith("in a later call, its result %relu differs")


def test_results_written_after_the_call_are_found() -> None:
    report = checked(Wrong("nn.relu", behave=writes_late()), 5)
    assert report.failures[0].reason == "it writes the results of an earlier call again"


def test_failing_on_empty_tensors_is_found() -> None:
    report = checked(Wrong("nn.relu", "concatenate", behave=dislikes_empty), 60)
    assert any("ZeroDivisionError: no elements" in f.reason for f in report.failures)
    graph = smallest(report)
    assert 0 in (graph.outputs[0].shape or ())


def test_a_wrong_dtype_is_found() -> None:
    report = checked(Wrong("nn.relu", behave=wider), 3)
    assert "is float64[" in report.failures[0].reason
    assert "instead of float32[" in report.failures[0].reason
    (relu,) = smallest(report).nodes
    assert relu.output.tensor.size == 1


def test_threads_in_each_others_way_are_found() -> None:
    report = checked(Wrong("nn.relu", behave=shares_memory()), 2)
    assert report.failures[0].reason.startswith("called from several threads, its result %relu")


def test_a_failure_inside_a_fused_pattern_keeps_the_pattern() -> None:
    def without_bias(region: Graph, inputs: Sequence[Array], outputs: Sequence[Array]) -> Results:
        found = results(region, inputs)
        return [array * 0 for array in found]

    report = checked(Fused(behave=without_bias), 4)
    assert {failure.nodes for failure in report.failures} == {3}
    graph = smallest(report)
    names = [node.op.name for node in graph.nodes if node.op.name != "constant"]
    assert names == ["nn.conv2d", "nn.bias_add", "nn.relu"]
    assert all((node.output.tensor.size <= 4) for node in graph.nodes)


def test_what_fails_only_in_company_is_found_and_shrinks_to_two_nodes() -> None:
    def alone(region: Graph, inputs: Sequence[Array], _outputs: Sequence[Array]) -> Results:
        assert sum(node.op.name != "constant" for node in region.nodes) == 1, "one at a time"
        return results(region, inputs)

    report = checked(Wrong("nn.relu", "add", behave=alone), 6)
    assert {failure.pattern for failure in report.failures} == {"combined"}
    assert {failure.nodes for failure in report.failures} == {2}
    assert "AssertionError: one at a time" in report.failures[0].reason


def test_chains_are_drawn_in_every_dtype_that_is_accepted() -> None:
    def narrow(region: Graph, inputs: Sequence[Array], _outputs: Sequence[Array]) -> Results:
        is_chain = sum(node.op.name != "constant" for node in region.nodes) > 1
        kinds = {str(value.dtype) for value in region.outputs}
        assert not (is_chain and kinds & {"float16", "int64"}), "not in a chain"
        return results(region, inputs)

    backend = Wrong("nn.relu", "add", behave=narrow)
    report = checked(backend, 4)
    assert set(report.patterns[1].dtypes) >= {"float16", "bfloat16", "float64", "int32", "int64"}
    assert {failure.pattern for failure in report.failures} == {"combined"}
    assert "AssertionError: not in a chain" in report.failures[0].reason


def test_failures_show_attributes_that_are_defaults() -> None:
    report = checked(Wrong("nn.conv2d", behave=without("strides", (1, 1))), 20)
    assert "groups=1" in report.failures[0].text
    assert "padding=[0, 0, 0, 0]" in report.failures[0].text


def test_supports_that_raises_is_a_failure() -> None:
    class Raising(Wrong):
        def supports(self, match: Match) -> Refusal | None:
            raise KeyError("axis")

    report = checked(Raising("nn.relu"), 2)
    reason = report.failures[0].reason
    assert reason.startswith("wrong.supports raised KeyError: 'axis' for %relu (nn.relu), at ")


def test_compilation_that_fails_the_second_time_is_found() -> None:
    class Once(Wrong):
        def compile(self, region: Graph) -> bytes:
            if self._regions:
                raise MemoryError("no more")
            return super().compile(region)

    failed = attempt(chain("nn.relu"), Once("nn.relu"), "", thorough=True).failed
    wanted = "it was accepted and does not compile a second time: wrong.compile raised MemoryError"
    assert failed.startswith(wanted)
    assert "MemoryError: no more" in checked(Once("nn.relu"), 2).failures[0].reason


def test_refusals_are_counted_by_reason_and_untested_patterns_named() -> None:
    class Picky(Wrong):
        def supports(self, match: Match) -> Refusal | None:
            if match.root.op.name == "add":
                return Refusal(f"%{match.root.output.name} is not for us")
            return None

    report = checked(Picky("nn.relu", "add"), 5)
    assert not report.ok
    assert report.untested == ("add",)
    assert report.patterns[1].refused.keys() == {"a value is not for us"}
    assert report.patterns[1].tried > 5  # more were tried before giving up
    with pytest.raises(ConformanceError, match="add: no example of it was accepted"):
        report.assert_ok()


def test_symbolic_shapes_that_were_promised_and_do_not_run_are_found() -> None:
    class Static(Wrong):
        """Compiles for the extents that it sees, and takes 100 for those that it does not."""

        def load(self, blob: bytes) -> Runner:
            region = self._regions[int(blob)]
            shapes = [shape_at(value, {}) for value in region.inputs]

            def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
                if [array.shape for array in inputs] != shapes:
                    raise ValueError("these are other shapes")
                return results(region, inputs)

            return run

    report = checked(Static("nn.relu"), 6)
    assert "ValueError: these are other shapes" in report.failures[0].reason
    assert smallest(report).input_symbols

    class Honest(Static):
        def supports(self, match: Match) -> Refusal | None:
            known = all(value.tensor.is_static for value in match.inputs)
            return None if known else Refusal("only static shapes")

    report = checked(Honest("nn.relu"), 6)
    report.assert_ok()
    assert report.patterns[0].refused["only static shapes"]
    assert report.patterns[0].blocks  # of rows, which are of those shapes
    assert not report.patterns[0].symbolic


def test_saturation_is_found() -> None:
    """Rounds and adds the zero point in the narrow type, which wraps around."""

    def wraps(region: Graph, inputs: Sequence[Array], _outputs: Sequence[Array]) -> list[Array]:
        (node,) = (node for node in region.nodes if node.op.name == "qnn.quantize")
        known = {n.output: n.attrs.value.array for n in region.nodes if n.op.name == "constant"}
        known.update(zip(region.inputs, inputs, strict=True))
        data, scale = (known[value] for value in node.args[:2])
        zero = known[node.args[2]] if len(node.args) > 2 else 0
        with np.errstate(all="ignore"):
            wide = np.nan_to_num(np.rint(data / scale)).astype(np.int64) + zero
        return [wide.astype(node.attrs.dtype.numpy)]

    report = checked(Wrong("qnn.quantize", behave=wraps), 10)
    assert "differs from the reference's in" in report.failures[0].reason
    checked(Wrong("qnn.quantize", "qnn.dequantize", "qnn.conv2d", "qnn.dense"), 6).assert_ok()


def test_an_operator_that_does_not_exist_fails() -> None:
    reasons = [failure.reason for failure in checked(Wrong("nn.conv2dd"), 1).failures]
    assert "'nn.conv2dd' names the operator 'nn.conv2dd', which does not exist" in reasons


def test_operators_of_a_predicate_are_checked_too() -> None:
    backend = Wrong(behave=wider)

    @register_op_attr("sqrt", "codegen.wrong")
    def small(node: Node) -> bool:
        return node.output.dtype == "float32"

    try:
        report = checked(backend, 4)
    finally:
        unregister("wrong")
    assert [pattern.name for pattern in report.patterns] == ["sqrt"]
    assert {failure.pattern for failure in report.failures} == {"sqrt"}


def test_promises_that_need_no_graph() -> None:
    class Nameless(Backend):
        version = ""
        limits = Limits(space="", bytes_per_second=0, latency=-1, memory_bytes=0)

        def missing(self) -> str:
            return None  # type: ignore[return-value]

    reasons = [failure.reason for failure in conformance(Nameless(), 1).failures]
    assert reasons == [
        "it has no name",
        "it has no version",
        "missing() gives no string",
        "limits.space is empty",
        "a rate of its limits is not positive",
        "a time of its limits is negative or infinite",
        "limits.memory_bytes is no size",
        "it has no patterns, so that nothing is known about it",
    ]


def test_one_seed_makes_one_report() -> None:
    backends = [Wrong("nn.conv2d", behave=without("strides", (1, 1))) for _ in range(2)]
    first, second = (conformance(backend, 15, seed=3).to_json() for backend in backends)
    assert first == second
    assert first["ok"] is False
    assert first["failures"][0]["nodes"] == 1


def test_errors_show_the_graph() -> None:
    report = checked(Wrong("nn.relu", behave=wider), 3)
    with pytest.raises(ConformanceError, match=r"wrong does not conform\n  nn.relu: it was") as e:
        report.assert_ok()
    assert "nn.relu(%x1)" in str(e.value)


def test_the_example_that_is_shown_fails_when_it_is_read_back() -> None:
    backend = Wrong("nn.conv2d", behave=without("strides", (1, 1)))
    (failure, *_) = checked(backend).failures
    assert attempt(from_text(failure.text, {}), backend, "").failed
    assert not attempt(from_text(failure.text, {}), Wrong("nn.conv2d"), "").failed


def test_nobody_is_asked_what_becomes_of_a_nan() -> None:
    """A comparison hides it; alone, a logarithm has to give it."""
    build = Builder()
    x = build.input("x", tensor("float32", 9))
    log = build("log", x)
    hidden = build.build(build("greater", log, x))
    assert attempt(hidden, Wrong("log", "greater"), "").useless
    assert not attempt(build.build(log), Wrong("log"), "").useless


def test_a_hanging_backend_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graft.byoc.kit.trial.DEADLINE", 0.2)

    def sleep(region: Graph, inputs: Sequence[Array], outputs: Sequence[Array]) -> Results:
        time.sleep(1)
        return results(region, inputs)

    report = conformance(Wrong("nn.relu", behave=sleep), 1)
    assert report.failures[0].reason.startswith("no answer within")


def test_all_operators_with_recipes_exist_and_can_be_drawn() -> None:
    assert set(RECIPES) <= set(OPS)
    conformance(Wrong(*sorted(RECIPES)), 3).assert_ok()


class Crashing(Wrong):
    """Takes its process along."""

    def load(self, blob: bytes) -> Runner:
        def run(_inputs: Any, _outputs: Any) -> None:
            os.kill(os.getpid(), signal.SIGSEGV)

        return run


def test_a_crash_is_a_failure_like_any_other() -> None:
    report = conformance(Crashing("nn.relu"), examples=2)
    (failure,) = report.failures
    assert failure.reason == "its process died (SIGSEGV)"
    assert failure.nodes == 1
