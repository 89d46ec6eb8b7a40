"""Estimators for scikit-learn: `LeanClassifier` and `LeanRegressor`, which say how sure they are.

They take numpy arrays and pandas data frames, and work in pipelines, searches and cross-validation. A small network is
trained as the recipe `lean` does (`leanbayes.train.LeanTraining`), with every weight random. Predictions are made in
one pass of moments.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from leanbayes._calls import prediction_tensor
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.integrations._checks import is_count, require_count
from leanbayes.integrations._optional import optional
from leanbayes.likelihood import Categorical, Gaussian, Likelihood
from leanbayes.prediction import Prediction, predict
from leanbayes.train import LeanTraining, Optimization, fit

with optional("leanbayes.integrations.sklearn", "sklearn", "sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, check_random_state, column_or_1d, validate_data

__all__ = ["LeanClassifier", "LeanRegressor"]

_STEP = 0.01  # of the means: small networks take larger steps than those for images
_NOISE_STEP = 0.02  # of the log-variance of the noise: it has a hundred steps or so to find its size


class _Lean(BaseEstimator):
    """What classifier and regressor have in common."""

    likelihood_: Likelihood

    def __init__(
        self,
        network: Callable[[int, int], nn.Module] | None = None,
        hidden: Sequence[int] = (50,),
        *,
        epochs: int = 100,
        batch_size: int = 32,
        optimizer: str | Optimization | None = None,
        propagate: str = "mirrored",
        predict_by: str = "moments",
        samples: int = 32,
        random_state: Any = None,
    ) -> None:
        self.network = network
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.propagate = propagate
        self.predict_by = predict_by
        self.samples = samples
        self.random_state = random_state

    def _train(self, inputs: Any, targets: Tensor, outputs: int, likelihood: Likelihood) -> None:
        """Train on an array of inputs (n, features) and the targets, which the likelihood takes."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.centre_ = inputs.mean(0)
        self.scale_ = np.where(inputs.std(0) > 0, inputs.std(0), 1.0)
        x = self._standardised(inputs)
        with torch.random.fork_rng(devices=[]):  # the initial weights, without a trace in the state of torch
            torch.manual_seed(seed)
            network = self._network(inputs.shape[1], outputs).to(x.dtype)
            _check_shapes(network, x[:2], outputs)
        source = torch.Generator().manual_seed(seed)
        bnn = Bayesian(network, propagate=self.propagate, predict_by=self.predict_by, generator=source)
        batches = DataLoader(
            TensorDataset(x, targets), batch_size=min(self.batch_size, len(x)), shuffle=True, generator=source
        )
        self.history_ = fit(
            bnn,
            batches,
            likelihood=likelihood,
            epochs=self.epochs,
            optimizer=self._optimization(len(batches), likelihood) if self.optimizer is None else self.optimizer,
            seed=seed,
        )
        self.bnn_, self.likelihood_, self.seed_ = bnn, likelihood, seed
        self.n_iter_ = self.epochs

    def _optimization(self, batches: int, likelihood: Likelihood) -> Optimization:
        return LeanTraining().optimization(self.epochs * batches, _STEP, likelihood, plain_lr=_NOISE_STEP)

    def _network(self, inputs: int, outputs: int) -> nn.Module:
        if self.network is None:
            sizes = [inputs, *self.hidden]
            layers: list[nn.Module] = []
            for before, after in pairwise(sizes):
                layers += [nn.Linear(before, after), nn.ReLU()]
            return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
        network = self.network(inputs, outputs)
        if not isinstance(network, nn.Module):
            raise InputError(
                "network must be a function of the numbers of inputs and outputs that returns a torch.nn.Module, and "
                f"it returned a {type(network).__name__}"
            )
        return network

    def _standardised(self, inputs: Any) -> Tensor:
        return torch.tensor((inputs - self.centre_) / self.scale_)

    def _checked(self) -> None:
        for name in ("epochs", "batch_size", "samples"):
            require_count(name, getattr(self, name))
        hidden: Any = self.hidden
        if isinstance(hidden, str) or not isinstance(hidden, Iterable) or not all(map(is_count, hidden)):
            raise InputError(f"hidden must hold the sizes of the hidden layers, such as (50, 50), got {hidden!r}")
        if self.network is not None and (isinstance(self.network, nn.Module) or not callable(self.network)):
            raise InputError(
                "network must be a function of the numbers of inputs and outputs that returns a torch.nn.Module, such "
                f"as torch.nn.Linear, got a {type(self.network).__name__}"
            )

    def _predicted(self, inputs: Any, *, keep_samples: bool = False) -> Prediction:
        check_is_fitted(self)
        checked = validate_data(self, inputs, dtype=np.float64, reset=False)
        return predict(
            self.bnn_,
            self._standardised(checked),
            likelihood=self.likelihood_,
            samples=self.samples,
            keep_samples=keep_samples,
            method="loop",
            generator=torch.Generator().manual_seed(self.seed_),  # the same draws for every call
        )


