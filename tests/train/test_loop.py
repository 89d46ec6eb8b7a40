"""fit: it learns, it goes on where a kill left it, and several processes are one."""

import ast
import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import leanbayes as lb
from leanbayes.train.batches import mix

SCRIPT = Path(__file__).parent / "script.py"


def data(n: int = 128) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def run(folder: Path, *options: str, seconds: float | None = None) -> int | None:
    """The script's exit code, or None if it was killed after ``seconds``."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen([sys.executable, str(SCRIPT), "--folder", str(folder), *options], stderr=subprocess.PIPE)
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return None
    assert process.returncode == 0, errors.decode()
    return process.returncode


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", lambda groups: torch.optim.RMSprop(groups, lr=1e-2)])
def test_it_learns(optimizer: Any) -> None:
    bnn = lb.Bayesian(network(), subspace=lb.random_k(0.2))
    loader = DataLoader(data(), batch_size=32, shuffle=True)
    how = lb.Optimization(optimizer, lr=2e-2)
    history = lb.fit(bnn, loader, likelihood=lb.Categorical(), epochs=20, optimizer=how, kl_weight=0.1)
    assert history.losses[-1] < history.losses[0]
    assert (lb.predict(bnn, data().tensors[0]).mean.argmax(1) == data().tensors[1]).float().mean() > 0.9
    assert [row.epoch for row in history.epochs] == list(range(20))
    assert all(row.kl_weight == 0.1 for row in history.epochs)


def test_a_plain_module_and_learned_noise() -> None:
    x = torch.randn(200, 3)
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(200, 1)
    likelihood = lb.Gaussian("learned", initial=3.0)
    loader = DataLoader(TensorDataset(x, y), batch_size=50)
    lb.fit(nn.Linear(3, 1), loader, likelihood=likelihood, epochs=150, optimizer=lb.Optimization(lr=3e-2))
    assert likelihood.noise.item() == pytest.approx(0.5, rel=0.2)


def test_statistics_are_held_for_a_bayesian_and_not_for_a_plain_net() -> None:
    for wrap, held in ((lb.Bayesian, True), (lambda model: model, False)):
        model = network()
        before = model[1].running_mean.clone()
        lb.fit(wrap(model), DataLoader(data(), batch_size=32), likelihood=lb.Categorical(), epochs=1)
        assert torch.equal(before, model[1].running_mean) == held


def test_the_same_seed_gives_the_same_weights_whatever_the_global_state() -> None:
    ends = []
    for state in (5, 6):
        bnn = lb.Bayesian(network())
        torch.manual_seed(state)
        lb.fit(bnn, DataLoader(data(), batch_size=32, shuffle=True), likelihood=lb.Categorical(), epochs=2, seed=9)
        ends.append(bnn.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("mixed_precision", [None, "bf16"])
def test_nothing_else_is_changed(fails: bool, mixed_precision: str | None, tmp_path: Path) -> None:
    """Random states, modes and generators are as before, whether the training ends or fails."""
    bnn = lb.Bayesian(network())
    bnn.model[1].eval()
    bnn.model[3].requires_grad_(False)
    likelihood = lb.Categorical().eval()
    modes = [module.training for module in bnn.modules()]
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    loaders = [DataLoader(data(), batch_size=32, shuffle=True, generator=generator) for generator in generators]
    own = [(loader.generator, loader.sampler.generator) for loader in loaders]
    states = [generator.get_state() for generator in generators]

    def failing(row: lb.train.Epoch) -> None:
        torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
        if fails:
            raise ZeroDivisionError

    random.seed(1), np.random.seed(2), torch.manual_seed(3)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    try:
        lb.fit(
            bnn,
            loaders[0],
            likelihood=likelihood,
            epochs=2,
            optimizer=lb.Optimization(mixed_precision=mixed_precision),
            validate=loaders[1],
            callbacks=[failing],
            checkpoint=tmp_path,
        )
    except ZeroDivisionError:
        assert fails
    after = random.getstate(), np.random.get_state()[1], torch.get_rng_state()  # noqa: NPY002
    assert before[0] == after[0]
    assert (before[1] == after[1]).all()
    assert torch.equal(before[2], after[2])
    assert [module.training for module in bnn.modules()] == modes
    assert not likelihood.training
    assert [parameter.requires_grad for parameter in bnn.model[3].parameters()] == [False, False]
    for loader, pair, generator, state in zip(loaders, own, generators, states, strict=True):
        assert (loader.generator, loader.sampler.generator) == pair
        assert torch.equal(generator.get_state(), state)


def test_early_stopping_brings_back_the_best_epoch() -> None:
    bnn = lb.Bayesian(network(), subspace=lb.random_k(k=3), posterior=lb.posteriors.Normal(1e-4))
    kept: list[dict[str, Tensor]] = []

    def keep(row: lb.train.Epoch) -> None:
        kept.append({name: value.detach().clone() for name, value in bnn.state_dict().items()})

    wrong = DataLoader(TensorDataset(data().tensors[0], 1 - data().tensors[1]), batch_size=64)
    loader = DataLoader(data(), batch_size=32)
    how = lb.Optimization(lr=1e-2, patience=3)
    history = lb.fit(
        bnn, loader, likelihood=lb.Categorical(), epochs=30, optimizer=how, validate=wrong, callbacks=[keep]
    )
    assert history.best == 0
    assert len(history.epochs) == 4
    assert all(torch.equal(value, kept[0][name]) for name, value in bnn.state_dict().items())


def test_a_loss_that_is_not_finite_says_where(tmp_path: Path) -> None:
    bnn = lb.Bayesian(network())
    x, y = data().tensors
    batches = [(x[:32], y[:32]), (x[32:64] * torch.nan, y[32:64])]
    where = r"step 1, epoch 0, batch 1 of the epoch.*nll nan.*the inputs of this batch hold NaN"
    with pytest.raises(lb.errors.NonFinite, match=where):
        lb.fit(bnn, batches, likelihood=lb.Categorical(), epochs=1, checkpoint=lb.Checkpointing(tmp_path, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001.safetensors"]


def test_an_error_in_a_step_leaves_the_generators_of_the_loader() -> None:
    """They came back only when the traceback was forgotten."""
    loader = DataLoader(TensorDataset(torch.full((8, 4), torch.nan), torch.zeros(8).long()), batch_size=4, shuffle=True)
    with pytest.raises(lb.errors.NonFinite) as caught:
        lb.fit(lb.Bayesian(nn.Linear(4, 2)), loader, likelihood=lb.Categorical(), epochs=1)
    assert caught.tb is not None
    assert loader.generator is None
    assert loader.sampler.generator is None


def test_targets_that_are_not_finite_are_named() -> None:
    x = torch.randn(8, 4)
    batches = [(x, torch.zeros(8, 1)), (x, torch.full((8, 1), torch.inf))]
    with pytest.raises(lb.errors.NonFinite, match=r"epoch 0, batch 1.*the targets of this batch hold NaN or inf"):
        lb.fit(lb.Bayesian(nn.Linear(4, 1)), batches, likelihood=lb.Gaussian(), epochs=1)


@pytest.mark.parametrize(
    ("lr", "optimizer", "steps"), [(1e30, "sgd", 1), (1e30, "sgd", 5), (1e38, "adam", 1), (1e25, "adam", 5)]
)
def test_an_absurd_learning_rate_is_named(lr: float, optimizer: str, steps: int) -> None:
    """The message blamed the data; after the only step of a training nobody looked at the weights at all."""
    x = 1e9 * torch.randn(16, 4)
    how = lb.Optimization(optimizer, lr=lr)
    words = r"the data are finite.*learning rate \(1e\+\d\d\) is the likely cause"
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.raises(lb.errors.NonFinite, match=words):
        lb.fit(lb.Bayesian(model), [(x, x[:, :1])] * steps, likelihood=lb.Gaussian(), epochs=1, optimizer=how)


@pytest.mark.parametrize(("bad", "words"), [(0, "the inputs"), (1, "the targets")])
def test_a_validation_loss_that_is_not_finite_is_an_error(bad: int, words: str) -> None:
    """NaN is less than nothing, so the weights of epoch 0 came back as the best ones."""
    x, y = torch.randn(8, 4), torch.zeros(8, 1)
    spoiled = [x.clone(), y.clone()]
    spoiled[bad][3] = torch.nan
    where = rf"epoch 0, step 2, batch 1 of the validation set: the loss is nan; {words} of this batch hold NaN"
    with pytest.raises(lb.errors.NonFinite, match=where):
        lb.fit(
            lb.Bayesian(nn.Linear(4, 1)),
            [(x, y)] * 2,
            likelihood=lb.Gaussian(),
            epochs=3,
            validate=[(x, y), tuple(spoiled), (x, y)],
        )


def test_every_step_has_noise_of_its_own() -> None:
    """A mutant whose noise did not depend on the step passed all tests; here means cannot move, so only noise does."""
    model = nn.Linear(1, 1, bias=False)
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.5))
    outputs: list[float] = []
    hook = model.register_forward_hook(lambda module, given, output: outputs.append(output[0].item()))
    batches = [(torch.ones(2, 1), torch.zeros(2, 1))] * 100
    how = lb.Optimization(torch.optim.SGD, lr=1e-30)
    mean = model.weight.item()
    with pytest.warns(lb.errors.ScalesDidNotMove):
        lb.fit(bnn, batches, likelihood=lb.Gaussian(), epochs=4, optimizer=how)
    hook.remove()
    assert len(outputs) == 400 == len(set(outputs))
    draws = torch.tensor(outputs, dtype=torch.float64)
    assert abs(draws.mean() - mean) < 4 * 0.5 / 400**0.5
    assert abs(draws.var() - 0.25) < 4 * 0.25 * (2 / 400) ** 0.5
    neighbours = torch.corrcoef(torch.stack([draws[1:], draws[:-1]]))[0, 1]
    assert abs(neighbours) < 4 / 400**0.5


@pytest.mark.parametrize("parts", [2, 3])
def test_unequal_micro_batches_count_by_their_examples(parts: int) -> None:
    """A mutant that weighed parts of 2 and 3 examples equally passed all tests. The gradient must be the whole one."""
    torch.manual_seed(0)
    x, y = torch.randn(5, 3, dtype=torch.float64), 10 * torch.randn(5, 1, dtype=torch.float64)
    ends, losses = [], []
    for cut in (1, parts):
        torch.manual_seed(1)
        model = nn.Linear(3, 1).double()
        how = lb.Optimization(torch.optim.SGD, lr=0.1, micro_batches=cut)
        history = lb.fit(model, [(x, y)], likelihood=lb.Gaussian(), epochs=1, optimizer=how)
        ends.append(model.weight.detach())
        losses.append(history.losses[0])
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-12)
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(data(), batch_size=32)
    lb.fit(lb.Bayesian(network()), loader, likelihood=lb.Categorical(), epochs=1, checkpoint=tmp_path)
    (before,) = tmp_path.iterdir()
    held = before.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("leanbayes._files.save_file", full)
    with pytest.raises(lb.errors.FileError, match="No space left"):
        lb.fit(lb.Bayesian(network()), [*loader, *loader], likelihood=lb.Categorical(), epochs=1, n_data=128,
               checkpoint=tmp_path / "other")  # fmt: skip
    assert before.read_bytes() == held


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    loader = DataLoader(data(), batch_size=32)
    lb.fit(lb.Bayesian(network()), loader, likelihood=lb.Categorical(), epochs=1, checkpoint=tmp_path)
    with pytest.raises(lb.errors.InputError, match=r"'epochs': 1.*this one has"):
        lb.fit(lb.Bayesian(network()), loader, likelihood=lb.Categorical(), epochs=2, checkpoint=tmp_path)
    with pytest.raises(lb.errors.FileError, match="another training"):
        lb.fit(lb.Bayesian(nn.Linear(4, 2)), loader, likelihood=lb.Categorical(), epochs=1, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"samples": 0}, "samples"),
        ({"n_data": 0}, "n_data"),
        ({"seed": "first"}, "seed must be a whole number, got 'first'"),
        ({"checkpoint": 3}, "checkpoint must be the path of a folder, or a Checkpointing, got 3"),
        ({"optimizer": "magic"}, "adam"),
        ({"kl_weight": "magic"}, "warm_up"),
        ({"kl_weight": "cosine"}, "anneal"),
        ({"kl_weight": -1.0}, "at least 0"),
        ({"optimizer": lb.Optimization(patience=2)}, "validate"),
        ({"optimizer": lb.Optimization(micro_batches=64)}, "64 parts"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], words: str) -> None:
    loader = DataLoader(data(), batch_size=32)
    with pytest.raises(lb.errors.InputError, match=words):
        lb.fit(lb.Bayesian(network()), loader, likelihood=lb.Categorical(), **{"epochs": 1, **options})


class Interrupted(Exception):
    """As good as a kill, in the same process."""


class Stopping(TensorDataset):
    """Draws noise for every example it gives, as augmentations do, and stops after so many."""

    left = 10**9

    def __getitem__(self, index: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Interrupted
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(4) + 0.1 * float(np.random.rand()) + 0.1 * random.random(), y  # noqa: NPY002


@pytest.mark.parametrize("every", [1, 2, None])
def test_a_run_that_is_stopped_anywhere_ends_where_a_whole_one_does(tmp_path: Path, every: int | None) -> None:
    """Dropout and augmentations use torch's, numpy's and Python's random states; three epochs of four batches."""

    def once(folder: Path, left: int) -> dict[str, Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 2))
        bnn = lb.Bayesian(model, subspace=lb.random_k(0.5))
        examples = Stopping(*data(64).tensors)
        examples.left = left
        loader = DataLoader(examples, batch_size=16, shuffle=True)
        np.random.seed(left % 7)  # noqa: NPY002 - another state at every start
        random.seed(left % 7)
        how, where = lb.Optimization(lr=1e-2), lb.Checkpointing(folder, every)
        lb.fit(bnn, loader, likelihood=lb.Categorical(), epochs=3, optimizer=how, checkpoint=where)
        return bnn.state_dict()

    np.random.seed(3)  # noqa: NPY002
    whole = once(tmp_path / "whole", 10**9)
    for stop in range(20, 192, 19):
        folder = tmp_path / str(stop)
        with pytest.raises(Interrupted):
            once(folder, stop)
        end = once(folder, 10**9)
        assert all(torch.equal(value, end[name]) for name, value in whole.items()), f"stopped after {stop} examples"


