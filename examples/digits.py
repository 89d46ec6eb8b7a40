"""Make the most sensitive 1 % of a small CNN random, and see what that does to its confidence.

    python examples/digits.py [--out out] [--seed 0] [--epochs 40]

The network learns the digits 0 to 7 of scikit-learn's built-in images. It never sees the digits 8 and 9. The program
prints a table, and draws the entropies of known, rotated and unseen digits.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import matplotlib
import torch
import torch.nn.functional as F
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.metrics import accuracy, auroc, brier, calibration_error, nll

matplotlib.use("Agg")
import matplotlib.pyplot as plt

KNOWN = 8


def small_cnn() -> nn.Module:
    """Build two convolutions and two linear layers, with 38,000 weights together."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, KNOWN),
    )  # fmt: skip


def digits(seed: int) -> tuple[TensorDataset, Tensor, Tensor, dict[str, Tensor]]:
    """Return the training set, the test images and labels, and two shifted sets: rotated and unseen digits."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(data.target)
    known = labels < KNOWN
    x, x_test, y, y_test = train_test_split(
        images[known], labels[known], train_size=300, random_state=seed, stratify=labels[known]
    )
    turned = torch.tensor(rotate(x_test.numpy(), 90, axes=(3, 2), reshape=False, order=1))
    return TensorDataset(x, y), x_test, y_test, {"rotated by 90°": turned, "unseen 8 and 9": images[~known]}


def train(
    model: nn.Module,
    data: TensorDataset,
    epochs: int,
    seed: int,
    hold_statistics: bool = False,
) -> None:
    """Train with Adam on the ELBO. A plain module has no KL, so its loss is the mean negative log-likelihood."""
    batches = DataLoader(data, batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(seed))
    model.train()
    parameters: Any = model.parameters()
    if isinstance(model, lb.Bayesian):
        parameters = model.parameter_groups(scale_lr=1e-2)
        if hold_statistics:
            lb.fix_statistics(model)
    optimizer = torch.optim.Adam(parameters, lr=2e-3)
    for _ in range(epochs):
        for x, y in batches:
            loss = lb.elbo(model, x, y, lb.Categorical(), n_data=len(data)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def measure(model: nn.Module, x: Tensor, y: Tensor, shifts: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor]]:
    """Return the quality of the predictions for the test digits, and the entropies of every set."""
    prediction = lb.predict(model, x, samples=64)
    entropies = {"test": prediction.total} | {
        name: lb.predict(model, z, samples=64).total for name, z in shifts.items()
    }
    quality = [metric(prediction.mean, y).item() for metric in (accuracy, nll, brier, calibration_error)]
    return quality + [auroc(prediction.total, entropies[name]).item() for name in shifts], entropies


def draw(results: dict[str, dict[str, Tensor]], path: Path) -> None:
    """Draw histograms of the entropy, with a panel for each model."""
    figure, axes = plt.subplots(1, len(results), figsize=(9, 3.2), sharex=True, sharey=True, layout="constrained")
    for axis, (title, entropies) in zip(axes, results.items(), strict=True):
        for name, values in entropies.items():
            axis.hist(values.numpy(), bins=30, range=(0, 2.1), density=True, alpha=0.5, label=name)
        axis.set(title=title, xlabel="entropy of the prediction, nats")
    axes[0].set_ylabel("density")
    axes[0].legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Train both networks, print the table, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="The folder that receives the figure.")
    parser.add_argument("--seed", type=int, default=0, help="The seed of the split, the initial weights and the draws.")
    parser.add_argument("--epochs", type=int, default=40, help="How many epochs each of the two networks is trained.")
    options = parser.parse_args()
    start = time.perf_counter()
    torch.manual_seed(options.seed)
    data, x, y, shifts = digits(options.seed)

    model = small_cnn()
    train(model, data, epochs=options.epochs, seed=options.seed)
    plain, plain_entropies = measure(model, x, y, shifts)

    scores = lb.sensitivity(model, DataLoader(data, batch_size=64), F.cross_entropy)
    random = lb.top_k(scores, rate=0.01)
    bnn = lb.Bayesian(model, subspace=random, prior=lb.priors.FittedPrior(), propagate="mirrored")  # for batch norm
    train(bnn, data, epochs=options.epochs, seed=options.seed)
    partial, partial_entropies = measure(bnn, x, y, shifts)

    print(f"{'':24}" + "".join(f"{name:>16}" for name in ("accuracy", "NLL", "Brier", "ECE", *shifts)))
    for name, row in (("deterministic", plain), (f"partial, {bnn.summary().random} random", partial)):
        print(f"{name:24}" + "".join(f"{value:16.3f}" for value in row))
    print("\nThe last two columns are the AUROC with which the entropy tells those digits from test digits.")
    print("\nMean entropy in nats:")
    for name in plain_entropies:
        before, after = plain_entropies[name].mean(), partial_entropies[name].mean()
        print(f"  {name:16} deterministic {before:.3f}   partial {after:.3f}")
    print(f"\nWhere the random weights are:\n{bnn.summary()}")
    options.out.mkdir(parents=True, exist_ok=True)
    figure = options.out / "digits.png"
    draw({"deterministic": plain_entropies, "1 % random": partial_entropies}, figure)
    print(f"\nThe entropies are drawn in {figure}. The program took {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
