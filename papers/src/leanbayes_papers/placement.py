"""Where the random weights of a network lie: the share of them in each of its parts, from the input to the output."""

from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes_papers.study import Results

__all__ = ["by_depth", "random_by_part"]

_REGIONS = ("input", "middle", "output")


def random_by_part(predictor: nn.Module, first: int, last: int) -> dict[str, float]:
    """Return the share of random weights in each part of a network.

    Sensitivity-guided subnetworks, figures 12 and 13, shows the sparsity, which is 1 minus this share.

    A part is a numbered block of modules, or a module outside all blocks. Parts are counted from the input on.

    Args:
        predictor: the network; a network that is not partly random gives an empty dictionary.
        first: how many parts make up the input region.
        last: how many parts make up the output region.

    Returns:
        ``random@part 1`` and so on for the parts, and ``random@input``, ``random@middle`` and ``random@output``.

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
    shares = {f"random@part {number}": random / size for number, (random, size) in enumerate(rows, start=1)}
    for region, parts in zip(_REGIONS, (rows[:first], rows[first:-last], rows[-last:]), strict=True):
        shares[f"random@{region}"] = sum(random for random, _ in parts) / max(sum(size for _, size in parts), 1)
    return shares


def by_depth(results: Results, data: str | None = None) -> dict[str, dict[float, list[float]]]:
    """Return the sparsity by part of each method that has random weights, as `figures.lines` draws it."""
    series: dict[str, dict[float, list[float]]] = {}
    for method in results.methods():
        names = [name for name in (results.first(method, data) or {"metrics": {}})["metrics"] if "@part " in name]
        if names:
            series[method] = {
                float(name.rpartition(" ")[2]): [1 - share for share in results.column(name, method, data).values()]
                for name in names
            }
    return series


def _part(name: str) -> str:
    """Return the part of a parameter: ``down.0`` for down.0.3.weight, ``4`` for 4.conv1.weight."""
    words = name.split(".")[:-1]
    number = next((index for index, word in enumerate(words) if word.isdigit()), 0)
    return ".".join(words[: number + 1])
