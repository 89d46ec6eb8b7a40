"""What most studies do: take some examples, train a recipe, and measure it in a way that repeats bit for bit."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from leanbayes._calls import Inputs
from leanbayes.baselines import Ensemble
from leanbayes.bayesian import Bayesian
from leanbayes.evaluation import evaluate
from leanbayes.evaluation.cost import count_parameters
from leanbayes.lab.data import Examples, Source, Task
from leanbayes.lab.data.source import from_arrays
from leanbayes.lab.recipes import Recipe, Run, Trained, parse, prepare
from leanbayes.lab.recipes.partial import Partial
from leanbayes.prediction import Predictor
from leanbayes.prediction.draws import Draws
from leanbayes.train import Epoch
from leanbayes_papers.scales import log_scales, note
from leanbayes_papers.study import Job, Size

__all__ = [
    "Recorded", "as_tensors", "digit_images", "measure_test", "partials", "percent", "rates_of", "relative_flops",
    "repeatable", "small_task", "train", "train_and_measure",
]  # fmt: skip

_BATCH = 500  # how many inputs are predicted at a time
_SHIFTED = ("accuracy", "nll", "brier", "ece", "entropy")


def as_tensors(examples: Examples, count: int | None = None) -> TensorDataset:
    """Return all examples, or ``count`` of them, standardised once for all epochs; the choice is always the same."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))[:count]
    inputs, targets = (_rows(part, order) for part in (examples.inputs, examples.targets))
    return TensorDataset(examples.preparation.standardise(inputs), targets)


def _rows(values: Any, order: Tensor) -> Tensor:
    if isinstance(values, Tensor):
        return values[order]
    return torch.stack([values[index] for index in order.tolist()])


def small_task(
    source: Source,
    counts: Sequence[int | None] = (None, None, None),
    model: str | Callable[[], nn.Module] | None = None,
) -> Task:
    """Return a task with at most ``counts`` examples for training, validation and test.

    Args:
        source: the data.
        counts: how many examples to take of each part; None takes all of them.
        model: the name of a model, or a function that makes one; None takes the default of the data.
    """
    task = source.task(model if isinstance(model, str) else None)
    whole = (source.train, source.validation, source.test)
    train, validation, test = (as_tensors(part, count) for part, count in zip(whole, counts, strict=True))
    make = task.model if model is None or isinstance(model, str) else model
    return replace(task, train=train, validation=validation, test=test, model=make)


def digit_images(seed: int = 0) -> Source:
    """Return scikit-learn's 1797 digits as images of 8x8 in [0, 1]. They stand in for MNIST in smoke tests."""
    from sklearn.datasets import load_digits  # imported here because it takes a second

    data = load_digits()
    images = (data.images / 16).astype("float32")[:, None]
    return from_arrays(Path("digits"), {"train": (images, data.target)}, "classes", seed=seed)


@dataclass
class Recorded(Run):
    """A run that keeps the validation NLL after every epoch of every stage in ``curve``, as pairs (stage, NLL).

    It also notes how the scales of random weights moved (`leanbayes_papers.scales`), which `reproduce` puts into the
    result of the job.
    """

    curve: list[tuple[str, float]] = field(default_factory=list)

    def fit(self, model: nn.Module, task: Task, stage: str, epochs: int, **options: Any) -> None:
        """Train as `Run` does, and record the validation NLL."""

        def record(epoch: Epoch) -> None:
            if epoch.validation is not None:
                self.curve.append((stage, epoch.validation))

        start = log_scales(model)
        super().fit(model, task, stage, epochs, callbacks=[*options.pop("callbacks", ()), record], **options)
        note(stage, start, log_scales(model))


def train(job: Job, size: Size, task: Task, recipe: Recipe | None = None) -> tuple[Trained, Recorded]:
    """Train the recipe of a job with its seed and epochs.

    Args:
        job: the job.
        size: the size whose budget applies.
        task: the data and the model.
        recipe: a recipe to train instead of the job's own.

    Returns:
        The trained predictor, whose seconds are processor time on the one core of a job, and the run.
    """
    budget = size.budget if job.epochs is None else replace(size.budget, epochs=job.epochs)
    run = Recorded(budget, job.seed)
    begin = time.process_time()
    trained = prepare(recipe or parse(job.spec), task, run)
    return replace(trained, seconds=time.process_time() - begin), run


