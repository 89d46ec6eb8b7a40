from pathlib import Path

from leanbayes.propagate.moments import RULES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "moments.md"


def test_the_table_of_the_docs_is_that_of_the_rules() -> None:
    """If it fails, write the table anew with ``python -m tests.propagate.moments.test_docs``."""
    assert PAGE.read_text() == with_table(PAGE.read_text())


def with_table(page: str) -> str:
    before, rest = page.split("RULES.table() -->\n")
    return before + "RULES.table() -->\n" + RULES.table() + "<!-- end -->" + rest.split("<!-- end -->")[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
