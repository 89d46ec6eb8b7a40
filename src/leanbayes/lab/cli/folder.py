"""The folder that a command writes to."""

from pathlib import Path

from leanbayes.errors import FileError

__all__ = ["make_folder"]


def make_folder(out: str) -> Path:
    """Make the folder of ``--out`` if it does not exist, and return its path.

    Raises:
        FileError: there is a file of this name or of the name of a folder above it, or the folder cannot be made.
    """
    folder = Path(out)
    try:
        for part in (folder, *folder.parents):
            if part.exists() and not part.is_dir():
                raise FileError(f"--out {out} cannot be a folder, because {part} is a file; give another name")
        folder.mkdir(parents=True, exist_ok=True)
    except FileError:
        raise
    except (OSError, ValueError) as error:
        raise FileError(f"--out {out[:80]} cannot be made: {error}; give another folder") from error
    return folder
