"""One model's times: a file and peers in; each contender's median and Graft's ratios out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Json, graft_bench
from graft.base.quantities import time_text
from graft.cli.bench.rounds import GRAFT

# How far outputs may be apart. Networks with random weights amplify rounding: ONNX Runtime with its
# optimiser and without it differ by up to 0.016 of the root mean square (a BiT with 50 layers).
TOLERANCE = "0.02"


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds by contender, and how many times as fast as each peer Graft is, with its interval."""

    seconds: dict[str, float] = field(default_factory=dict)
    speedups: dict[str, tuple[float, float | None, float | None]] = field(default_factory=dict)
    prepare_seconds: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        times = [f"{name} {time_text(one)}" for name, one in self.seconds.items()]
        ratios = [f"{one[0]:.2f} x {name}" for name, one in self.speedups.items()]
        problems = [f"{name}: {problem}" for name, problem in self.problems.items()]
        return "; ".join([*ratios, *times, *problems])


def time_model(path: Path, peers: Sequence[str], threads: int, seconds: float) -> Result:
    """Compare outputs, then time who agrees, in alternating blocks."""
    options = ["--peers", ",".join(peers), "--threads", str(threads), "--seconds", str(seconds)]
    comparison = graft_bench(path, *options, "--rtol", TOLERANCE, "--atol", TOLERANCE)
    if comparison["problem"]:
        return Result(problems={GRAFT: comparison["problem"]})
    return _result(comparison)


def _result(comparison: Json) -> Result:
    result = Result()
    for one in comparison["contenders"]:
        name, timing = one["name"], one["timing"]
        columns = {
            "seconds": timing and timing["summary"]["median"],
            "prepare_seconds": one["prepare_seconds"],
            "versions": one["version"],
            "problems": one["reason"],
        }
        for column, value in columns.items():
            if value:
                getattr(result, column)[name] = value
        ratio = timing and timing["ratio"]
        if ratio:
            low = 1 / ratio["high"] if ratio["high"] else None
            high = 1 / ratio["low"] if ratio["low"] else None
            result.speedups[name] = (1 / ratio["value"], low, high)
    return result