class LeanClassifier(ClassifierMixin, _Lean):
    """A Bayesian neural network as a classifier of scikit-learn.

    The inputs are standardised. All computations are in float64.

    Args:
        network: a function of the number of inputs and the number of classes that returns a `torch.nn.Module`, whose
            outputs are logits. By default a network with ReLUs and the layers of ``hidden``.
        hidden: the sizes of the hidden layers of the default network.
        epochs: how often training goes through the data.
        batch_size: how many examples a step of training takes.
        optimizer: a `leanbayes.Optimization` or the name of an optimizer; by default `leanbayes.train.LeanTraining`.
        propagate: how randomness passes through the network in training; see `leanbayes.Bayesian`.
        predict_by: how it passes in predictions: "moments" is one pass, "sample" draws weights.
        samples: how many draws, or evenly spread outputs after one pass of moments, a prediction is the mean of.
        random_state: a seed, a generator of numpy, or None for another result in every fit.

    Attributes:
        classes_: the classes.
        bnn_: the trained `leanbayes.Bayesian`, whose inputs are standardised.
        history_: the record of the training.

    >>> x = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 8)
    >>> model = LeanClassifier(random_state=0).fit(x, ["low", "low", "high", "high"] * 8)
    >>> model.predict([[-2.0], [2.0]])
    array(['low', 'high'], dtype='<U4')
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train on the inputs X (n, features) and the labels y (n,)."""
        self._checked()
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True)  # noqa: N806
        check_classification_targets(y)
        self.classes_, targets = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        self._train(X, torch.tensor(targets), len(self.classes_), Categorical())
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803
        """Return the most probable class of each input."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Any, return_std: bool = False) -> Any:  # noqa: N803
        """Return the probabilities of the classes; with ``return_std`` also the standard deviation of each of them.

        The standard deviation is over the posterior: how far the probability would move with other weights that are as
        credible.
        """
        prediction = self._predicted(X, keep_samples=return_std)
        mean = np.asarray(prediction.mean)
        if not return_std:
            return mean
        assert prediction.samples is not None
        return mean, np.asarray(prediction.samples.std(0, correction=0))

    def predict_uncertainty(self, X: Any) -> dict[str, Any]:  # noqa: N803
        """Return the "total", "aleatoric" and "epistemic" uncertainty of each input in nats."""
        return _uncertainties(self._predicted(X))


class LeanRegressor(RegressorMixin, _Lean):
    """A Bayesian neural network as a regressor of scikit-learn, with one output or several.

    Inputs and targets are standardised, and predictions are in the units of the targets. The noise of the targets is
    learned. All computations are in float64.

    Args:
        network: a function of the numbers of inputs and outputs that returns a `torch.nn.Module`. By default a network
            with ReLUs and the layers of ``hidden``.
        hidden: the sizes of the hidden layers of the default network.
        epochs: how often training goes through the data.
        batch_size: how many examples a step of training takes.
        optimizer: a `leanbayes.Optimization` or the name of an optimizer; by default `leanbayes.train.LeanTraining`.
        propagate: how randomness passes through the network in training; see `leanbayes.Bayesian`.
        predict_by: how it passes in predictions: "moments" is one pass, "sample" draws weights.
        samples: how many draws a prediction is the mean of, if it is made by draws.
        random_state: a seed, a generator of numpy, or None for another result in every fit.

    Attributes:
        noise_: the learned standard deviation of the noise, in the units of the targets.
        bnn_: the trained `leanbayes.Bayesian`, whose inputs and outputs are standardised.
        history_: the record of the training.

    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> mean, std = LeanRegressor(random_state=0).fit(x, x[:, 0]).predict([[0.5], [9.0]], return_std=True)
    >>> bool(std[1] > std[0])
    True
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train on the inputs X (n, features) and the targets y, (n,) or (n, outputs)."""
        self._checked()
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)  # noqa: N806
        y = np.asarray(y, dtype=np.float64)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        self._one_output = y.ndim == 1
        targets = y.reshape(len(y), -1)
        self.target_centre_ = targets.mean(0)
        self.target_scale_ = np.where(targets.std(0) > 0, targets.std(0), 1.0)
        standardised = torch.tensor((targets - self.target_centre_) / self.target_scale_)
        self._train(X, standardised, targets.shape[1], Gaussian(noise="learned").double())
        assert isinstance(self.likelihood_, Gaussian)
        self.noise_ = self._shaped(float(self.likelihood_.noise.detach()) * self.target_scale_[None])[0]
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:  # noqa: N803
        """Return the predicted means; with ``return_std`` also the standard deviation of the target, noise included."""
        prediction = self._predicted(X)
        mean = self._shaped(np.asarray(prediction.mean) * self.target_scale_ + self.target_centre_)
        if not return_std:
            return mean
        return mean, self._shaped(np.asarray(prediction.total.sqrt()) * self.target_scale_)

    def predict_uncertainty(self, X: Any) -> dict[str, Any]:  # noqa: N803
        """Return the "total", "aleatoric" and "epistemic" variances of each prediction, in squared units of y."""
        parts = _uncertainties(self._predicted(X))
        return {name: self._shaped(value * self.target_scale_**2) for name, value in parts.items()}

    def _shaped(self, values: Any) -> Any:
        return values[:, 0] if self._one_output else values

    def __sklearn_tags__(self) -> Any:
        """Say that several outputs are possible."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _check_shapes(network: nn.Module, x: Tensor, outputs: int) -> None:
    """Raise unless the network takes these inputs and has so many outputs for each of them."""
    name = type(network).__name__
    try:
        with torch.no_grad():
            returned = network.eval()(x)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"network({x.shape[1]}, {outputs}) returned a {name} that does not take inputs of shape {tuple(x.shape)}: "
            f"{error}"
        ) from error
    finally:
        network.train()
    shape = tuple(prediction_tensor(returned).shape)
    if shape != (len(x), outputs):
        raise InputError(
            f"network({x.shape[1]}, {outputs}) returned a {name} whose outputs have the shape {shape} for {len(x)} "
            f"inputs; they must have the shape {(len(x), outputs)}"
        )


def _uncertainties(prediction: Prediction) -> dict[str, Any]:
    return {name: np.asarray(getattr(prediction, name)) for name in ("total", "aleatoric", "epistemic")}