class Shuffled(Sampler[int]):
    """Draws the order of the next example from a global random state, one at a time."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __len__(self) -> int:
        return 48

    def __iter__(self) -> Iterator[int]:
        for _ in range(48):
            yield {
                "torch": lambda: int(torch.randint(48, ())),
                "numpy": lambda: int(np.random.randint(48)),  # noqa: NPY002
                "python": lambda: random.randrange(48),
            }[self.source]()


class OwnRandom(Sampler[int]):
    """Has a generator of its own, whose state goes on from epoch to epoch."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __len__(self) -> int:
        return 48

    def __iter__(self) -> Iterator[int]:
        draw = self.rng.integers if isinstance(self.rng, np.random.Generator) else self.rng.randrange
        return iter([int(draw(48)) for _ in range(48)])


class Streamed(IterableDataset[Any]):
    """Examples in a random order, without a sampler."""

    def __init__(self, examples: TensorDataset) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return 48

    def __iter__(self) -> Iterator[Any]:
        for _ in range(48):
            yield self.examples[int(torch.randint(48, ()))]


def loaders(examples: TensorDataset) -> dict[str, DataLoader[Any]]:
    weights = torch.arange(1.0, 49.0)
    subset = SubsetRandomSampler(range(48))
    return {
        "subset": DataLoader(examples, 8, sampler=subset),
        "subset with a generator": DataLoader(examples, 8, sampler=SubsetRandomSampler(range(48), torch.Generator())),
        "weighted": DataLoader(examples, 8, sampler=WeightedRandomSampler(weights, 48)),
        "replacement": DataLoader(examples, 8, sampler=RandomSampler(examples, replacement=True, num_samples=48)),
        "batches": DataLoader(examples, batch_sampler=BatchSampler(RandomSampler(examples), 8, drop_last=False)),
        "own generator": DataLoader(examples, 8, shuffle=True, generator=torch.Generator().manual_seed(5)),
        "global torch": DataLoader(examples, 8, sampler=Shuffled("torch")),
        "global numpy": DataLoader(examples, 8, sampler=Shuffled("numpy")),
        "global python": DataLoader(examples, 8, sampler=Shuffled("python")),
        "own numpy": DataLoader(examples, 8, sampler=OwnRandom(np.random.default_rng(3))),
        "own python": DataLoader(examples, 8, sampler=OwnRandom(random.Random(3))),
        "streamed": DataLoader(Streamed(examples), 8),
        "workers": DataLoader(examples, 8, sampler=Shuffled("torch"), num_workers=1),
    }


