"""Estimators and metrics of scikit-learn on tensors of weft, against the same on NumPy's arrays.

test_array_libraries.py runs it in a child, as scikit-learn reads SCIPY_ARRAY_API when it is
imported. It prints a line of JSON: the name of each call, and its largest error or what was raised.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn
from sklearn import (
    decomposition,
    discriminant_analysis,
    linear_model,
    metrics,
    mixture,
    naive_bayes,
    preprocessing,
)
from sklearn.datasets import make_classification
from sklearn.metrics import pairwise
from sklearn.model_selection import train_test_split

import weft

LDA, PCA = discriminant_analysis.LinearDiscriminantAnalysis, decomposition.PCA
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "LDA.predict": lambda x, y, r: LDA().fit(x, y).predict(x),
    "LDA.predict_proba": lambda x, y, r: LDA().fit(x, y).predict_proba(x),
    "LDA.transform": lambda x, y, r: LDA().fit(x, y).transform(x),
    "PCA full": lambda x, y, r: PCA(3, svd_solver="full").fit_transform(x),
    "PCA eigh": lambda x, y, r: PCA(3, svd_solver="covariance_eigh", whiten=True).fit_transform(x),
    "PCA randomized": lambda x, y, r: PCA(
        3, svd_solver="randomized", power_iteration_normalizer="QR", random_state=0
    ).fit_transform(x),
    "Ridge": lambda x, y, r: linear_model.Ridge(solver="svd").fit(x, r).predict(x),
    "RidgeCV": lambda x, y, r: linear_model.RidgeCV().fit(x, r).predict(x),
    "RidgeClassifier": lambda x, y, r: (
        linear_model.RidgeClassifier(solver="svd").fit(x, y).predict(x)
    ),
    "LogisticRegression": lambda x, y, r: (
        linear_model.LogisticRegression().fit(x, y).predict_proba(x)
    ),
    "GaussianNB": lambda x, y, r: naive_bayes.GaussianNB().fit(x, y).predict_proba(x),
    "GaussianMixture": lambda x, y, r: (
        mixture.GaussianMixture(2, init_params="random", random_state=0).fit(x).predict_proba(x)
    ),
    "LabelEncoder": lambda x, y, r: preprocessing.LabelEncoder().fit_transform(y),
    "LabelBinarizer": lambda x, y, r: preprocessing.LabelBinarizer().fit_transform(y),
    "train_test_split": lambda x, y, r: train_test_split(x, y, random_state=0)[0],
    **{
        name: lambda x, y, r, name=name: getattr(preprocessing, name)().fit_transform(x)
        for name in ("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "Normalizer", "Binarizer",
                     "PolynomialFeatures")
    },
    **{
        name: lambda x, y, r, name=name: getattr(metrics, name)(y, (x[:, 0] > 0) * 1)
        for name in ("accuracy_score", "zero_one_loss", "f1_score", "precision_score",
                     "recall_score", "confusion_matrix", "balanced_accuracy_score",
                     "jaccard_score", "hamming_loss", "cohen_kappa_score")
    },
    **{
        name: lambda x, y, r, name=name: getattr(metrics, name)(y, 1 / (1 + x[:, 0] ** 2))
        for name in ("roc_auc_score", "brier_score_loss", "log_loss", "average_precision_score")
    },
    **{
        name: lambda x, y, r, name=name: getattr(metrics, name)(abs(r) + 1, abs(x[:, 0]) + 1)
        for name in ("mean_squared_error", "root_mean_squared_error", "mean_absolute_error",
                     "mean_absolute_percentage_error", "r2_score", "explained_variance_score",
                     "max_error", "mean_squared_log_error", "median_absolute_error",
                     "mean_pinball_loss", "mean_poisson_deviance", "mean_gamma_deviance")
    },
    **{
        name: lambda x, y, r, name=name: getattr(pairwise, name)(abs(x[:30]), abs(x[30:50]))
        for name in ("cosine_similarity", "euclidean_distances", "linear_kernel", "rbf_kernel",
                     "polynomial_kernel", "sigmoid_kernel", "laplacian_kernel", "chi2_kernel",
                     "manhattan_distances")
    },
}  # fmt: skip


def difference(call: Callable[[Any, Any, Any], Any], host: list[Any], given: list[Any]) -> Any:
    """The largest error of a call's result on tensors, or what it raised."""
    with sklearn.config_context(array_api_dispatch=False):
        want = np.asarray(call(*host), np.float64)
    try:
        got = call(*given)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    if want.ndim and not isinstance(got, weft.Tensor):
        return f"gave {type(got).__name__}"
    got = np.asarray(got, np.float64)
    return float(np.abs(got - want).max()) if got.shape == want.shape else f"gave {got.shape}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sklearn.set_config(array_api_dispatch=True)
    x, y = make_classification(120, 6, n_informative=5, n_redundant=0, random_state=0)
    host = [x.astype(np.float32), y.astype(np.int32), (x @ np.arange(6) + 1).astype(np.float32)]
    given = [weft.asarray(a) for a in host]
    print(json.dumps({name: difference(call, host, given) for name, call in CALLS.items()}))
