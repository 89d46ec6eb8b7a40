"""The page of claims: every claim of every paper, what the numbers say of it, and the command that made them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leanbayes._files import write_text
from leanbayes.errors import ForeignFile
from leanbayes_papers.base import Claim, Experiment
from leanbayes_papers.elsewhere import NOT_HERE

__all__ = ["is_current", "write_claims"]

_TITLES = {
    "000": "000: Sparse Bayesian networks for medical images",
    "001": "001: Sensitivity-guided subnetworks",
    "002": "002: VDP++",
    "003": "003: Monte Carlo KL",
    "004": "004: Sparse subspace variational inference",
    "ours": "Our own questions",
}
_ANSWERS = ("holds", "does not hold", "not testable here", "not run")
_RUN = ("paper", "cpu")  # a smoke test says nothing of a claim

Row = tuple[str, str, str, str]


def write_claims(experiments: Iterable[Experiment], folder: Path | str = "docs/results") -> Path:
    """Write ``claims.md`` from the records in ``folder``."""
    top = Path(folder)
    rows: dict[str, list[Row]] = {paper: [] for paper in _TITLES}
    for experiment in experiments:
        record = _largest(top / "experiments", experiment)
        told = {_key(found["claim"]): found for found in record["verdicts"]} if record else {}
        if record:
            file = f"experiments/{experiment.name}-{record['size']}.json"
            command = f"[`{experiment.name}`]({file}): `{record['command']}`"
            if not is_current(record, experiment):
                command += ", **which has other settings by now: run it again**"
        else:
            command = f"`{experiment.name}`: `leanbayes reproduce {experiment.name} --size cpu`"
        for claim in experiment.claims:
            found = told.get(_key(asdict(claim)))
            answer, why = (found["answer"], found["why"]) if found else ("not run", "")
            rows.setdefault(claim.paper, []).append((_words(claim), answer, why, command))
    for verdict in NOT_HERE:
        rows.setdefault(verdict.claim.paper, []).append((_words(verdict.claim), verdict.answer, verdict.why, ""))
    text = "\n".join([_HEAD, _counted(rows), *_sections(rows)])
    path = top / "claims.md"
    top.mkdir(parents=True, exist_ok=True)
    write_text(path, text.rstrip() + "\n")
    return path


_HEAD = """# What the papers claim, and what came out

Written by `leanbayes reproduce --page` from the records in this folder. A claim *holds* or *does not hold* where the
whole interval over seeds says so; *not testable here* says why not, few seeds that cannot tell among it; *not run* has
no record yet. How each size differs from the paper is in its record, under `scaled`.
"""


def _largest(folder: Path, experiment: Experiment) -> dict[str, Any] | None:
    for size in _RUN:
        path = folder / f"{experiment.name}-{size}.json"
        if path.is_file():
            record = _record(path)
            if record.get("kind") != "experiment" or not isinstance(record.get("verdicts"), list):
                raise ForeignFile(f"{path} is no record of an experiment; remove it, or run {experiment.name} again")
            return record
    return None


def is_current(record: Mapping[str, Any], experiment: Experiment) -> bool:
    """Whether the experiment still has all the settings that a record names."""
    now = experiment.sizes[record["size"]].settings()
    return all(now.get(name) == value for name, value in record.get("settings", {}).items())


def _counted(rows: Mapping[str, list[Row]]) -> str:
    """How many claims of each paper have which answer."""
    lines = []
    for paper, some in rows.items():
        counts = Counter(answer for _, answer, _, _ in some)
        if some:
            lines.append((_TITLES.get(paper, paper), *(str(counts[answer] or "") for answer in _ANSWERS)))
    return _table(("", *_ANSWERS), lines)


def _sections(rows: Mapping[str, list[Row]]) -> Iterable[str]:
    for paper, some in rows.items():
        if some:
            yield f"## {_TITLES.get(paper, paper)}\n"
            yield _table(("claim", "", "why", "command"), some)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines) + "\n"


def _words(claim: Claim) -> str:
    return f"{claim.where}: {claim.text}"


def _key(claim: Mapping[str, str]) -> tuple[str, ...]:
    return claim["paper"], claim["where"], claim["text"]


def _record(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ForeignFile(f"{path} is no JSON; remove it, or run what wrote it again") from error
    return found if isinstance(found, dict) else {}
