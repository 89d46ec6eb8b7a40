"""The search of benchmarks/defaults.py: which settings to try, and which of them the record chooses."""

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from scipy.stats import t as student

__all__ = [
    "BEFORE",
    "RECIPES",
    "SEEDS",
    "WITHOUT",
    "combined",
    "finalists",
    "gains",
    "score",
    "screening",
    "spec",
    "summary",
]

SEEDS = {"screen": (0,), "combine": (0,), "confirm": (1, 2, 3)}
Setting = Mapping[str, Any]

_USUAL = {"pretrain": 0.5, "prior": "fitted", "kl_end": None, "init_scale": 0.01, "scale_lr": 0.01}

# The defaults before this search, around which it begins.
BEFORE: dict[str, dict[str, Any]] = {
    "partial": _USUAL,
    "vi": _USUAL | {"kl_end": 0.01},
    "layers": _USUAL,
    "radial": _USUAL | {"kl_end": 0.01, "init_scale": 0.5},
    "vdp": _USUAL | {"kl_end": 0.01},
    "ssvi": _USUAL | {"kl_end": 0.01, "pretrain": 0.0},
}
RECIPES = tuple(BEFORE)
_FEWEST = 3  # tasks
_STILL = 0.01  # as leanbayes.train warns
WITHOUT = {"vdp": ("cells", "lesions"), "ssvi": ("cells", "lesions")}  # a training takes minutes there

_LEVELS: dict[str, tuple[Any, ...]] = {
    "kl_end": (0.001, 0.1, 1.0),
    "init_scale": (0.03, 0.1),
    "scale_lr": (0.03, 0.1),
    "pretrain": (0.25, 0.75),
    "prior": ("centred", "normal"),
}
_OWN_LEVELS: dict[str, dict[str, tuple[Any, ...]]] = {
    "partial": {"kl_end": (0.01, 0.1)},
    "layers": {"kl_end": (0.01, 0.1)},
    "radial": {"init_scale": (0.03, 0.1, 2.0)},
    "ssvi": {"pretrain": (0.25, 0.5)},
}


def spec(recipe: str, setting: Setting) -> str:
    """Return the specification of a recipe with all five factors, whatever its defaults are.

    >>> spec("vi", BEFORE["vi"])
    'vi:pretrain=0.5,prior=fitted,kl_end=0.01,init_scale=0.01,scale_lr=0.01'
    """
    return f"{recipe}:" + ",".join(f"{name}={str(value).lower()}" for name, value in setting.items())


def screening(recipe: str) -> list[str]:
    """Return the present default and the settings that differ from it in one factor."""
    before = BEFORE[recipe]
    changed = [before | {factor: level} for factor, level in _changes(recipe)]
    return [spec(recipe, setting) for setting in (before, *changed)]


def _changes(recipe: str) -> list[tuple[str, Any]]:
    levels = _LEVELS | _OWN_LEVELS.get(recipe, {})
    return [(factor, level) for factor in _LEVELS for level in levels[factor] if level != BEFORE[recipe][factor]]


def gains(jobs: Mapping[str, Any], one: str, other: str, seeds: Iterable[int]) -> dict[str, list[float]]:
    """Return by how much the NLL of ``one`` is below that of ``other``, by task, for the seeds that both have.

    A training that failed has an infinite NLL.
    """
    result: dict[str, list[float]] = {}
    for task in sorted({key.split(" ")[0] for key in jobs}):
        pairs = [(jobs.get(f"{task} {one} {seed}"), jobs.get(f"{task} {other} {seed}")) for seed in seeds]
        values = [_nll(b) - _nll(a) for a, b in pairs if a is not None and b is not None]
        if values:
            result[task] = values
    return result


def _nll(row: Mapping[str, Any]) -> float:
    return float(row.get("nll", math.inf))


def _units(jobs: Mapping[str, Any]) -> dict[str, float]:
    """Return the median size of a change in each task, over all recipes and single changes.

    The NLL of a table varies ten times as much as that of an image. Gains are ranked in these units, and none counts
    more than three, because otherwise one noisy task would choose everything.
    """
    sizes: dict[str, list[float]] = {}
    for recipe in RECIPES:
        for one in screening(recipe)[1:]:
            for task, values in gains(jobs, one, spec(recipe, BEFORE[recipe]), SEEDS["screen"]).items():
                sizes.setdefault(task, []).extend(abs(value) for value in values)
    return {task: max(statistics.median(values), 1e-9) for task, values in sizes.items()}


