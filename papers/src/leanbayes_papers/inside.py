"""Comparisons inside one network: two measures of the same run, and where its random weights are."""

from dataclasses import replace

from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes_papers.base import Claim, Results, Verdict
from leanbayes_papers.judge import beats

__all__ = ["by_depth", "exceeds", "random_by_part", "ratios"]

ENDS = ("input", "middle", "output")


def exceeds(
    results: Results,
    claim: Claim,
    method: str,
    large: str,
    small: str,
    *,
    margin: float,
    tests: int = 1,
    data: str | None = None,
) -> Verdict:
    """Whether one measure of a method is above another of the same run; below the margin it is not."""
    both = Results(
        [
            (replace(job, method=name), {"metrics": {method: result["metrics"][name]}})
            for job, result in results.found
            if job.method == method
            for name in (large, small)
            if name in result["metrics"]
        ]
    )
    return beats(both, claim, method, large, small, margin=margin, tests=tests, data=data, direction="high")


def ratios(results: Results, measure: str, a: str, b: str, data: str | None = None) -> list[float]:
    """A measure of ``a`` over that of ``b``, for each pair of runs in which the latter is not 0."""
    first, second = (results.column(measure, method, data) for method in (a, b))
    return [first[key] / second[key] for key in first if second.get(key)]


def random_by_part(predictor: nn.Module, first: int, last: int) -> dict[str, float]:
    """The share of random weights in each part of a network (001, figures 12 and 13: its sparsity is 1 minus that).

    Parts are numbered from the input on, ``random@part 1`` and so on: a block for each number in the names of modules,
    and what is no block by its own name. ``random@input`` is that of the ``first`` parts together, ``random@output``
    that of the ``last``, ``random@middle`` that of the others. What is not partly random has none of these.

    >>> from leanbayes.subspace import layers
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    >>> random_by_part(Bayesian(net, subspace=layers("0")), 1, 1)["random@input"]
    1.0
    """
    if not isinstance(predictor, Bayesian):
        return {}
    counts: dict[str, list[int]] = {}
    for tensor in predictor.summary():
        part = counts.setdefault(_part(tensor.name), [0, 0])
        part[0] += tensor.random
        part[1] += tensor.size
    rows = list(counts.values())
    if sum(random for random, _ in rows) == sum(size for _, size in rows):
        return {}
    found = {f"random@part {number}": random / size for number, (random, size) in enumerate(rows, start=1)}
    for end, some in zip(ENDS, (rows[:first], rows[first:-last], rows[-last:]), strict=True):
        found[f"random@{end}"] = sum(random for random, _ in some) / max(sum(size for _, size in some), 1)
    return found


def by_depth(results: Results, data: str | None = None) -> dict[str, dict[float, list[float]]]:
    """Sparsity by part for each method that has random weights, as `figures.lines` draws it."""
    drawn: dict[str, dict[float, list[float]]] = {}
    for method in results.methods():
        names = [name for name in (results.first(method, data) or {"metrics": {}})["metrics"] if "@part " in name]
        if names:
            drawn[method] = {
                float(name.rpartition(" ")[2]): [1 - share for share in results.column(name, method, data).values()]
                for name in names
            }
    return drawn


def _part(name: str) -> str:
    """``down.0`` of down.0.3.weight, ``4`` of 4.conv1.weight, ``head`` of head.bias."""
    words = name.split(".")[:-1]
    number = next((place for place, word in enumerate(words) if word.isdigit()), 0)
    return ".".join(words[: number + 1])
