"""ONNX Runtime as the reference of checks: a model and inputs in, values out.

Its graph optimisations are off, so that each node is computed as the model says. It is an optional
package, and does not know weights that are generated from seeds: it gets the whole model, in memory
or, if too large for one message, in a temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from graft.base.errors import UserError
from graft.cli.model_parts import sub_model
from graft.cli.survey import parameters
from graft.frontends.onnx.reader import Source, filled_model, read_model, write_filled
from graft.ir.evaluate import Data

# A message must stay below 2 GB; the rest is for what is not a weight.
LARGEST_IN_MEMORY = 1_900_000_000

Feeds = Mapping[str, Data]


def onnxruntime() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import onnxruntime as package
    except ImportError as error:
        hint = "pip install 'graft-compiler[onnxruntime]'"
        raise UserError("ONNX Runtime is not installed", hint=hint) from error
    return package


@dataclass(frozen=True, slots=True)
class Peer:
    """A model that ONNX Runtime can run, whole or in part."""

    package: Any
    model: onnx.ModelProto
    folder: Path | None  # where the model's weights are, if not in it

    @property
    def title(self) -> str:
        return f"ONNX Runtime {self.package.__version__}"

    def run(self, feeds: Feeds) -> list[Data]:
        """The model's outputs."""
        return self._run(self.model, feeds)

    def values(
        self, names: Sequence[str], nodes: Sequence[onnx.NodeProto], feeds: Feeds
    ) -> dict[str, Data]:
        """Values inside the main graph, computed by these nodes only."""
        outputs = [onnx.ValueInfoProto(name=name) for name in names]
        part = sub_model(self.model, nodes, self.model.graph.input, outputs)
        return dict(zip(names, self._run(part, feeds), strict=True))

    def _run(self, model: onnx.ModelProto, feeds: Feeds) -> list[Data]:
        package = self.package
        options = package.SessionOptions()
        options.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4  # what matters is raised
        options.enable_cpu_mem_arena = False
        try:
            session = package.InferenceSession(
                self._handed_over(model), options, providers=["CPUExecutionProvider"]
            )
            results: list[Data] = session.run(None, dict(feeds))
        except Exception as error:
            # Its errors have no common class of their own.
            reason = " ".join(str(error).split())[:500]
            raise UserError(
                f"ONNX Runtime cannot run the model: {reason}",
                hint="to compare with Graft's evaluator instead: graft compile MODEL -o FILE.graft,"
                " then graft check FILE.graft --against MODEL",
            ) from error
        return results

    def _handed_over(self, model: onnx.ModelProto) -> bytes | str:
        if self.folder is None:
            return bytes(model.SerializeToString())
        path = self.folder / "part.onnx"
        path.write_bytes(model.SerializeToString())
        return str(path)


@contextmanager
def opened_peer(path: Path, source: Source) -> Iterator[Peer]:
    """The peer for a model that has been read from the path."""
    package = onnxruntime()
    if parameters(source).bytes <= LARGEST_IN_MEMORY:
        yield Peer(package, filled_model(source), None)
        return
    with tempfile.TemporaryDirectory(prefix="graft-check-") as name:
        folder = Path(name)
        write_filled(path, folder / "model.onnx")
        # Read back, the model refers to its weights instead of holding them.
        yield Peer(package, read_model(folder / "model.onnx").model, folder)
