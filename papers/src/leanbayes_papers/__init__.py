"""The figures and tables of five papers on cheap Bayesian neural networks, as studies that run with LeanBayes.

A study states the claims that it tests, three sizes to run at, and how to reach a verdict on each claim. Each file in
the folder ``studies`` holds one study as a module-level `Study`; a new study is a new file there, and nothing else.
"""

from leanbayes._catalogue import Catalogue
from leanbayes.errors import UnknownName
from leanbayes_papers.page import write_claims
from leanbayes_papers.run import reproduce
from leanbayes_papers.study import SIZES, Claim, Job, Outcome, Results, Size, Study, Verdict

__all__ = [
    "SIZES", "STUDIES", "Claim", "Job", "Outcome", "Results", "Size", "Study", "Verdict", "reproduce", "study_named",
    "write_claims",
]  # fmt: skip

STUDIES: Catalogue[Study] = Catalogue(
    "study", lambda member: member.name if isinstance(member, Study) else None, package="leanbayes_papers.studies"
)
"""All studies by name."""


def study_named(name: str) -> Study:
    """Return the study of this name, or raise `UnknownName` with the names that exist.

    >>> study_named("subnetworks-toy").title
    'Sensitivity-guided subnetworks, figures 2 and 14: ...'
    """
    if name not in STUDIES:
        raise UnknownName.of("study", name, [*STUDIES, "all"])
    return STUDIES[name]