@pytest.mark.parametrize("kind", list(loaders(data(48))))
def test_any_sampler_goes_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    """Only loaders with shuffle=True did. Dropout shares the global random states with samplers and augmentations."""

    def once(folder: Path, stop: int | None) -> dict[str, Tensor]:
        torch.manual_seed(1)
        bnn = lb.Bayesian(nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 2)), subspace=lb.random_k(0.5))
        steps = iter(range(10**9))
        killer = bnn.model[0].register_forward_hook(lambda *_: stop_at(next(steps), stop))
        random.seed(stop), np.random.seed(stop or 0), torch.manual_seed(stop or 0)  # noqa: NPY002
        examples = (Stopping if kind != "workers" else TensorDataset)(*data(48).tensors)
        how, where = lb.Optimization(lr=1e-2), lb.Checkpointing(folder, every=2)
        try:
            lb.fit(bnn, loaders(examples)[kind], likelihood=lb.Categorical(), epochs=2, optimizer=how, checkpoint=where)
        finally:
            killer.remove()
        return bnn.state_dict()

    whole = once(tmp_path / "whole", None)
    with pytest.raises(Interrupted):
        once(tmp_path / "killed", 9)
    end = once(tmp_path / "killed", None)
    assert all(torch.equal(value, end[name]) for name, value in whole.items())


