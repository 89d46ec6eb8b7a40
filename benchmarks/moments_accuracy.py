"""Compare one pass of moments with many weight samples: mean and standard deviation of every logit, trained networks.

Each network is trained plainly and then as a Bayesian one, as the recipe "vi" does, so that its scales have their
trained size. Then every setting of `Moments` is compared with S weight samples. A standard deviation from S samples has
a relative error of about 0.56/√S itself, so the result also says how many samples one pass is worth. The LeNet is small
enough for its full covariance, which all settings approximate.

    python benchmarks/moments_accuracy.py --data-dir DIRECTORY        # with MNIST/raw/*.gz in it
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from harness import RESULTS, write
from leanbayes.lab.data.sets.digits import mnist
from leanbayes.lab.models import lenet5, mlp, resnet18, unet, vit

WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "exact kernels": {"kernels": "exact"},
    "positions one": {"positions": "shared"},
    "16 factors": {"rank": 16},
    "4 factors": {"rank": 4},
    "units independent": {"rank": 0},
    "units independent, positions one": {"rank": 0, "positions": "shared"},
    "units and positions independent": {"rank": 0, "positions": "independent"},
    "taylor, units and positions independent": {
        "rank": 0,
        "positions": "independent",
        "order": "taylor",
        "kernels": "exact",
    },
    "taylor": {"order": "taylor"},
}
"""The settings of `Moments` that are compared; units and positions independent, and first order, is VDP++."""


@dataclass(frozen=True)
class Net:
    """A network, how its data are made from digits, and how it is trained and compared.

    Attributes:
        make: Makes the network.
        prepare: Makes its images and labels from digits.
        train: How many images it is trained with.
        epochs: For how many epochs.
        test: On how many images moments and samples are compared.
        jointly: On how many of these the full covariance is propagated as well.
    """

    make: Callable[[], nn.Module]
    prepare: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    train: int
    epochs: int
    test: int
    jointly: int = 0


def whole(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the digits unchanged, in 28x28 pixels."""
    return x, y


def halved(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the digits in 16x16 pixels, for a quarter of the work."""
    return F.avg_pool2d(F.pad(x, (2, 2, 2, 2), value=x.min().item()), 2), y


def scene(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return two digits in 64x64 pixels of noise; a pixel is background, of a digit below 5, or of a digit from 5."""
    images, labels = torch.full((len(x), 1, 64, 64), x.min().item()), torch.zeros(len(x), 64, 64, dtype=torch.long)
    corners = torch.randint(0, 9, (len(x), 2, 2), generator=torch.Generator().manual_seed(0))
    for i, ((top, left), (low, right)) in enumerate(corners.tolist()):
        for j, row, column in ((i, top, left), ((i + 1) % len(x), low + 28, right + 28)):
            window = (slice(row, row + 28), slice(column, column + 28))
            images[i, 0][window] = torch.maximum(images[i, 0][window], x[j, 0])
            labels[i][window] = torch.where(x[j, 0] > 0.5, 1 + int(y[j] >= 5), labels[i][window])
    return images + 0.3 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1)), labels


NETS = {
    "mlp": Net(lambda: mlp(784, 10, width=(300, 100)), whole, 20_000, 6, 500),
    "lenet5": Net(lambda: lenet5(1, 10), whole, 20_000, 6, 250, jointly=32),
    "resnet18": Net(lambda: resnet18(10, 1), halved, 2_000, 6, 24),
    "unet": Net(lambda: unet(1, 3, 8, 3), scene, 1_500, 8, 6),
    "vit": Net(lambda: vit(1, 10, (28, 28), 4, 64, 4, 4), whole, 6_000, 10, 48),
}


def trained(net: Net, x: Tensor, y: Tensor, kl_weights: tuple[float, float]) -> lb.Bayesian:
    """Train for half of the epochs plainly, and for the other half with every weight random."""
    data = TensorDataset(*net.prepare(x[: net.train], y[: net.train]))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    torch.manual_seed(0)
    model = net.make()
    options: dict[str, Any] = {"likelihood": lb.Categorical(), "epochs": net.epochs // 2}
    lb.fit(model, loader, optimizer=lb.Optimization(clip=1.0), **options)
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.01), prior=lb.priors.FittedPrior())
    optimization = lb.Optimization(scale_lr=1e-2, clip=1.0)
    lb.fit(bnn, loader, optimizer=optimization, kl_weight=lb.anneal(*kl_weights), **options)
    return bnn.eval()


