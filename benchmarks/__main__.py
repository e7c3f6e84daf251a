"""The one entry to all benchmarks.

    python -m benchmarks                       what `make bench` measures, one after the other
    python -m benchmarks NAME... [OPTION...]   these, each with its options (--help lists them)
    python -m benchmarks --pages-only          render every page again from docs/results
    python -m benchmarks --list                the names

Without --write, records and pages go to build/bench/.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile

from benchmarks.harness import Benchmark, run

# Modules by benchmark, in the order of the pages; imported when they are needed, since some need
# packages that others do without.
MODULES = {
    "networks": "networks",
    "networks-strict": "networks",
    "networks-one-thread": "networks",
    "networks-batch": "networks",
    "quantized": "quantized",
    "precision": "precision",
    "precision-avx2": "precision_avx2",
    "trained": "trained",
    "footprint": "footprint",
    "new-size": "new_size",
    "any-size": "any_size",
    "small-models": "small_models",
    "tabular": "tabular",
    "decoder": "decoder",
    "profiles": "profiles",
    "scaling": "scaling",
    "placement": "placement",
    "accelerators": "accelerators",
    "no-harm": "no_harm",
    "lines-of-code": "lines_of_code",
    "compile-time": "compile_time",
    "overhead": "overhead",
    "guard-overhead": "guard_overhead",
    "kernels": "predict.page",
    "gpu": "gpu",
    "gpu-detectors": "gpu_detectors",
    "zoo": "zoo.run",
    "real-models": "real_models.run",
    "conformance": "conformance",
}
USUAL = (
    "networks",
    "networks-strict",
    "quantized",
    "footprint",
    "profiles",
    "scaling",
    "small-models",
)


def benchmark_named(name: str) -> Benchmark:
    module = import_module(f"benchmarks.{MODULES[name]}")
    (result,) = (one for one in module.BENCHMARKS if one.name == name)
    return result


def main(arguments: Sequence[str]) -> int:
    names = list(takewhile(lambda one: not one.startswith("-"), arguments))
    options = arguments[len(names) :]
    if not names and {"--help", "-h", "--list"} & set(options):
        print("\n".join(MODULES) if "--list" in options else (__doc__ or "").strip())
        return 0
    unknown = [name for name in names if name not in MODULES]
    if unknown:
        sys.exit(f"there is no benchmark '{unknown[0]}'; there are {', '.join(MODULES)}")
    usual = MODULES if "--pages-only" in options else USUAL
    return max([run(benchmark_named(name), options) for name in names or usual])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
