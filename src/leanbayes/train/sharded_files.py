"""Reads the files of `torch.distributed.checkpoint` without running anything that they may hold.

Torch keeps its description of a checkpoint, and the numbers beside the tensors, as pickles, and a pickle can call any
function. Here only the records of torch that a description consists of are built, and everything else is refused.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from leanbayes.errors import ForeignFile

__all__ = ["Planner", "Reader"]

_ALLOWED = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "pathlib": {"PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"},
}


class _Unpickler(pickle.Unpickler):
    """Builds the records of torch's description, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module.removesuffix("._local"), ()):  # where Python 3.13 keeps its paths
            return super().find_class(module, name)
        if module == "torch" and isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no checkpoint needs")


class Reader(FileSystemReader):
    """Torch's reader of checkpoints in a folder, which builds nothing but torch's own records."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        """Return the description of the checkpoint."""
        path = Path(self.path) / ".metadata"
        try:
            metadata = _Unpickler(io.BytesIO(path.read_bytes())).load()
            if not isinstance(metadata, Metadata):
                raise pickle.UnpicklingError(f"it holds a {type(metadata).__name__}")
        except OSError:
            raise
        except Exception as error:  # a damaged pickle raises many kinds
            raise ForeignFile(f"{path} is no description of a checkpoint by torch ({error}); copy it again") from error
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class Planner(DefaultLoadPlanner):
    """Torch's plan of loading, which reads numbers and words beside the tensors as nothing but such."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take in what is no tensor."""
        plain = io.BytesIO()
        torch.save(torch.load(value, weights_only=True), plain)  # raises an error for anything that is not plain
        plain.seek(0)
        super().load_bytes(read_item, plain)
