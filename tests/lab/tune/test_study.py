"""The file of a study: what is not ours is refused and left as it was."""

import errno
import shutil
import sqlite3
import sys
from pathlib import Path

import optuna
import pytest

import leanbayes as lb
from leanbayes.lab.tune import Search, tune
from tests.lab.tune.bowl import task, tuned


def test_files_that_are_no_study(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 1000)
    with pytest.raises(lb.errors.ForeignFile, match="text is no study"):
        tuned(tmp_path / "text", 1)
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE customers (name TEXT)")
    database.close()
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(lb.errors.ForeignFile, match="another program"):
        tuned(tmp_path / "other.db", 1)
    assert (tmp_path / "other.db").read_bytes() == before
    tuned(tmp_path / "t.db", 1)
    whole = (tmp_path / "t.db").read_bytes()
    for size in (50, 5000, len(whole) // 2, len(whole) - 4096):
        (tmp_path / "cut.db").write_bytes(whole[:size])
        with pytest.raises(lb.errors.FileError, match=r"cut\.db"):
            tuned(tmp_path / "cut.db", 2)
    (tmp_path / "empty.db").touch()
    assert len(tuned(tmp_path / "empty.db", 1)["trials"]) == 1
    shutil.copy(tmp_path / "t.db", tmp_path / "new.db")
    database = sqlite3.connect(tmp_path / "new.db")
    database.execute("UPDATE version_info SET schema_version = 99")
    database.execute("UPDATE alembic_version SET version_num = 'v99'")
    database.commit()
    database.close()
    with pytest.raises(lb.errors.FileError, match="version of Optuna"):
        tuned(tmp_path / "new.db", 2)


def test_a_study_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was killed while Optuna made its tables left a file that was refused ever after."""

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(lb.errors.FileError, match="no space left"):
            tuned(tmp_path / "t.db", 1)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []
    for name in (".t.db.1234.part", ".t.db.1234.part-journal"):
        (tmp_path / name).write_text("what a killed process leaves")
    assert len(tuned(tmp_path / "t.db", 1)["trials"]) == 1
    assert not list(tmp_path.glob("*part*"))


def test_a_trial_that_the_disk_stopped_is_done_again(tmp_path: Path) -> None:
    """It was stored as failed, and the study ended with one trial less."""
    method = f"bowl:log={tmp_path / 'missing' / 'log'}"
    with pytest.raises(OSError, match="missing"):
        tuned(tmp_path / "t.db", 2, method)
    (tmp_path / "missing").mkdir()
    assert [row["state"] for row in tuned(tmp_path / "t.db", 2, method)["trials"]] == ["killed", "done", "done"]


def test_a_study_of_someone_else(tmp_path: Path) -> None:
    quiet = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/t.db")
    study = optuna.create_study(storage=storage, study_name="tune")
    study.tell(study.ask(), 1.0)
    storage.engine.dispose()
    with pytest.raises(lb.errors.ForeignFile, match="made by another program"):
        tuned(tmp_path / "t.db", 1)
    assert optuna.logging.get_verbosity() == optuna.logging.ERROR
    optuna.logging.set_verbosity(quiet)
    assert tuned(tmp_path / "t.db", 1, study="mine")["best"] is not None


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(lb.errors.InputError, match=r"pip install 'leanbayes\[tune\]'"):
        tune(task(), "bowl", Search({"x": "1..2"}), storage=tmp_path / "t.db")
