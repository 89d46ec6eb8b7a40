"""ONNX files compute in onnxruntime what torch computes, to 1e-5, for four kinds of networks."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from tests.export.nets import bayesian, net
from tests.integrations.matrix import shows
from tests.integrations.pages import run_page

# torch 2.13 uses a class that it deprecates itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning")

PARTS = ("mean", "total", "aleatoric", "epistemic")


def run(path: Path, feed: dict[str, Tensor]) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    results = session.run(names, {name: np.asarray(value) for name, value in feed.items()})
    return dict(zip(names, map(torch.as_tensor, results), strict=True))


def agree(got: dict[str, Any], want: lb.Prediction) -> None:
    for part in PARTS:
        torch.testing.assert_close(got[part], getattr(want, part), rtol=0, atol=1e-5)


KINDS = ("mlp", "resnet", "unet", "vit")
ALL_KINDS = [pytest.param(kind, marks=pytest.mark.slow) if kind != "mlp" else kind for kind in KINDS]


def moments_agree(kind: str, by: lb.propagate.Moments, folder: Path, **options: Any) -> None:
    """The four parts of the prediction, and the moments of the outputs, are those of torch for batches of any size."""
    bnn, made = bayesian(kind, **options).eval(), net(kind)
    file = lb.export.onnx(bnn, folder / "m.onnx", made.batch, "moments", 4, by=by)
    assert file.inputs == (made.input_name,)
    assert file.outputs == (*PARTS, "output_mean", "output_variance")
    assert file.difference is not None
    assert file.difference < 1e-5
    x = torch.cat([made.batch, made.batch.flip(0) + 0.5, made.batch[:1]])
    got = run(file.path, {made.input_name: x})
    agree(got, lb.predict(bnn, x, by=by, samples=4))
    law = by.law(bnn, (x,))
    torch.testing.assert_close(got["output_mean"], law.mean.contiguous(), rtol=0, atol=1e-5)
    torch.testing.assert_close(got["output_variance"], law.variance.contiguous(), rtol=0, atol=1e-5)
    assert float(got["output_variance"].min()) > 1e-4, "a graph without variances would agree with nothing"
    one = run(file.path, {made.input_name: x[:1]})
    for part in (*PARTS, "output_mean", "output_variance"):
        torch.testing.assert_close(one[part], got[part][:1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ALL_KINDS)
@shows("ONNX Runtime", "One pass of moments is one deterministic graph, for an MLP, a ResNet, a U-Net and a ViT.")
def test_one_pass_of_moments_in_onnxruntime(kind: str, tmp_path: Path) -> None:
    moments_agree(kind, lb.propagate.Moments(), tmp_path)


@pytest.mark.parametrize("kind", ["resnet", "unet", "vit"])
def test_one_pass_of_moments_without_factors_in_onnxruntime(kind: str, tmp_path: Path) -> None:
    """Without factors the graphs of larger networks are small enough for every run of the tests."""
    moments_agree(kind, lb.propagate.Moments(rank=0), tmp_path)


@shows("ONNX Runtime", "A partial network stores its few random coordinates, with positions of 64 bits.")
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_of_moments_of_a_partial_network_in_onnxruntime(kind: str, tmp_path: Path) -> None:
    moments_agree(kind, lb.propagate.Moments(), tmp_path, subspace=lb.random_k(0.3, seed=0))


@shows("ONNX Runtime", "The mean of an MLP, a ResNet, a U-Net or a ViT, and several draws of it, run as one graph.")
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_mean_network_in_onnxruntime(kind: str, tmp_path: Path) -> None:
    bnn, made = bayesian(kind).eval(), net(kind)
    file = lb.export.onnx(bnn, tmp_path / "m.onnx", made.batch, "mean")
    assert file.difference is not None
    assert file.difference < 1e-5
    x = torch.cat([made.batch, made.batch + 0.5])
    got = run(file.path, {made.input_name: x})
    with bnn.at_mean():
        agree(got, lb.predict(bnn, x, samples=1))
    torch.testing.assert_close(got["output"], bnn.model(x).detach(), rtol=0, atol=1e-5)


@shows("ONNX Runtime", "The mean of an MLP, a ResNet, a U-Net or a ViT, and several draws of it, run as one graph.")
@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_stored_draws_in_onnxruntime(kind: str, rate: float, tmp_path: Path) -> None:
    """Each draw is that of the generator; the prediction is made of the draws by the formulas of entropy."""
    subspace = lb.random_k(rate, seed=0) if rate < 1 else None
    bnn, made = bayesian(kind, subspace=subspace).eval(), net(kind)
    file = lb.export.onnx(bnn, tmp_path / "m.onnx", made.batch, "draws", 3, generator=torch.Generator().manual_seed(5))
    assert file.difference is not None
    assert file.difference < 1e-5
    x = torch.cat([made.batch, made.batch + 0.5])
    got = run(file.path, {made.input_name: x})
    source = torch.Generator().manual_seed(5)
    noise = {name: weight.noise(source, 3) for name, weight in bnn.weights().items()}
    for draw in range(3):
        tensors = {name: weight.sample(noise[name][draw]) for name, weight in bnn.weights().items()}
        want = torch.func.functional_call(bnn.model, tensors, (x,)).softmax(1)
        torch.testing.assert_close(got["samples"][draw], want, rtol=0, atol=1e-5)
    samples = got["samples"].double()
    mean = samples.mean(0)
    total, aleatoric = -(mean.xlogy(mean)).sum(1), -(samples.xlogy(samples)).sum(2).mean(0)
    want = {"mean": mean, "total": total, "aleatoric": aleatoric, "epistemic": total - aleatoric}
    for part in PARTS:
        torch.testing.assert_close(got[part].double(), want[part], rtol=0, atol=1e-5)


@shows("ONNX Runtime", "A graph draws new weights in every run.")
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_draws_inside_the_graph_of_larger_networks(kind: str, tmp_path: Path) -> None:
    """Each run has other weights, and the mean of 60 × 20 draws is that of torch within 5 standard errors."""
    bnn, made = bayesian(kind).eval(), net(kind)
    file = lb.export.onnx(bnn, tmp_path / "m.onnx", made.batch, "draws", 20, fresh=True)
    onnxruntime.set_seed(7)
    session = onnxruntime.InferenceSession(file.path, providers=["CPUExecutionProvider"])
    feed = {made.input_name: np.asarray(made.batch)}
    got = torch.cat([torch.as_tensor(session.run(["samples"], feed)[0]) for _ in range(60)]).double()
    assert len(got.flatten(1).unique(dim=0)) == len(got), "two draws are the same"
    prediction = lb.predict(bnn, made.batch, by="sample", samples=1200, generator=torch.Generator().manual_seed(1))
    error = (2 * got.var(0) / len(got)).sqrt()
    assert float(((got.mean(0) - prediction.mean.double()).abs() / error).max()) < 5


@shows("ONNX Runtime", "A partial network stores its few random coordinates, with positions of 64 bits.")
def test_a_partial_network_in_onnxruntime(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 3))  # much larger than the text of the graph
    bnn, x = lb.Bayesian(model, subspace=lb.random_k(0.02, seed=0)), torch.randn(3, 200)
    file = lb.export.onnx(bnn, tmp_path / "m.onnx", x, "draws", 8)
    plain = sum(parameter.numel() for parameter in model.parameters())
    assert file.size < 1.5 * 4 * plain + 2**15, "eight whole draws would take eight times the network"
    got = run(file.path, {"input": x})
    assert torch.isfinite(got["samples"]).all()
    assert (got["samples"][0] != got["samples"][1]).any()


@shows("ONNX Runtime", "A graph draws new weights in every run.")
def test_draws_inside_the_graph(tmp_path: Path) -> None:
    """The outputs of a linear layer are Gaussian with known moments; 2,000 draws find them within 5 standard errors."""
    bnn = lb.Bayesian(nn.Linear(2, 1), posterior=lb.posteriors.Normal(init_scale=0.3))
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    file = lb.export.onnx(bnn, tmp_path / "m.onnx", x, "draws", 50, fresh=True, likelihood=lb.Gaussian(0.1))
    assert file.difference is None
    onnxruntime.set_seed(7)
    session = onnxruntime.InferenceSession(file.path, providers=["CPUExecutionProvider"])
    runs = [torch.as_tensor(session.run(["samples"], {"input": np.asarray(x)})[0]) for _ in range(40)]
    assert all(torch.equal(one[:, 0], one[:, 1]) for one in runs), "all examples see the same weights in one draw"
    draws = torch.cat([one[:, 0, 0] for one in runs])
    mean, variance = (moment[0, 0] for moment in lb.moments(bnn, x))
    assert abs(draws.mean() - mean).item() < 5 * (variance / len(draws)).sqrt().item()
    assert abs(draws.var() / variance - 1).item() < 5 * (2 / len(draws)) ** 0.5


def test_the_file_says_what_it_computes_and_takes_a_batch_of_any_size(tmp_path: Path) -> None:
    file = lb.export.onnx(bayesian("mlp"), tmp_path / "m.onnx", net("mlp").batch)
    model = onnx.load(file.path)
    onnx.checker.check_model(model, full_check=True)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert properties["what"] == "mean"
    assert properties["likelihood"] == "Categorical()"
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    assert file.size == file.path.stat().st_size


def test_an_operation_that_onnx_does_not_have_is_named(tmp_path: Path) -> None:
    class Bessel(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return torch.special.bessel_j0(super().forward(input))

    with pytest.raises(lb.errors.NotExportable, match=r"the operation prims.bessel_j0 .* has no form in ONNX"):
        lb.export.onnx(lb.Bayesian(Bessel(2, 3)), tmp_path / "m.onnx", torch.zeros(2, 2))
    assert not (tmp_path / "m.onnx").exists()


def test_an_operation_that_onnxruntime_does_not_have_is_named(tmp_path: Path) -> None:
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(2, 3), nn.ELU(), nn.Linear(3, 2)))
    with pytest.raises(lb.errors.NotExportable, match="onnxruntime has no operation Erf for the numbers"):
        lb.export.onnx(bnn, tmp_path / "m.onnx", torch.zeros(2, 2), "moments")
    assert not (tmp_path / "m.onnx").exists()


def test_an_export_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """An older file under this name was overwritten, and removed when the new one failed its check."""
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(2, 3), nn.ELU(), nn.Linear(3, 2)))
    (tmp_path / "m.onnx").write_text("an older file")
    with pytest.raises(lb.errors.NotExportable, match="onnxruntime has no operation Erf"):
        lb.export.onnx(bnn, tmp_path / "m.onnx", torch.zeros(2, 2), "moments")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an older file"]


def test_a_folder_that_does_not_exist_is_named_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(lb.errors.FileError, match="does not exist"):
        lb.export.onnx(bayesian("mlp"), tmp_path / "no" / "m.onnx", net("mlp").batch)


def test_a_file_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leanbayes.export import onnx_file

    wrong = dict(onnx_file._translations())
    wrong[torch.ops.aten.relu.default] = wrong[torch.ops.aten.special_ndtr.default]
    monkeypatch.setattr(onnx_file, "_translations", lambda: wrong)
    with pytest.raises(lb.errors.NotExportable, match=r"onnxruntime and torch differ by .* in 'mean'"):
        lb.export.onnx(bayesian("mlp"), tmp_path / "m.onnx", net("mlp").batch)


@shows("ONNX Runtime", "The code of the page on export runs.")
def test_the_page_runs(tmp_path: Path) -> None:
    run_page("docs/export.md", tmp_path)
