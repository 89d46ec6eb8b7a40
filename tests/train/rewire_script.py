"""A short training of a sparse network whose weights move, in a process that may kill itself."""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb


class Dying(TensorDataset):
    """Ends the process, without a word, when it has given so many examples."""

    left = 10**9

    def __getitem__(self, index: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def train(folder: Path, left: int = 10**9, addition: str = "draw") -> dict[str, Tensor]:
    """Six batches an epoch, three epochs; weights move after every second step up to the sixteenth."""
    torch.manual_seed(0)
    x = torch.randn(48, 5)
    data = Dying(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    data.left = left
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 3))
    bnn = lb.Bayesian(model, subspace=lb.sparse(0.3), propagate="local")
    lb.fit(
        bnn,
        DataLoader(data, batch_size=8, shuffle=True),
        likelihood=lb.Categorical(),
        epochs=3,
        optimizer=lb.Optimization(lr=1e-2),
        rewire=lb.Rewire(every=2, stop=0.95, addition=addition, draws=3),
        checkpoint=lb.Checkpointing(folder / "checkpoints", every=1),
    )
    return {name: value.detach().clone() for name, value in bnn.state_dict().items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--left", type=int, default=10**9)
    parser.add_argument("--addition", default="draw")
    options = parser.parse_args()
    torch.set_num_threads(1)
    end = train(options.folder, options.left, options.addition)
    save_file(end, options.folder / f"end{os.environ.get('RANK', '')}")


if __name__ == "__main__":
    main()