def score(jobs: Mapping[str, Any], one: str, other: str, seeds: Iterable[int]) -> float:
    """Return the mean gain over tasks in the units of each task; settings with fewer than three tasks never win."""
    units, by_task = _units(jobs), gains(jobs, one, other, seeds)
    means = [
        statistics.mean(max(-3.0, min(3.0, value / units[task])) for value in values)
        for task, values in by_task.items()
        if task in units
    ]
    return statistics.mean(means) if len(means) >= _FEWEST else -math.inf


def _best_changes(jobs: Mapping[str, Any], recipe: str) -> list[tuple[str, Any]]:
    """Return the best level of each factor whose score is above a quarter of a unit, the best factor first."""
    before, best = BEFORE[recipe], {}
    for factor, level in _changes(recipe):
        gain = score(jobs, spec(recipe, before | {factor: level}), spec(recipe, before), SEEDS["screen"])
        if gain > best.get(factor, (0.25, None))[0]:
            best[factor] = (gain, level)
    ranked = sorted(best, key=lambda factor: -best[factor][0])
    return [(factor, best[factor][1]) for factor in ranked]


def combined(jobs: Mapping[str, Any], recipe: str) -> list[str]:
    """Return the default, the best single change, and the best two and three changes together."""
    before, changes = BEFORE[recipe], _best_changes(jobs, recipe)
    return list(dict.fromkeys(spec(recipe, before | dict(changes[:count])) for count in range(4)))


def finalists(jobs: Mapping[str, Any], recipe: str) -> list[str]:
    """Return the present default, and the best setting of `combined`."""
    default, *others = combined(jobs, recipe)
    if not others:
        return [default]
    return [default, max(others, key=lambda other: score(jobs, other, default, SEEDS["combine"]))]


