"""One process of a training by Lightning in several; it writes its weights to ``<folder>/<processes>-<rank>.pt``.

The loss of the data is multiplied by a factor. With 0 the KL alone trains, which has no noise, so one process and two
must end alike.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.integrations.lightning import VariationalTraining


class Module(L.LightningModule):
    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.factor = lb.Bayesian(nn.Linear(3, 2)), factor

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.factor * F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(folder: Path, processes: int, factor: float) -> None:
    module = Module(factor)
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 16 // processes)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        max_epochs=2,
        callbacks=[VariationalTraining()],
        enable_model_summary=False,
        **quiet,
    )
    torch.manual_seed(2)
    trainer.fit(module, loader)
    torch.save(module.state_dict(), folder / f"{processes}-{trainer.global_rank}.pt")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
