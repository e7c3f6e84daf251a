"""LLVM text of a dozen kernels, for a machine that is not the one at hand.

It is what LLVM gets, before its optimisations, so that it is the same with every version of LLVM.
"""

from __future__ import annotations

import pytest
from tests.conftest import Golden
from tests.llvm.kernels import elementwise
from tests.llvm.micro_kernel import micro_kernel
from tests.loop import kernels
from tests.loop.kernels import Kernel
from tests.loop.test_lower import CHAIN, CONV_UNROLLED, DEPTHWISE, GEMM, GEMM_PLAIN, SOFTMAX

from graft.base.dtypes import DType
from graft.llvm.compile import llvm_text
from graft.loop.build import variable
from graft.loop.ir import Call
from graft.loop.lower import lower
from graft.loop.schedule import parse_schedule
from graft.target.target import named_target

TARGET = named_target("x86-64-v3")
N, M = variable("n"), variable("m")
PARALLEL = "out: parallel(i)"


@pytest.mark.parametrize(
    ("name", "kernel", "schedule"),
    [
        ("chain", kernels.chain(N), CHAIN),
        ("chain_plain", kernels.chain(N), ""),
        ("conv", kernels.blocked_conv(16, 3, 7), CONV_UNROLLED),
        ("depthwise", kernels.depthwise(3, N, M), DEPTHWISE),
        ("gemm", kernels.gemm(9, 40, 13), GEMM),
        ("gemm_plain", kernels.gemm(4, 16, 3), GEMM_PLAIN),
        ("gemm_unscheduled", kernels.gemm(2, 3, 4), ""),
        ("gemm_float64", kernels.gemm(2, 3, 4, DType.FLOAT64), ""),
        ("layer_norm", kernels.layer_norm(N, 16), PARALLEL),
        ("max_pool", kernels.max_pool(13, 9, 7, 5), ""),
        ("softmax", kernels.softmax(N, M), SOFTMAX),
    ],
)
def test_kernels(name: str, kernel: Kernel, schedule: str, golden: Golden) -> None:
    function = lower(name, kernel.arguments, parse_schedule(schedule))
    golden(name, llvm_text(function, TARGET))


def test_the_inner_loop_of_a_matrix_product(golden: Golden) -> None:
    golden("micro_kernel", llvm_text(micro_kernel(TARGET), TARGET))


def test_mathematical_functions(golden: Golden) -> None:
    formula = [lambda x: Call("exp", (x,), x.dtype)]
    function = elementwise([DType.FLOAT32], formula, [DType.FLOAT32], lanes=8)
    golden("exp", llvm_text(function, TARGET))
