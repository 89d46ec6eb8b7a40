"""Which method is best for the time that it takes? NLL against wall time, and 1 % random against an ensemble."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch.utils.data import DataLoader

from leanbayes._calls import split_batch
from leanbayes.lab.data import Examples, Task, load_data, shift
from leanbayes.lab.recipes import Budget, Recipe, parse
from leanbayes.lab.recipes.ensemble import EnsembleRecipe
from leanbayes.lab.recipes.variational import Variational
from leanbayes.lab.report.plots import PALETTE, short
from leanbayes.lab.statistics import interval
from leanbayes.prediction import predict
from leanbayes.propagate import OnePass, as_propagation
from leanbayes_papers import cite
from leanbayes_papers.study import Answer, Claim, Job, Outcome, Results, Size, Study, Verdict
from leanbayes_papers.training import as_tensors, digit_images, small_task, train_and_measure
from leanbayes_papers.verdicts import all_of, matches, summary, within

__all__ = ["STUDY", "dominated", "task_with_unseen"]

_METHODS = {
    "deterministic": "deterministic",
    "temperature": "deterministic+temperature",
    "ensemble": "ensemble",
    "dropout": "dropout",
    "swag": "swag",
    "laplace, last layer": "laplace",
    "laplace, 1 %": "laplace:subset=subnetwork",
    "last layer": "layers",
    "vi": "vi",
    "partial 1 %": "partial",
    "partial 1 % by moments": "partial:predict=moments",
    "partial 10 %": "partial:rate=0.1",
    "vdp": "vdp",
    "radial": "radial",
    "ssvi 20 %": "ssvi:density=0.2,propagate=local",
    "rigl 20 %": "rigl:density=0.2",
    "variational dropout": "variational_dropout:kl_end=0.1",
}
_OURS, _ONE_PASS, _ENSEMBLE = "partial 1 %", "partial 1 % by moments", "ensemble"
_OOD = "ood/unseen/auroc"
_QUALITY = ("brier", "nll", "ece", _OOD)
_COUNTS = {"train": "flops", "predict": "passes"}  # these counts replace seconds where no job was timed
_TIMES = {"train": "training time", "predict": "prediction time"}

Costs = dict[str, dict[tuple[str, int], float]]

MATCHES = Claim(
    cite.OURS,
    "headline",
    "The 1 % network matches the ensemble of five (Brier score, NLL, ECE, out-of-distribution AUROC).",
)
TRAINING = Claim(
    cite.OURS, "headline", "On this machine, the 1 % network trains in at most a third of the ensemble's time."
)
PREDICTION = Claim(
    cite.OURS,
    "headline",
    "On this machine, the 1 % network predicts with 16 draws in at most 1.1 times the ensemble's time.",
)
ONE_PASS = Claim(
    cite.OURS,
    "headline",
    "On this machine, the 1 % network predicts in one pass in at most 1.1 times the ensemble's time.",
)
FRONT = Claim(
    cite.OURS,
    "headline",
    "On this machine, the 1 % network is on the Pareto front of NLL against training time: no method that is as cheap "
    "is better by 0.02 nats.",
)
FRONT_PREDICTION = Claim(
    cite.OURS,
    "headline",
    "On this machine, the 1 % network that predicts by moments is on the Pareto front of NLL against prediction time: "
    "no method that is as cheap is better by 0.02 nats.",
)


@cache
def task_with_unseen(data: str, folder: Path | None, counts: tuple[int | None, ...], model: str) -> Task:
    """Return a task whose shifted set "unseen" has images of another kind.

    MNIST is unseen for every data set but itself, for which Fashion-MNIST is. For the small digits, negatives are.
    """
    if data == "digits":
        source = digit_images()
        unseen = shift(source.test, lambda x: 1 - x)
    else:
        source, other = load_data(data, folder), load_data("fashion-mnist" if data == "mnist" else "mnist", folder)
        unseen = Examples(other.test.inputs, other.test.targets, source.preparation)
    return replace(small_task(source, counts, model), shifted={"unseen": as_tensors(unseen, counts[2])})


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    """Train and measure a job, and time predictions in the fastest way, not in the one that repeats bit for bit."""
    task = task_with_unseen(job.data, folder, size.counts, size.options["model"])
    result, trained = train_and_measure(job, size, task)
    x, _ = split_batch(next(iter(DataLoader(task.test, size.options["timed"]))))
    seconds = []
    for _ in range(3):  # the first prediction may search for the fastest way
        begin = time.process_time()
        predict(trained.predictor, x, likelihood=trained.likelihood, samples=size.samples)
        seconds.append(time.process_time() - begin)
    result["seconds"]["predict"] = min(seconds)
    passes = _passes(parse(job.spec), size.samples)
    if passes is not None:
        result["metrics"]["passes"] = passes
    return result


def _passes(recipe: Recipe, samples: int) -> int | None:
    """Return the forward passes of a prediction, for methods that differ in nothing else."""
    if isinstance(recipe, EnsembleRecipe):
        return recipe.members
    if isinstance(recipe, Variational):
        return 1 if isinstance(as_propagation(recipe.predict or recipe.propagate or "sample"), OnePass) else samples
    return None


def dominated(points: Mapping[str, tuple[float, ...]]) -> dict[str, int]:
    """Return how many other points dominate each point; 0 is a point of the Pareto front.

    A point dominates another if no coordinate is higher and one is lower.

    >>> dominated({"a": (1.0, 3.0), "b": (2.0, 1.0), "c": (2.0, 3.0)})
    {'a': 0, 'b': 0, 'c': 2}
    """

    def below(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    return {name: sum(below(other, point) for other in points.values()) for name, point in points.items()}


def _costs(results: Results, kind: str) -> Costs:
    """Return seconds by method, then by data and seed; where no job was timed, counts that order methods alike."""
    timed: Costs = {method: {} for method in results.methods()}
    for job, result in results.runs:
        if kind in result.get("seconds", {}):
            timed[job.method][job.data, job.seed] = result["seconds"][kind]
    if not any(timed.values()):
        timed = {method: results.column(_COUNTS[kind], method) for method in results.methods()}
    return {method: costs for method, costs in timed.items() if costs}


def _ratios(costs: Costs, a: str, b: str) -> list[float]:
    """Return the cost of ``a`` over that of ``b`` for each run that both have."""
    first, second = costs.get(a, {}), costs.get(b, {})
    return [first[key] / second[key] for key in sorted(first) if key in second]


def _points(results: Results, costs: Costs) -> dict[str, tuple[float, float]]:
    """Return the mean NLL and the mean cost of each method that has both."""
    points = {}
    for method, by_run in costs.items():
        nll = list(results.column("nll", method).values())
        if nll:
            points[method] = (_mean(nll), _mean(list(by_run.values())))
    return points


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _on_front(results: Results, claim: Claim, ours: str, kind: str) -> Verdict:
    """Judge whether no other method is better by more than the margin, unless it surely costs more."""
    costs = _costs(results, kind)
    rivals = [method for method in costs if method != ours and len(_ratios(costs, method, ours)) > 1]
    if not rivals:
        return Verdict(claim, "not testable here", f"no method has two runs to pair with those of {ours}")
    ratios = {m: interval(_ratios(costs, m, ours), 1 - 0.05 / len(rivals)) for m in rivals}
    parts = []
    for method, ratio in ratios.items():
        assert ratio.low is not None
        assert ratio.high is not None
        if ratio.low > 1:
            continue
        part = matches(results, claim, "nll", ours, method, tests=len(rivals))
        unclear = part.answer == "does not hold" and ratio.high >= 1
        answer: Answer = "not testable here" if unclear else part.answer
        parts.append(Verdict(claim, answer, f"{part.why}, for {ratio.mean:.2f} times the {_TIMES[kind]}"))
    counts = dominated(_points(results, costs))
    front = ", ".join(name for name, count in counts.items() if not count)
    behind = ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
    fronts = f"by means the front is {front}; methods behind it, and how many dominate each: {behind or 'none'}"
    if not parts:
        return Verdict(claim, "holds", f"all others take longer; {fronts}")
    joined = all_of(claim, parts)
    decisive = [part.why for part in parts if part.answer == joined.answer] if joined.answer != "holds" else []
    return Verdict(claim, joined.answer, "; ".join([*decisive, fronts]))


def _conclude(results: Results, size: Size) -> Outcome:
    train, test = (_costs(results, kind) for kind in ("train", "predict"))
    share = "as a share of the ensemble's time, measured on this machine with one core for each"
    verdicts = [
        all_of(MATCHES, [matches(results, MATCHES, m, _OURS, _ENSEMBLE, tests=len(_QUALITY)) for m in _QUALITY]),
        within(TRAINING, _ratios(train, _OURS, _ENSEMBLE), 0, 1 / 3, f"training time {share}"),
        within(
            PREDICTION, _ratios(test, _OURS, _ENSEMBLE), 0, 1.1, f"prediction time with {size.samples} draws {share}"
        ),
        within(ONE_PASS, _ratios(test, _ONE_PASS, _ENSEMBLE), 0, 1.1, f"prediction time in one pass {share}"),
        _on_front(results, FRONT, _OURS, "train"),
        _on_front(results, FRONT_PREDICTION, _ONE_PASS, "predict"),
    ]
    measures = ("nll", "brier", "ece", "accuracy", _OOD, "entropy", "flops", "passes", "parameters", "random")
    timed = any("seconds" in result for _, result in results.runs)
    labels = {"train": "seconds of training", "predict": f"seconds for {size.options['timed']} images"}
    figures = {k: _drawn(_points(results, _costs(results, k)), label) for k, label in labels.items()} if timed else {}
    return Outcome({"all methods": summary(results, measures)}, verdicts, figures)


def _drawn(points: Mapping[str, tuple[float, float]], label: str) -> Figure:
    """Draw each method as a numbered point, because many lie close together, and a staircase along the front."""
    figure = Figure(figsize=(6.8, 4.2))
    axes = figure.add_axes((0.1, 0.12, 0.63, 0.85))
    counts = dominated(points)
    for number, (name, (nll, seconds)) in enumerate(points.items(), start=1):
        colour = PALETTE[1 if counts[name] else 0]
        axes.plot(seconds, nll, "o", color=colour, markersize=4, label=f"{number} {name}")
        axes.annotate(str(number), (seconds, nll), (3, 3), textcoords="offset points", fontsize=7)
    front = sorted((seconds, nll) for name, (nll, seconds) in points.items() if not counts[name])
    axes.step([x for x, _ in front], [y for _, y in front], where="post", color=PALETTE[0], linewidth=0.8)
    axes.set(xscale="log", xlabel=f"{label}, on this machine", ylabel="NLL")
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis(FuncFormatter(short))
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)
    return figure


def _size(scaled: str, minutes: float, **settings: Any) -> Size:
    chosen: dict[str, Any] = {
        "data": ("fashion-mnist",), "needs": ("fashion-mnist", "mnist"), "methods": _METHODS, "seeds": 5, "samples": 16,
        "options": {"model": "lenet5", "timed": 500},
    }  # fmt: skip
    return Size(scaled, minutes, **(chosen | settings))


_FEW = ("deterministic", _OURS, _ONE_PASS)

STUDY = Study(
    "pareto",
    "Beyond the papers: the Pareto front of NLL against wall time over all methods; 1 % random against an ensemble",
    (MATCHES, TRAINING, PREDICTION, ONE_PASS, FRONT, FRONT_PREDICTION),
    {
        "smoke": _size(
            "120 digits of 8x8 replace Fashion-MNIST, and their negatives MNIST; 2 epochs, a small CNN, an ensemble of "
            "2, four methods.",
            0.1,
            data=("digits",),
            needs=(),
            methods={name: _METHODS[name] for name in _FEW} | {"ensemble": "ensemble:members=2"},
            budget=Budget(epochs=2, batch_size=40, lr=1e-2),
            seeds=1,
            samples=4,
            counts=(120, 40, 100),
            options={"model": "small_cnn", "timed": 50},
        ),
        "cpu": _size(
            "A LeNet-5 on 2,000 images of Fashion-MNIST; each network has 20 epochs in all. Each method is timed on "
            "one core, and the time of a prediction is the best of three.",
            14,
            budget=Budget(epochs=20, batch_size=64, lr=2e-3, schedule="cosine"),
            counts=(2000, 500, 1500),
        ),
        "paper": _size(
            "Nothing is scaled down: a LeNet-5 on all of Fashion-MNIST; each network has 60 epochs in all.",
            1200,
            budget=Budget(epochs=60, batch_size=64, lr=2e-3, schedule="cosine"),
        ),
    },
    _run,
    _conclude,
)
