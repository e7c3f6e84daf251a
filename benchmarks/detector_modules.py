"""The detectors of `models/` as modules of torchvision, with the weights of the ONNX file.

The files are exports of such modules, whose parameters are named after them (behind `m.`). What an
export does not name (anchors, thresholds, sizes of images) was read from the graphs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CLASSES, _SCORE = 21, 0.3
_PREFIX = "m."


def detector_module(network: str, model: Path) -> Any:
    """A network as a module in evaluation mode; `model` is its ONNX file with all weights."""
    import onnx
    import torch

    module, graph = _BUILDERS[network](), onnx.load(model).graph
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    for node in graph.node:  # equal parameters are stored once
        if node.op_type == "Identity" and node.input[0] in arrays:
            arrays[node.output[0]] = arrays[node.input[0]]
    weights = {
        name.removeprefix(_PREFIX): torch.from_numpy(array.copy())
        for name, array in arrays.items()
        if name.startswith(_PREFIX)
    }
    missing, unexpected = module.load_state_dict(weights, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise ValueError(f"{network}: no weights for {missing}, no use for {unexpected}")
    return module.eval()


def _ssd300() -> Any:
    from torch import nn
    from torchvision.models import resnet34

    body = resnet34(weights=None)
    parts = OrderedDict(
        f1=nn.Sequential(
            *(body.conv1, body.bn1, body.relu, body.maxpool, body.layer1, body.layer2)
        ),
        f2=body.layer3,
        f3=body.layer4,
        ex=_extra_layers((512, 256, 512), (512, 256, 512), (512, 128, 256)),
    )
    return _ssd(_features(parts), 300, (128, 256, 512, 512, 512, 256))


def _ssd512() -> Any:
    from torch import nn

    blocks = [
        *((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)),
        *((256, 512, 2), *[(512, 512, 1)] * 5, (512, 1024, 2), (1024, 1024, 1)),
    ]
    separable = [_depthwise_separable(*block) for block in blocks]
    parts = OrderedDict(
        a=nn.Sequential(_normalized(3, 32, 3, 2, 1), *separable[:-2]),
        b=nn.Sequential(*separable[-2:]),
        ex=_extra_layers((1024, 256, 512), (512, 128, 256), (256, 128, 256), (256, 128, 256)),
    )
    return _ssd(_features(parts), 512, (512, 1024, 512, 256, 256, 256))


def _faster_rcnn() -> Any:
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    return fasterrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=_CLASSES, box_score_thresh=_SCORE
    )


_BUILDERS: dict[str, Callable[[], Any]] = {
    "ssd300_resnet34": _ssd300,
    "ssd512_mobilenet1.0": _ssd512,
    "faster_rcnn_resnet50": _faster_rcnn,
}


def _ssd(backbone: Any, size: int, channels: tuple[int, ...]) -> Any:
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD, SSDHead

    # Boxes are clipped to the image, which all of the exported ones fill.
    anchors = DefaultBoxGenerator([[2, 3]] * len(channels), scales=[2.0] * (len(channels) + 1))
    head = SSDHead(list(channels), anchors.num_anchors_per_location(), _CLASSES)
    means = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    limits = {"score_thresh": _SCORE, "nms_thresh": 0.45, "topk_candidates": 200}
    return SSD(
        backbone,
        anchors,
        (size, size),
        _CLASSES,
        head=head,
        detections_per_img=100,
        **means,
        **limits,
    )


def _features(parts: OrderedDict[str, Any]) -> Any:
    """A backbone that gives what each part computes, and each of the extra layers in `ex`."""
    from torch import nn

    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                self.add_module(name, part)

        def forward(self, data: Any) -> OrderedDict[str, Any]:
            found = []
            for name, part in self.named_children():
                for layer in part if name == "ex" else [part]:
                    data = layer(data)
                    found.append(data)
            return OrderedDict((str(number), one) for number, one in enumerate(found))

    return Backbone()


def _extra_layers(*channels: tuple[int, int, int]) -> Any:
    from torch import nn

    return nn.ModuleList(
        nn.Sequential(
            *(nn.Conv2d(inputs, inner, 1), nn.ReLU()),
            *(nn.Conv2d(inner, outputs, 3, 2, 1), nn.ReLU()),
        )
        for inputs, inner, outputs in channels
    )


def _normalized(inputs: int, outputs: int, kernel: int, stride: int, groups: int) -> Any:
    from torch import nn

    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _depthwise_separable(inputs: int, outputs: int, stride: int) -> Any:
    from torch import nn

    return nn.Sequential(
        _normalized(inputs, inputs, 3, stride, inputs), _normalized(inputs, outputs, 1, 1, 1)
    )
