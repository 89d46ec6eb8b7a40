"""The papers' figures and tables as experiments with names. A new one is a new file in this folder with EXPERIMENT."""

import importlib
import pkgutil

from leanbayes.errors import InputError, UnknownName
from leanbayes_papers import studies
from leanbayes_papers.base import SIZES, Claim, Experiment, Job, Outcome, Results, Size, Verdict
from leanbayes_papers.page import write_claims
from leanbayes_papers.run import reproduce

__all__ = [
    "EXPERIMENTS", "SIZES", "Claim", "Experiment", "Job", "Outcome", "Results", "Size", "Verdict", "experiment_named",
    "reproduce", "write_claims",
]  # fmt: skip


def _found() -> dict[str, Experiment]:
    experiments: dict[str, Experiment] = {}
    for module in pkgutil.iter_modules(studies.__path__):
        found = vars(importlib.import_module(f"{studies.__name__}.{module.name}")).get("EXPERIMENT")
        if isinstance(found, Experiment):
            if found.name in experiments:
                raise InputError(f"two experiments are called {found.name!r}; rename the one in {module.name}.py")
            experiments[found.name] = found
    return dict(sorted(experiments.items()))


EXPERIMENTS = _found()
"""By name."""


def experiment_named(name: str) -> Experiment:
    """One of `EXPERIMENTS`.

    >>> experiment_named("subnetworks-toy").title
    '001, figures 2 and 14: ...'
    """
    if name not in EXPERIMENTS:
        raise UnknownName.of("experiment", name, [*EXPERIMENTS, "all"])
    return EXPERIMENTS[name]
