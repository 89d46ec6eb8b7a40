"""A short training, to be killed, resumed and launched on several processes by the tests."""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--propagate", default="sample")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--clip", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, weight = torch.randn(96, 5), torch.randn(5, 3)
    data = TensorDataset(x, (x @ weight + 0.3 * torch.randn(96, 3)).argmax(1))
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(options.dropout), nn.Linear(16, 3))
    bnn = lb.Bayesian(model, subspace=lb.random_k(0.3), propagate=options.propagate)
    history = lb.fit(
        bnn,
        DataLoader(data, batch_size=16, shuffle=True),
        likelihood=lb.Categorical(),
        epochs=options.epochs,
        optimizer=lb.Optimization(
            options.optimizer, lr=1e-2, schedule="cosine", micro_batches=options.parts, clip=options.clip
        ),
        kl_weight=lb.anneal(0.2, 0.01),
        validate=DataLoader(data, batch_size=32),
        checkpoint=lb.Checkpointing(options.folder / "checkpoints", every=1),
        seed=3,
    )
    if int(__import__("os").environ.get("RANK", "0")) == 0:
        save_file({name: value.detach().clone() for name, value in bnn.state_dict().items()}, options.folder / "end")
        rows = [repr((row.loss, row.nll, row.kl, row.validation)) for row in history.epochs]
        (options.folder / "history").write_text("\n".join(rows))


if __name__ == "__main__":
    main()
