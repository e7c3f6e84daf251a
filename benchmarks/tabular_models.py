"""Tabular models for benchmarks: fitted scikit-learn, XGBoost and LightGBM estimators as ONNX.

In: nothing but a seed. Out: `(name, model, feeds)` triples, `feeds` holding `ROWS` rows of every
input, from which a benchmark takes as many as it wants. The estimators are fitted on generated
data, so that nothing has to be downloaded. Run as a script, it writes the triples into a folder:

    python benchmarks/tabular_models.py FOLDER [NAME ...]

It needs scikit-learn, skl2onnx, xgboost, lightgbm and onnxmltools, which Graft does not.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Feeds = dict[str, Any]

ROWS = 1000
FEATURES = 12
CLASSES = 3
# What converters raise for an estimator that they do not know, or know from another release.
_FAILURES = (ImportError, NameError, RuntimeError, TypeError, ValueError)
OPSET = {"": 18, "ai.onnx.ml": 3}


class Data:
    """Generated tables: numbers with classes and targets, and categories."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        centres = random.normal(size=(CLASSES, FEATURES))
        self.classes = random.integers(0, CLASSES, ROWS)
        noise = random.normal(size=(ROWS, FEATURES))
        self.numbers = (centres[self.classes] + noise).astype(np.float32)
        self.targets = (self.numbers @ random.normal(size=FEATURES)).astype(np.float32)
        self.binary = (self.targets > np.median(self.targets)).astype(np.int64)
        self.positive = np.abs(self.numbers)
        self.holes = np.where(random.random(self.numbers.shape) < 0.1, np.nan, self.numbers)
        self.holes = self.holes.astype(np.float32)
        self.codes = random.integers(0, 10, (ROWS, 4))
        names = np.array([f"category_{i}" for i in range(10)], object)
        self.strings = names[self.codes]


def _convert(model: Any, sample: Any, options: Any = None) -> onnx.ModelProto:
    from skl2onnx import to_onnx

    settings = {id(model): {"zipmap": False}} if options is None else options
    try:
        return to_onnx(model, sample[:1], target_opset=OPSET, options=settings)
    except NameError:  # the converter has no such option
        return to_onnx(model, sample[:1], target_opset=OPSET)


# Name, estimator, and which of the tables are its samples and its targets.
Estimator = tuple[str, Any, str, str]


def _linear_models() -> Iterator[Estimator]:
    """Linear regressors and classifiers."""
    from sklearn import linear_model

    yield "LinearRegression", linear_model.LinearRegression(), "numbers", "targets"
    yield "Ridge", linear_model.Ridge(), "numbers", "targets"
    yield "Lasso", linear_model.Lasso(0.1), "numbers", "targets"
    yield "ElasticNet", linear_model.ElasticNet(0.1), "numbers", "targets"
    yield "BayesianRidge", linear_model.BayesianRidge(), "numbers", "targets"
    yield "SGDRegressor", linear_model.SGDRegressor(random_state=0), "numbers", "targets"
    yield "LogisticRegression", linear_model.LogisticRegression(), "numbers", "classes"
    yield "LogisticRegressionBinary", linear_model.LogisticRegression(), "numbers", "binary"
    yield "RidgeClassifier", linear_model.RidgeClassifier(), "numbers", "classes"
    yield "SGDClassifier", linear_model.SGDClassifier(random_state=0), "numbers", "classes"
    yield "Perceptron", linear_model.Perceptron(random_state=0), "numbers", "classes"


