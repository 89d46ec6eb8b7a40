"""A folder of images or scans."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leanbayes.errors import FileError
from leanbayes.lab.data import Preparation
from leanbayes.lab.data.images import SUFFIXES, image_files
from leanbayes.lab.data.new_cases import NewCases
from leanbayes.lab.data.scans import is_scan, scan_files
from leanbayes.lab.shards.form import Cases, Form, Part

__all__ = ["FILES"]


def _files(path: Path, preparation: Preparation) -> list[Path]:
    return scan_files(path) if preparation.spacing is not None else image_files(path)


def fits(path: Path, preparation: Preparation) -> bool:
    """Whether it is an image, a scan, or a folder that has some."""
    if preparation.size is None:
        return False
    if path.is_dir():
        return bool(_files(path, preparation))
    return is_scan(path) if preparation.spacing is not None else path.suffix.lower() in SUFFIXES


def cut(path: Path, preparation: Preparation, size: int) -> Iterator[dict[str, Any]]:
    """Cut the sorted list of files. Each part has the names of its files, so that nobody lists the folder again."""
    if not path.is_dir():
        yield {"names": [], "count": 1}
        return
    names = [file.relative_to(path).as_posix() for file in _files(path, preparation)]
    for start in range(0, len(names), size):
        chosen = names[start : start + size]
        yield {"names": chosen, "count": len(chosen)}


def read(path: Path, part: Part, preparation: Preparation) -> Cases:
    """Return the files of a part, each of which is read when it is needed."""
    files = [path / name for name in part["names"]] or [path]
    missing = [file for file in files if not file.exists()]
    if missing:
        raise FileError(f"{len(missing)} files are missing, such as {missing[0]}; restore them, and run it again")
    return NewCases(preparation, path, files)


FILES = Form("files", "a folder of images or scans", fits, cut, read, order=2)
