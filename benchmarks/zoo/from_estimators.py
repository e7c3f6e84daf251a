"""Estimators of scikit-learn, XGBoost and LightGBM: names by a rule, fitted and converted.

The rule: every estimator of scikit-learn that skl2onnx converts, so many in a seeded order, with
default parameters; and the classifiers and regressors of the two boosting libraries.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import skl2onnx
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as ToolsFloat
from skl2onnx.common.data_types import FloatTensorType
from sklearn.utils import all_estimators

GROUP = "classic"
COUNT = 60
SAMPLES, FEATURES = 200, 10
_BOOSTERS = ("xgboost.XGBClassifier", "xgboost.XGBRegressor", "lightgbm.LGBMClassifier")
_OPSET = {"": 18, "ai.onnx.ml": 3}


def names() -> Iterator[str]:
    """Estimators by module and class."""
    supported = skl2onnx.supported_converters(from_sklearn=True)
    known = {one.removeprefix("Sklearn") for one in supported}
    estimators = sorted(name for name, _ in all_estimators() if name in known)
    yield from random.Random(GROUP).sample(estimators, min(COUNT, len(estimators)))
    yield from _BOOSTERS
    yield "lightgbm.LGBMRegressor"


def export(name: str, path: Path) -> None:
    """Fit an estimator to random data and write it for one sample."""
    random_numbers = np.random.default_rng(0)
    # Whole numbers, so that encoders have few categories and nobody is below zero.
    data = random_numbers.integers(0, 6, (SAMPLES, FEATURES)).astype(np.float32)
    target = (data[:, :3].sum(axis=1) > 7).astype(np.int64)
    estimator = _estimator(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(data, target)
        proto = _converted(name, estimator, data)
    onnx.save(proto, path)


def _estimator(name: str) -> Any:
    package, _, kind = name.rpartition(".")
    if package:
        return getattr(__import__(package), kind)()
    return dict(all_estimators())[name]()


def _converted(name: str, estimator: Any, data: Any) -> onnx.ModelProto:
    if name.startswith("xgboost"):
        types = [("x", ToolsFloat([1, FEATURES]))]
        proto = convert_xgboost(estimator, initial_types=types, target_opset=15)
    elif name.startswith("lightgbm"):
        types = [("x", ToolsFloat([1, FEATURES]))]
        proto = convert_lightgbm(estimator, initial_types=types, target_opset=15, zipmap=False)
    else:
        types = [("x", FloatTensorType([1, FEATURES]))]
        plain = hasattr(estimator, "predict_proba")
        options = {id(estimator): {"zipmap": False}} if plain else None
        proto = skl2onnx.convert_sklearn(
            estimator, initial_types=types, target_opset=_OPSET, options=options
        )
    assert isinstance(proto, onnx.ModelProto)
    return proto