def train_and_measure(
    job: Job, size: Size, task: Task, *, shifted: Mapping[str, Dataset[Any]] | None = None
) -> tuple[dict[str, Any], Trained]:
    """Train a job, measure it on the test set and on shifted sets, and return its result and the predictor."""
    recipe = parse(job.spec)
    trained, _ = train(job, size, task, recipe)
    begin = time.process_time()
    metrics = measure_test(trained, size, task, job.seed)
    seconds = time.process_time() - begin
    for name, data in (shifted or {}).items():
        under_shift = measure_test(trained, size, replace(task, test=data, shifted={}), job.seed)
        metrics |= {f"{measure}@{name}": under_shift[measure] for measure in _SHIFTED}
    parameters = count_parameters(trained.predictor)
    metrics |= {"parameters": parameters.trained, "random": parameters.scales}
    flops = relative_flops(recipe)
    if flops is not None:
        metrics["flops"] = flops
    scales = {stage: asdict(moved) for stage, moved in trained.scales.items()}
    return {"metrics": metrics, "seconds": {"train": trained.seconds, "predict": seconds}, "scales": scales}, trained


def measure_test(trained: Trained, size: Size, task: Task, seed: int) -> dict[str, float]:
    """Return every metric on the test set of a task, and how well the predictor detects the shifted sets."""
    return evaluate(
        repeatable(trained.predictor),
        DataLoader(task.test, _BATCH),
        likelihood=trained.likelihood,
        samples=size.samples,
        shifted={name: DataLoader(data, _BATCH) for name, data in task.shifted.items()},
        generator=torch.Generator().manual_seed(seed),
    ).metrics


def relative_flops(recipe: Recipe) -> float | None:
    """Return the FLOPs of a whole training, where that of the plain network is 1; None if they are not known.

    They are what subnetworks-cost counts: a step of N draws costs N plain steps, because the backward pass goes through
    each draw. The formulas of sensitivity-guided subnetworks, table 1, charge for one backward pass and contradict
    that.
    """
    if recipe.relative_cost() is None:
        return None
    plain_share = float(getattr(recipe, "pretrain", 1.0))
    step = plain_share + (1 - plain_share) * float(getattr(recipe, "draws", 1))
    return float(getattr(recipe, "members", 1)) * step


def repeatable(predictor: nn.Module) -> nn.Module:
    """Return the predictor with one draw after the other: the faster ways that `predict` may take round differently."""
    if isinstance(predictor, Ensemble):
        return Ensemble(*predictor.models, method="loop")
    return _InTurn(predictor) if isinstance(predictor, Bayesian) and predictor.predict_by.plain_draws else predictor


class _InTurn(Predictor):
    def __init__(self, model: Bayesian) -> None:
        super().__init__()
        self.model = model

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield the outputs of one draw after the other."""
        source = Draws(self.model, x, method="loop", generator=generator, output=lambda returned: returned)
        yield from source.take(draws)

    def parts(self) -> dict[str, nn.Module]:
        """Return the model by name."""
        return {"model": self.model}


def percent(rate: float) -> str:
    """Write a rate as tables do.

    >>> percent(0.001), percent(0.4)
    ('0.1 %', '40 %')
    """
    return f"{100 * rate:g} %"


def partials(rates: Sequence[float], options: str = "") -> dict[str, str]:
    """Return the recipes of networks that are random in part, by names such as "partial 1 %".

    >>> partials([0.01], "draws=5")
    {'partial 1 %': 'partial:rate=0.01,draws=5'}
    """
    return {f"partial {percent(rate)}": f"partial:rate={rate}{',' + options if options else ''}" for rate in rates}


def rates_of(size: Size) -> dict[str, float]:
    """Return the share of random weights of each partly random network of a size, by its name."""
    recipes = {name: parse(spec) for name, spec in size.methods.items()}
    return {name: recipe.rate for name, recipe in recipes.items() if isinstance(recipe, Partial)}
