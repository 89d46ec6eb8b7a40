"""Threads that share a model, and checkpoints that compute a part of a pass again."""

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import leanbayes as lb
from leanbayes._passes import exclusive

DRAWN = ["sample", "mirrored", "local", "flipout"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Deep(nn.Module):
    """A network whose middle is checkpointed, or not."""

    def __init__(self, saving: Any = None) -> None:
        super().__init__()
        self.first, self.saving = nn.Linear(3, 4), saving
        self.one, self.norm, self.two = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 4)
        self.last = nn.Linear(4, 2)

    def part(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.norm(self.one(x))))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.saving == "sequential":
            x = checkpoint_sequential([self.one, self.norm, nn.Tanh(), self.two], 2, x, use_reentrant=True)
        elif self.saving == "nested":
            x = checkpoint(lambda z: checkpoint(self.part, z, use_reentrant=False), x, use_reentrant=False)
        elif self.saving == "forgetful":
            x = checkpoint(self.part, x, use_reentrant=False, preserve_rng_state=False)
        else:
            x = self.part(x) if self.saving is None else checkpoint(self.part, x, use_reentrant=self.saving)
        return self.last(x)


def gradients(model: nn.Module, propagate: str, generator: torch.Generator | None, samples: int) -> dict[str, Tensor]:
    """The gradients of a whole loss: two passes with draws of their own, and the KL, which shares their graph."""
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.5), propagate=propagate)
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)
    y = torch.tensor([0, 1, 1, 0])
    torch.manual_seed(5)
    lb.elbo(bnn, x, y, lb.Categorical(), n_data=4, samples=samples, generator=generator).loss.backward()
    return {name: parameter.grad for name, parameter in bnn.named_parameters()}


@pytest.mark.parametrize("propagate", DRAWN)
@pytest.mark.parametrize("saving", [False, True, "sequential", "nested", "forgetful"])
@pytest.mark.parametrize("given", [True, False])
def test_a_checkpoint_changes_no_gradient(propagate: str, saving: Any, given: bool) -> None:
    """Before, checkpoints were computed again at the means, or with fresh noise: gradients were silently wrong."""
    plain, saved = Deep().double(), Deep(saving).double()
    saved.load_state_dict(plain.state_dict())
    expected, got = (gradients(m, propagate, seeded() if given else None, 2) for m in (plain, saved))
    assert all(value.abs().sum() > 0 for name, value in expected.items() if "bias" not in name)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