def _kernel_models() -> Iterator[Estimator]:
    """Support vectors, Bayes, and neighbours."""
    from sklearn import naive_bayes, neighbors, svm

    yield "LinearSVC", svm.LinearSVC(), "numbers", "classes"
    yield "SVCLinear", svm.SVC(kernel="linear"), "numbers", "classes"
    yield "SVCRadial", svm.SVC(kernel="rbf"), "numbers", "classes"
    yield "SVRRadial", svm.SVR(kernel="rbf"), "numbers", "targets"
    yield "SVRPolynomial", svm.SVR(kernel="poly"), "numbers", "targets"
    yield "OneClassSVM", svm.OneClassSVM(), "numbers", "targets"
    yield "GaussianNB", naive_bayes.GaussianNB(), "numbers", "classes"
    yield "MultinomialNB", naive_bayes.MultinomialNB(), "positive", "classes"
    yield "BernoulliNB", naive_bayes.BernoulliNB(), "numbers", "classes"
    yield "KNeighborsClassifier", neighbors.KNeighborsClassifier(), "numbers", "classes"
    yield "KNeighborsRegressor", neighbors.KNeighborsRegressor(), "numbers", "targets"


def _trees() -> Iterator[Estimator]:
    """Trees and ensembles of them."""
    from sklearn import ensemble, tree

    yield "DecisionTreeClassifier", tree.DecisionTreeClassifier(max_depth=8), "numbers", "classes"
    yield "DecisionTreeRegressor", tree.DecisionTreeRegressor(max_depth=8), "numbers", "targets"
    forest: dict[str, Any] = {"n_estimators": 50, "max_depth": 8, "random_state": 0}
    yield "RandomForestClassifier", ensemble.RandomForestClassifier(**forest), "numbers", "classes"
    yield "RandomForestRegressor", ensemble.RandomForestRegressor(**forest), "numbers", "targets"
    yield "ExtraTreesClassifier", ensemble.ExtraTreesClassifier(**forest), "numbers", "classes"
    yield "ExtraTreesRegressor", ensemble.ExtraTreesRegressor(**forest), "numbers", "targets"
    boosting: dict[str, Any] = {"n_estimators": 50, "random_state": 0}
    boosted = ensemble.GradientBoostingClassifier(**boosting)
    yield "GradientBoostingClassifier", boosted, "numbers", "classes"
    yield (
        "GradientBoostingRegressor",
        ensemble.GradientBoostingRegressor(**boosting),
        "numbers",
        "targets",
    )
    histogram: dict[str, Any] = {"max_iter": 50, "random_state": 0}
    yield (
        "HistGradientBoostingClassifier",
        ensemble.HistGradientBoostingClassifier(**histogram),
        "numbers",
        "binary",
    )
    yield (
        "HistGradientBoostingRegressor",
        ensemble.HistGradientBoostingRegressor(**histogram),
        "numbers",
        "targets",
    )
    yield "AdaBoostClassifier", ensemble.AdaBoostClassifier(**boosting), "numbers", "classes"
    bagging = ensemble.BaggingClassifier(n_estimators=10, random_state=0)
    yield "BaggingClassifier", bagging, "numbers", "classes"
    yield "IsolationForest", ensemble.IsolationForest(**boosting), "numbers", "targets"


def _other_models() -> Iterator[Estimator]:
    """Networks, discriminants, processes and clusters."""
    from sklearn import cluster, discriminant_analysis, gaussian_process, neural_network

    network: dict[str, Any] = {"hidden_layer_sizes": (32,), "max_iter": 60, "random_state": 0}
    yield "MLPClassifier", neural_network.MLPClassifier(**network), "numbers", "classes"
    yield "MLPRegressor", neural_network.MLPRegressor(**network), "numbers", "targets"
    discriminant = discriminant_analysis.QuadraticDiscriminantAnalysis()
    yield "QuadraticDiscriminantAnalysis", discriminant, "numbers", "classes"
    linear = discriminant_analysis.LinearDiscriminantAnalysis()
    yield "LinearDiscriminantAnalysis", linear, "numbers", "classes"
    yield (
        "GaussianProcessRegressor",
        gaussian_process.GaussianProcessRegressor(alpha=1e-2),
        "numbers",
        "targets",
    )
    yield "KMeans", cluster.KMeans(5, n_init=2, random_state=0), "numbers", "targets"