def stop_at(step: int, stop: int | None) -> None:
    if step == stop:
        raise Interrupted


class Private(TensorDataset):
    """Augments by a generator that nobody else can see."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x + float(_PRIVATE.random()), y


_PRIVATE = np.random.default_rng(0)


def test_what_cannot_be_repeated_is_refused_with_checkpoints(tmp_path: Path) -> None:
    """A run that was killed ended elsewhere, and nobody was told."""
    bnn = lb.Bayesian(nn.Linear(4, 2))
    workers = DataLoader(data(), batch_size=32, num_workers=1, persistent_workers=True)
    options: dict[str, Any] = {"likelihood": lb.Categorical(), "epochs": 1}
    with pytest.raises(lb.errors.InputError, match=r"persistent_workers=False.*exact=False"):
        lb.fit(bnn, workers, checkpoint=tmp_path / "workers", **options)
    private = DataLoader(Private(*data().tensors), batch_size=32)
    with pytest.raises(lb.errors.InputError, match=r"another first batch.*generator of its own.*exact=False"):
        lb.fit(bnn, private, checkpoint=tmp_path / "private", **options)
    lb.fit(bnn, private, checkpoint=lb.Checkpointing(tmp_path / "private", exact=False), **options)
    lb.fit(bnn, private, **options)


def test_checkpoints_change_no_number(tmp_path: Path) -> None:
    """The first batch is read once more for the fingerprint, which must not shift anything."""
    ends = []
    for checkpoint in (None, tmp_path):
        torch.manual_seed(4)
        bnn = lb.Bayesian(nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 2)))
        loader = DataLoader(Stopping(*data(48).tensors), batch_size=8, shuffle=True)
        lb.fit(bnn, loader, likelihood=lb.Categorical(), epochs=2, checkpoint=checkpoint)
        ends.append(bnn.model[0].weight.detach())
    assert torch.equal(*ends)


def assert_same_end(one: Path, two: Path) -> None:
    ends = [load_file(folder / "end") for folder in (one, two)]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    assert (one / "history").read_text() == (two / "history").read_text()


def killed_and_resumed(tmp_path: Path, kills: int, seed: int) -> None:
    run(tmp_path / "whole")
    start = time.perf_counter()
    run(tmp_path / "timed")
    span = time.perf_counter() - start
    assert_same_end(tmp_path / "whole", tmp_path / "timed")
    moments = random.Random(seed)
    killed = 0
    while killed < kills:
        if run(tmp_path / "killed", seconds=span * moments.uniform(0.5, 1.0)) is not None:
            if killed:
                break
            for path in (tmp_path / "killed").rglob("*.safetensors"):
                path.unlink()
        else:
            killed += 1
    assert killed
    run(tmp_path / "killed")
    assert_same_end(tmp_path / "whole", tmp_path / "killed")


def test_a_killed_run_ends_where_a_whole_one_does(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, kills=1, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_kills(tmp_path: Path) -> None:
    for seed in range(10):
        (tmp_path / str(seed)).mkdir()
        killed_and_resumed(tmp_path / str(seed), kills=2, seed=seed)


@pytest.mark.parametrize("propagate", ["sample", pytest.param("local", marks=pytest.mark.slow)])
def test_two_processes_are_one_with_two_parts(tmp_path: Path, propagate: str) -> None:
    options = ["--propagate", propagate, "--dropout", "0", "--epochs", "2"]
    run(tmp_path / "one", *options, "--parts", "2")
    (tmp_path / "two").mkdir()
    launch = "accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1"
    launch += " --mixed_precision no --dynamo_backend no"
    command = [sys.executable, "-m", *launch.split(), str(SCRIPT), "--folder", str(tmp_path / "two"), *options]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}  # so that its launcher of several processes takes gloo
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    one, two = ((tmp_path / name / "history").read_text().splitlines() for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        assert ast.literal_eval(a) == pytest.approx(ast.literal_eval(b), rel=1e-4)


@pytest.mark.parametrize(
    "terms",
    [
        lb.Terms(0.3, samples=2, last_layer_samples=4),
        lb.Terms(0.3, temperature=0.5),
        lb.Terms(0.3, kl_per="parameter"),
        lb.Terms("warm_up"),
    ],
    ids=["last_layer_samples", "temperature", "kl_per", "schedule"],
)
def test_every_term_of_the_elbo_reaches_the_steps(terms: lb.Terms) -> None:
    """Before, `fit` had only the KL weight and the samples; the other settings of `elbo` could not be trained with."""
    x, y = torch.randn(8, 3), torch.randint(3, (8,))
    torch.manual_seed(0)
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)))
    noise = torch.Generator().manual_seed(mix(5, "noise", 0, 0))
    now = lb.Terms(0.0) if terms.kl_weight == "warm_up" else terms
    expected = lb.elbo(bnn, x, y, lb.Categorical(), n_data=8, kl_weight=now, generator=noise)
    history = lb.fit(bnn, [(x, y)], likelihood=lb.Categorical(), epochs=1, kl_weight=terms, seed=5)
    assert history.losses[0] == pytest.approx(expected.loss.item(), rel=1e-6)


def test_terms_are_a_part_of_the_checkpoint_and_of_the_optimizers_bargain(tmp_path: Path) -> None:
    batches = [(torch.randn(8, 3), torch.randint(3, (8,)))]

    def train(terms: lb.Terms, **options: Any) -> None:
        torch.manual_seed(0)
        lb.fit(lb.Bayesian(nn.Linear(3, 3)), batches, likelihood=lb.Categorical(), epochs=1, kl_weight=terms, **options)

    train(lb.Terms(0.1), checkpoint=tmp_path)
    for other in (lb.Terms(0.1, temperature=0.5), lb.Terms(0.1, kl_per="parameter"), lb.Terms(0.1, samples=2)):
        with pytest.raises(lb.errors.InputError, match="another folder"):
            train(other, checkpoint=tmp_path)
    for other in (lb.Terms(temperature=0.5), lb.Terms(kl_per="parameter")):
        with pytest.raises(lb.errors.InputError, match="in its own update"):
            train(other, optimizer="ivon")