class Checkpointed(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


@pytest.mark.parametrize("propagate", ["moments", "covariance"])
def test_what_cannot_be_computed_again_is_refused_before_the_backward_pass(propagate: str) -> None:
    bnn = lb.Bayesian(Deep(False), propagate=propagate)
    with pytest.raises(lb.errors.InputError, match="turn gradient checkpointing off"):
        bnn(torch.ones(2, 3))
    with pytest.raises(lb.errors.InputError, match="turn gradient checkpointing off"):
        lb.Bayesian(Deep(True), propagate=propagate)(torch.ones(2, 3))
    with torch.no_grad():  # nothing is computed again
        bnn = lb.Bayesian(nn.Sequential(Checkpointed()), propagate=propagate)
        assert bnn(torch.ones(2, 3)).shape == (2, 3)


def test_the_graph_outlives_the_pass_and_the_model_changes_in_between() -> None:
    """Two passes, then both backward passes, with plain calls of the model and another draw in between."""
    saved = Deep(False).double()
    bnn = lb.Bayesian(saved, posterior=lb.posteriors.Normal(0.5))
    x = torch.ones(2, 3, dtype=torch.float64)
    expected = []
    for seed in (1, 2):
        saved.saving = None
        expected.append(torch.autograd.grad(bnn(x, generator=seeded(seed)).sum(), list(bnn.parameters())))
    saved.saving = False
    outs = [bnn(x, generator=seeded(seed)) for seed in (1, 2)]
    bnn(x)
    saved(x).sum().backward()
    for out, truth in zip(outs, expected, strict=True):
        for got, value in zip(torch.autograd.grad(out.sum(), list(bnn.parameters())), truth, strict=True):
            torch.testing.assert_close(got, value, rtol=1e-12, atol=1e-12)


def test_outside_of_passes_checkpoints_are_those_of_torch() -> None:
    """The plain model keeps its gradients, in both modes, after a `Bayesian` has run."""
    model = Deep(False).double()
    lb.Bayesian(model)(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    outcome = []
    for saving in (None, False, True):
        model.zero_grad()
        model.saving = saving
        model(torch.ones(2, 3, dtype=torch.float64, requires_grad=True)).square().sum().backward()
        outcome.append([p.grad.clone() for p in model.parameters()])
    for other in outcome[1:]:
        for one, two in zip(outcome[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("propagate", ["sample", "mirrored"])
def test_the_flag_of_hugging_face(reentrant: bool, propagate: str) -> None:
    """Before, a model with its flag set was refused."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(**sizes, vocab_size=11, max_position_embeddings=8, attn_implementation="eager")
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).double()
    ids, labels = torch.arange(8).view(2, 4), torch.tensor([0, 1])

    def grads() -> list[Tensor]:
        bnn = lb.Bayesian(copy.deepcopy(model), posterior=lb.posteriors.Normal(0.1), propagate=propagate).train()
        loss = lb.elbo(bnn, {"input_ids": ids}, labels, lb.Categorical(), n_data=2, generator=seeded()).loss
        return list(torch.autograd.grad(loss, [p for p in bnn.parameters() if p.requires_grad], allow_unused=True))

    expected = grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    for got, value in zip(grads(), expected, strict=True):
        assert (got is None) == (value is None)
        if value is not None:
            torch.testing.assert_close(got, value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("propagate", DRAWN)
def test_a_module_in_two_positions_keeps_its_parameters(propagate: str) -> None:
    """Before, torch left the draw in the module: the means of such a model walked at random from pass to pass."""
    part = nn.Linear(3, 3)
    parameter, before = part.weight, part.weight.clone()
    bnn = lb.Bayesian(nn.Sequential(part, nn.Tanh(), part, nn.ModuleList([part])[0]), propagate=propagate)
    for _ in range(3):
        bnn(torch.ones(2, 3)).sum().backward()
    lb.predict(bnn, torch.ones(2, 3), samples=3)
    assert part.weight is parameter
    assert torch.equal(part.weight, before)


# Threads --------------------------------------------------------------------------------------------------------------


def in_threads(jobs: list[Callable[[], Any]], rounds: int) -> list[list[Any]]:
    """What each job returns, when every job runs again and again in a thread of its own."""
    outcome: list[list[Any]] = [[] for _ in jobs]
    errors: list[BaseException] = []
    start = threading.Barrier(len(jobs))

    def work(job: Callable[[], Any], results: list[Any]) -> None:
        try:
            start.wait()
            for _ in range(rounds):
                results.append(job())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(jobs, outcome, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return outcome


def test_threads_that_share_a_model_do_not_disturb_each_other() -> None:
    """Before, one thread predicted with the draws, the mode or the held weights of another, or crashed."""
    layers = [nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 3)]
    bnn = lb.Bayesian(nn.Sequential(*layers), posterior=lb.posteriors.Normal(0.8)).train()
    x = torch.randn(8, 3, generator=seeded())

    def frozen() -> Tensor:
        with bnn.frozen(seeded(3)):
            first = lb.predict(bnn, x, samples=2).mean
            assert torch.equal(first, lb.predict(bnn, x, samples=2).mean)
            return first

    def at_mean() -> Tensor:
        with bnn.at_mean():
            return lb.predict(bnn, x, samples=1).mean

    def trained() -> Tensor:
        with torch.random.fork_rng():
            out = bnn(x, generator=seeded(4))
        return torch.tensor([bnn.training, bool(out.isfinite().all())])

    jobs: list[Callable[[], Any]] = [
        lambda: lb.predict(bnn, x, samples=6, method="loop", generator=seeded(1)).mean,
        lambda: lb.predict(bnn, x, by="moments").mean,
        lambda: lb.predict(bnn, x, by="local", samples=6, generator=seeded(2)).mean,
        frozen,
        at_mean,
        lambda: torch.stack([weight.mean.detach().sum() for weight in bnn.weights().values()]),
    ]
    expected = [job() for job in jobs]
    for results, truth in zip(in_threads(jobs, 12), expected, strict=True):
        assert all(torch.equal(result, truth) for result in results)
    assert trained().all()


class Slow(nn.Sequential):
    """Waits inside of the first pass, in which a draw stands in the place of each parameter."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.began, self.may_end, self.wait = threading.Event(), threading.Event(), False

    def forward(self, x: Tensor) -> Tensor:
        if self.wait and not self.began.is_set():
            self.began.set()
            self.may_end.wait(0.5)
        return super().forward(x)


def end_of(work: Callable[[lb.Bayesian], Any], beside_a_pass: bool) -> Any:
    torch.manual_seed(0)
    net = Slow()
    bnn, net.wait = lb.Bayesian(net, posterior=lb.posteriors.Normal(0.8)), beside_a_pass
    if not beside_a_pass:
        return work(bnn)
    x = torch.ones(2, 3)
    thread = threading.Thread(target=lambda: lb.predict(bnn, x, samples=1, method="loop", generator=seeded()))
    thread.start()
    net.began.wait()
    try:
        return work(bnn)
    finally:
        net.may_end.set()
        thread.join()


@pytest.mark.parametrize("optimizer", ["adam", "ivon"])
def test_a_training_beside_a_prediction_is_that_of_one_alone(optimizer: str) -> None:
    """Before, the optimizer took the draw of the other thread for the parameters, which then were not trained."""

    def train(bnn: lb.Bayesian) -> list[Tensor]:
        x = torch.linspace(-1, 1, 12).reshape(4, 3)
        batches = [(x, torch.tensor([0, 1, 1, 0]))]
        lb.fit(bnn, batches, likelihood=lb.Categorical(), epochs=3, optimizer=optimizer, seed=1)
        return [parameter.detach() for parameter in bnn.parameters()]

    alone, beside = (end_of(train, busy) for busy in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))


def test_a_file_that_is_saved_beside_a_prediction_holds_the_means(tmp_path: Path) -> None:
    def save(bnn: lb.Bayesian) -> list[Tensor]:
        lb.save(bnn.model, tmp_path / "model.lb")
        return list(lb.load(tmp_path / "model.lb", Slow()).parameters())

    alone, beside = (end_of(save, busy) for busy in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))


def test_a_draw_that_is_held_belongs_to_its_thread() -> None:
    bnn = lb.Bayesian(nn.Linear(2, 1))
    seen = []
    with bnn.frozen():
        thread = threading.Thread(target=lambda: seen.append(bnn.held))
        thread.start()
        thread.join()
        assert bnn.held
    assert seen == [False]


def test_models_with_a_module_in_common_exclude_each_other() -> None:
    """The order in which several locks are taken is always the same, so that two threads never wait for each other."""
    shared = nn.Linear(2, 2)
    one, two = nn.Sequential(shared, nn.Tanh()), nn.Sequential(nn.Linear(2, 2))
    with exclusive(one), exclusive(two):
        pass
    both, other = nn.Sequential(one, two), nn.Sequential(two, one)
    free = []

    def attempt() -> None:
        try:
            with exclusive(nn.Sequential(shared), patience=0.01):
                free.append(True)
        except lb.errors.InputError:
            free.append(False)

    with exclusive(both), exclusive(other):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    attempt()
    assert free == [False, True]
    outcome = in_threads([lambda: _through(both), lambda: _through(other)], 200)
    assert [len(results) for results in outcome] == [200, 200]


def _through(model: nn.Module) -> bool:
    with exclusive(model):
        return True


def test_copies_and_files_of_a_model_know_no_locks() -> None:
    bnn = lb.Bayesian(nn.Linear(2, 1), propagate="local")
    x = torch.ones(3, 2)
    with bnn.frozen():
        bnn(x)
        twin, again = copy.deepcopy(bnn), pickle.loads(pickle.dumps(bnn))  # noqa: S301
    for other in (twin, again):
        assert not other.held
        assert torch.equal(other(x, generator=seeded()), bnn(x, generator=seeded()))