def _scalers() -> Iterator[Estimator]:
    """What is done to each number for itself, or to a row."""
    from sklearn import preprocessing

    yield "StandardScaler", preprocessing.StandardScaler(), "numbers", "targets"
    yield "MinMaxScaler", preprocessing.MinMaxScaler(), "numbers", "targets"
    yield "RobustScaler", preprocessing.RobustScaler(), "numbers", "targets"
    yield "MaxAbsScaler", preprocessing.MaxAbsScaler(), "numbers", "targets"
    yield "Normalizer", preprocessing.Normalizer(), "numbers", "targets"
    yield "Binarizer", preprocessing.Binarizer(threshold=0.2), "numbers", "targets"
    yield "PolynomialFeatures", preprocessing.PolynomialFeatures(2), "numbers", "targets"
    bins = preprocessing.KBinsDiscretizer(
        5, encode="ordinal", quantile_method="averaged_inverted_cdf"
    )
    yield "KBinsDiscretizer", bins, "numbers", "targets"
    bins = preprocessing.KBinsDiscretizer(
        5, encode="onehot-dense", quantile_method="averaged_inverted_cdf"
    )
    yield "KBinsDiscretizerOneHot", bins, "numbers", "targets"


def _transformers() -> Iterator[Estimator]:
    """Imputers, projections and encoders."""
    from sklearn import decomposition, impute, preprocessing, random_projection

    yield "SimpleImputer", impute.SimpleImputer(), "holes", "targets"
    yield "KNNImputer", impute.KNNImputer(n_neighbors=3), "holes", "targets"
    yield "PCA", decomposition.PCA(4), "numbers", "targets"
    yield "TruncatedSVD", decomposition.TruncatedSVD(4), "numbers", "targets"
    yield "KernelPCA", decomposition.KernelPCA(4, kernel="rbf"), "numbers", "targets"
    projection = random_projection.GaussianRandomProjection(4, random_state=0)
    yield "GaussianRandomProjection", projection, "numbers", "targets"
    one_hot: dict[str, Any] = {"sparse_output": False, "handle_unknown": "ignore"}
    yield "OneHotEncoder", preprocessing.OneHotEncoder(**one_hot), "codes", "targets"
    yield "OneHotEncoderStrings", preprocessing.OneHotEncoder(**one_hot), "strings", "targets"
    yield "OrdinalEncoder", preprocessing.OrdinalEncoder(), "codes", "targets"
    yield "OrdinalEncoderStrings", preprocessing.OrdinalEncoder(), "strings", "targets"


def _pipelines() -> Iterator[Estimator]:
    from sklearn import (
        decomposition,
        ensemble,
        impute,
        linear_model,
        pipeline,
        preprocessing,
    )

    scaled = pipeline.make_pipeline(
        impute.SimpleImputer(), preprocessing.StandardScaler(), linear_model.LogisticRegression()
    )
    yield "ImputeScaleLogistic", scaled, "holes", "classes"
    reduced = pipeline.make_pipeline(
        preprocessing.StandardScaler(),
        decomposition.PCA(4),
        ensemble.RandomForestClassifier(n_estimators=20, max_depth=6, random_state=0),
    )
    yield "ScalePCAForest", reduced, "numbers", "classes"
    encoded = pipeline.make_pipeline(
        preprocessing.OneHotEncoder(handle_unknown="ignore"), linear_model.LogisticRegression()
    )
    yield "OneHotLogistic", encoded, "codes", "classes"
    voting = ensemble.VotingClassifier(
        [
            ("logistic", linear_model.LogisticRegression()),
            ("forest", ensemble.RandomForestClassifier(n_estimators=10, random_state=0)),
        ],
        voting="soft",
        flatten_transform=False,
    )
    yield "VotingClassifier", voting, "numbers", "classes"


def _estimators() -> Iterator[Estimator]:
    """All that scikit-learn's converter knows."""
    yield from _linear_models()
    yield from _kernel_models()
    yield from _trees()
    yield from _other_models()
    yield from _scalers()
    yield from _transformers()
    yield from _pipelines()


