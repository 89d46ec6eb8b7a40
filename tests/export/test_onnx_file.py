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


MLP = pytest.param("mlp", marks=shows("ONNX Runtime", "One pass of moments runs as one deterministic graph."))


@pytest.mark.parametrize(
    "kind", [MLP, *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("resnet", "unet", "vit"))]
)
def test_one_pass_of_moments_in_onnxruntime(kind: str, tmp_path: Path) -> None:
    bnn, made = bayesian(kind), net(kind)
    file = lb.export.onnx(bnn, tmp_path / "m.onnx", made.batch, "moments", 4)
    assert file.inputs == (made.input_name,)
    assert file.outputs == (*PARTS, "output_mean", "output_variance")
    assert file.difference is not None
    assert file.difference < 1e-5
    x = torch.cat([made.batch, made.batch.flip(0) + 0.5, made.batch[:1]])
    got = run(file.path, {made.input_name: x})
    agree(got, lb.predict(bnn, x, by="moments", samples=4))
    mean, variance = lb.moments(bnn, x)
    torch.testing.assert_close(got["output_mean"], mean.contiguous(), rtol=0, atol=1e-5)
    torch.testing.assert_close(got["output_variance"], variance.contiguous(), rtol=0, atol=1e-5)
    one = run(file.path, {made.input_name: x[:1]})
    torch.testing.assert_close(one["mean"], got["mean"][:1], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resnet", "unet", "vit"])
@pytest.mark.parametrize("what", ["mean", "draws"])
def test_means_and_draws_of_larger_networks_in_onnxruntime(kind: str, what: str, tmp_path: Path) -> None:
    means_and_draws(kind, what, tmp_path)


@shows("ONNX Runtime", "The mean network, and several draws of it, run as one graph.")
@pytest.mark.parametrize("what", ["mean", "draws"])
def test_means_and_draws_in_onnxruntime(what: str, tmp_path: Path) -> None:
    means_and_draws("mlp", what, tmp_path)


def means_and_draws(kind: str, what: str, tmp_path: Path) -> None:
    bnn, made = bayesian(kind), net(kind)
    file = lb.export.onnx(bnn, tmp_path / "m.onnx", made.batch, what, 3, generator=torch.Generator().manual_seed(5))
    assert file.difference is not None
    assert file.difference < 1e-5
    x = torch.cat([made.batch, made.batch + 0.5])
    got = run(file.path, {made.input_name: x})
    if what == "mean":
        with bnn.at_mean():
            agree(got, lb.predict(bnn, x, samples=1))
        return
    source = torch.Generator().manual_seed(5)
    noise = {name: weight.noise(source, 3) for name, weight in bnn.weights().items()}
    bnn.eval()
    for draw in range(3):
        tensors = {name: weight.sample(noise[name][draw]) for name, weight in bnn.weights().items()}
        want = torch.func.functional_call(bnn.model, tensors, (x,)).softmax(1)
        torch.testing.assert_close(got["samples"][draw], want, rtol=0, atol=1e-5)


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


def test_the_page_runs(tmp_path: Path) -> None:
    run_page("docs/export.md", tmp_path)
