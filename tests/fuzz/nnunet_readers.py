"""Readers of what nnU-Net wrote: its plans, its data set, and the checkpoint of a fold."""

import importlib.util
import io
import random
import zipfile
from pathlib import Path

from tests.fuzz.mutations import damage_bytes, damage_json
from tests.fuzz.reader import Reader

__all__ = ["nnunet"]


def nnunet(home: Path) -> dict[str, Reader]:
    """Write a folder of nnU-Net, and return its readers."""
    if importlib.util.find_spec("dynamic_network_architectures") is None:
        return {}
    from leanbayes.integrations.nnunet import read_ensemble, read_plans
    from tests.integrations.nnunet_folder import nnunet_folder

    folder, _ = nnunet_folder(home, folds=1)
    checkpoint = folder / "fold_0" / "checkpoint_final.pth"

    def read() -> None:
        read_plans(folder)
        read_ensemble(folder)

    return {
        "plans of nnU-Net": Reader(folder / "plans.json", read, damage_json, 1.5),
        "data set of nnU-Net": Reader(folder / "dataset.json", read, damage_json, 0.5),
        "checkpoint of nnU-Net": Reader(checkpoint, read, damage_bytes),
        "checkpoint of nnU-Net, forged": Reader(checkpoint, read, _forge_member, 1.5),
    }


def _forge_member(data: bytes, chance: random.Random) -> bytes:
    """Damage the pickle or another member of the archive of a checkpoint, and give it the right checksum."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as new:
        names = old.namelist()
        victim = names[0] if chance.random() < 0.7 else chance.choice(names)
        for name in names:
            content = old.read(name)
            new.writestr(name, damage_bytes(content, chance) if name == victim else content)
    return packed.getvalue()
