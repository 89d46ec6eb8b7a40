"""What an experiment is: claims, three sizes, independent jobs, and what their numbers say. No subclasses: values."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from matplotlib.figure import Figure

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.recipes import Budget, parse, settings

__all__ = ["SIZES", "Answer", "Claim", "Experiment", "Job", "Outcome", "Results", "Size", "Verdict", "every_job"]

Answer = Literal["holds", "does not hold", "not testable here"]
SIZES = ("smoke", "cpu", "paper")


@dataclass(frozen=True)
class Claim:
    """What somebody says: the paper by its number ("ours" for our own questions), the place in it, and the words."""

    paper: str
    where: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """What the numbers say of a claim, and which numbers."""

    claim: Claim
    answer: Answer
    why: str

    def __post_init__(self) -> None:
        if self.answer not in get_args(Answer):
            raise UnknownName.of("answer", self.answer, get_args(Answer))


@dataclass(frozen=True)
class Size:
    """All that an experiment's numbers depend on, what was scaled down for it, and how long it takes.

    Args:
        scaled: what differs from the paper.
        minutes: on two cores.
        data: the data that every method is trained on, by the experiment's own names.
        needs: those data sets of `leanbayes.lab.data.DATA` that must be there.
        methods: recipes by the names that they have in tables.
        budget: what one network may cost.
        seeds: how many, from 0.
        samples: draws for each prediction.
        counts: examples taken for training, validation and test; None takes all.
        options: what else the experiment wants to know: numbers, texts and lists, as JSON holds them.
    """

    scaled: str
    minutes: float
    data: tuple[str, ...]
    needs: tuple[str, ...]
    methods: Mapping[str, str]
    budget: Budget
    seeds: int = 3
    samples: int = 16
    counts: tuple[int | None, int | None, int | None] = (None, None, None)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.samples < 1 or not self.data or not self.methods:
            raise InputError("a size needs data, methods, and at least one seed and one sample")
        for spec in self.methods.values():
            parse(spec)

    def key(self) -> dict[str, Any]:
        """What one job's numbers depend on."""
        return {
            "budget": asdict(self.budget),
            "samples": self.samples,
            "counts": list(self.counts),
            "options": dict(self.options),
        }

    def settings(self) -> dict[str, Any]:
        """What a record keeps of it, as JSON gives it back: `key`, and every method's recipe with its defaults."""
        recipes = {name: settings(parse(spec)) for name, spec in self.methods.items()}
        found: dict[str, Any] = json.loads(json.dumps(self.key() | {"methods": dict(self.methods), "recipes": recipes}))
        return found


@dataclass(frozen=True)
class Job:
    """One training; ``epochs`` if they are not the budget's, ``variant`` for what an experiment has beside recipes."""

    method: str
    spec: str
    data: str
    seed: int
    epochs: int | None = None
    variant: str = ""

    def key(self) -> dict[str, Any]:
        """All of it, and the recipe's defaults."""
        return asdict(self) | {"recipe": settings(parse(self.spec))}


@dataclass(frozen=True)
class Results:
    """What the jobs found: of each a dictionary with ``metrics``, numbers by name, and whatever figures need."""

    found: Sequence[tuple[Job, Mapping[str, Any]]]

    def column(self, measure: str, method: str, data: str | None = None) -> dict[tuple[str, int], float]:
        """A measure of a method by data and seed.

        >>> results = Results([(Job("a", "vi", "mnist", 0), {"metrics": {"nll": 0.5}})])
        >>> results.column("nll", "a")
        {('mnist', 0): 0.5}
        """
        return {
            (job.data, job.seed): result["metrics"][measure]
            for job, result in self.found
            if job.method == method and data in (None, job.data) and measure in result["metrics"]
        }

    def methods(self) -> list[str]:
        """Those with a result, in the order of the jobs."""
        return list(dict.fromkeys(job.method for job, _ in self.found))

    def first(self, method: str, data: str | None = None) -> Mapping[str, Any] | None:
        """All that a method's first finished job found."""
        return next((r for job, r in self.found if job.method == method and data in (None, job.data)), None)


@dataclass(frozen=True)
class Outcome:
    """Tables by title, rows of cells by column (see `summary`); figures by name; and a verdict on each claim."""

    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    verdicts: Sequence[Verdict]
    figures: Mapping[str, Figure] = field(default_factory=dict)


def every_job(size: Size, seeds: Sequence[int]) -> list[Job]:
    """Every method on all data with every seed."""
    return [
        Job(method, spec, data, seed) for seed in seeds for data in size.data for method, spec in size.methods.items()
    ]


@dataclass(frozen=True)
class Experiment:
    """Named and repeatable.

    Args:
        name: with the number of the paper in front, such as "subnetworks-toy".
        title: one line: which figures or tables.
        claims: what is judged.
        sizes: "smoke" needs no data and takes seconds; "cpu" fits two cores; "paper" has the paper's settings.
        run: does one job, given the size and the data directory; a function of a module, so that other processes find
            it. What it returns is JSON: ``metrics`` has numbers that repeat, ``seconds`` those that do not.
        conclude: tables, figures and verdicts from what all jobs found; some may be missing.
        jobs: which there are at a size, for these seeds.
    """

    name: str
    title: str
    claims: tuple[Claim, ...]
    sizes: Mapping[str, Size]
    run: Callable[[Job, Size, Path | None], dict[str, Any]]
    conclude: Callable[[Results, Size], Outcome]
    jobs: Callable[[Size, Sequence[int]], list[Job]] = every_job

    def __post_init__(self) -> None:
        if not self.name or not set(self.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") or self.name == "all":
            raise InputError(f"an experiment's name has small letters, digits and -, and is not all; got {self.name!r}")
        if tuple(self.sizes) != SIZES:
            raise InputError(f"{self.name} needs the sizes {', '.join(SIZES)}, got {', '.join(self.sizes)}")
        if len(set(self.claims)) < len(self.claims) or not self.claims:
            raise InputError(f"{self.name} needs claims, each of them once")
