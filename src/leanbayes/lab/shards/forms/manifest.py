"""A list of inputs: a .csv file with a column ``path``, or a folder or list of files that are each cut on their own.

The paths are relative to the folder of the list. Images that are listed one by one are put together in shards.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data import Preparation
from leanbayes.lab.data.images import SUFFIXES
from leanbayes.lab.data.new_cases import NewCase
from leanbayes.lab.data.scans import is_scan
from leanbayes.lab.data.tables import read_csv
from leanbayes.lab.shards.form import FORMS, Cases, Form, ListedCases, Part, form_of, read_part

__all__ = ["MANIFEST"]

_SHARDS = (".tar", ".parquet", ".pq", ".npz", ".csv")


def fits(path: Path, preparation: Preparation) -> bool:  # noqa: ARG001
    """Whether it is a list of files, or a folder of files that are cut on their own."""
    return path.suffix.lower() == ".csv" if path.is_file() else bool(_in_folder(path))


def cut(path: Path, preparation: Preparation, size: int) -> Iterator[dict[str, Any]]:
    """Cut each file of the list on its own, and put images that stand one after the other together."""
    top = path if path.is_dir() else path.parent
    names = _in_folder(path) if path.is_dir() else _in_list(path)
    for is_single, group in groupby(names, lambda name: _is_single(top / name, preparation)):
        if is_single:
            together = list(group)
            for start in range(0, len(together), size):
                chosen = together[start : start + size]
                yield {"names": chosen, "count": len(chosen)}
            continue
        for name in group:
            form = form_of(top / name, preparation)
            if form is MANIFEST:
                raise InputError(f"{path} names {name}, which is a list itself; name the files in one list")
            for part in form.cut(top / name, preparation, size):
                yield {"file": name, "part": {"form": form.name, **part}, "count": part["count"]}


def read(path: Path, part: Part, preparation: Preparation) -> Cases:
    """Read a part of one of the files; the name of each input begins with the file that it comes from."""
    top = path if path.is_dir() else path.parent
    if "names" in part:
        return FORMS.named("files").read(top, part, preparation)
    cases = read_part(top / part["file"], part["part"], preparation)
    names = [f"{part['file']}/{name}" for name in cases.names]
    return ListedCases(names, [_renamed(cases[index], name) for index, name in enumerate(names)])


def _renamed(case: NewCase, name: str) -> NewCase:
    return NewCase(name, case.x, case.size, case.geometry, case.read)


def _is_single(path: Path, preparation: Preparation) -> bool:
    return is_scan(path) if preparation.spacing is not None else path.suffix.lower() in SUFFIXES


def _in_folder(folder: Path) -> list[str]:
    files = (file for file in folder.rglob("*") if file.suffix.lower() in _SHARDS and file.is_file())
    names = (file.relative_to(folder).as_posix() for file in files)
    return sorted(name for name in names if not any(part.startswith(".") for part in name.split("/")))


def _in_list(path: Path) -> list[str]:
    table = read_csv(path)
    if "path" not in table.names:
        raise InputError(
            f"{path} has no column 'path', and the model takes no features; name one file or folder of inputs a line"
        )
    names = table.texts("path")
    missing = [name for name in names if not (path.parent / name).exists()]
    if missing:
        raise FileError(
            f"{len(missing)} of the {len(names)} files that {path} names are missing, such as {missing[0]}; restore "
            "them, or remove their lines"
        )
    return names


MANIFEST = Form("manifest", "a .csv file with a column 'path', or a folder of such files", fits, cut, read, order=3)
