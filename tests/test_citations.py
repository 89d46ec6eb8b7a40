"""Papers are cited by author and year or by method, never by a file number, and each has a full reference.

The texts of the five papers once had numbers as names, which mean nothing to a reader. These tests hold that no such
number comes back, and that docs/references.md lists every paper that the sources cite.
"""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from leanbayes_papers.cite import OURS, TITLES

ROOT = Path(__file__).parents[1]
NUMBER = "00" + "[0-4]"  # in two parts, so that this file does not match itself
PROSE = re.compile(rf"(?<![\w.,#$%/+-]){NUMBER}(?![\w.%:+-])|(?<![\w.,#$%/+-]){NUMBER}: (?!\d)|(?<=\(){NUMBER}(?=:)")
"""A number that stands alone. Parts of other numbers, such as 0.001, 30,000 and 1_000, are none."""
NAMES = re.compile(rf"(?<![0-9a-f.]){NUMBER}(?![0-9a-f])")
"""A number in the name of a file."""
IDENTIFIERS = re.compile(rf"\b[A-Za-z]\w*(?<!\d)_{NUMBER}(?!\d)")
"""A number in the name of a variable, function, class or test."""
BINARY = {".png", ".jpg", ".gz", ".npz", ".pt", ".safetensors", ".ubyte", ".mat", ".zip", ".ico"}
PROSE_OF = ("src", "papers", "docs", "benchmarks", "examples", "README.md")
CITED = re.compile(r"((?:[A-Z][\w’'-]+, )?[A-Z][\w’'-]+ (?:et al\.|and [A-Z][\w’'-]+)),? \(?((?:19|20)\d\d)(?!\d)")


@cache
def tracked() -> tuple[str, ...]:
    """The files of the repository, by their paths."""
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the files can only be listed in a git repository")
    return tuple(line for line in listed.splitlines() if (ROOT / line).is_file())


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8", errors="ignore")


def test_no_text_cites_a_paper_by_its_number() -> None:
    result = []
    for path in tracked():
        if Path(path).suffix not in BINARY and path != "constraints.txt":
            for number, line in enumerate(text_of(path).splitlines(), start=1):
                if PROSE.search(line) or IDENTIFIERS.search(line):
                    result.append(f"{path}:{number}: {line.strip()[:120]}")
    assert not result, "cite these papers by author and year:\n" + "\n".join(result)


def test_no_file_is_named_by_the_number_of_a_paper() -> None:
    assert [path for path in tracked() if NAMES.search(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        "as {} says", "{}'s table 1", "({}: 5)", '"{}",', "({}, eq. 5)", "{} and 5", "| {} annealing |", "# {}: text",
        "the code of {}.\n", "{}, figure 3",
    ],
)  # fmt: skip
def test_a_number_alone_is_found(text: str) -> None:
    for number in range(5):
        assert PROSE.search(text.format(f"00{number}").removesuffix(".\n")), text
    assert IDENTIFIERS.search("def test_as_00" + "2() -> None:")
    assert NAMES.search("docs/00" + "1-toy.json")


@pytest.mark.parametrize(
    "text",
    ["lr=0.001", "30,000 images", "1_000_000", "1.000, -3 dB", "x = 1e-003", "5000", "0x001f", "v0.001.2", "12:00:00"],
)
def test_other_numbers_are_left_alone(text: str) -> None:
    assert not PROSE.search(text)
    assert not IDENTIFIERS.search(text)


def test_the_short_names_of_the_five_papers_are_on_the_page_of_references() -> None:
    page = text_of("docs/references.md")
    for paper in TITLES:
        assert paper == OURS or f"**{paper}**" in page, f"docs/references.md does not have {paper}"


def test_every_cited_paper_has_a_full_reference() -> None:
    page = text_of("docs/references.md")
    missing = set()
    for path in tracked():
        if path.endswith((".py", ".md")) and path.split("/")[0] in PROSE_OF and path != "docs/references.md":
            for authors, year in CITED.findall(" ".join(text_of(path).split())):
                if all(f"{name} {year}" not in page for name in (authors, authors.rpartition(", ")[2])):
                    missing.add(f"{authors} {year} in {path}")
    assert not missing, "add these papers to docs/references.md:\n" + "\n".join(sorted(missing))
