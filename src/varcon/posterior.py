"""A posterior of the classes from cosines: softmax(cosine / temperature + bias), fitted to labels."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

RIDGE = 1e-4  # on the biases, of which the data determine only the differences
LEAST_SHARPNESS = 1e-3  # inverse of the highest temperature


def fit_posterior(cosines: np.ndarray, labels: np.ndarray, least: float) -> tuple[float, np.ndarray]:
    """The temperature, at least `least`, and the biases [C] under which the labels are likeliest."""
    classes = cosines.shape[1]
    start = np.concatenate([[1 / least], np.zeros(classes)])
    bounds = [(LEAST_SHARPNESS, 1 / least)] + [(None, None)] * classes
    found = minimize(
        log_loss_and_slope, start, (cosines, labels), jac=True, method="L-BFGS-B", bounds=bounds
    ).x
    return float(1 / found[0]), found[1:]


def log_loss_and_slope(
    parameters: np.ndarray, cosines: np.ndarray, labels: np.ndarray
) -> tuple[float, np.ndarray]:
    """The mean log loss, convex in the parameters: the inverse temperature, then the biases."""
    sharpness, bias = parameters[0], parameters[1:]
    own = np.arange(len(labels)), labels
    logs = log_softmax(sharpness * cosines + bias, axis=1)
    error = np.exp(logs)
    error[own] -= 1
    slope = np.concatenate([[(error * cosines).sum()], error.sum(axis=0)]) / len(labels)
    slope[1:] += 2 * RIDGE * bias
    return -logs[own].mean() + RIDGE * (bias @ bias), slope
