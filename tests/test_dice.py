"""The Dice term against MONAI's losses, and in every way to train."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.dice import DiceTerm, LikelihoodWithDice, dice_loss
from leanbayes.errors import InputError, OtherTraining, ShapeMismatch

monai_losses = pytest.importorskip("monai.losses")


def masks(classes: int = 3, count: int = 4) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(3)
    logits = torch.randn(count, classes, 6, 5, dtype=torch.float64, generator=source)
    return logits, torch.randint(classes, (count, 6, 5), generator=source)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_dice_loss_is_that_of_monai(classes: int, background: bool) -> None:
    logits, y = masks(classes)
    y[0] = 0  # an example without foreground
    logits.requires_grad_()
    ours = dice_loss(logits, y, lb.Categorical(), background=background)
    theirs = monai_losses.DiceLoss(include_background=background, to_onehot_y=True, softmax=True, reduction="none")
    expected = theirs(logits, y[:, None]).flatten(1).mean(1)
    assert torch.allclose(ours, expected, rtol=1e-12)
    of_ours, of_theirs = (torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0] for loss in (ours, expected))
    assert torch.allclose(of_ours, of_theirs, atol=1e-12)


def test_labels_have_no_background() -> None:
    logits, _ = masks(2)
    y = (torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)) > 0.7).double()
    theirs = monai_losses.DiceLoss(sigmoid=True, reduction="none")(logits, y).flatten(1).mean(1)
    assert torch.allclose(dice_loss(logits, y, lb.Bernoulli()), theirs, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_volumes_and_masks_in_bytes(dtype: torch.dtype) -> None:
    source = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 2, 3, 4, 5, generator=source)
    y = torch.randint(2, (2, 3, 4, 5), generator=source)
    theirs = monai_losses.DiceLoss(include_background=False, to_onehot_y=True, softmax=True)(logits, y[:, None])
    assert dice_loss(logits, y.to(dtype), lb.Categorical()).mean().item() == pytest.approx(theirs.item(), rel=1e-5)


def test_pixels_that_do_not_count_are_left_out() -> None:
    logits, y = masks(2)
    whole = dice_loss(logits[..., :3], y[..., :3], lb.Categorical())
    y[..., 3:] = 255
    assert torch.allclose(dice_loss(logits, y, lb.Categorical(ignore_index=255)), whole, rtol=1e-12)


def test_with_weight_1_the_loss_is_dice_ce_of_monai_times_the_pixels() -> None:
    logits, y = masks(3)
    theirs = monai_losses.DiceCELoss(include_background=False, to_onehot_y=True, softmax=True)(logits, y[:, None])
    parts = lb.elbo(nn.Identity(), logits, y, lb.Categorical(), n_data=10, kl_weight=lb.Terms(dice=1.0))
    assert parts.loss.item() == pytest.approx(30 * theirs.item(), rel=1e-12)
    assert parts.nll.item() == pytest.approx(lb.Categorical().nll(logits, y).item() / 4, rel=1e-12)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)).double()


def batch() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(5)
    x = torch.randn(4, 1, 6, 6, dtype=torch.float64, generator=source)
    return x, (x[:, 0] > 0.8).long()


@pytest.mark.parametrize("propagate", ["sample", "mirrored", "local", "flipout", "moments", "covariance"])
def test_every_propagation_adds_the_dice_of_its_own_draws(propagate: str) -> None:
    x, y = batch()
    bnn = lb.Bayesian(network(), posterior=lb.posteriors.Normal(1e-6), propagate=propagate)
    parts = lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, kl_weight=lb.Terms(0.0, samples=2, dice=0.7))
    logits = bnn.model(x)  # draws with such small scales are the means
    expected = 0.7 * 36 * dice_loss(logits, y, lb.Categorical()).mean()
    assert (parts.loss - parts.nll).item() == pytest.approx(expected.item(), rel=1e-3)
    assert parts.nll.item() == pytest.approx(lb.Categorical().nll(logits, y).item() / 4, rel=1e-3)
    parts.loss.backward()
    assert all(parameter.grad is not None for parameter in bnn.parameters())


def test_the_expected_dice_under_moments_is_a_mean_over_draws_of_the_outputs() -> None:
    x, y = batch()
    mean, variance = network()(x).detach(), torch.full((4, 2, 6, 6), 0.8, dtype=torch.float64)
    source = torch.Generator().manual_seed(0)
    scored = LikelihoodWithDice(lb.Categorical(), DiceTerm(2.0))
    scored.expected_nll(mean, variance, y, samples=400, generator=source)
    noise = torch.randn(400, *mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    draws = torch.stack([dice_loss(mean + variance.sqrt() * xi, y, lb.Categorical()).mean() for xi in noise])
    error = 2 * 36 * draws.std() * (2 / 400) ** 0.5
    assert abs(scored.penalty() - 2 * 36 * draws.mean()) < 4 * error


def test_draws_of_the_last_layer_count_once() -> None:
    x, y = batch()
    for posterior in (lb.posteriors.Normal(1e-6), lb.posteriors.Laplace(1e-6)):
        bnn = lb.Bayesian(network(), posterior=posterior)
        terms = lb.Terms(0.0, samples=2, last_layer_samples=3, dice=1.0)
        parts = lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, kl_weight=terms)
        expected = 36 * dice_loss(bnn.model(x), y, lb.Categorical()).mean().item()
        assert (parts.loss - parts.nll).item() == pytest.approx(expected, rel=1e-3)


def test_no_dice_changes_nothing() -> None:
    x, y = batch()
    bnn = lb.Bayesian(network())
    with_zero, without = (
        lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, kl_weight=terms, generator=torch.Generator().manual_seed(0))
        for terms in (lb.Terms(dice=0.0), lb.Terms())
    )
    assert with_zero.loss == without.loss
    assert lb.Terms(dice=0) == lb.Terms()


@pytest.mark.parametrize("optimizer", ["adam", "ivon"])
def test_fit_follows_the_dice_loss(optimizer: str) -> None:
    """Few foreground pixels: the loss with Dice ends with a lower Dice loss than the one without."""
    x, y = batch()
    reached, rate = [], {"adam": 0.05, "ivon": 0.5}[optimizer]
    for dice in (None, 5.0):
        bnn = lb.Bayesian(network(), posterior=lb.posteriors.Normal(0.1))
        history = lb.fit(
            bnn, [(x, y)] * 20, likelihood=lb.Categorical(), epochs=2, n_data=80,
            optimizer=lb.Optimization(optimizer, lr=rate), kl_weight=lb.Terms(1.0, dice=dice), validate=[(x, y)],
        )  # fmt: skip
        reached.append(dice_loss(bnn.model(x), y, lb.Categorical()).mean().item())
        assert history.epochs[-1].loss >= history.epochs[-1].nll
    assert reached[1] < reached[0]


def test_a_checkpoint_with_another_dice_term_is_another_training(tmp_path: Path) -> None:
    x, y = batch()

    def train(dice: float) -> None:
        terms, folder = lb.Terms(dice=dice), tmp_path / "run"
        lb.fit(
            lb.Bayesian(network()), [(x, y)], likelihood=lb.Categorical(), epochs=1, checkpoint=folder, kl_weight=terms
        )

    train(0.5)
    train(0.5)
    with pytest.raises(OtherTraining, match="dice"):
        train(0.7)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: lb.Terms(dice=-1.0), InputError, "at least 0"),
        (lambda: lb.Terms(dice=float("nan")), InputError, "finite"),
        (lambda: lb.Terms(dice="much"), InputError, "weight or a DiceTerm"),
        (lambda: lb.Terms(dice=True), InputError, "weight or a DiceTerm"),
        (lambda: DiceTerm(smooth=0.0), InputError, "smooth"),
        (lambda: dice_loss(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), lb.Categorical()), InputError, "masks"),
        (lambda: dice_loss(torch.zeros(2, 3), torch.zeros(2, 3), lb.Gaussian()), InputError, "no|none"),
        (
            lambda: dice_loss(torch.zeros(2, 3, 4, 4), torch.zeros(2, 5, 5, dtype=torch.long), lb.Categorical()),
            ShapeMismatch, "targets of shape",
        ),
        (
            lambda: dice_loss(torch.zeros(2, 3, 4, 4), torch.full((2, 4, 4), 3), lb.Categorical()),
            InputError, "between 0 and 2",
        ),
    ],
)  # fmt: skip
def test_what_has_no_dice_is_refused(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_compiled_and_eager_losses_are_alike() -> None:
    x, y = batch()
    bnn = lb.Bayesian(network(), posterior=lb.posteriors.Normal(1e-6))
    objective = lb.Objective(bnn, lb.Categorical(), n_data=10, kl_weight=lb.Terms(0.1, dice=0.5))
    compiled = torch.compile(objective, backend="eager")
    assert compiled(x, y).loss.item() == pytest.approx(objective(x, y).loss.item(), rel=1e-4)
