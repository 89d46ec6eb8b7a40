from pathlib import Path

from leanbayes.kl.table import as_markdown, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "posteriors.md"


def test_the_table_of_the_docs_is_that_of_the_code() -> None:
    """To write it anew: python -m tests.kl.test_docs."""
    assert PAGE.read_text() == with_table(PAGE.read_text())


def with_table(page: str) -> str:
    before, rest = page.split("leanbayes.kl.table -->\n")
    return before + "leanbayes.kl.table -->\n" + as_markdown(table()) + "<!-- end -->" + rest.split("<!-- end -->")[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
