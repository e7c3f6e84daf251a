"""PTX: that it is made, what it says, and, where `ptxas` is at hand, that it is accepted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from benchmarks.gpu_tune import kernels_of
from tests.backends.cuda.cases import Case, Cases

from graft.backends.cuda.plan import Options, RegionPlan, plan_region
from graft.backends.cuda.problem import Product, ProductSchedule, Window
from graft.backends.cuda.schedule import candidates, choose_schedule, schedules
from graft.base.dtypes import DType
from graft.byoc.region import for_backend

CONVOLUTION = Window(1, 14, 14, 256, 256, 14, 14, (3, 3), padding=(1, 1))
INSTRUCTIONS = {
    DType.FLOAT16: "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    DType.BFLOAT16: "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    DType.FLOAT32: "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
}

# Up to four words, such as predicates and addresses, are what `ptxas` (13.0 to 13.4) stores while
# registers are left, so that more blocks fit a multiprocessor. Sums would be far more.
FEW_BYTES = 16


def ptxas() -> str:
    """The assembler of CUDA's, from the system or from PyPI's `nvidia-cuda-nvcc`."""
    beside = Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/ptxas")
    found = shutil.which("ptxas") or next(map(str, beside), "")
    if not found:
        pytest.skip("there is no ptxas: pip install nvidia-cuda-nvcc")
    return found


def spilled_bytes(text: str, folder: Path) -> int:
    """What the assembler says that a thread stores for want of registers."""
    source = folder / "kernel.ptx"
    source.write_text(text)
    command = [ptxas(), "-arch=sm_90a", "-v", str(source), "-o", str(folder / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return max(map(int, re.findall(r"(\d+) bytes spill stores", done.stderr)))


def plan_of(case: Case, dtype: DType) -> RegionPlan:
    return plan_region(for_backend(case[1]), Options(dtype))


@pytest.mark.parametrize("dtype", INSTRUCTIONS)
def test_products_use_tensor_cores(dtype: DType) -> None:
    product = Product(CONVOLUTION, 256, dtype, 2304)
    schedule = ProductSchedule(64, 64, (2, 2, 1), 4, 8)
    text = kernels_of(product, [schedule])[0].ptx
    tiles = 4 * (32 // 16) * (32 // 8)  # in a stage of 128 bytes, of a warp's 32 by 32 sums
    assert text.count(INSTRUCTIONS[dtype]) == tiles
    assert "cp.async.cg.shared.global" in text
    assert "griddepcontrol.wait" in text
    assert ".reqnctapercluster 8" in text
    assert "local" not in text  # sums stay in registers


@pytest.mark.parametrize("dtype", INSTRUCTIONS)
def test_large_tiles_are_multiplied_by_warp_groups(dtype: DType) -> None:
    schedule = ProductSchedule(128, 128, (8, 1, 1), 4, 2, by_warpgroup=True)
    text = kernels_of(Product(CONVOLUTION, 256, dtype, 2304), [schedule])[0].ptx
    assert text.count("wgmma.mma_async.sync.aligned.m64n128k") == 4
    assert ("ldmatrix" in text) == (dtype is DType.FLOAT32)  # whose A has to be rounded
    assert "fence.proxy.async" in text
    assert "local" not in text


def test_epilogues_access_whole_vectors() -> None:
    case = Cases().convolution((1, 64, 14, 14), 64, (3, 3), padding=(1, 1, 1, 1))
    plan = plan_of(case, DType.FLOAT16)
    (name,) = (one.kernel for one in plan.launches if one.product is not None)
    text = plan.code[name].ptx
    assert "st.global.v" in text
    assert "st.global.b" not in text
    loads = [line for line in text.splitlines() if "ld.global" in line]
    assert loads
    assert all("ld.global.v" in line for line in loads)
    # The bias is asked for before the sums of other threads are waited for.
    assert text.rindex("bar") > text.index("ld.global")


def test_every_product_has_a_schedule() -> None:
    for rows, depth, columns in ((1, 8, 1), (1, 25088, 4096), (12544, 392, 64), (50176, 576, 64)):
        product = Product(Window(1, 1, rows, depth, depth, 1, rows), columns, DType.FLOAT16, depth)
        assert choose_schedule(product) in set(candidates(product))
    assert all(one.is_valid for one in schedules())


@pytest.mark.full
@pytest.mark.parametrize("dtype", INSTRUCTIONS)
@pytest.mark.parametrize("case", list(Cases(small=True).all()), ids=lambda case: case[0])
def test_kernels_assemble_with_their_sums_in_registers(
    case: Case, dtype: DType, tmp_path: Path
) -> None:
    for kernel in plan_of(case, dtype).code.values():
        assert spilled_bytes(kernel.ptx, tmp_path) <= FEW_BYTES


@pytest.mark.full
def test_schedules_assemble_with_their_sums_in_registers(tmp_path: Path) -> None:
    product = Product(CONVOLUTION, 256, DType.FLOAT16, 2304)
    chosen = list(candidates(product))[::40]
    for kernel in kernels_of(product, chosen):
        assert spilled_bytes(kernel.ptx, tmp_path) <= FEW_BYTES
