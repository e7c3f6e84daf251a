"""What each stage of the compiler prints of small models, for a machine that is not at hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.tiny import saved
from tests.conftest import Golden

from graft.cli.compile import COMMON_STAGES, PLACEMENT_STAGES, STAGES
from graft.cli.main import main

MODELS = {
    "image": """
        g (float[1, 3, 8, 8] x) => (float[1, 16, 1, 1] y)
        <int64[4] filters = {16, 3, 3, 3}, int64[1] channels = {16}> {
            w = ConstantOfShape <value = float[1] {0.5}> (filters)
            b = ConstantOfShape <value = float[1] {0.25}> (channels)
            a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            c = Relu (a)
            y = GlobalAveragePool (c)
        }
    """,
    "rows": """
        g (float[batch, 8] x) => (float[batch, 8] y) {
            a = Tanh (x)
            b = Add (a, x)
            y = Softmax (b)
        }
    """,
    "loop": """
        g (int64 n, float[4] x) => (float[4] y) <bool go = {1}> {
            y = Loop (n, go, x) <
                body = step (int64 i, bool before, float[4] v) => (bool after, float[4] w) {
                    after = Identity (before)
                    w = Exp (v)
                }
            >
        }
    """,
}
# The last two are too long to be read; tests/llvm has goldens of single kernels.
SHOWN = [stage for stage in STAGES if stage not in (*PLACEMENT_STAGES, "llvm", "asm")]


@pytest.mark.parametrize("stage", SHOWN)
@pytest.mark.parametrize("name", MODELS)
def test_stage(
    name: str, stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    model = saved(tmp_path, MODELS[name])
    machine = [] if stage in COMMON_STAGES else ["--machine", "x86-64-v3"]
    assert main(["compile", model, "--emit", stage, *machine]) == 0
    text = capsys.readouterr().out.replace(str(tmp_path), ".")
    golden(f"{name}-{stage}", re.sub(r"\bk[0-9a-f]{20}\b", "kernel", text))