@torch.no_grad()
def sampled(bnn: lb.Bayesian, x: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the logits over weight samples, by Welford's recursion."""
    generator = torch.Generator().manual_seed(1)
    mean, squares = torch.zeros(()), torch.zeros(())
    for n in range(1, samples + 1):
        draw = bnn(x, generator=generator).double()
        away = draw - mean
        mean = mean + away / n
        squares = squares + away * (draw - mean)
    return mean, (squares / (samples - 1)).sqrt()


def against(mean: Tensor, deviation: Tensor, truth: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Return how close one pass comes to the samples."""
    true_mean, true_deviation = truth
    ratio = deviation / true_deviation
    error = (ratio - 1).abs().mean().item()
    return {
        "mean_correlation": _correlation(mean, true_mean),
        "mean_error_in_deviations": ((mean - true_mean).abs() / true_deviation).mean().item(),
        "deviation_correlation": _correlation(deviation, true_deviation),
        "deviation_relative_error": error,
        "deviation_median_ratio": ratio.median().item(),
        "as_good_as_samples": (0.5642 / error) ** 2,
    }


def _correlation(one: Tensor, two: Tensor) -> float:
    return torch.corrcoef(torch.stack([one.flatten().double(), two.flatten().double()]))[0, 1].item()


def main() -> None:
    """Train or load each network, propagate moments, draw samples, and write the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("LEANBAYES_DATA", "data"))
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--kl-weights", type=float, nargs=2, default=(0.2, 0.01))
    parser.add_argument(
        "--cache",
        type=Path,
        help="A folder that stores the trained networks, so that a second run need not train them.",
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "moments_accuracy.json")
    options = parser.parse_args()
    task = mnist(options.data_dir).task("mlp")
    results: dict[str, Any] = {}
    for name in options.nets:
        net = NETS[name]
        stored = options.cache and options.cache / "_".join(map(str, (name, *options.kl_weights)))
        if stored is not None and stored.exists():
            bnn = lb.load(stored, net.make()).eval()
        else:
            bnn = trained(net, *_first(task.train, net.train), tuple(options.kl_weights))
            if stored is not None:
                stored.parent.mkdir(parents=True, exist_ok=True)
                lb.save(bnn, stored)
        x, y = net.prepare(*_first(task.test, net.test))
        results[name] = compared(bnn, x, y, options.samples)
        if net.jointly:
            few = x[: net.jointly], y[: net.jointly]
            results[f"{name}, beside the full covariance"] = compared(bnn, *few, options.samples, jointly=True)
    _show(results)
    write(options.out, results, {"samples": options.samples, "kl_weights": options.kl_weights, "prior": "fitted"})


@torch.no_grad()
def compared(bnn: lb.Bayesian, x: Tensor, y: Tensor, samples: int, jointly: bool = False) -> dict[str, Any]:
    """Describe one network, and compare every setting with samples; ``jointly``, the full covariance as well."""
    truth = sampled(bnn, x, samples)
    with bnn.at_mean():
        plain = (bnn(x) - truth[0]).abs() / truth[1]
    figures: dict[str, Any] = {
        "accuracy": (truth[0].argmax(1) == y).double().mean().item(),
        "logits": truth[0].numel(),
        "random_weights": bnn.summary().random,
        "median_scale": torch.cat([weight.spread.flatten() for weight in bnn.weights().values()]).median().item(),
        "median_deviation_of_a_logit": truth[1].median().item(),
        "plain_mean_error_in_deviations": plain.mean().item(),
    }
    for way, options in WAYS.items():
        mean, variance = lb.moments(bnn, x, by=lb.propagate.Moments(**options))
        figures[way] = against(mean, variance.sqrt(), truth)
    if jointly:
        mean, spread = map(torch.cat, zip(*(lb.covariance(bnn, few) for few in x.split(8)), strict=True))
        figures["full covariance"] = against(mean, spread.diagonal(dim1=1, dim2=2).sqrt(), truth)
    return figures


def _show(results: dict[str, Any]) -> None:
    for name, figures in results.items():
        for way, row in figures.items():
            if isinstance(row, dict):
                print(name, way, {key: round(value, 3) for key, value in row.items()}, flush=True)


def _first(data: Any, n: int) -> tuple[Tensor, Tensor]:
    x, y = zip(*(data[i] for i in range(n)), strict=True)
    return torch.stack(x), torch.stack(y)


if __name__ == "__main__":
    main()
