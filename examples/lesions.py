"""Segment lesions with a small U-Net, and draw where the network doubts: the picture of the documentation's first page.

    python examples/lesions.py [--out out] [--seed 0] [--epochs 12]

The images are generated (`leanbayes.lab.data.lesions`), so the program downloads nothing. Four raters draw the edge of
each lesion, and they disagree. The plain U-Net learns from their masks first. Then the 1 % of its weights that matter
most become random, and the network learns on. The picture shows test images that the network never saw: the image with
the edge of one rater, the predicted probability of a lesion, the total uncertainty, and the part of the uncertainty
that comes from the weights.
"""

import argparse
import time
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

import leanbayes as lb
from leanbayes.lab.data import lesions
from leanbayes.lab.models import unet

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SHOWN = 3


def draw(images: Tensor, truth: Tensor, prediction: lb.Prediction, path: Path) -> None:
    """Draw a row for each image: the image, the probability of a lesion, and two maps of uncertainty in nats."""
    columns = {
        "image, with one rater's edge": (images[:, 0], "gray", None),
        "prediction: probability of a lesion": (prediction.mean[:, 1], "gray", 1.0),
        "uncertainty (nats)": (prediction.total, "cividis", None),
        "of which from the weights (nats)": (prediction.epistemic, "cividis", None),
    }
    figure, axes = plt.subplots(len(images), 4, figsize=(11, 2.55 * len(images)), squeeze=False, layout="constrained")
    for column, (title, (maps, colours, high)) in enumerate(columns.items()):
        low = 0.0 if column else float(maps.min())
        shared = plt.Normalize(low, high or float(maps.max()))  # one scale for all rows, so that they compare
        for row, values in enumerate(maps):
            axis = axes[row, column]
            shown = axis.imshow(values, cmap=colours, norm=shared)
            axis.set(xticks=[], yticks=[])
            if column < 2:
                axis.contour(truth[row], levels=[0.5], colors="#d55e00", linewidths=1.2)
        axes[0, column].set_title(title, fontsize=10)
        if column:
            figure.colorbar(shown, ax=axes[:, column], shrink=0.8, pad=0.02)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Train, predict, print what was measured on the test set, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="The folder that receives the picture.")
    parser.add_argument("--seed", type=int, default=0, help="The seed of the data, the initial weights and the draws.")
    parser.add_argument("--epochs", type=int, default=12, help="The epochs of the plain U-Net; then half as many.")
    options = parser.parse_args()
    start = time.perf_counter()
    torch.manual_seed(options.seed)
    data = lesions(seed=options.seed, patients=60)

    model = unet(in_channels=1, classes=2, width=8)
    likelihood = lb.Categorical()
    batches = DataLoader(data.train, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(options.seed))
    quick = lb.Optimization("adam", lr=1e-2, schedule="cosine")
    lb.fit(model, batches, likelihood=likelihood, epochs=options.epochs, optimizer=quick, seed=options.seed)

    scores = lb.sensitivity(model, batches, F.cross_entropy)
    bnn = lb.Bayesian(model, subspace=lb.top_k(scores, rate=0.01), propagate="mirrored")
    gentle = lb.Optimization(
        "adam", lr=2e-3, scale_lr=5e-2, schedule="cosine"
    )  # few steps, so the scales take long ones
    lb.fit(bnn, batches, likelihood=likelihood, epochs=options.epochs // 2, optimizer=gentle, seed=options.seed)

    images = torch.stack([data.test[index][0] for index in range(len(data.test))])
    masks = torch.stack([data.test[index][1] for index in range(len(data.test))])
    prediction = lb.predict(bnn, images, samples=16)
    right = prediction.mean.argmax(1) == masks
    share = right.double().mean()
    print(f"{bnn.summary().random} random weights; {share:.3f} of the test pixels agree with one rater")
    print(f"mean uncertainty where they agree: {prediction.total[right].mean():.3f} nats")
    print(f"mean uncertainty elsewhere: {prediction.total[~right].mean():.3f} nats")

    shown = slice(0, 4 * SHOWN, 4)  # one image of each of the first patients, whatever the network made of it
    of_shown = lb.predict(bnn, images[shown], samples=16)
    path = options.out / "lesions.png"
    draw(images[shown], masks[shown], of_shown, path)
    print(f"The picture is {path}. The program took {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
