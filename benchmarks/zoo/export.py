"""Exports architectures to ONNX, in the environment of the zoo: names in, files out.

    python export.py names GROUP            prints one name a line
    python export.py export GROUP NAME FILE [--dynamic]

One process exports one model. Weights are random: an initialisation that leaves a constant (zeros
in front of a residual sum, say) is perturbed, or branches would not contribute to the outputs that
are compared later. Batch normalisation gets the statistics of random data: with those it is made
with it normalises nothing, and activations grow from layer to layer until no tolerance fits them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

GROUPS = {
    "timm": "from_timm",
    "transformers": "from_transformers",
    "segmentation": "from_torchvision",
    "classic": "from_estimators",
}
_PERTURBATION = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("names", "export"))
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("name", nargs="?")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--dynamic", action="store_true", help="any batch size")
    options = parser.parse_args()
    if options.group != "classic":
        _declare_torchvision_operators()
    source = importlib.import_module(GROUPS[options.group])
    if options.action == "names":
        print("\n".join(source.names()))
    elif options.group == "classic":
        source.export(options.name, options.file)
    else:
        _export(source, options.name, options.file, options.dynamic)
    return 0


def _declare_torchvision_operators() -> None:
    """Declare what torchvision's Python code refers to where its compiled library does not load.

    The networks exported here call none of it; timm imports torchvision."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        try:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:
            return
    globals()["_torchvision_operators"] = library  # declared for as long as it lives


def _export(source: Any, name: str, path: Path, dynamic: bool) -> None:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    module, inputs = source.build(name)
    module.eval()
    _perturb_constants(module)
    _set_statistics(module, inputs)
    batch = {0: torch.export.Dim.DYNAMIC}
    shapes = dict.fromkeys(inputs, batch) if dynamic else None
    with torch.no_grad():
        module(**inputs)  # its own error is clearer than the exporter's
        torch.onnx.export(
            module,
            kwargs=inputs,
            f=str(path),
            input_names=list(inputs),
            dynamo=True,
            external_data=False,
            dynamic_shapes=shapes,
            verbose=False,
        )


def _perturb_constants(module: Any) -> None:
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(_PERTURBATION * torch.randn_like(parameter))


def _set_statistics(module: Any, inputs: Any) -> None:
    """Give batch normalisation the mean and variance of what reaches it."""
    import torch

    norms = [
        one for one in module.modules() if isinstance(one, torch.nn.modules.batchnorm._BatchNorm)
    ]
    if not norms:
        return
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    # Two samples, since one of them is a single number per channel behind global pooling.
    pairs = {
        name: torch.cat([data, torch.randn_like(data)]) if data.is_floating_point() else data
        for name, data in inputs.items()
    }
    with torch.no_grad():
        module(**pairs)
    module.eval()


if __name__ == "__main__":
    sys.exit(main())
