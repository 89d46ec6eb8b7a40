"""What most experiments do: take some examples, train a recipe, and measure it so that the numbers repeat."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from leanbayes_papers.base import Job, Size
from leanbayes_papers.cost_table import table_1

__all__ = [
    "Recorded", "digit_images", "judged", "measured", "partials", "percent", "rates_of", "relative_flops",
    "repeatable", "small_task", "tensors", "train",
]  # fmt: skip

_BATCH = 500  # inputs predicted at a time
_SHIFTED = ("accuracy", "nll", "brier", "ece", "entropy")


def tensors(examples: Examples, count: int | None = None) -> TensorDataset:
    """All examples, or so many of them, the same every time, prepared once for all epochs."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))[:count]
    inputs, targets = (_rows(part, order) for part in (examples.inputs, examples.targets))
    return TensorDataset(examples.preparation.standardise(inputs), targets)


def _rows(numbered: Any, places: Tensor) -> Tensor:
    if isinstance(numbered, Tensor):
        return numbered[places]
    return torch.stack([numbered[place] for place in places.tolist()])


def small_task(
    source: Source,
    counts: Sequence[int | None] = (None, None, None),
    model: str | Callable[[], nn.Module] | None = None,
) -> Task:
    """A task with so many examples for training, validation and test; the model by its name, or what makes it."""
    by_name = source.task(model if isinstance(model, str) else None)
    old = (source.train, source.validation, source.test)
    train, validation, test = (tensors(some, count) for some, count in zip(old, counts, strict=True))
    make = by_name.model if model is None or isinstance(model, str) else model
    return replace(by_name, train=train, validation=validation, test=test, model=make)


def digit_images(seed: int = 0) -> Source:
    """scikit-learn's 1797 digits of 8x8 as a source of images in [0, 1]: what stands in for MNIST in a smoke test."""
    from sklearn.datasets import load_digits  # takes a second

    data = load_digits()
    images = (data.images / 16).astype("float32")[:, None]
    return from_arrays(Path("digits"), {"train": (images, data.target)}, "classes", seed=seed)


@dataclass
class Recorded(Run):
    """A run that keeps the validation NLL after every epoch of every stage, as pairs (stage, nll)."""

    curve: list[tuple[str, float]] = field(default_factory=list)

    def fit(self, model: nn.Module, task: Task, stage: str, epochs: int, **options: Any) -> None:
        """As ever."""

        def keep(epoch: Epoch) -> None:
            if epoch.validation is not None:
                self.curve.append((stage, epoch.validation))

        super().fit(model, task, stage, epochs, callbacks=[*options.pop("callbacks", ()), keep], **options)


def train(job: Job, size: Size, task: Task, recipe: Recipe | None = None) -> tuple[Trained, Recorded]:
    """The job's recipe, or another one, with its seed and epochs; seconds are those of the one core that a job has."""
    budget = size.budget if job.epochs is None else replace(size.budget, epochs=job.epochs)
    run = Recorded(budget, job.seed)
    begin = time.process_time()
    trained = prepare(recipe or parse(job.spec), task, run)
    return replace(trained, seconds=time.process_time() - begin), run


def measured(
    job: Job, size: Size, task: Task, *, shifted: Mapping[str, Dataset[Any]] | None = None
) -> tuple[dict[str, Any], Trained]:
    """Train, then measure on the test set and on shifted ones; what a job returns, and the predictor."""
    recipe = parse(job.spec)
    trained, _ = train(job, size, task, recipe)
    begin = time.process_time()
    metrics = judged(trained, size, task, job.seed)
    seconds = time.process_time() - begin
    for name, data in (shifted or {}).items():
        found = judged(trained, size, replace(task, test=data, shifted={}), job.seed)
        metrics |= {f"{measure}@{name}": found[measure] for measure in _SHIFTED}
    kept = count_parameters(trained.predictor)
    metrics |= {"parameters": kept.trained, "random": kept.scales}
    flops = relative_flops(recipe)
    if flops is not None:
        metrics["flops"] = flops
    return {"metrics": metrics, "seconds": {"train": trained.seconds, "predict": seconds}}, trained


def judged(trained: Trained, size: Size, task: Task, seed: int) -> dict[str, float]:
    """Every metric on the task's test set, and how well its shifted sets are told from it."""
    return evaluate(
        repeatable(trained.predictor),
        DataLoader(task.test, _BATCH),
        likelihood=trained.likelihood,
        samples=size.samples,
        shifted={name: DataLoader(data, _BATCH) for name, data in task.shifted.items()},
        generator=torch.Generator().manual_seed(seed),
    ).metrics


def relative_flops(recipe: Recipe) -> float | None:
    """FLOPs of a whole training by 001's table 1, where the plain network's is 1; None for what it does not list."""
    formula, plain = recipe.relative_cost(), table_1("deterministic").flops
    if formula is None:
        return None
    before = float(getattr(recipe, "pretrain", 0.0))
    return (before * plain + (1 - before) * formula.flops) / plain


def repeatable(predictor: nn.Module) -> nn.Module:
    """The same predictor with draws one after the other: `predict` takes the fastest way, and ways round apart."""
    if isinstance(predictor, Ensemble):
        return Ensemble(*predictor.models, method="loop")
    return _InTurn(predictor) if isinstance(predictor, Bayesian) and predictor.propagate == "sample" else predictor


class _InTurn(Predictor):
    def __init__(self, model: Bayesian) -> None:
        super().__init__()
        self.model = model

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Draw after draw."""
        source = Draws(
            self.model,
            self.model.weights(),
            x,
            propagate=None,
            method="loop",
            generator=generator,
            output=lambda returned: returned,
        )
        yield from source.take(draws)

    def parts(self) -> dict[str, nn.Module]:
        """The model."""
        return {"model": self.model}


def percent(rate: float) -> str:
    """A rate in tables.

    >>> percent(0.001), percent(0.4)
    ('0.1 %', '40 %')
    """
    return f"{100 * rate:g} %"


def partials(rates: Sequence[float], options: str = "") -> dict[str, str]:
    """Partial networks by rate: "partial 1 %" and so on.

    >>> partials([0.01], "draws=5")
    {'partial 1 %': 'partial:rate=0.01,draws=5'}
    """
    return {f"partial {percent(rate)}": f"partial:rate={rate}{',' + options if options else ''}" for rate in rates}


def rates_of(size: Size) -> dict[str, float]:
    """The share of random weights of each partial network of a size, by its name."""
    recipes = {name: parse(spec) for name, spec in size.methods.items()}
    return {name: recipe.rate for name, recipe in recipes.items() if isinstance(recipe, Partial)}