def summary(jobs: Mapping[str, Any], pairs: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return for each recipe what new seeds say about the finalist, and which of the two settings is chosen.

    ``pairs`` has the default and the finalist of each recipe.

    The finalist is chosen if its mean gain is positive, the interval of its weighted gain lies above 0, and no task is
    harmed: worse by more than 0.01 and by more than two standard errors.
    """
    noise = _noise(jobs, pairs)
    return {recipe: _verdict(jobs, recipe, pair, noise) for recipe, pair in pairs.items()}


def pooled(jobs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return for each single change in how many pairs of a recipe and a task it was better, and the median gain.

    Gains are in the units of each task. Pairs of one task share their data and their plain network, so they are not
    independent.
    """
    units, rows = _units(jobs), []
    for factor, level in dict.fromkeys(change for recipe in RECIPES for change in _changes(recipe)):
        values, recipes = [], []
        for recipe in RECIPES:
            if (factor, level) in _changes(recipe):
                before = BEFORE[recipe]
                one = spec(recipe, before | {factor: level})
                by_task = gains(jobs, one, spec(recipe, before), SEEDS["screen"])
                values += [value / units[task] for task, each in by_task.items() for value in each]
                recipes += [recipe] if by_task else []
        if values:
            row = {"change": f"{factor}={level}", "recipes": recipes, "pairs": len(values)}
            counts = {"better": sum(value > 0 for value in values), "worse": sum(value < 0 for value in values)}
            rows.append(row | counts | {"median": statistics.median(values)})
    return rows


def _noise(jobs: Mapping[str, Any], pairs: Mapping[str, list[str]]) -> dict[str, float]:
    """Return the standard deviation of a gain between seeds, by task, pooled over recipes."""
    squares: dict[str, list[float]] = {}
    for default, *others in pairs.values():
        for other in others:
            for task, values in gains(jobs, other, default, SEEDS["confirm"]).items():
                if len(values) > 1:
                    squares.setdefault(task, []).append(statistics.variance(values))
    return {task: math.sqrt(statistics.mean(values)) for task, values in squares.items()}


def _verdict(jobs: Mapping[str, Any], recipe: str, pair: list[str], noise: Mapping[str, float]) -> dict[str, Any]:
    default, *others = pair
    fresh = SEEDS["confirm"]
    verdict: dict[str, Any] = {
        "before": default,
        "screening": {one: score(jobs, one, default, SEEDS["screen"]) for one in screening(recipe)[1:]},
        "before_against_plain": _against_plain(jobs, default, (*SEEDS["screen"], *fresh)),
        "chosen": default,
        "scales": _movement(jobs, recipe, default),
    }
    if not others:
        return verdict
    by_task = {task: values for task, values in gains(jobs, others[0], default, fresh).items() if task in noise}
    verdict |= {
        "finalist": others[0],
        "gain": _interval(by_task, noise),
        "finalist_against_plain": _against_plain(jobs, others[0], fresh),
    }
    harmed = [task for task, values in by_task.items() if _harms(values, noise[task])]
    gain = verdict["gain"]
    spread = gain["weighted_interval"] if gain else None
    if gain and spread is not None and gain["mean"] > 0 and spread[0] > 0 and not harmed:
        verdict["chosen"] = others[0]
    return verdict | {"harmed": harmed}


def _movement(jobs: Mapping[str, Any], recipe: str, default: str) -> dict[str, Any]:
    """How the scales moved: with the default on each task, and how many of all trainings left them still.

    ``moved`` is the median of |log σ − log σ₀|. ``first_epochs`` counts trainings whose best epoch is within the first
    tenth of the steps that the longest training of this recipe on the task kept.
    """
    rows = {key: row["scales"][recipe] for key, row in jobs.items() if f" {recipe}:" in key and row.get("scales")}
    longest: dict[str, int] = {}
    for key, row in rows.items():
        task = key.split(" ")[0]
        longest[task] = max(longest.get(task, 0), row["steps"])
    of_default = {key.split(" ")[0]: row for key, row in rows.items() if key.endswith(f" {default} 0")}
    return {
        "default": {
            task: {"start": row["start"][2], "end": row["end"], "moved": row["moved"], "steps": row["steps"]}
            for task, row in of_default.items()
        },
        "trainings": len(rows),
        "still": sum(row["moved"] < _STILL for row in rows.values()),
        "first_epochs": sum(row["steps"] <= 0.1 * longest[key.split(" ")[0]] for key, row in rows.items()),
        "median_moved": statistics.median(row["moved"] for row in rows.values()) if rows else None,
    }


def _harms(values: list[float], noise: float) -> bool:
    return statistics.mean(values) < -max(0.01, 2 * noise / math.sqrt(len(values)))


def _against_plain(jobs: Mapping[str, Any], one: str, seeds: Iterable[int]) -> dict[str, Any]:
    """By how much the NLL is above that of the plain network with temperature: the objective, and the worst task.

    Seeds on which a setting was picked flatter it, so a finalist is judged on new seeds. A default was not picked.
    """
    means = {}
    for task in sorted({key.split(" ")[0] for key in jobs}):
        rows = [(jobs.get(f"{task} {one} {seed}"), jobs.get(f"{task} deterministic {seed}")) for seed in seeds]
        values = [_nll(a) - float(b["scaled_nll"]) for a, b in rows if a is not None and b is not None]
        if values:
            means[task] = statistics.mean(values)
    if not means:
        return {}
    worst = max(means, key=lambda task: means[task])
    return {"mean": statistics.mean(means.values()), "worst": [worst, means[worst]], "tasks": means}


def _interval(by_task: Mapping[str, list[float]], noise: Mapping[str, float]) -> dict[str, Any]:
    """The mean over tasks of the mean over seeds, with 95 % intervals.

    The interval over seeds takes the tasks as given. That over tasks asks what another task would show, and is wide.
    The weighted mean gives each task the weight 1/variance, so that quiet tasks count more. One seed says nothing about
    the spread over seeds, so then the two intervals that need it are None.
    """
    if len(by_task) < 2:
        return {}
    means = {task: statistics.mean(values) for task, values in by_task.items()}
    variances = {task: noise[task] ** 2 / len(values) for task, values in by_task.items()}
    mean = statistics.mean(means.values())
    freedom = sum(len(values) - 1 for values in by_task.values())
    wide = float(student.ppf(0.975, freedom)) if freedom else math.inf
    seeds = wide * math.sqrt(sum(variances.values())) / len(means)
    tasks = float(student.ppf(0.975, len(means) - 1)) * statistics.stdev(means.values()) / math.sqrt(len(means))
    weights = {task: 1 / max(variance, 1e-12) for task, variance in variances.items()}
    weighted = sum(weights[task] * means[task] for task in means) / sum(weights.values())
    half = wide / math.sqrt(sum(weights.values()))
    return {
        "mean": mean,
        "over_seeds": [mean - seeds, mean + seeds] if freedom else None,
        "over_tasks": [mean - tasks, mean + tasks],
        "weighted": weighted,
        "weighted_interval": [weighted - half, weighted + half] if freedom else None,
        "tasks": means,
    }