def _string_labels(data: Data) -> tuple[onnx.ModelProto, Feeds]:
    """A classifier with names for classes, and probabilities as maps."""
    from sklearn.linear_model import LogisticRegression

    names = np.array(["low", "middle", "high"])[data.classes]
    model = LogisticRegression().fit(data.numbers, names)
    return _convert(model, data.numbers, {id(model): {"zipmap": True}}), {"X": data.numbers}


def _column_transformer(data: Data) -> tuple[onnx.ModelProto, Feeds]:
    """Numbers are scaled, categories (strings) are one-hot; a linear model behind."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers, categories = data.numbers[:, :4], data.strings[:, :2]
    table = np.concatenate([numbers.astype(object), categories], axis=1)
    columns = ColumnTransformer(
        [
            ("numbers", StandardScaler(), [0, 1, 2, 3]),
            ("categories", OneHotEncoder(handle_unknown="ignore"), [4, 5]),
        ]
    )
    model = make_pipeline(columns, LogisticRegression()).fit(table, data.classes)
    types = [
        ("numbers", FloatTensorType([None, 4])),
        ("categories", StringTensorType([None, 2])),
    ]
    options = {id(model): {"zipmap": False}}
    proto = to_onnx(model, initial_types=types, target_opset=OPSET, options=options)
    return proto, {"numbers": numbers, "categories": categories}


def _boosted(library: str, kind: str) -> Callable[[Data], tuple[onnx.ModelProto, Feeds]]:
    """A model of XGBoost's or LightGBM's."""

    def make(data: Data) -> tuple[onnx.ModelProto, Feeds]:
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        settings: dict[str, Any] = {"n_estimators": 50, "max_depth": 6}
        if library == "xgboost":
            import xgboost

            estimator = getattr(xgboost, f"XGB{kind}")(**settings)
            convert = onnxmltools.convert_xgboost
        else:
            import lightgbm

            estimator = getattr(lightgbm, f"LGBM{kind}")(**settings, verbosity=-1)
            convert = onnxmltools.convert_lightgbm
        targets = data.classes if kind == "Classifier" else data.targets
        estimator.fit(data.numbers, targets)
        types = [("X", FloatTensorType([None, FEATURES]))]
        zipmap = {"zipmap": False} if library == "lightgbm" else {}
        return convert(estimator, initial_types=types, target_opset=15, **zipmap), {
            "X": data.numbers
        }

    return make


def _special() -> dict[str, Callable[[Data], tuple[onnx.ModelProto, Feeds]]]:
    return {
        "LogisticStringsZipMap": _string_labels,
        "ColumnTransformer": _column_transformer,
        "XGBClassifier": _boosted("xgboost", "Classifier"),
        "XGBRegressor": _boosted("xgboost", "Regressor"),
        "LGBMClassifier": _boosted("lightgbm", "Classifier"),
        "LGBMRegressor": _boosted("lightgbm", "Regressor"),
    }


def tabular_models(names: tuple[str, ...] = ()) -> Iterator[tuple[str, onnx.ModelProto, Feeds]]:
    """Yield every model, or those of `names`; one that cannot be converted is warned of."""
    data = Data()
    for name, estimator, samples, targets in _estimators():
        if names and name not in names:
            continue
        table = getattr(data, samples)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                estimator.fit(table, getattr(data, targets))
                proto = _convert(estimator, table)
        except _FAILURES as error:
            warnings.warn(f"{name} is left out: {str(error)[:100]}", stacklevel=2)
            continue
        yield name, proto, {"X": table}
    for name, make in _special().items():
        if names and name not in names:
            continue
        try:
            proto, feeds = make(data)
        except _FAILURES as error:
            warnings.warn(f"{name} is left out: {str(error)[:100]}", stacklevel=2)
            continue
        yield name, proto, feeds


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, proto, feeds in tabular_models(tuple(sys.argv[2:])):
        (folder / f"{name}.onnx").write_bytes(proto.SerializeToString())
        arrays = {
            key: value.astype(str) if value.dtype == object else value
            for key, value in feeds.items()
        }
        np.savez(folder / f"{name}.npz", **arrays)
        print(name, [node.op_type for node in proto.graph.node])


if __name__ == "__main__":
    main()
