"""The cuDNN backend: NVIDIA GPUs by the vendor's library, what it lacks by kernels of `cuda`."""

from __future__ import annotations

from graft.backends.cuda.backend import Cuda
from graft.backends.cuda.plan import RegionPlan, plan_region
from graft.backends.cudnn import library, runtime
from graft.backends.cudnn.operations import CudnnProducts
from graft.ir.graph import Graph


class Cudnn(Cuda):
    """Runs regions like `cuda`, in the same memory, but convolutions and matrix products, with the
    bias, sum and activation behind them, as operation graphs of cuDNN.

    Which of cuDNN's engines computes one is measured when the region is loaded."""

    name = "cudnn"
    version = runtime.VERSION

    def missing(self) -> str:
        return super().missing() or library.missing()

    def plan(self, region: Graph) -> RegionPlan:
        return plan_region(region, self.plan_options, library=CudnnProducts())

    def load(self, blob: bytes) -> runtime.Region:
        return runtime.load(blob)
