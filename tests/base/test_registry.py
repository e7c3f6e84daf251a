"""Registries, and the operators' in a process that has imported nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graft.base.errors import UserError
from graft.base.registry import Registry

ROOT = Path(__file__).resolve().parents[2]


def test_a_missing_name_gets_a_hint() -> None:
    table: Registry[int] = Registry("thing")
    table.add("late", 2)
    table.add("early", 1)
    assert table.get("early") == 1
    assert (list(table), len(table), "late" in table) == (["early", "late"], 2, True)
    with pytest.raises(UserError, match="there is no thing named 'laet'") as caught:
        table.get("laet")
    assert caught.value.hint == "did you mean 'late'?"


@pytest.mark.parametrize(
    "script",
    [
        "from graft.byoc import register_op_attr; register_op_attr('nn.conv2d', 'codegen.a')",
        "from graft.ops import OPS; assert 'nn.conv2d' in OPS",
        "from graft.ops import OPS; assert len(OPS) == len(list(OPS)) > 150",
        "import graft.byoc; from graft.ir.builder import Builder; Builder()('eye', shape=(2, 2))",
        "import graft.compiler;"
        " from graft.ir.parser import from_text;"
        " from_text('graph @g(%x: float32[2]) { %y: float32[2] = abs(%x) return %y }')",
    ],
)
def test_operators_are_known_in_a_fresh_process(script: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
