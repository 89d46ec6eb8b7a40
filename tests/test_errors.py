"""Every error can be caught as `LeanBayesError` and as a built-in error, and says when it is raised."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes import errors
from leanbayes.errors import InputError, LeanBayesError, MissingPackage, UnknownName

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("error", [cls for cls in CLASSES if issubclass(cls, LeanBayesError)])
def test_every_error_is_ours_and_has_a_built_in_parent(error):
    assert error is LeanBayesError or issubclass(error, (ValueError, ArithmeticError, NotImplementedError, OSError))


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_says_when_it_appears(cls):
    assert cls is LeanBayesError or cls.__doc__.startswith(("Raised when", "Given when", "Given once when"))


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        (
            "nromal",
            ["normal", "radial"],
            "unknown law 'nromal'; choose from ['normal', 'radial']; did you mean 'normal'?",
        ),
        ("x", {"b": 1, "a": 2}, "unknown law 'x'; choose from ['a', 'b']"),
        (19, (18, 34), "unknown law 19; choose from [18, 34]"),
    ],
)
def test_an_unknown_name_lists_the_known_ones_and_suggests_one(name, known, message):
    error = UnknownName.of("law", name, known)
    assert str(error) == message
    assert isinstance(error, InputError)


def test_a_missing_package_names_its_extra():
    error = MissingPackage.of("this", "numba", "fast")
    assert str(error) == "this needs the package numba; install it with: pip install 'leanbayes[fast]'"
    assert isinstance(error, ValueError)
    assert isinstance(error, ImportError)


X, Y = torch.linspace(-1, 1, 18).reshape(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
IMAGES, MASK = torch.linspace(-1, 1, 32).reshape(2, 1, 4, 4), torch.tensor([0, 255]).repeat(16).reshape(2, 4, 4)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def bayesian(**options) -> lb.Bayesian:
    return lb.Bayesian(plain(), **options)


def segmenter(outputs: int) -> lb.Bayesian:
    return lb.Bayesian(nn.Conv2d(1, outputs, 1))


def loss(y=Y, likelihood=None, model=None, x=X, **options):
    return lb.elbo(model or bayesian(), x, y, likelihood or lb.Categorical(), **({"n_data": 6} | options))


def fit(data=((X, Y),), model=None, **options):
    return lb.fit(model or bayesian(), data, **({"likelihood": lb.Categorical(), "epochs": 1} | options))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(plain())


def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(plain(), X)


def bernoulli_255():
    return loss(MASK[:, None].float(), lb.Bernoulli(), segmenter(1), IMAGES)


HOSTILE: dict[str, tuple[Callable[[], object], str, str]] = {
    # What happens, with what the code got, and what the user is told to do.
    "classes beyond the logits": (lambda: loss(Y + 5), "between 5 and 6", "an output for each class"),
    "negative classes": (lambda: loss(Y - 3), "between -3 and -2", "ignore_index"),
    "classes from 1": (lambda: loss(Y + 1), "between 1 and 2", "subtract 1"),
    "classes beyond the logits in fit": (lambda: fit([(X, Y + 5)]), "between 5 and 6", "correct the targets"),
    "classes beyond the logits in evaluate": (
        lambda: lb.evaluate(bayesian(), [(X, Y + 5)], likelihood=lb.Categorical()), "5 to 6", "ignore_index",
    ),
    "mask of 0 and 255 for classes": (
        lambda: loss(MASK, lb.Categorical(), segmenter(2), IMAGES), "between 0 and 255", "mask // 255",
    ),
    "mask of 0 and 255 for labels": (bernoulli_255, "between 0 and 255", "mask / 255"),
    "mask of 0 and 255 for labels in fit": (
        lambda: fit([(IMAGES, MASK[:, None])], segmenter(1), likelihood=lb.Bernoulli()), "0 and 255", "mask / 255",
    ),
    "mask of 0 and 255 in the polynomial": (
        lambda: loss(
            MASK[:, None], lb.Bernoulli(polynomial=True), lb.Bayesian(nn.Conv2d(1, 1, 1), propagate="moments"), IMAGES
        ),
        "0 and 255", "mask / 255",
    ),
    "targets as a list": (lambda: loss(Y.tolist()), "got a list", "torch.as_tensor"),
    "targets as an array": (lambda: loss(Y.numpy()), "got a ndarray", "torch.as_tensor"),
    "numbers as a list": (lambda: fit([(X, Y.tolist())], likelihood=lb.Gaussian()), "got a list", "torch.as_tensor"),
    "fractions as classes": (lambda: loss(Y.float()), "torch.float32", "integers"),
    "a loss function in elbo": (lambda: loss(likelihood=F.cross_entropy), "'cross_entropy'", "Categorical()"),
    "a loss function in fit": (lambda: fit(likelihood=F.cross_entropy), "'cross_entropy'", "Categorical()"),
    "a loss function in predict": (
        lambda: lb.predict(bayesian(), X, likelihood=F.cross_entropy), "'cross_entropy'", "Categorical()",
    ),
    "a loss function in evaluate": (
        lambda: lb.evaluate(bayesian(), [(X, Y)], likelihood=F.mse_loss), "'mse_loss'", "Gaussian()",
    ),
    "a loss function in Temperature": (
        lambda: lb.baselines.Temperature.fit(plain(), [(X, Y)], F.cross_entropy), "'cross_entropy'", "Categorical()",
    ),
    "a loss function in Laplace": (
        lambda: lb.baselines.LaplaceApproximation.fit(plain(), [(X, Y)], F.mse_loss), "'mse_loss'", "Gaussian()",
    ),
    "a list of members": (lambda: lb.baselines.Ensemble([plain()]), "['list']", "Ensemble(*models)"),
    "a loss module": (lambda: fit(likelihood=nn.CrossEntropyLoss()), "'CrossEntropyLoss'", "Categorical()"),
    "the class of a likelihood": (lambda: fit(likelihood=lb.Categorical), "class Categorical", "Categorical()"),
    "no likelihood": (lambda: fit(likelihood=None), "'NoneType'", "choose one of"),
    "class weights as a list": (lambda: lb.Categorical(class_weights=[1.0]), "[1.0]", "torch.tensor"),
    "a negative learning rate": (lambda: fit(optimizer=lb.Optimization(lr=-1.0)), "-1.0", "leave it None"),
    "a name as subspace": (lambda: bayesian(subspace="top"), "'top'", "lb.top_k".replace("lb", "leanbayes")),
    "a rate as subspace": (lambda: bayesian(subspace=0.01), "0.01", "leanbayes.everything()"),
    "a function as subspace": (lambda: bayesian(subspace=lb.everything), "function", "leanbayes.everything()"),
    "the class of a posterior": (
        lambda: bayesian(posterior=lb.posteriors.Normal), "class 'leanbayes", "leanbayes.posteriors.Normal()",
    ),
    "a torch law as posterior": (
        lambda: bayesian(posterior=torch.distributions.Normal(0.0, 1.0)), "loc: 0.0", "leanbayes.posteriors.Normal()",
    ),
    "the class of a prior": (lambda: bayesian(prior=torch.distributions.Normal), "class 'torch", "torch distribution"),
    "a name as KL": (lambda: bayesian(kl="exact"), "'exact'", "leanbayes.Exact()"),
    "an unknown propagation in predict": (lambda: lb.predict(bayesian(), X, by="momnets"), "'momnets'", "'moments'"),
    "an unknown propagation of a plain model": (
        lambda: lb.predict(plain(), X, by="momnets"), "'momnets'", "'moments'",
    ),
    "the class of a propagation": (
        lambda: bayesian(propagate=lb.propagate.Sample), "Sample'>", "leanbayes.propagate.Sample()",
    ),
    "a function as model": (lambda: lb.Bayesian(lambda x: x), "got a function", "forward of a module"),
    "a function as model in predict": (lambda: lb.predict(len, X), "got a builtin", "forward of a module"),
    "a function as model in fit": (lambda: fit(model=len), "got a builtin", "forward of a module"),
    "the class of a model": (lambda: lb.Bayesian(nn.Linear), "class Linear", "an instance"),
    "a traced model": (lambda: lb.Bayesian(traced()), "torch.jit", "module that it was made of"),
    "a scripted model": (lambda: lb.Bayesian(scripted()), "torch.jit", "module that it was made of"),
    "a wrapped model": (
        lambda: lb.Bayesian(nn.DataParallel(plain())), "inside a DataParallel", "DataParallel(Bayesian(model))",
    ),
    "a compiled model": (
        lambda: lb.Bayesian(torch.compile(plain(), backend="eager")),
        "OptimizedModule", "torch.compile(Bayesian(model))",
    ),
    "moments of a plain model": (lambda: lb.moments(plain(), X), "Sequential", "leanbayes.Bayesian(model)"),
    "covariance of a plain model": (lambda: lb.covariance(plain(), X), "Sequential", "leanbayes.Bayesian(model)"),
    "a loader without targets": (lambda: fit(DataLoader(X, 2)), "shape (2, 3)", "return a pair"),
    "an empty loader": (
        lambda: fit(DataLoader(TensorDataset(X[:0], Y[:0]), 2)), "no training batches", "check the data set",
    ),
    "no batches to evaluate": (
        lambda: lb.evaluate(bayesian(), [], likelihood=lb.Categorical()), "no batches", "a DataLoader",
    ),
    "an empty validation set": (lambda: fit(validate=[]), "is empty", "validate=None"),
    "no samples in elbo": (lambda: loss(samples=0), "got 0", "at least 1"),
    "no samples in fit": (lambda: fit(samples=0), "got 0", "at least 1"),
    "no samples in predict": (lambda: lb.predict(bayesian(), X, samples=0), "got 0", "at least 1"),
    "a seed as generator": (lambda: lb.predict(bayesian(), X, generator=3), "got 3", "manual_seed(seed)"),
    "a seed as generator in elbo": (lambda: loss(generator=3), "got 3", "manual_seed(seed)"),
    "a size as text": (lambda: loss(n_data="6"), "'6'", "at least 1"),
    "a name as output": (lambda: lb.predict(bayesian(), X, output="logits"), "'logits'", "a function"),
    "a callback that is none": (lambda: fit(callbacks=print), "print", "a list of functions"),
    "notes that JSON cannot hold": (
        lambda: lb.save(bayesian(), Path("nowhere"), about={"x": X}), "tensor", "a mapping of what JSON can hold",
    ),
    "outputs without classes": (
        lambda: lb.predict(nn.Flatten(0), X), "shape (18,)", "(N, classes, ...)",
    ),
    "a name as loss": (lambda: lb.sensitivity(plain(), [(X, Y)], "ce"), "'ce'", "a function"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_call_says_what_it_got_and_what_to_do(name: str) -> None:
    """Many of these gave an AttributeError or IndexError of torch, and a mask of 0 and 255 a wrong number."""
    call, got, advice = HOSTILE[name]
    with pytest.raises(LeanBayesError) as caught:
        call()
    message = str(caught.value)
    assert got in message
    assert advice in message


@pytest.mark.parametrize(
    ("likelihood", "output", "target"),
    [
        (lb.Categorical(), torch.zeros(3, 2), torch.tensor([0, 7, 1])),
        (lb.Bernoulli(), torch.zeros(3), torch.tensor([0.0, 255.0, 1.0])),
    ],
    ids=["Categorical", "Bernoulli"],
)
def test_where_reading_a_target_would_wait_the_loss_is_nan(likelihood, output, target) -> None:
    """On a GPU a class beyond the logits was an assert that ends the program; `vmap` cannot be read either."""
    losses = torch.func.vmap(likelihood.nll)(output.unsqueeze(1), target.unsqueeze(1))
    assert losses.isnan().tolist() == [False, True, False]
    expected = torch.stack([likelihood.nll(output[i : i + 1], target[i : i + 1]) for i in (0, 2)])
    torch.testing.assert_close(losses[[0, 2]], expected)


def test_targets_of_any_integer_type_are_classes() -> None:
    """Before, int32 and bool targets were an error of torch."""
    expected = lb.Categorical().nll(X[:, :2], Y)
    for dtype in (torch.int32, torch.uint8, torch.bool):
        assert torch.equal(lb.Categorical().nll(X[:, :2], Y.to(dtype)), expected)
    ignored = torch.where(Y == 1, -100, Y)
    assert lb.Categorical().nll(X[:, :2], ignored) < expected
