"""Nazarovs et al. 2021, figures 1, 2 and 6: error of a Monte Carlo KL by draws and scale, and size of its graph."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal as NormalLaw
from torch.distributions import kl_divergence

from leanbayes.bayesian import Bayesian
from leanbayes.kl import MonteCarlo
from leanbayes.lab.models import model_named
from leanbayes.lab.recipes import Budget
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes_papers import cite
from leanbayes_papers.figures import lines
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study, Verdict
from leanbayes_papers.verdicts import all_of, beats, summary, within

__all__ = ["STUDY", "graph_size", "kept_bytes", "known_deviation"]

_MEAN = 0.5  # the mean of the one weight
_PRIOR = NormalLaw(0.0, 1.0)
_MORE = 10  # the cheap sampled estimates are repeated more often, to resolve the differences between scales
_DIRECT, _ACCUMULATED, _SAMPLED = "direct", "accumulated statistics", "sampled statistics"
_OURS = (_ACCUMULATED, _SAMPLED)
_WAYS = dict.fromkeys((_DIRECT, *_OURS), "vi")  # nothing is trained; a method is a way to estimate the KL
_OPTIONS: dict[str, dict[str, Any]] = {
    _DIRECT: {"direct": True},
    _ACCUMULATED: {"statistics": "accumulated"},
    _SAMPLED: {"statistics": "sampled"},
}

FALLS = Claim(
    cite.NAZAROVS,
    "section 1, eq. 3",
    "Monte Carlo sampling “gives an unbiased estimator with variance O(1/M)”. Tested: from the fewest draws to the "
    "most, the error falls as M to the power -0.5 (from -0.55 to -0.45).",
)
SMALLER = Claim(
    cite.NAZAROVS,
    "section 1, figure 2 left",
    "“decreasing the variance of the posterior distribution indeed reduces the variance of an estimator”. Tested: "
    "one weight from N(0.5, σ²) with the prior N(0, 1) has a smaller error for each σ than for the next larger one.",
)
SAME = Claim(
    cite.NAZAROVS,
    "section 2",
    "“we do not obtain a new estimator replacing the MC procedure with a smaller variance procedure”. Tested: "
    "all estimators have the error of M independent draws (from 0.9 to 1.1 times).",
)
LINEAR = Claim(
    cite.NAZAROVS,
    "section 3, figure 4a",
    "“Naïvely, the graph size grows linearly O(M) with the number of MC iterations”. Tested: later draws "
    "add as many nodes as early ones.",
)
CONSTANT = Claim(
    cite.NAZAROVS,
    "section 5.1, figure 4b",
    "“the size of the computation graph in our construction is independent of M”. Tested: the number of "
    "nodes with the most draws equals that with one draw.",
)
MEMORY = Claim(
    cite.NAZAROVS,
    "section 5.1, figure 6a",
    "“For smaller models like DenseNet, for the same number of MC iterations our method uses less than 25% of GPU "
    "memory”. Tested: the bytes that the graph of one training step holds.",
)


def graph_size(value: Tensor) -> int:
    """Return the number of autograd nodes behind a tensor (Nazarovs et al. 2021, section 3).

    >>> graph_size((torch.ones(2, requires_grad=True) * 3).sum())
    3
    """
    seen, waiting = set[Any](), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return len(seen)


def kept_bytes(bnn: Bayesian, x: Tensor, y: Tensor, generator: torch.Generator) -> int:
    """Return the bytes of all tensors that a training step saves for the backward pass, each counted once."""
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = F.cross_entropy(bnn(x, generator=generator), y) + bnn.kl(generator=generator)
    assert loss.requires_grad  # the graph must be alive, so that no address is reused
    return sum(saved.values())


def known_deviation(sigma: float) -> float:
    """Return the standard deviation of the estimate from one draw.

    The estimate is log q − log p = c + (σ² − 1)ξ²/2 + μσξ, whose variance is (σ² − 1)²/2 + μ²σ². As σ tends to 0, the
    variance tends to 1/2, not to 0. It is smallest where q is about as wide as p.

    >>> round(known_deviation(1e-9) ** 2, 6), known_deviation(1.0)
    (0.5, 0.5)
    """
    return math.sqrt((sigma**2 - 1) ** 2 / 2 + (_MEAN * sigma) ** 2)


def _weight(sigma: float) -> RandomWeight:
    mean, spread = (torch.full((1,), v, dtype=torch.float64).requires_grad_() for v in (_MEAN, sigma))
    return RandomWeight("weight", mean, None, spread, Normal())


def _error(estimator: MonteCarlo, sigma: float, repeats: int, generator: torch.Generator) -> float:
    """Return the root mean square error over ``repeats`` estimates."""
    weight = _weight(sigma)
    truth = kl_divergence(NormalLaw(_MEAN, sigma), _PRIOR)
    with torch.no_grad():
        estimates = torch.stack([estimator(weight, _PRIOR, generator) for _ in range(repeats)])
    return (estimates - truth).square().mean().sqrt().item()


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:  # noqa: ARG001 - the study needs no data
    wanted, options = size.options, _OPTIONS[job.method]
    generator = torch.Generator().manual_seed(job.seed)
    begin = time.process_time()
    metrics: dict[str, float] = {}
    ratios = []
    draws = [m for m in wanted["draws"] if job.method != _DIRECT or m <= wanted["most_direct"]]
    repeats = wanted["repeats"] * (_MORE if job.method == _SAMPLED else 1)
    for sigma in wanted["sigmas"]:
        for m in draws:
            error = _error(MonteCarlo(m, **options), sigma, repeats, generator)
            metrics[f"error@σ={sigma:g}, M={m}"] = error
            ratios.append(error * math.sqrt(m) / known_deviation(sigma))
    metrics["error to known"] = sum(ratios) / len(ratios)
    metrics["slope"] = _slope(metrics, wanted["sigmas"], draws)
    seconds = {"errors": time.process_time() - begin}

    few, several, many = wanted["graphs"]
    nodes = {m: graph_size(MonteCarlo(m, **options)(_weight(0.1), _PRIOR, generator)) for m in (few, several, many)}
    metrics |= {f"nodes@M={m}": count for m, count in nodes.items()}
    metrics["growth"] = nodes[many] / nodes[few]
    early = (nodes[several] - nodes[few]) / (several - few)
    later = (nodes[many] - nodes[several]) / (many - several)
    metrics["nodes per draw"] = later
    metrics["evenness"] = later / early if early else 0.0

    begin = time.process_time()
    with torch.random.fork_rng():
        torch.manual_seed(job.seed)
        model = model_named(wanted["model"], in_channels=3, classes=10, size=(32, 32), in_features=3 * 32 * 32)
    x = torch.randn(wanted["batch"], 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (wanted["batch"],), generator=generator)
    bnn = Bayesian(model, posterior=Normal(0.05), prior=_PRIOR, kl=MonteCarlo(wanted["network_draws"], **options))
    metrics["bytes"] = kept_bytes(bnn, x, y, generator)
    return {"metrics": metrics, "seconds": seconds | {"step": time.process_time() - begin}}


def _slope(metrics: Mapping[str, float], sigmas: list[float], draws: list[int]) -> float:
    """Return the slope of log error against log M, as the mean over σ."""
    few, many = draws[0], draws[-1]
    falls = [math.log(metrics[f"error@σ={s:g}, M={many}"] / metrics[f"error@σ={s:g}, M={few}"]) for s in sigmas]
    return sum(falls) / len(falls) / math.log(many / few)


def _conclude(results: Results, size: Size) -> Outcome:
    wanted = size.options

    def of(measure: str, way: str) -> list[float]:
        return list(results.column(measure, way).values())

    verdicts = [
        all_of(FALLS, [within(FALLS, of("slope", way), -0.55, -0.45, f"slope, {way}") for way in _WAYS]),
        _smaller(results, wanted["sigmas"], wanted["draws"][0]),
        all_of(SAME, [within(SAME, of("error to known", way), 0.9, 1.1, f"error to known, {way}") for way in _WAYS]),
        within(LINEAR, of("evenness", _DIRECT), 0.95, 1.05, "nodes of a later draw over those of an early one"),
        all_of(CONSTANT, [within(CONSTANT, of("growth", way), 0.999, 1.001, f"growth, {way}") for way in _OURS]),
        all_of(MEMORY, [within(MEMORY, _shares(results, way), 0, 0.25, f"{way} to direct, bytes") for way in _OURS]),
    ]
    errors = [f"error@σ={sigma:g}, M={m}" for sigma in wanted["sigmas"] for m in wanted["draws"]]
    measures = ["slope", "error to known", *(f"nodes@M={m}" for m in wanted["graphs"]), "nodes per draw", "bytes"]
    tables = {"graph": summary(results, measures), "error, nats": summary(results, errors)}
    by_draws = {
        f"M = {m}": {s: _logs(of(f"error@σ={s:g}, M={m}", _SAMPLED)) for s in wanted["sigmas"]} for m in wanted["draws"]
    }
    nodes = {way: {float(m): _logs(of(f"nodes@M={m}", way)) for m in wanted["graphs"]} for way in _WAYS}
    figures = {
        "error": lines(by_draws, "σ of the posterior", "error, log10 of nats", log=True),
        "nodes": lines(nodes, "draws", "nodes of the graph, log10", log=True),
    }
    return Outcome(tables, verdicts, figures)


def _smaller(results: Results, sigmas: list[float], draws: int) -> Verdict:
    names = {f"σ={sigma:g}": f"error@σ={sigma:g}, M={draws}" for sigma in sigmas}
    scales_as_methods = Results(
        [
            (Job(name, "vi", job.data, job.seed), {"metrics": {"error": result["metrics"][measure]}})
            for job, result in results.runs
            if job.method == _SAMPLED
            for name, measure in names.items()
        ]
    )
    pairs = list(zip(list(names)[:-1], list(names)[1:], strict=True))
    return all_of(
        SMALLER,
        [
            beats(scales_as_methods, SMALLER, "error", small, large, direction="low", margin=0.02, tests=len(pairs))
            for small, large in pairs
        ],
    )


def _shares(results: Results, way: str) -> list[float]:
    ours, naive = results.column("bytes", way), results.column("bytes", _DIRECT)
    return [ours[key] / naive[key] for key in ours if key in naive]


def _logs(values: list[float]) -> list[float]:
    return [math.log10(value) for value in values]


def _size(scaled: str, minutes: float, seeds: int, **options: Any) -> Size:
    return Size(scaled, minutes, ("one weight",), (), _WAYS, Budget(batch_size=64), seeds=seeds, options=options)


STUDY = Study(
    "nazarovs-estimate",
    "Nazarovs et al. 2021, figures 1, 2 and 6: error of a Monte Carlo KL by draws and scale, and size of its graph",
    (FALLS, SMALLER, SAME, LINEAR, CONSTANT, MEMORY),
    {
        "smoke": _size(
            "Few draws and repetitions, an MLP.", 0.1, 1, sigmas=[0.1, 1.0], draws=[1, 10], most_direct=10, repeats=20,
            graphs=[1, 2, 5], model="mlp", batch=4, network_draws=5,
        ),
        "cpu": _size(
            "Figure 6 uses the small ResNet of sensitivity-guided subnetworks with 83,000 weights (the paper: "
            "DenseNet-121 with 7 million) and 89 draws. The bytes that the graph holds are counted, and not measured "
            "on a GPU. The direct estimator has at most 100 draws. Times are in docs/results/kl.json.",
            5, 5, sigmas=[0.01, 0.1, 0.5, 1.0, 2.0], draws=[1, 10, 100, 1000], most_direct=100, repeats=300,
            graphs=[1, 10, 100], model="small_resnet", batch=32, network_draws=89,
        ),
        "paper": _size(
            "The bytes that the graph holds (about 20 GB for the direct one) are counted, and not measured on a GPU.",
            120, 5, sigmas=[0.01, 0.1, 0.5, 1.0, 2.0], draws=[1, 10, 100, 1000], most_direct=1000, repeats=300,
            graphs=[1, 10, 1000], model="densenet121", batch=32, network_draws=89,
        ),
    },
    _run,
    _conclude,
)  # fmt: skip
