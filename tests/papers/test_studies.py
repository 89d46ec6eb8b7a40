"""Every study: it states what it must, its smoke size runs, and its verdicts follow the numbers at the larger sizes."""

from pathlib import Path

import pytest

from leanbayes.errors import UnknownName
from leanbayes_papers import SIZES, STUDIES, reproduce, study_named
from tests.papers.made_up import made_up


def test_every_study_is_found_by_its_name() -> None:
    named = {
        "abboud-breast", "abboud-isic", "abboud-lidc", "subnetworks-camvid", "subnetworks-cost",
        "subnetworks-mnist-rates", "subnetworks-resnet", "subnetworks-shifts", "subnetworks-toy", "vdp-mnist",
        "vdp-vit", "nazarovs-confidence", "nazarovs-estimate", "ssvi-cifar", "combined", "pareto", "selection",
        "uci",
    }  # fmt: skip
    assert named <= STUDIES.keys()
    assert list(STUDIES) == sorted(STUDIES)
    with pytest.raises(UnknownName, match="subnetworks-toy"):
        study_named("toy")


@pytest.mark.parametrize("name", STUDIES)
def test_smoke_needs_no_data_and_cpu_states_at_most_a_quarter_of_an_hour(name: str) -> None:
    sizes = STUDIES[name].sizes
    assert tuple(sizes) == SIZES
    assert sizes["smoke"].needs == ()
    assert sizes["cpu"].minutes <= 15
    assert sizes["cpu"].seeds >= 3 or name == "subnetworks-cost"  # there is no chance in counts
    assert all(size.scaled for size in sizes.values())


@pytest.mark.parametrize("name", STUDIES)
def test_the_smoke_size_runs(name: str, tmp_path: Path) -> None:
    study = STUDIES[name]
    record = reproduce(study, "smoke", folder=tmp_path / "none", out=tmp_path, cache=tmp_path / "cache")
    assert record["error"] is None
    assert record["failed"] == []
    assert record["tables"]
    assert all(len(table) == len({job["method"] for job in record["jobs"]}) for table in record["tables"].values())
    assert len(record["verdicts"]) == len(study.claims)
    for file in record["figures"].values():
        assert (tmp_path / file).stat().st_size > 1000


@pytest.mark.parametrize("size", ["cpu", "paper"])
@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.usefixtures("verdicts_only")
def test_where_all_methods_are_alike_matches_hold_and_gains_do_not(name: str, size: str) -> None:
    answers = set(made_up(name, size).values())
    # every verdict finds its methods and measures, and so little noise leaves none open
    assert answers <= {"holds", "does not hold"}
