"""What a run of the fuzzer is remembered by: lines of its log, a summary of them, cases as text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks.fuzzing.generate import Case
from benchmarks.fuzzing.judge import AGREEING, FINDINGS

NOTHING = "nothing drawn"
DIED = "the process died"
LATE = "took too long"


@dataclass(frozen=True)
class Record:
    """One model: its seed, what came of it, and its operators."""

    seed: int
    kind: str
    detail: str = ""
    operators: Mapping[str, int] | None = None
    reduced: str = ""

    @property
    def is_finding(self) -> bool:
        return self.kind in FINDINGS or (self.kind in (DIED, LATE) and self.detail == "graft")

    def line(self) -> str:
        return json.dumps(asdict(self))


def read_log(path: Path) -> list[Record]:
    """The records of a log; a last line that was never finished does not count."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(Record(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return found


def case_text(case: Case) -> str:
    """A model with its inputs, to be read, and to be made again with onnx.parser."""
    parts = [onnx.printer.to_text(case.model)]
    for size, feeds in enumerate(case.feeds):
        for name, array in feeds.items():
            numbers = json.dumps(np.asarray(array).tolist())
            parts.append(f"# size {size}: {name} = {array.dtype}{list(array.shape)} {numbers}")
    return "\n".join(parts) + "\n"


def summary(records: Sequence[Record]) -> str:
    """Models tried, what came of them, operators with their counts, and the findings."""
    kinds = Counter(record.kind for record in records)
    nodes: Counter[str] = Counter()
    models: Counter[str] = Counter()
    for record in records:
        nodes.update(record.operators or {})
        models.update((record.operators or {}).keys())
    lines = [f"models tried: {len(records)}"]
    lines += [f"  {count:6d}  {kind}" for kind, count in kinds.most_common()]
    agreed = sum(kinds[kind] for kind in AGREEING)
    lines.append(
        f"agreed: {agreed}; operators covered: {len(models)} in {sum(nodes.values())} nodes"
    )
    listing = ", ".join(f"{op} {count}" for op, count in sorted(models.items()))
    lines.append(f"models with each operator: {listing}")
    lines += _findings(records)
    return "\n".join(lines)


def _findings(records: Iterable[Record]) -> list[str]:
    found = [record for record in records if record.is_finding]
    return [
        f"seed {record.seed}: {record.kind}: {record.detail}\n{record.reduced}" for record in found
    ]
