"""The page of claims: every claim, its verdict, the numbers behind the verdict, and the command that made them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leanbayes._files import write_text
from leanbayes.errors import ForeignFile
from leanbayes_papers.cite import TITLES
from leanbayes_papers.study import Claim, Study
from leanbayes_papers.untested import UNTESTED

__all__ = ["is_current", "write_claims"]

_ANSWERS = ("holds", "does not hold", "not testable here", "not run", "withdrawn")
_SIZES = ("paper", "cpu")  # the larger size first; a smoke test says nothing about a claim

Row = tuple[str, str, str, str]


def write_claims(studies: Iterable[Study], folder: Path | str = "docs/results") -> Path:
    """Write ``claims.md`` from the records in ``folder``.

    Args:
        studies: the studies whose claims the page lists.
        folder: the folder of the page; the records lie in ``experiments`` inside it.

    Returns:
        The path of the page.
    """
    top = Path(folder)
    rows: dict[str, list[Row]] = {paper: [] for paper in TITLES}
    for study in studies:
        record = _largest(top / "experiments", study)
        verdicts = {_key(verdict["claim"]): verdict for verdict in record["verdicts"]} if record else {}
        if record:
            file = f"experiments/{study.name}-{record['size']}.json"
            command = f"[`{study.name}`]({file}): `{record['command']}`"
            if not is_current(record, study):
                command += ". **The settings of the study have changed since this run: run it again.**"
        else:
            command = f"`{study.name}`: `leanbayes reproduce {study.name} --size cpu`"
        for claim in study.claims:
            verdict = verdicts.get(_key(asdict(claim)))
            answer, why = _answer(verdict)
            rows.setdefault(claim.paper, []).append((_words(claim), answer, why, command))
    for untested in UNTESTED:
        rows.setdefault(untested.claim.paper, []).append((_words(untested.claim), untested.answer, untested.why, ""))
    text = "\n".join([_HEAD, _counted(rows), *_sections(rows)])
    path = top / "claims.md"
    top.mkdir(parents=True, exist_ok=True)
    write_text(path, text.rstrip() + "\n")
    return path


_HEAD = """# What the papers claim, and what we measured

`leanbayes reproduce --page` writes this page from the records in this folder. [reproduce.md](../reproduce.md) says how
to run a study, and [references.md](../references.md) has the full references of the papers.

The answers mean:

- *holds*: the whole interval over seeds agrees with the claim;
- *does not hold*: the whole interval contradicts the claim;
- *not testable here*: the column "why" gives the reason, for example that the seeds are too few to decide;
- *not run*: there is no record yet;
- *withdrawn*: there is a record, but its numbers cannot answer the claim. The column "why" says what is wrong with
  them. Withdrawn answers count as no other answer, and a new run of the study replaces them.

All studies ran on two cores, with smaller networks, fewer images and fewer epochs than the papers. Each record lists
the differences from its paper under `scaled`.

In the claims, "the plain network" is the same network with fixed weights ("deterministic" in the numbers). In "the 1 %
network", the 1 % most sensitive weights are random ("partial 1 %"). In "the fully random network", all weights are
random ("vi", variational inference). "The ensemble" is five plain networks. A gain is a difference in the better
direction: a positive gain means that the first method is better.
"""


def _answer(verdict: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return what the page shows of a verdict: of one with a field ``withdrawn`` that reason, and not its numbers."""
    if verdict is None:
        return "not run", ""
    if verdict.get("withdrawn"):
        return "withdrawn", str(verdict["withdrawn"])
    return verdict["answer"], verdict["why"]


def _largest(folder: Path, study: Study) -> dict[str, Any] | None:
    for size in _SIZES:
        path = folder / f"{study.name}-{size}.json"
        if path.is_file():
            record = _record(path)
            if record.get("size") != size or not _is_whole(record):
                raise ForeignFile(f"{path} is not the record of a study; remove it, or run {study.name} again")
            return record
    return None


def is_current(record: Mapping[str, Any], study: Study) -> bool:
    """Return whether the study still has all the settings that a record names.

    An option that was added to a recipe after the run is not in its record. It does not count, because its default is
    what the recipe did before.
    """
    return _agrees(record.get("settings", {}), study.sizes[record["size"]].settings())


def _agrees(stored: Any, now: Any) -> bool:
    """Return whether a value equals that of a record; of mappings, in all that the record has."""
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        return all(name in now and _agrees(value, now[name]) for name, value in stored.items())
    return bool(stored == now)


def _counted(rows: Mapping[str, list[Row]]) -> str:
    """Return a table of how many claims of each paper have which answer."""
    lines = []
    for paper, claims in rows.items():
        counts = Counter(answer for _, answer, _, _ in claims)
        if claims:
            lines.append((TITLES.get(paper, paper), *(str(counts[answer] or "") for answer in _ANSWERS)))
    return _table(("", *_ANSWERS), lines)


def _sections(rows: Mapping[str, list[Row]]) -> Iterable[str]:
    for paper, claims in rows.items():
        if claims:
            yield f"## {TITLES.get(paper, paper)}\n"
            yield _table(("claim", "answer", "why", "command"), claims)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines) + "\n"


def _words(claim: Claim) -> str:
    return f"{claim.where}: {claim.text}"


def _key(claim: Mapping[str, str]) -> tuple[str, ...]:
    return claim["paper"], claim["where"], claim["text"]


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Whether a record has what the page shows, so that a damaged file is named."""
    verdicts = record.get("verdicts")
    if record.get("kind") != "experiment" or not isinstance(record.get("command"), str) or type(verdicts) is not list:
        return False
    for verdict in verdicts:
        claim = verdict.get("claim") if isinstance(verdict, dict) else None
        words = [verdict.get("answer"), verdict.get("why")] if isinstance(verdict, dict) else [None]
        words += [claim.get(key) for key in ("paper", "where", "text")] if isinstance(claim, dict) else [None]
        if not all(isinstance(word, str) for word in words) or words[0] not in _ANSWERS:
            return False
    return True


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ForeignFile(f"{path} is not JSON; remove it, or run the study that wrote it again") from error
    return record if isinstance(record, dict) else {}
