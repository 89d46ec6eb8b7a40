"""Arrays in an .npz file: x and y, or x_train, y_train and so on for each set."""

from pathlib import Path

from leanbayes.lab.data.arrays import array_sets, load_npz
from leanbayes.lab.data.reader import Reader, ReadOptions
from leanbayes.lab.data.source import Source, from_arrays
from leanbayes.lab.data.targets import kind_of, one_axis

__all__ = ["NPZ"]


def _read(path: Path, options: ReadOptions) -> Source:
    sets = {name: (x, one_axis(y, options.kind)) for name, (x, y) in array_sets(load_npz(path), path).items()}
    kind = options.kind or kind_of(sets["train"][1])
    return from_arrays(path, sets, kind, ignore=options.ignore, seed=options.seed)


NPZ = Reader("npz", "an .npz file", lambda path: path.suffix.lower() == ".npz", _read, takes=("ignore",))
