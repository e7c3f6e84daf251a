"""What a size costs that was not seen before: networks in; milliseconds before kernels run out.

Nothing is compiled for a new size, but stretches of native code are bound to it. Networks with a
symbolic batch get ever new batch sizes: the time from the call to the first kernel counts.
Detectors get ever new images, so that sizes on the way are new: there it is the time that Python
takes around all stretches together, beside that for the same image again. Run it as
`python tools/new_size.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

import graft
from graft.backends.host.flow_program import FlowExecutable
from graft.base.dtypes import Array
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import read_model
from graft.ir.graph import Graph
from graft.runtime.flow import Stretch
from graft.runtime.flow_profile import FlowProfile
from graft.runtime.flow_session import FlowSession
from graft.runtime.program import KernelCall

MODELS = Path(__file__).resolve().parents[1] / "models"
SYMBOLIC = ("resnet18", "mobilenet_v2")
DETECTORS = ("ssd300_resnet34",)
BATCHES = (2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds: to the first kernel, and of Python around all stretches."""

    first: float
    around: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("names", nargs="*", default=[*SYMBOLIC, *DETECTORS])
    for name in parser.parse_args(arguments).names:
        symbolic = name in SYMBOLIC
        graph = any_batch(MODELS / f"{name}.onnx") if symbolic else None
        module = graft.compile(graph or MODELS / f"{name}.onnx")
        assert isinstance(module.program, FlowExecutable)
        session = module.program.session
        images = [_image(session, n, 0) for n in BATCHES] if symbolic else []
        images = images or [_image(session, 1, seed) for seed in range(1, 6)]
        print(*report(name, session, images), sep="\n")
    return 0


def any_batch(path: Path) -> Graph:
    """A network with a batch of any size."""
    source = read_model(path)
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    del model.graph.value_info[:]
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return import_source(replace(source, model=model))


def report(name: str, session: FlowSession, images: Sequence[Array]) -> Iterable[str]:
    """What new sizes cost, and the same sizes again."""
    (argument,) = session.get_inputs()
    session.run(None, {argument.name: _image(session, 1, 0)})  # threads start with the first run
    new, again = [], []
    for image in images:
        feeds = {argument.name: image}
        new.append(cost(session.profile(feeds)))
        again.append(cost(session.profile(feeds)))
    for when, costs in (("new", new), ("again", again)):
        first, around = (np.median([getattr(c, one) for c in costs]) for one in ("first", "around"))
        most = max(one.around for one in costs)
        yield (
            f"{name}, size {when}: {first * 1e3:.2f} ms to the first kernel,"
            f" {around * 1e3:.2f} ms (at most {most * 1e3:.2f}) of Python around stretches"
        )


def cost(profile: FlowProfile) -> Cost:
    """What a run spent besides computing."""
    begins = [one.begin for one in profile.moments if isinstance(one.step, KernelCall)]
    around = [one.own for one in profile.moments if isinstance(one.step, Stretch)]
    return Cost(min(begins), sum(around))


def _image(session: FlowSession, batch: int, seed: int) -> Array:
    (argument,) = session.get_inputs()
    shape = [extent if isinstance(extent, int) else batch for extent in argument.shape or ()]
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


if __name__ == "__main__":
    raise SystemExit(main())
