"""One of two processes that train with samplers of a user; RANK in the environment says which one.

    python order_script.py <folder>

It writes which examples it has read in each training, and which error the training raised.
"""

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset

import leanbayes as lb


class Watched(TensorDataset):
    """Remembers which examples were read."""

    read: list[int]

    def __getitem__(self, index: Any) -> Any:
        self.read.append(index)
        return super().__getitem__(index)


class Shuffled(Sampler[int]):
    """Draws an order from torch's global state, or from the system, which nobody can seed."""

    def __init__(self, seedable: bool) -> None:
        self.seedable = seedable

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(12).tolist()
        if not self.seedable:
            random.SystemRandom().shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return 12


def main(folder: Path) -> None:
    data = Watched(torch.arange(12.0)[:, None], torch.arange(12) % 2)
    samplers = {
        "global": Shuffled(True),
        "system": Shuffled(False),
        "shares": DistributedSampler(data, 2, int(os.environ["RANK"])),
    }
    results = {}
    for name, sampler in samplers.items():
        data.read, error = [], ""
        loader = DataLoader(data, batch_size=4, sampler=sampler)
        try:
            lb.fit(nn.Linear(1, 2), loader, likelihood=lb.Categorical(), epochs=2, n_data=12)
        except lb.errors.InputError as refusal:
            error = str(refusal)
        results[name] = {"read": data.read, "error": error}
    (folder / os.environ["RANK"]).write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
