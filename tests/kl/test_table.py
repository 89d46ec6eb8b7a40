from pathlib import Path

from leanbayes.kl.table import as_markdown, table
from tests.kl.pairs import FAMILIES, PRIORS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "posteriors.md"


def test_the_table_of_the_docs_is_that_of_the_code() -> None:
    """To write it anew: python -m tests.kl.test_table."""
    assert PAGE.read_text() == with_table(PAGE.read_text())


def with_table(page: str) -> str:
    before, rest = page.split("leanbayes.kl.table -->\n")
    return before + "leanbayes.kl.table -->\n" + as_markdown(table()) + "<!-- end -->" + rest.split("<!-- end -->")[1]


def test_the_table():
    rows = {(row.posterior, row.prior): row for row in table(FAMILIES, PRIORS)}
    assert len(rows) == len(FAMILIES) * len(PRIORS)
    assert {row.method for row in rows.values()} == {"exact", "taylor or streamed", "streamed", "infinite"}
    for pair, d_p, statistics in (
        (("Normal", "Normal"), 5, "sampled"),
        (("Radial", "Normal"), 5, "integrated"),
        (("Laplace", "Normal"), 5, "accumulated"),
        (("Exponential", "Exponential"), 1, "sampled"),
        (("Gamma", "Gamma"), 2, "sampled"),
        (("Wald", "Inverse-Gaussian"), 3, "sampled"),
        (("Gamma", "Log-Normal"), 5, "accumulated"),
        (("LogNormal", "Log-Normal"), 5, "sampled"),
    ):
        assert (rows[pair].method, rows[pair].d_p, rows[pair].statistics) == ("exact", d_p, statistics), pair
    assert rows["Normal", "Laplace"].taylor_d_p == 9  # Nazarovs et al. 2021, Example 1: ½(K+1)(K+2) − 1 at K = 3
    assert rows["Normal", "Laplace"].d_p is None
    assert rows["Gamma", "Gamma"].variable == "v"
    assert rows["Gamma", "Normal"].variable == "w"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
