"""A `Bayesian` inside the wrappers of torch and accelerate gives the same numbers as outside of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import leanbayes as lb
from leanbayes.errors import InputError
from tests import wrappers_script as script
from tests.integrations.matrix import shows


def predicted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    source = torch.Generator().manual_seed(3)
    return lb.predict(model, x, samples=4, method="loop", generator=source).mean


def compiled(bnn: lb.Bayesian) -> nn.Module:
    return torch.compile(bnn, backend="eager")


def prepared(bnn: lb.Bayesian) -> nn.Module:
    accelerate = pytest.importorskip("accelerate")
    return accelerate.Accelerator(cpu=True).prepare(bnn)


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "compile": compiled,
    "AveragedModel": AveragedModel,
    "accelerate": prepared,
    "nested": lambda bnn: AveragedModel(nn.DataParallel(bnn)),
}


IN_THE_MATRIX = {
    "DataParallel": shows("PyTorch", "Every function takes a model inside nn.DataParallel."),
    "compile": shows("PyTorch", "Every function takes what torch.compile returns."),
    "AveragedModel": shows("PyTorch", "Every function takes a model inside AveragedModel."),
    "accelerate": shows("accelerate", "Every function takes what accelerator.prepare returns."),
}


@pytest.mark.parametrize(
    "wrap", [pytest.param(wrap, id=name, marks=IN_THE_MATRIX.get(name, ())) for name, wrap in WRAPPERS.items()]
)
def test_every_function_takes_a_wrapper(wrap, tmp_path: Path) -> None:
    """Before, each of these calls raised: the model "has a Bayesian part"."""
    bnn, (x, y) = script.network(), script.batch()
    wrapped = wrap(bnn)
    torch.testing.assert_close(predicted(wrapped, x), predicted(bnn, x), rtol=0, atol=0)
    expected = script.gradients(bnn, x, y, seed=2)
    for got, want in zip(script.gradients(wrapped, x, y, seed=2), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    for got, want in zip(lb.moments(wrapped, x), lb.moments(bnn, x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    likelihood = lb.Categorical()
    scores = [
        lb.evaluate(model, [(x, y)], likelihood=likelihood, samples=4, generator=torch.Generator().manual_seed(1))
        for model in (wrapped, bnn)
    ]
    assert scores[0].metrics == scores[1].metrics
    lb.save(wrapped, tmp_path / "model")
    again = lb.load(tmp_path / "model", script.network().model)
    torch.testing.assert_close(predicted(again, x), predicted(bnn, x), rtol=0, atol=0)
    before = [parameter.clone() for parameter in wrapped.parameters()]
    lb.fit(wrapped, [(x, y)], likelihood=likelihood, epochs=1)
    assert any(not torch.equal(a, b) for a, b in zip(before, wrapped.parameters(), strict=True))


def test_sensitivity_names_the_parameters_of_the_module_inside() -> None:
    model, (x, y) = script.network().model, script.batch()
    scores = lb.sensitivity(nn.DataParallel(model), [(x, y)], nn.functional.cross_entropy)
    assert scores.keys() == dict(model.named_parameters()).keys()
    assert lb.Bayesian(model, subspace=lb.top_k(scores, rate=0.5)).summary().random > 0


def test_an_average_predicts_by_the_averaged_means_and_scales() -> None:
    """AveragedModel averages parameters: the means μ, and the raw scales ρ from which σ follows."""
    bnn, (x, _) = script.network(), script.batch()
    average, states = AveragedModel(bnn), []
    for step in range(3):
        with torch.no_grad():
            for parameter in bnn.parameters():
                parameter += 0.1 * (step + 1)
        average.update_parameters(bnn)
        states.append({name: value.clone() for name, value in bnn.named_parameters()})
    by_hand = script.network()
    with torch.no_grad():
        for name, parameter in by_hand.named_parameters():
            parameter.copy_(torch.stack([state[name] for state in states]).mean(0))
    torch.testing.assert_close(predicted(average, x), predicted(by_hand, x), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(predicted(average, x), predicted(bnn, x))


def test_predictors_take_wrapped_members() -> None:
    bnn, (x, y) = script.network(), script.batch()
    plain = lb.baselines.Ensemble(bnn.model, script.network().model)
    wrapped = lb.baselines.Ensemble(nn.DataParallel(bnn.model), AveragedModel(script.network().model))
    torch.testing.assert_close(predicted(wrapped, x), predicted(plain, x), rtol=0, atol=0)
    fitted = [
        lb.baselines.Temperature.fit(model, [(x, y)], lb.Categorical(), generator=torch.Generator().manual_seed(0))
        for model in (bnn, nn.DataParallel(bnn))
    ]
    assert fitted[0].temperature == fitted[1].temperature


def test_mixed_precision_of_accelerate_reaches_the_loss(fresh_accelerate: None) -> None:
    """Accelerate replaces ``forward``; a loss that went past it would be computed in full precision."""
    accelerate = pytest.importorskip("accelerate")
    seen = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layer(x)
            seen.append(out.dtype)
            return out

    bnn = accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(lb.Bayesian(Watching()))
    x, y = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    parts = lb.elbo(bnn, x, y, lb.Categorical(), n_data=4)
    assert seen == [torch.bfloat16]
    assert parts.loss.dtype == torch.float32


def test_a_part_that_is_bayesian_is_refused_inside_wrappers_too() -> None:
    x, y = script.batch()
    with pytest.raises(InputError, match="a part of the model is Bayesian"):
        lb.elbo(nn.DataParallel(nn.Sequential(script.network())), x, y, lb.Categorical(), n_data=8)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    """What two processes of DistributedDataParallel computed, each on one half of the batch."""
    folder = tmp_path_factory.mktemp("ddp")
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen(
            [sys.executable, script.__file__, str(rank), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in running:
        _, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors
    return folder, [torch.load(folder / f"found{rank}", weights_only=True) for rank in (0, 1)]


@shows("PyTorch", "Two processes of DistributedDataParallel have the gradients of one process on the whole batch.")
@pytest.mark.parametrize("case", ["same noise", "moments", "compiled", "around compiled", "sharded alone"])
def test_gradients_of_two_processes_are_those_of_one_on_the_whole_batch(processes, case: str) -> None:
    """Before, elbo(ddp) raised, and elbo(ddp.module) gave each process the gradient of its half alone."""
    options = {"propagate": "moments"} if case == "moments" else {}
    expected = script.gradients(script.network(), *script.batch(), seed=5, **options)
    alone = script.gradients(script.network(), *script.half(0), seed=5, **options)
    assert not all(torch.allclose(a, b) for a, b in zip(expected, alone, strict=True))
    if case == "moments":  # draws of the outputs, which differ between a half and the whole
        expected = mean_of_halves([5, 5], **options)
    for result, _ in processes[1]:
        for got, want in zip(result[case], expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


@shows("PyTorch", "lb.Objective trains inside DistributedDataParallel and fully_shard.")
@pytest.mark.parametrize("case", ["objective", "objective of moments", "sharded", "sharded in parts"])
def test_objectives_of_two_processes_are_one_on_the_whole_batch(processes, case: str) -> None:
    """What the likelihood learns is inside the objective, so its gradient is averaged as well."""
    options = {"propagate": "moments"} if case == "objective of moments" else {}
    expected = script.of_objective(script.objective(**options), *script.batch())
    if options:  # draws of the outputs, which differ between a half and the whole
        halves = [script.of_objective(script.objective(**options), *script.half(rank)) for rank in (0, 1)]
        expected = [(first + second) / 2 for first, second in zip(*halves, strict=True)]
    for result, _ in processes[1]:
        assert len(result[case]) == len(expected) == 9
        for got, want in zip(result[case], expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


def mean_of_halves(seeds: list[int], **options) -> list[torch.Tensor]:
    parts = [script.gradients(script.network(), *script.half(rank), seeds[rank], **options) for rank in (0, 1)]
    return [(first + second) / 2 for first, second in zip(*parts, strict=True)]


def test_with_noise_of_its_own_each_process_adds_its_own_draw(processes) -> None:
    """The gradient is the mean over the processes, each with its half and its draw: one more draw in the estimate."""
    for result, _ in processes[1]:
        for got, want in zip(result["noise of its own"], mean_of_halves([0, 1]), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", ["bare", "compiled bare", "plain bare"])
def test_the_bare_module_of_a_living_wrapper_is_refused(processes, case: str) -> None:
    """Before, ``elbo(ddp.module)`` trained copies that drift apart, without a word."""
    for _, words in processes[1]:
        assert "bare module of a DistributedDataParallel over 2 processes" in words[case]


def test_a_wrapper_that_is_thrown_away_refuses_nothing(processes) -> None:
    assert all(words["thrown away"] == "" for _, words in processes[1])


def test_inside_no_sync_nothing_is_averaged_and_nothing_refused(processes) -> None:
    for rank, (result, _) in enumerate(processes[1]):
        own = script.gradients(script.network(), *script.half(rank), seed=5)
        for got, want in zip(result["not averaged"], own, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


def test_a_likelihood_that_learns_must_be_inside_the_wrapper(processes) -> None:
    for _, words in processes[1]:
        assert "bnn.likelihood = likelihood" in words["learned"]
        assert words["learned inside"] == ""


def test_fit_without_a_launcher_does_not_train_processes_apart(processes) -> None:
    """`fit` reads WORLD_SIZE; processes that were joined without it would each train a model of their own."""
    assert all("torchrun" in words["fit"] for _, words in processes[1])


def test_one_process_alone_predicts_and_saves_what_is_wrapped(processes) -> None:
    """A forward of the wrapper would wait for the other process."""
    folder, result = processes
    x, _ = script.half(0)
    expected = lb.predict(script.network(), x, samples=2, generator=torch.Generator().manual_seed(0)).mean
    torch.testing.assert_close(result[0][0]["predicted"][0], expected)
    again = lb.load(folder / "model", script.network().model)
    assert again.state_dict().keys() == script.network().state_dict().keys()
