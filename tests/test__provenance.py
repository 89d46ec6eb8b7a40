import subprocess
from pathlib import Path

import torch

from leanbayes import _provenance as module
from leanbayes._provenance import git, surroundings


def test_a_record_knows_the_commit_the_changes_and_the_machine(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    assert surroundings()["commit"] is None
    for folder in ("src", "benchmarks"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("1\n")
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], [*name, "commit", "-qm", "First"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    result = surroundings()
    assert result["commit"] == git("rev-parse", "HEAD")
    assert len(result["commit"]) == 40
    assert result["changed_since_commit"] is False
    assert result["machine"]["torch"] == torch.__version__
    (tmp_path / "benchmarks" / "a.py").write_text("2\n")
    assert surroundings()["changed_since_commit"] is False
    assert surroundings("benchmarks")["changed_since_commit"] is True
    assert git("no-such-command") is None
