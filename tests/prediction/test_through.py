"""Predictions through a function that calls the network of each draw several times, such as sliding windows."""

import pytest
import torch
from monai.inferers import sliding_window_inference
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import InputError


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def windows(network, x: Tensor) -> Tensor:
    return sliding_window_inference(x, (8, 8), 2, network, overlap=0.5, mode="gaussian")


def segmenter(**options) -> lb.Bayesian:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1)).double()
    return lb.Bayesian(model, posterior=lb.posteriors.Normal(init_scale=0.3), **options)


@pytest.mark.parametrize("options", [{}, {"predict_by": "moments"}, {"propagate": "local"}], ids=str)
def test_sliding_windows_of_monai_are_those_of_frozen_draws_by_hand(options) -> None:
    """Before, the only call was sliding_window_inference(…, bnn), in which each window had another draw."""
    bnn, x = segmenter(**options), torch.randn(2, 1, 20, 12, generator=seeded(), dtype=torch.float64)
    p = lb.predict(bnn, x, samples=5, keep_samples=True, through=windows, generator=seeded(1))
    source, draws = seeded(1), []
    with torch.no_grad():
        for _ in range(5):
            with bnn.eval().frozen(source):
                draws.append(windows(bnn, x).softmax(1))
    by_hand = torch.stack(draws)
    torch.testing.assert_close(p.samples, by_hand, rtol=1e-10, atol=1e-12)
    mean = by_hand.mean(0)
    torch.testing.assert_close(p.mean, mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(p.total, -(mean * mean.log()).sum(1), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(p.aleatoric, -(by_hand * by_hand.log()).sum(2).mean(0), rtol=1e-10, atol=1e-12)


def by_columns(network, x: Tensor) -> Tensor:
    return torch.cat([network(column) for column in x.split(1, 1)], 1)


@pytest.mark.parametrize("wrap", [lb.Bayesian, nn.DataParallel, None], ids=["Bayesian", "wrapped", "held"])
def test_every_call_of_a_draw_has_the_same_weights(wrap) -> None:
    """The output of each column is w · 1, so within a draw all columns must be equal, and between draws not."""
    bnn = lb.Bayesian(nn.Linear(1, 1, bias=False), posterior=lb.posteriors.Normal(init_scale=1.0))
    x, options = torch.ones(3, 6), {"likelihood": lb.Gaussian(), "keep_samples": True, "through": by_columns}
    if wrap is None:
        with bnn.frozen(seeded()):
            p = lb.predict(bnn, x, samples=4, **options)
            assert torch.equal(p.samples, bnn(x[:, :1]).expand(4, 3, 6))
        return
    model = bnn if wrap is lb.Bayesian else wrap(bnn)
    p = lb.predict(model, x, samples=50, generator=seeded(), **options)
    assert torch.equal(p.samples, p.samples[:, :1, :1].expand(50, 3, 6))
    assert p.samples[:, 0, 0].std() > 0.5


def test_parts_of_the_batch_and_auto_stream_as_usual() -> None:
    bnn, x = segmenter(), torch.randn(5, 1, 12, 12, generator=seeded(), dtype=torch.float64)
    p = lb.predict(bnn, x, samples="auto", max_samples=16, batch_size=2, through=windows, generator=seeded())
    assert p.mean.shape == (5, 3, 12, 12)
    assert (p.draws >= 4).all()


def test_a_predictor_goes_through_too() -> None:
    torch.manual_seed(0)
    members = [nn.Conv2d(1, 3, 3, padding=1).double().eval() for _ in range(3)]
    x = torch.randn(2, 1, 12, 12, generator=seeded(), dtype=torch.float64)
    p = lb.predict(lb.baselines.Ensemble(*members), x, through=windows)
    with torch.no_grad():
        expected = torch.stack([windows(member, x).softmax(1) for member in members]).mean(0)
    torch.testing.assert_close(p.mean, expected)
    assert p.draws.tolist() == [3, 3]


def test_evaluate_scores_what_went_through() -> None:
    bnn, x = segmenter(), torch.randn(2, 1, 12, 12, generator=seeded(), dtype=torch.float64)
    y = torch.randint(3, (2, 12, 12), generator=seeded())
    result = lb.evaluate(bnn, [(x, y)], likelihood=lb.Categorical(), samples=3, through=windows, generator=seeded(2))
    p = lb.predict(bnn, x, samples=3, through=windows, generator=seeded(2))
    assert result.metrics["nll"] == pytest.approx(-p.mean.gather(1, y[:, None]).log().mean().item(), rel=1e-6)


@pytest.mark.parametrize("by", ["moments", "local", "flipout"])
def test_a_propagation_without_shared_draws_is_refused(by: str) -> None:
    with pytest.raises(InputError, match='by="sample"'):
        lb.predict(segmenter(), torch.zeros(1, 1, 8, 8), by=by, through=windows)
