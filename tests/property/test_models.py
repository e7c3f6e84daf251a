"""Random ONNX models compute what ONNX Runtime computes: the fuzzer's, drawn by Hypothesis.

`python -m benchmarks.fuzzing` tries many more of them, by seeds. Here a model that fails is shrunk
by Hypothesis, decision by decision, as every other example of these tests.
"""

from __future__ import annotations

from benchmarks.fuzzing.generate import draw_case
from benchmarks.fuzzing.judge import FINDINGS, judge
from benchmarks.fuzzing.report import case_text
from hypothesis import assume, event, given, note, settings
from tests.examples import examples
from tests.property.graphs import decisions

from graft.byoc.kit.draw import Draw


@settings(max_examples=examples(100, short=6))
@given(decisions())
def test_models_agree(draw: Draw) -> None:
    case = draw_case(draw)
    assume(case is not None)
    assert case is not None
    note(case_text(case))
    verdict = judge(case)
    event(verdict.kind)
    assert verdict.kind not in FINDINGS, verdict
