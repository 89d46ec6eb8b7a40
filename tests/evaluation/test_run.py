"""`evaluate` against the exact functions over all inputs at once, whatever the cut, the kind and the draws."""

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from leanbayes import metrics as ev
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.evaluation import PredictedBatch, evaluate
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.metrics import metric_named
from leanbayes.metrics.quality import cells_of
from leanbayes.prediction import Prediction
from tests.metrics.cases import VOID, Given, classes, cut, labels, pixels

KINDS: dict[str, tuple[tuple[Tensor, Tensor], Likelihood]] = {
    "classes": (classes(), Categorical()),
    "classes with void": ((classes()[0], torch.where(torch.arange(600) % 5 > 0, classes()[1], -100)), Categorical()),
    "sharp classes": (classes(sharp=12.0), Categorical()),
    "binary": (classes(c=2), Categorical()),
    "labels": (labels(), Bernoulli()),
    "one label": ((labels()[0][:, 0], labels()[1][:, 0]), Bernoulli()),
    "pixels": (pixels(), Categorical(ignore_index=VOID)),
    "mask": (
        (pixels(c=2, void=False)[0].softmax(1)[:, 1:].logit(), pixels(c=2, void=False)[1][:, None]),
        Bernoulli(),
    ),
}


def _exact(p: Tensor, y: Tensor, ignore: int) -> dict[str, float]:
    cells = cells_of(p, y, ignore)
    wrong = cells.correct == 0
    result = {
        "accuracy": ev.accuracy(p, y, ignore_index=ignore),
        "nll": ev.nll(p, y, ignore_index=ignore),
        "brier": ev.brier(p, y, ignore_index=ignore),
        "ece": ev.calibration_error(p, y, ignore_index=ignore),
        "ece_mass": ev.calibration_error(p, y, equal="mass", ignore_index=ignore),
        "entropy": ev.entropy(p, labels=cells.labels)[cells.counted].mean(),
        "error/auroc": ev.auroc(cells.doubt[~wrong], cells.doubt[wrong]),
        "error/aupr": ev.aupr(cells.doubt[~wrong], cells.doubt[wrong]),
        "error/fpr95": ev.fpr95(cells.doubt[~wrong], cells.doubt[wrong]),
        "aurc": ev.aurc(cells.doubt, wrong.double()),
    }
    for threshold in (0.5, 0.6, 0.7, 0.8, 0.9, 0.99):
        accuracy, size = ev.confidence_set(p, y, threshold, ignore_index=ignore)
        result |= {f"set_accuracy@{threshold}": accuracy, f"set_size@{threshold}": size}
    if y.dim() > (2 if cells.labels else 1):
        result |= {"dice": ev.dice(p, y, ignore_index=ignore), "miou": ev.mean_iou(p, y, ignore_index=ignore)}
        result |= {f"iou/{c}": value for c, value in enumerate(ev.iou(p, y, ignore_index=ignore))}
    else:
        result["auc"] = ev.auc(p, y, ignore_index=ignore)
    if p.dim() == 2 and not cells.labels:
        known = p[y != ignore]
        of_truth = known.gather(1, y[y != ignore, None])[:, 0].sort(descending=True).values
        threshold = of_truth[math.ceil(0.9 * len(known) - 1e-9) - 1]
        result["size_at_90"] = (known >= threshold).double().sum(1).mean()
    return {name: float(value) for name, value in result.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_streamed_equals_exact_within_the_stated_bounds(kind: str, step: int) -> None:
    (logits, y), likelihood = KINDS[kind]
    if step == 1:
        logits, y = logits[-40:], y[-40:]
    p = logits.sigmoid() if isinstance(likelihood, Bernoulli) else logits.softmax(1)
    result = evaluate(nn.Identity(), cut(logits, y, step), likelihood=likelihood, samples=2)
    exact = _exact(p, y, getattr(likelihood, "ignore_index", -100))
    if isinstance(likelihood, Bernoulli) or y.dim() > 1:  # tests/metrics/test_marked.py has its truth
        assert 0 <= result.metrics.pop("marked_at_10") <= 1
        result.bounds.pop("marked_at_10")
    assert set(result.metrics) == {name for name, value in exact.items() if value == value} | {"mutual_information"}
    assert result.metrics.pop("mutual_information") == pytest.approx(0, abs=1e-12)
    for name, value in result.metrics.items():
        assert abs(value - exact[name]) <= result.bounds.get(name, 0) + 1e-10, name
        assert metric_named(name).name == name
    assert result.examples == len(y)
    assert all(math.isfinite(value) for value in result.metrics.values())
    if step > 1:
        for name, bound in result.bounds.items():
            assert bound < (0.02 if name == "ece_mass" else 0.005), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_cut_does_not_matter(kind: str) -> None:
    (logits, y), likelihood = KINDS[kind]
    one = evaluate(nn.Identity(), [(logits, y)], likelihood=likelihood, samples=1, shifted={"far": [(logits / 3, y)]})
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    many = evaluate(
        nn.Identity(),
        cut(logits[order], y[order], 4 if y.dim() > 2 else 31),
        likelihood=likelihood,
        samples=1,
        shifted={"far": cut(logits / 3, y, 50)},
        batch_size=17,
    )
    assert one.metrics.keys() == many.metrics.keys()
    assert one.notes == many.notes
    for name, value in one.metrics.items():
        assert many.metrics[name] == pytest.approx(value, rel=1e-11, abs=1e-13), name
    assert many.bounds == pytest.approx(one.bounds, rel=1e-11, abs=1e-13)
    torch.testing.assert_close(many.reliability.accuracy, one.reliability.accuracy, equal_nan=True)
    torch.testing.assert_close(many.risk_coverage.risk, one.risk_coverage.risk)


def test_draws_are_averaged_before_they_are_scored() -> None:
    draws = 3 * torch.randn(80, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.randint(0, 3, (80,), generator=torch.Generator().manual_seed(1))
    result = evaluate(Given(4), cut(draws, y, 9), likelihood=Categorical()).metrics
    p = draws.softmax(2)
    assert result["nll"] == pytest.approx(ev.nll(p.mean(1), y).item(), rel=1e-12)
    assert result["nll"] < -p.log().mean(1).gather(1, y[:, None]).mean().item()  # Jensen
    assert result["mutual_information"] == pytest.approx(ev.mutual_information(p.movedim(1, 0)).mean().item(), rel=1e-9)


def _real(n: int = 300, draws: int = 5) -> tuple[Tensor, Tensor]:
    """Draws (n, draws, 2) of a mean and a log-variance, and targets (n, 1)."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(n, draws, 2, generator=generator, dtype=torch.float64)
    return outputs, torch.randn(n, 1, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("step", [300, 11])
def test_regression_is_that_of_the_moment_matched_gaussian(step: int) -> None:
    outputs, y = _real()
    result = evaluate(Given(5), cut(outputs, y, step), likelihood=Gaussian(noise="input"))
    mean = outputs[:, :, :1].mean(1)
    variance = outputs[:, :, 1:].exp().mean(1) + outputs[:, :, :1].var(1)
    law, truth = scipy.stats.norm(mean.numpy(), variance.sqrt().numpy()), y.numpy()
    expected = {
        "rmse": math.sqrt((mean - y).square().mean()),
        "nll": -law.logpdf(truth).mean(),
        "crps": ev.gaussian_crps(mean, variance, y).item(),
    }
    levels = np.arange(1, 20) / 20
    covered = np.array([(np.abs(law.cdf(truth) - 0.5) <= level / 2).mean() for level in levels])
    for level in (0.5, 0.8, 0.9, 0.95):
        expected[f"coverage@{level}"] = covered[round(level * 20) - 1]
    expected["coverage_error"] = np.abs(covered - levels).mean()
    area, width = result.metrics.pop("aurc"), result.metrics.pop("width_at_90")
    assert result.metrics == pytest.approx(expected, rel=1e-9)
    factor = ((mean - y).abs() / variance.sqrt()).flatten().sort().values[math.ceil(0.9 * y.numel()) - 1]
    assert abs(width - (2 * factor * variance.sqrt().mean()).item()) <= result.bounds["width_at_90"]
    exact = ev.aurc(variance[:, 0], (mean - y).square()[:, 0]).item()
    assert abs(area - exact) <= result.bounds["aurc"] + 1e-12
    np.testing.assert_allclose(result.reliability.accuracy.numpy(), covered)
    assert result.risk_coverage.risk[-1].item() == pytest.approx(expected["rmse"] ** 2)


@pytest.mark.parametrize("kind", KINDS)
def test_shifted_sets_against_the_exact_functions(kind: str) -> None:
    (logits, y), likelihood = KINDS[kind]
    far = logits / 2
    result = evaluate(nn.Identity(), cut(logits, y, 50), likelihood=likelihood, shifted={"a/b": cut(far, y, 40)})
    scores = []
    for values in (logits, far):
        binary = isinstance(likelihood, Bernoulli)
        h = ev.entropy(values.sigmoid() if binary else values.softmax(1), labels=binary)
        keep = (y != getattr(likelihood, "ignore_index", -1)).reshape(len(y), -1)
        means = [row[subset].mean() for row, subset in zip(h.reshape(len(y), -1), keep, strict=True) if subset.any()]
        scores.append(torch.stack(means))
    for name, exact in (("auroc", ev.auroc), ("aupr", ev.aupr), ("fpr95", ev.fpr95)):
        value, bound = result.metrics[f"ood/a/b/{name}"], result.bounds[f"ood/a/b/{name}"]
        assert abs(value - exact(*scores).item()) <= bound + 1e-10
        assert bound < 0.12  # few pixels' images, some of them in one cell


def test_shifted_targets_may_be_classes_that_the_model_does_not_know() -> None:
    logits, y = classes()
    result = evaluate(
        nn.Identity(), [(logits, y)], likelihood=Categorical(), shifted={"unseen": [(logits / 9, y + 50)]}
    )
    assert result.metrics["ood/unseen/auroc"] > 0.9
    nothing = evaluate(nn.Identity(), [(logits, y)], likelihood=Categorical(), shifted={"unseen": [(logits / 9, None)]})
    assert nothing.metrics == result.metrics


def test_shifted_regression_inputs_are_told_by_their_deviation() -> None:
    outputs, y = _real()
    wide = outputs + torch.tensor([0.0, 4.0])
    result = evaluate(Given(5), [(outputs, y)], likelihood=Gaussian(noise="input"), shifted={"far": [(wide, y)]})
    assert result.metrics["ood/far/auroc"] > 0.9


def test_a_bayesian_model_and_a_loader() -> None:
    torch.manual_seed(0)
    model = Bayesian(nn.Linear(4, 3))
    data = TensorDataset(torch.randn(50, 4), torch.randint(0, 3, (50,)))
    batches: list[PredictedBatch] = []
    loader = DataLoader(data, batch_size=16)
    runs = [
        evaluate(
            model,
            loader,
            likelihood=Categorical(),
            samples=8,
            shifted={"same": loader},
            generator=torch.Generator().manual_seed(1),
            on_prediction=batches.append,
        )
        for _ in range(2)
    ]
    assert [batch.shifted for batch in batches] == 2 * ([None] * 4 + ["same"] * 4)
    first = batches[:4]
    assert torch.equal(torch.cat([batch.inputs for batch in first]), data.tensors[0])
    right = torch.cat([batch.prediction.mean.argmax(1) == batch.targets for batch in first])
    assert right.double().mean().item() == runs[0].metrics["accuracy"]
    assert runs[0].metrics["mutual_information"] > 0


_TWICE = """
import torch, leanbayes as lb
torch.manual_seed(0)
model = lb.Bayesian(torch.nn.Linear(4, 3))
data = [(torch.randn(16, 4), torch.randint(0, 3, (16,))) for _ in range(3)]
def run():
    source = torch.Generator().manual_seed(1)
    return lb.evaluate(model, data, likelihood=lb.Categorical(), samples=8, shifted={"same": data}, generator=source)
assert run().metrics == run().metrics
"""


def test_two_evaluations_with_the_same_seed_are_equal_to_the_last_digit() -> None:
    """MKL, with which torch computes, promises equal digits only in this mode; else they depend on addresses."""
    surroundings = os.environ | {"MKL_CBWR": "COMPATIBLE"}
    subprocess.run([sys.executable, "-c", _TWICE], env=surroundings, check=True, timeout=600)


def test_what_cannot_be_measured_is_said_and_left_out() -> None:
    logits, y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
    result = evaluate(nn.Identity(), [(logits, y)], likelihood=Categorical())
    notes = "\n".join(result.notes)
    assert "no prediction is wrong" in notes
    assert "leaves out 1 of 3 classes (2)" in notes
    assert "set_accuracy@0.9: left out" in notes
    assert not {"error/auroc", "set_accuracy@0.9"} & set(result.metrics)
    assert result.metrics["auc"] == 1
    assert result.metrics["set_size@0.9"] == 0
    one_sided = evaluate(nn.Identity(), [(logits, 0 * logits)], likelihood=Bernoulli())
    assert "auc" not in one_sided.metrics
    assert "3 of 3 classes (0, 1, 2)" in "\n".join(one_sided.notes)
    masks = evaluate(nn.Identity(), [(logits[:, :, None], y[:, None])], likelihood=Categorical(class_axis=1))
    assert "iou/2" in "\n".join(masks.notes)
    assert masks.metrics["miou"] == 1


def test_a_batch_that_is_wholly_ignored_changes_nothing() -> None:
    logits, y = classes()
    void = (logits[:5], torch.full((5,), -100))
    without = evaluate(nn.Identity(), [(logits, y)], likelihood=Categorical())
    for batches in ([void, (logits, y)], [(logits, y), void]):
        assert evaluate(nn.Identity(), batches, likelihood=Categorical()).metrics == without.metrics
    with pytest.raises(InputError, match="every target is ignored"):
        evaluate(nn.Identity(), [void], likelihood=Categorical())
    logits, y = pixels()
    with pytest.raises(InputError, match="every target is ignored"):
        evaluate(nn.Identity(), [(logits[-1:], y[-1:])], likelihood=Categorical(ignore_index=VOID))


def test_memory_is_bounded() -> None:
    """What is kept after many batches is no larger than after one."""
    logits, y = classes(200)
    sizes = []
    for repeats in (1, 20):
        parts = ev.accumulators_for(Categorical(), y)
        for _ in range(repeats):
            p = logits.softmax(1)
            zero = torch.zeros(200)
            for part in parts:
                part.add(Prediction(p, zero, zero, zero, zero, zero), y)
        kept = [leaf for part in parts for leaf in _tensors(part)]
        sizes.append(sum(leaf.untyped_storage().nbytes() for leaf in kept))
    assert sizes[0] == sizes[1] < 10_000_000


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    inside = vars(value).values() if hasattr(value, "__dict__") else ()
    return [leaf for item in inside for leaf in _tensors(item)]


def test_bad_input_is_named() -> None:
    logits, y = classes()
    with pytest.raises(InputError, match="no batches"):
        evaluate(nn.Identity(), [], likelihood=Categorical())
    with pytest.raises(InputError, match="'far' has no examples"):
        evaluate(nn.Identity(), [(logits, y)], likelihood=Categorical(), shifted={"far": []})
    with pytest.raises(InputError, match="pair"):
        evaluate(nn.Identity(), [logits], likelihood=Categorical())
    with pytest.raises(InputError, match="must be a tensor"):
        evaluate(nn.Identity(), [(logits, y.tolist())], likelihood=Categorical())
    with pytest.raises(ShapeMismatch):
        evaluate(nn.Identity(), [(logits, y[:-1])], likelihood=Categorical())
    with pytest.raises(ShapeMismatch, match=r"\(600, 5\) and targets of \(600,\)"):
        evaluate(nn.Identity(), [(logits, y.double())], likelihood=Gaussian())
    with pytest.raises(InputError, match="classes 0 to 4"):
        evaluate(nn.Identity(), [(logits, y + 1)], likelihood=Categorical())


class Squared(Gaussian):
    """A likelihood of one's own inherits the metrics of its kind."""


class Unknown(Likelihood):
    def nll(self, output: Any, target: Tensor) -> Tensor:
        return output.sum()

    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:
        return output

    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Any:
        return Gaussian().uncertainty(torch.stack([averages] * 3, 1), draws, centre)

    def predictive(self, output: Any) -> Tensor:
        return output

    def kind(self, targets: Tensor) -> str:
        return "melodies"


def test_the_likelihoods_kind_chooses() -> None:
    y = torch.randn(8, 2)
    assert "crps" in evaluate(nn.Identity(), [(y + 1, y)], likelihood=Squared()).metrics
    with pytest.raises(InputError, match="no metrics are known for the kind of data 'melodies' that Unknown has"):
        evaluate(nn.Identity(), [(y, y)], likelihood=Unknown())
