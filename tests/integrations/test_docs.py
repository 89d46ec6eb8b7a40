"""The page of what works has the rows that the tests show, and the code of pages runs as `pages.py` promises."""

from pathlib import Path

import pytest

from tests.integrations import matrix, pages
from tests.integrations.matrix import PAGE, Claim, Outcomes, declared, rows_of
from tests.integrations.pages import alike, blocks_of, run_page


def test_the_page_has_the_rows_that_the_tests_show_and_all_of_them_work() -> None:
    rows = rows_of(PAGE.read_text())
    assert {claim for claim, _ in rows} == set(declared()), "run make matrix"
    assert [claim for claim, works in rows if not works] == []


def test_a_row_works_only_if_all_of_its_tests_pass(pytester: pytest.Pytester, monkeypatch) -> None:
    pytester.makeini("[pytest]\nmarkers = integration")
    pytester.makepyfile(
        """
        import pytest
        from tests.integrations.matrix import shows

        @shows("PEFT", "Half of it passes.")
        @pytest.mark.parametrize("good", [True, False])
        def test_half(good):
            assert good

        @shows("NumPy", "All of it passes.")
        @pytest.mark.parametrize("good", [True, True])
        def test_all(good):
            assert good

        @shows("NumPy", "It is left out.")
        def test_skipped():
            pytest.skip()
        """
    )
    outcomes = Outcomes()
    pytester.inline_run("-p", "no:cacheprovider", plugins=[outcomes])
    claims = [
        Claim("NumPy", "All of it passes."),
        Claim("NumPy", "It is left out."),
        Claim("PEFT", "Half of it passes."),
    ]
    monkeypatch.setattr("tests.integrations.matrix.declared", lambda: dict.fromkeys(claims, frozenset({"a/test_b.py"})))
    assert rows_of(outcomes.page()) == list(zip(claims, (True, False, False), strict=True))
    assert "[test_b](../../a/test_b.py)" in outcomes.page()


def test_a_tool_that_is_not_installed_keeps_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, new = Claim("MLflow", "It was tried."), Claim("MLflow", "It was never tried.")
    rows = dict.fromkeys([kept, new], frozenset({"a/test_b.py"}))
    monkeypatch.setattr("tests.integrations.matrix.declared", lambda: rows)
    monkeypatch.setitem(matrix.TOOLS, "MLflow", "no-such-package")
    row = "| MLflow | 3.1 | It was tried. | yes | [test_b](../../a/test_b.py) |"
    page = Outcomes().page(f"|---|---|---|---|---|\n{row}\n")
    assert row in page
    assert rows_of(page) == [(new, False), (kept, True)]


@pytest.mark.parametrize(("tool", "what"), [("Keras", "It works."), ("PEFT", "no sentence"), ("PEFT", "One | two.")])
def test_a_row_names_a_known_tool_in_a_sentence(tool: str, what: str) -> None:
    with pytest.raises(ValueError, match=r"is none of|must be a whole sentence"):
        matrix.shows(tool, what)


PAGE_OF_CODE = """\
# A page

```python
numbers = [1, 2]
```

```bash
exit 1
```

```python
print(sum(numbers), "of", numbers)
open("written", "w").close()
```

```output
3 of [1, ...]
```
"""


def test_the_code_of_a_page_runs_in_one_namespace(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE_OF_CODE)
    (tmp_path / "folder").mkdir()
    assert run_page("page.md", tmp_path / "folder")["numbers"] == [1, 2]
    assert (tmp_path / "folder" / "written").exists()
    assert [block.line for block in blocks_of(PAGE_OF_CODE)] == [4, 12]


def test_a_page_that_says_something_else_than_its_code_fails(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE_OF_CODE.replace("3 of", "4 of"))
    with pytest.raises(AssertionError, match=r"page.md:12 prints\n3 of \[1, 2\]"):
        run_page("page.md", tmp_path)
    (tmp_path / "page.md").write_text("```output\nnothing\n```\n")
    with pytest.raises(ValueError, match="line 2: an output block must follow"):
        run_page("page.md", tmp_path)
    (tmp_path / "page.md").write_text("# Only words\n")
    with pytest.raises(AssertionError, match="no block of code"):
        run_page("page.md", tmp_path)


@pytest.mark.parametrize(
    ("printed", "last_digit", "same"),
    [
        ("NLL 0.63 of 8", 0, True),
        ("NLL 0.64 of 8", 0, False),
        ("NLL 0.64 of 8", 1, True),
        ("NLL 0.65 of 8", 1, False),
        ("NLL 0.6 of 8", 2, False),
        ("NLL 0.63 of 9", 2, False),
        ("ECE 0.63 of 8", 2, False),
    ],
)
def test_decimal_numbers_may_differ_by_units_of_their_last_digit(printed: str, last_digit: int, same: bool) -> None:
    assert alike("NLL 0.63 of 8\n", printed + "\n", last_digit) is same
