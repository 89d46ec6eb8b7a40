"""The values that make up a study: its claims, its three sizes, its jobs, and the verdicts that it reaches."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.recipes import Budget, parse, settings

if TYPE_CHECKING:  # slow to import, and the list of commands loads this module
    from matplotlib.figure import Figure

__all__ = ["SIZES", "Answer", "Claim", "Job", "Outcome", "Results", "Size", "Study", "Verdict", "every_job"]

Answer = Literal["holds", "does not hold", "not testable here"]
SIZES = ("smoke", "cpu", "paper")


@dataclass(frozen=True)
class Claim:
    """A statement that a study tests.

    Args:
        paper: the short name of the paper that makes the claim, see `leanbayes_papers.cite`.
        where: the section, figure or table of the paper.
        text: the claim in words; a quotation is followed by what is tested of it.
    """

    paper: str
    where: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """The answer to a claim, with the numbers that it rests on in ``why``."""

    claim: Claim
    answer: Answer
    why: str

    def __post_init__(self) -> None:
        if self.answer not in get_args(Answer):
            raise UnknownName.of("answer", self.answer, get_args(Answer))


@dataclass(frozen=True)
class Size:
    """Everything that the numbers of a study depend on at one size, what was scaled down, and how long it takes.

    Args:
        scaled: how this size differs from the paper, in words.
        minutes: how long the study takes on two cores.
        data: the data sets that every method is trained on, by the study's own names.
        needs: the data sets of `leanbayes.lab.data.DATA` that must be on the disk.
        methods: the recipes to train, by the names that they have in tables.
        budget: the epochs, batch size and optimizer of each network.
        seeds: how many seeds there are, counted from 0.
        samples: how many weight draws each prediction averages.
        counts: how many examples are taken for training, validation and test; None takes all of them.
        options: further settings of this study: numbers, texts and lists, as JSON holds them.
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
        """Return the settings that the numbers of a single job depend on."""
        return {
            "budget": asdict(self.budget),
            "samples": self.samples,
            "counts": list(self.counts),
            "options": dict(self.options),
        }

    def settings(self) -> dict[str, Any]:
        """Return what a record keeps of this size: `key`, and each recipe with the defaults of its options."""
        recipes = {name: settings(parse(spec)) for name, spec in self.methods.items()}
        as_read: dict[str, Any] = json.loads(
            json.dumps(self.key() | {"methods": dict(self.methods), "recipes": recipes})
        )
        return as_read


@dataclass(frozen=True)
class Job:
    """The training of one method on one data set with one seed.

    Args:
        method: the name of the method in tables.
        spec: its recipe.
        data: the name of the data set.
        seed: the seed of everything random in the job.
        epochs: the number of epochs, if it differs from the budget of the size.
        variant: a mark by which the study changes the recipe in ways that recipes do not offer.
    """

    method: str
    spec: str
    data: str
    seed: int
    epochs: int | None = None
    variant: str = ""

    def key(self) -> dict[str, Any]:
        """Return all fields, and the recipe with the defaults of its options."""
        return asdict(self) | {"recipe": settings(parse(self.spec))}


@dataclass(frozen=True)
class Results:
    """What the finished jobs returned.

    Args:
        runs: pairs of a job and its result. A result has ``metrics``, numbers by name, and whatever figures need.
    """

    runs: Sequence[tuple[Job, Mapping[str, Any]]]

    def column(self, measure: str, method: str, data: str | None = None) -> dict[tuple[str, int], float]:
        """Return one measure of one method by data set and seed.

        >>> results = Results([(Job("a", "vi", "mnist", 0), {"metrics": {"nll": 0.5}})])
        >>> results.column("nll", "a")
        {('mnist', 0): 0.5}
        """
        return {
            (job.data, job.seed): result["metrics"][measure]
            for job, result in self.runs
            if job.method == method and data in (None, job.data) and measure in result["metrics"]
        }

    def data(self) -> list[str]:
        """Return the names of the data sets that have a result, in the order of the jobs."""
        return list(dict.fromkeys(job.data for job, _ in self.runs))

    def methods(self) -> list[str]:
        """Return the names of the methods that have a result, in the order of the jobs."""
        return list(dict.fromkeys(job.method for job, _ in self.runs))

    def first(self, method: str, data: str | None = None) -> Mapping[str, Any] | None:
        """Return the whole result of the first finished job of a method."""
        return next((r for job, r in self.runs if job.method == method and data in (None, job.data)), None)


@dataclass(frozen=True)
class Outcome:
    """What a study concludes.

    Args:
        tables: rows by the title of their table; see `leanbayes_papers.verdicts.summary`.
        verdicts: one for each claim of the study.
        figures: figures by name.
    """

    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    verdicts: Sequence[Verdict]
    figures: "Mapping[str, Figure]" = field(default_factory=dict)


def every_job(size: Size, seeds: Sequence[int]) -> list[Job]:
    """Return a job for every method on every data set with every seed."""
    return [
        Job(method, spec, data, seed) for seed in seeds for data in size.data for method, spec in size.methods.items()
    ]


@dataclass(frozen=True)
class Study:
    """A repeatable test of some claims, usually of one figure or table.

    Args:
        name: the name on the command line; it begins with the paper's author or method, as in "subnetworks-toy".
        title: one line that names the paper and its figures or tables.
        claims: the claims that the study judges.
        sizes: "smoke" needs no data and takes seconds; "cpu" fits two cores; "paper" has the settings of the paper.
        run: does one job, given the size and the data directory. It is a function of a module, so that other
            processes find it. It returns JSON: ``metrics`` holds numbers that repeat, ``seconds`` those that do not.
        conclude: makes tables, figures and verdicts from the results, some of which may be missing.
        jobs: lists the jobs of a size for the given seeds.
        rests_on_scales: whether the verdicts depend on the trained scales of random weights. Counts of operations do
            not; all other verdicts need scales that moved.
    """

    name: str
    title: str
    claims: tuple[Claim, ...]
    sizes: Mapping[str, Size]
    run: Callable[[Job, Size, Path | None], dict[str, Any]]
    conclude: Callable[[Results, Size], Outcome]
    jobs: Callable[[Size, Sequence[int]], list[Job]] = every_job
    rests_on_scales: bool = True

    def __post_init__(self) -> None:
        if not self.name or not set(self.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") or self.name == "all":
            raise InputError(
                f"the name of a study has small letters, digits and hyphens and is not 'all'; got {self.name!r}"
            )
        if tuple(self.sizes) != SIZES:
            raise InputError(f"{self.name} needs the sizes {', '.join(SIZES)}, got {', '.join(self.sizes)}")
        if len(set(self.claims)) < len(self.claims) or not self.claims:
            raise InputError(f"{self.name} needs claims, each of them once")
