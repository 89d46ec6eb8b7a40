"""Claims that no study tests: each has a source that we cite and a reason, and no study has it."""

from leanbayes_papers import STUDIES
from leanbayes_papers.cite import OURS, TITLES
from leanbayes_papers.untested import UNTESTED


def test_each_has_a_source_and_a_reason_and_is_in_no_study() -> None:
    claims = [verdict.claim for verdict in UNTESTED]
    assert len(set(claims)) == len(claims)
    assert {claim.paper for claim in claims} <= TITLES.keys() - {OURS}
    assert {verdict.answer for verdict in UNTESTED} == {"not testable here"}
    assert all(verdict.why.endswith(".") and claim.where for verdict, claim in zip(UNTESTED, claims, strict=True))
    assert not set(claims) & {claim for study in STUDIES.values() for claim in study.claims}


def test_the_studies_that_stand_in_exist() -> None:
    words = {word.strip(".,;:") for verdict in UNTESTED for word in verdict.why.split()}
    named = {word for word in words if word.startswith(("abboud-", "subnetworks-", "vdp-", "nazarovs-", "ssvi-"))}
    assert named
    assert named <= STUDIES.keys()
