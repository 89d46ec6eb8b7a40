"""Callbacks for Lightning: the KL in the loss, its schedule, IVON, and predictions with uncertainty."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import leanbayes as lb
from leanbayes.integrations.lightning import PredictionWithUncertainty, VariationalTraining
from tests.integrations.matrix import shows
from tests.integrations.pages import ROOT, run_page

pytestmark = [
    # Lightning advises to use more workers, to log more often, and the like.
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    # Lightning 2.6 uses a class that torch 2.13 deprecates.
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning"),
]

X = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()


class Module(L.LightningModule):
    """A module as users write them. The attributes say what a test changes."""

    optimizer: Any = staticmethod(lambda module: torch.optim.SGD(module.parameters(), lr=0.1))
    returns: Any = staticmethod(lambda loss: loss)
    shift: Any = None

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = lb.Bayesian(nn.Linear(3, 2), **options)

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        return self.returns(loss)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("validation", F.cross_entropy(self(batch[0]), batch[1]))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        out = self(batch[0])
        return out if self.shift is None else out + self.shift

    def configure_optimizers(self) -> Any:
        return self.optimizer(self)


def trainer(callback: Any, **options: Any) -> L.Trainer:
    usual = {"max_epochs": 2, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    callbacks = callback if isinstance(callback, list) else [callback]
    return L.Trainer(accelerator="cpu", enable_model_summary=False, callbacks=callbacks, **(usual | options))


def loader(batch: int = 16) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch)


@shows("Lightning", "A callback adds the KL to the loss of your own LightningModule, with any schedule of its weight.")
@pytest.mark.parametrize(
    "returns", [lambda loss: loss, lambda loss: {"loss": loss, "extra": 1}], ids=["tensor", "mapping"]
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_takes_the_steps_of_a_loop_of_elbos(returns: Any, accumulate: int) -> None:
    """The same draws in a loop that is written out by hand, in which the ELBO is `lb.elbo`."""
    module = Module()
    module.returns = returns
    torch.manual_seed(5)
    callback = VariationalTraining(kl_weight=lb.warm_up(0.5))
    trainer(callback, accumulate_grad_batches=accumulate).fit(module, loader())

    other = Module()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    torch.manual_seed(5)
    steps, done = 4 // accumulate, 0
    for _ in range(2):
        optimizer.zero_grad()
        for number, (x, y) in enumerate(loader(), start=1):
            weight = lb.warm_up(0.5)(done / steps)
            (lb.elbo(other.net, x, y, lb.Categorical(), n_data=32, kl_weight=weight).loss / accumulate).backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                done += 1
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], msg=name)
    assert not torch.equal(module.net.model.weight, Module().net.model.weight)


def test_the_kl_of_several_parts_is_added_and_logged() -> None:
    class Two(Module):
        def __init__(self) -> None:
            super().__init__()
            self.second = lb.Bayesian(nn.Linear(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.net(x))

    module = Two()
    module.optimizer = lambda module: torch.optim.SGD(module.parameters(), lr=0.0)
    run = trainer(VariationalTraining(kl_weight=0.5))
    run.fit(module, loader())
    expected = (module.net.kl() + module.second.kl()).item()
    assert run.callback_metrics["kl"].item() == pytest.approx(expected, rel=1e-6)
    assert run.callback_metrics["kl_weight"].item() == 0.5


@shows("Lightning", "IVON trains the module, and the callback hands it the present weight of the KL.")
def test_ivon_trains_as_in_a_loop_by_hand() -> None:
    def ivon(module: Any) -> Any:
        return lb.optim.IVON(module.net, lr=0.1, n_data=32, steps=4)

    schedule = lb.anneal(2.0, 1.0)
    module = Module()
    module.optimizer = ivon
    torch.manual_seed(5)
    run = trainer(VariationalTraining(kl_weight=schedule))
    run.fit(module, loader())

    other = Module()
    optimizer = ivon(other)
    torch.manual_seed(5)
    for step, (x, y) in enumerate(batch for _ in range(2) for batch in loader()):
        optimizer.zero_grad()
        lb.elbo(other.net, x, y, lb.Categorical(), n_data=32, with_kl=False).loss.backward()
        for group in optimizer.param_groups:
            group["kl_weight"] = schedule(step / 4)
        optimizer.step()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], msg=name)
    assert run.optimizers[0].param_groups[0]["kl_weight"] == schedule(3 / 4)


@shows("Lightning", "trainer.predict returns predictions with uncertainty, through your own predict_step.")
def test_predictions_go_through_the_step_of_the_module() -> None:
    module = Module()
    predictions = trainer(PredictionWithUncertainty(samples=64, seed=3)).predict(module, loader())
    noise = torch.Generator().manual_seed(3)
    draws = []
    for _ in range(64):
        with module.net.drawn(noise) as network, torch.no_grad():
            draws.append(network(X[:16]).softmax(1))
    mean = torch.stack(draws).mean(0)
    torch.testing.assert_close(predictions[0].mean, mean)
    torch.testing.assert_close(predictions[0].total, torch.special.entr(mean).sum(1))
    assert len(predictions) == 2
    assert (predictions[0].epistemic > 0).all()
    module.shift = torch.tensor([1.0, 0.0])
    shifted = trainer(PredictionWithUncertainty(samples=64, seed=3)).predict(module, loader())
    assert (shifted[0].mean[:, 0] > predictions[0].mean[:, 0]).all()
    assert "predict_step" not in vars(module)


@shows("Lightning", "trainer.predict in one pass of moments gives what lb.predict gives.")
def test_one_pass_sees_what_the_step_gives_to_the_network() -> None:
    class Doubling(Module):
        def forward(self, x: Tensor) -> Any:
            return self.net(2 * x)

    module = Doubling(predict_by="moments")
    (first, _) = trainer(PredictionWithUncertainty()).predict(module, loader())
    torch.testing.assert_close(first.mean, lb.predict(module.net, 2 * X[:16]).mean)
    module.shift = 1.0
    with pytest.raises(lb.errors.InputError, match=r"called the first 1 times and returned a Tensor of its own"):
        trainer(PredictionWithUncertainty()).predict(module, loader())


def test_a_prediction_leaves_the_means_untouched_and_takes_other_likelihoods() -> None:
    module = Module()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    step = PredictionWithUncertainty(lb.Gaussian(noise=0.1), samples="auto")
    prediction = trainer(step).predict(module, loader(32))[0]
    assert prediction.total.shape == (32, 2)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_batch_norms_keep_their_statistics_while_a_batch_shares_a_draw() -> None:
    class Normed(Module):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.net = lb.Bayesian(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), **options)

    held, free = Normed(), Normed(propagate="mirrored")
    for module in (held, free):
        trainer(VariationalTraining()).fit(module, loader(), loader())
    assert not held.net.model[1].running_mean.any()
    assert free.net.model[1].running_mean.any()
    assert held.net.model[1].training, "the mode is put back"


@shows("Lightning", "A checkpoint of Lightning brings back means, scales, positions and the state of IVON.")
def test_a_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    class Partial(Module):
        def __init__(self) -> None:
            super().__init__(subspace=lb.random_k(0.5))

    def ivon(module: Any) -> Any:
        return lb.optim.IVON(module.net, lr=0.1, n_data=32, steps=8)

    module = Partial()
    module.optimizer = ivon
    run = trainer(VariationalTraining(kl_weight=lb.anneal(1.0, 0.5)), max_epochs=4)
    run.fit(module, loader())
    run.save_checkpoint(tmp_path / "whole.ckpt")

    module = Partial()
    module.optimizer = ivon
    half = trainer(VariationalTraining(kl_weight=lb.anneal(1.0, 0.5)), max_epochs=2)
    half.fit(module, loader())
    half.save_checkpoint(tmp_path / "half.ckpt")
    again = Partial()
    again.optimizer = ivon
    rest = trainer(VariationalTraining(kl_weight=lb.anneal(1.0, 0.5)), max_epochs=4)
    rest.fit(again, loader(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert rest.global_step == 8
    assert rest.optimizers[0].param_groups[0]["kl_weight"] == lb.anneal(1.0, 0.5)(7 / 8)
    curvature = next(state["curvature"] for state in rest.optimizers[0].state.values() if "curvature" in state)
    assert (curvature != 0.1).any()
    loaded = Partial.load_from_checkpoint(tmp_path / "whole.ckpt")
    assert all(torch.equal(value, run.model.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_scales_that_did_not_move_are_warned_about() -> None:
    module = Module()
    module.optimizer = lambda module: torch.optim.SGD(module.parameters(), lr=1e-4)
    with pytest.warns(lb.errors.ScalesDidNotMove, match="after 20 steps"):
        trainer(VariationalTraining(), max_epochs=10).fit(module, loader())


def with_kl(module: Any, batch: Any, index: int) -> Tensor:
    return lb.elbo(module.net, *batch, lb.Categorical(), n_data=32).loss


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)


BAD: dict[str, tuple[Any, Any, Any, str]] = {
    "no Bayesian": ({"net": nn.Linear(3, 2)}, {}, loader(), r"no lb.Bayesian among its parts.*'net: Linear'"),
    "KL twice": ({"training_step": with_kl}, {}, loader(), "computes the KL itself"),
    "no tensor": ({"returns": staticmethod(lambda loss: 1.0)}, {}, loader(), "got a float"),
    "no loss": ({"returns": staticmethod(lambda loss: {"a": loss})}, {}, loader(), r"a mapping with \['a'\]"),
    "manual": ({"automatic_optimization": False}, {}, loader(), "automatic_optimization=False"),
    "stream": ({}, {"max_steps": 4}, DataLoader(Endless(), 16), "number of examples is unknown"),
    "no end": ({}, {"max_epochs": -1}, loader(), "does not know its length"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_named_and_the_module_stays_as_it_was(case: str) -> None:
    attributes, options, data, message = BAD[case]
    module = type("Mine", (Module,), {k: v for k, v in attributes.items() if k in ("training_step", "returns")})()
    for name in attributes.keys() - {"training_step", "returns"}:
        setattr(module, name, attributes[name])
    with pytest.raises(lb.errors.InputError, match=message):
        trainer(VariationalTraining(kl_weight="warm_up"), **options).fit(module, data)
    assert "training_step" not in vars(module)
    assert not any("kl" in vars(part) for part in module.modules())


def test_ivon_refuses_clipped_curvatures_and_other_sizes() -> None:
    module = Module()
    module.optimizer = lambda module: lb.optim.IVON(module.net, n_data=32, steps=4)
    with pytest.raises(lb.errors.InputError, match=r"gradient_clip_val=1.0 clips the gradients of the scales"):
        trainer(VariationalTraining(), gradient_clip_val=1.0).fit(module, loader())
    with pytest.raises(lb.errors.InputError, match=r"n_data=32 and this callback has n_data=30"):
        trainer(VariationalTraining(n_data=30)).fit(module, loader())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VariationalTraining(kl_weight=lb.Terms(1.0, samples=2)), "belong to the loss"),
        (lambda: VariationalTraining(kl_weight="warmup"), "warm_up"),
        (lambda: VariationalTraining(n_data=0), "n_data must be a whole number"),
        (lambda: VariationalTraining(hold_statistics="yes"), "hold_statistics must be True, False or None, got 'yes'"),
        (lambda: PredictionWithUncertainty("classes"), "is no leanbayes.Likelihood"),
        (lambda: PredictionWithUncertainty(samples=0), "samples must be"),
        (lambda: PredictionWithUncertainty(seed=0.5), "seed must be"),
        (lambda: PredictionWithUncertainty(output=1), "output must be a function"),
    ],
)
def test_bad_settings_are_refused_before_the_training(make: Any, message: str) -> None:
    with pytest.raises(lb.errors.InputError, match=message):
        make()


def test_losses_and_schedules_that_do_not_fit_are_named() -> None:
    module = Module()
    module.returns = lambda loss: loss.expand(2)
    with pytest.raises(lb.errors.InputError, match=r"must return one number, .* got the shape \(2,\)"):
        trainer(VariationalTraining()).fit(module, loader())
    with pytest.raises(lb.errors.InputError, match=r"kl_weight must be finite and at least 0, got -1\.0"):
        trainer(VariationalTraining(kl_weight=lambda progress: -1.0)).fit(Module(), loader())
    with pytest.raises(lb.errors.InputError, match="must return a number, got 'a'"):
        trainer(VariationalTraining(kl_weight=lambda progress: "a")).fit(Module(), loader())


def test_the_same_callback_twice_is_refused() -> None:
    with pytest.raises(lb.errors.InputError, match="more than one VariationalTraining among its callbacks"):
        trainer([VariationalTraining(), VariationalTraining()]).fit(Module(), loader())
    with pytest.raises(lb.errors.InputError, match="more than one PredictionWithUncertainty among its callbacks"):
        trainer([PredictionWithUncertainty(), PredictionWithUncertainty()]).predict(Module(), loader())


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_two_processes_train_one_model_with_one_kl(tmp_path: Path, factor: float) -> None:
    for processes in (1, 2):
        command = [sys.executable, "-m", "tests.integrations.lightning_script", str(tmp_path), str(processes)]
        done = subprocess.run([*command, str(factor)], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    alone, first, second = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("1-0", "2-0", "2-1"))
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=0, atol=0, msg=name)
        if factor == 0:
            torch.testing.assert_close(value, alone[name], msg=name)


@shows("Lightning", "The code of the page on Lightning runs.")
def test_the_page_runs(tmp_path: Path) -> None:
    run_page("docs/integrations/lightning.md", tmp_path)
