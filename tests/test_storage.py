"""What is saved comes back as it was; what is foreign, damaged or does not fit is refused, and nothing is changed."""

import copy
import errno
import json
import os
import pickle
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch import distributions as D
from torch.nn.utils import parametrizations

import leanbayes as lb
from leanbayes.errors import InputError, WrongModel
from leanbayes.subspace import scatters


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(**kwargs: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8, **kwargs), nn.Tanh(), nn.Linear(8, 2, **kwargs))


def trained(bnn: lb.Bayesian) -> lb.Bayesian:
    """Every number moved away from where it starts, as training does."""
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape).to(parameter))
        for buffer in bnn.model.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand(buffer.shape).to(buffer))
    return bnn


def assert_same(one: lb.Bayesian, two: lb.Bayesian, *inputs: Tensor) -> None:
    """Bit for bit: state, draws, divergence, and how it was put together."""
    assert two.propagate == one.propagate
    assert two.posterior == one.posterior
    assert two.kl_estimator == one.kl_estimator
    first, second = one.state_dict(), two.state_dict()
    assert list(first) == list(second)
    for name, value in first.items():
        assert value.dtype == second[name].dtype
        assert torch.equal(value, second[name]), name
    one.eval()
    two.eval()
    assert torch.equal(one(*inputs, generator=seeded()), two(*inputs, generator=seeded()))
    assert torch.equal(one.kl(generator=seeded()), two.kl(generator=seeded()))
    with one.at_mean(), two.at_mean():
        assert torch.equal(one(*inputs), two(*inputs))


# ---------------------------------------------------------------- there and back


def double(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


PRIORS: dict[str, Any] = {
    "normal": D.Normal(0.0, 1.0),
    "normal with odd numbers": D.Normal(0.1, 0.7),
    "laplace": D.Laplace(0.0, 0.3),
    "fixed": lb.priors.FixedPrior(D.Normal(0.0, 2.0)),
    "fitted": lb.priors.FittedPrior(),
    "centred": lb.priors.CentredPrior(scale=0.2),
    "globs": {"0.*": D.Normal(0.0, 0.5), "2.weight": lb.priors.FittedPrior(), "*": lb.priors.CentredPrior(0.3)},
    "student": D.StudentT(3.0, 0.0, 0.5),
    "cauchy": D.Cauchy(0.0, 1.0),
    "gumbel": D.Gumbel(0.0, 1.0),
}


@pytest.mark.parametrize("name", PRIORS)
def test_every_prior(tmp_path: Path, name: str) -> None:
    kl = lb.MonteCarlo(3) if name in ("student", "cauchy", "gumbel") else None
    bnn = trained(lb.Bayesian(mlp(), subspace=lb.random_k(0.6), prior=PRIORS[name], kl=kl))
    lb.save(bnn, tmp_path / "x.lb")
    assert_same(bnn, lb.load(tmp_path / "x.lb", mlp()), torch.randn(4, 3))


def test_a_prior_in_double_precision_keeps_its_digits(tmp_path: Path) -> None:
    bnn = trained(lb.Bayesian(mlp(dtype=torch.float64), prior=D.Normal(double(0.1), double(0.3))))
    lb.save(bnn, tmp_path / "x.lb")
    loaded = lb.load(tmp_path / "x.lb", mlp(dtype=torch.float64))
    assert loaded.kl().item() == bnn.kl().item()


@pytest.mark.parametrize(
    "posterior",
    [
        lb.posteriors.Normal(),
        lb.posteriors.Normal(0.2),
        lb.posteriors.Normal(lb.posteriors.GaussianRho(-4.0, 0.3)),
        lb.posteriors.Normal(lb.posteriors.RelativeScale(0.2)),
    ],
)
@pytest.mark.parametrize("kl", [lb.Exact(), lb.MonteCarlo(7)])
@pytest.mark.parametrize("propagate", ["sample", "mirrored", "local", "flipout"])
def test_every_posterior_estimator_and_propagation(tmp_path: Path, posterior: Any, kl: Any, propagate: str) -> None:
    bnn = trained(lb.Bayesian(mlp(), posterior=posterior, kl=kl, propagate=propagate))
    lb.save(bnn, tmp_path / "x.lb")
    assert_same(bnn, lb.load(tmp_path / "x.lb", mlp()), torch.randn(4, 3))


@pytest.mark.parametrize(
    "subspace",
    [
        lb.everything(),
        lb.everything(eligible=lb.not_norm),
        lb.layers("2"),
        lb.random_k(0.3),
        lb.random_k(k=1),
        lb.random_k(0.5, scope="layer", seed=4),
        lb.top_k({name: torch.rand(p.shape) for name, p in mlp().named_parameters()}, rate=0.4),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_subspace_and_dtype(tmp_path: Path, subspace: lb.subspace.Subspace, dtype: torch.dtype) -> None:
    bnn = trained(lb.Bayesian(mlp(dtype=dtype), subspace=subspace))
    lb.save(bnn, str(tmp_path / "x.lb"))
    assert_same(bnn, lb.load(str(tmp_path / "x.lb"), mlp(dtype=dtype)), torch.randn(4, 3).to(dtype))


class Tied(nn.Module):
    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


@pytest.mark.parametrize("subspace", [lb.everything(), lb.random_k(k=4)])
def test_tied_weights(tmp_path: Path, subspace: lb.subspace.Subspace) -> None:
    bnn = trained(lb.Bayesian(Tied(), subspace=subspace))
    lb.save(bnn, tmp_path / "x.lb")
    assert sum(name.startswith("model.") for name in load_file(tmp_path / "x.lb")) == 1  # the values once
    loaded = lb.load(tmp_path / "x.lb", Tied())
    assert loaded.model.head.weight is loaded.model.embedding.weight
    assert_same(bnn, loaded, torch.arange(5))


def test_a_model_that_ties_what_the_file_does_not_is_another(tmp_path: Path) -> None:
    """Two tables cannot go into one without losing one of them."""
    lb.save(trained(lb.Bayesian(Tied(tied=False))), tmp_path / "x.lb")
    with pytest.raises(lb.errors.WrongModel):
        lb.load(tmp_path / "x.lb", Tied(tied=True))


def test_buffers_frozen_parameters_and_odd_layouts(tmp_path: Path) -> None:
    def make() -> nn.Sequential:
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
        model[0].to(memory_format=torch.channels_last)
        model[3].bias.requires_grad_(False)
        model.register_buffer("empty", torch.zeros(0))
        model.register_buffer("scratch", torch.ones(2), persistent=False)
        return model

    bnn = trained(lb.Bayesian(make(), subspace=lb.random_k(0.3)))
    bnn.model[1].num_batches_tracked += 5
    lb.save(bnn, tmp_path / "x.lb")
    loaded = lb.load(tmp_path / "x.lb", make())
    assert_same(bnn, loaded, torch.randn(4, 2, 4, 4))
    assert loaded.model[1].num_batches_tracked == 5
    assert not loaded.model[3].bias.requires_grad


def test_parametrized_and_recurrent_models(tmp_path: Path) -> None:
    bnn = trained(lb.Bayesian(parametrizations.weight_norm(nn.Linear(3, 2))))
    lb.save(bnn, tmp_path / "x.lb")
    assert_same(bnn, lb.load(tmp_path / "x.lb", parametrizations.weight_norm(nn.Linear(3, 2))), torch.randn(4, 3))
    recurrent = trained(lb.Bayesian(nn.LSTM(3, 4)))
    lb.save(recurrent, tmp_path / "y.lb")
    loaded, x = lb.load(tmp_path / "y.lb", nn.LSTM(3, 4)), torch.randn(2, 1, 3)
    assert torch.equal(recurrent(x, generator=seeded())[0], loaded(x, generator=seeded())[0])


def test_the_model_given_is_the_one_filled(tmp_path: Path) -> None:
    bnn, model = trained(lb.Bayesian(mlp())), mlp()
    lb.save(bnn, tmp_path / "x.lb")
    loaded = lb.load(tmp_path / "x.lb", model)
    assert loaded.model is model
    assert all(p.requires_grad for p in loaded.parameters())
    with torch.no_grad():
        loaded.model[0].weight.zero_()
    assert_same(bnn, lb.load(tmp_path / "x.lb", mlp()), torch.randn(2, 3))  # the file is no view of the model


def test_saving_again_replaces_the_file(tmp_path: Path) -> None:
    first, second = trained(lb.Bayesian(mlp())), trained(lb.Bayesian(mlp(), subspace=lb.random_k(0.2)))
    lb.save(first, tmp_path / "x.lb")
    lb.save(second, tmp_path / "x.lb")
    assert_same(second, lb.load(tmp_path / "x.lb", mlp()), torch.randn(2, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["x.lb"]


def test_the_file_can_be_read_by_those_who_may(tmp_path: Path) -> None:
    """Permissions are those of any new file, not those of a temporary one."""
    lb.save(lb.Bayesian(mlp()), tmp_path / "x.lb")
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "x.lb").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


# ---------------------------------------------------------------- priors that a file cannot hold


class Own(D.Normal):
    """A law of the user's."""


@pytest.mark.parametrize(
    "prior",
    [
        Own(0.0, 0.5),
        D.MixtureSameFamily(
            D.Categorical(torch.tensor([0.5, 0.5])), D.Normal(torch.zeros(2), torch.tensor([1.0, 0.1]))
        ),
        D.TransformedDistribution(D.Normal(0.0, 1.0), [D.AffineTransform(0.0, 2.0)]),
        {"0.*": D.Normal(0.0, 1.0), "*": Own(0.0, 0.5)},
    ],
    ids=["own", "mixture", "transformed", "globs"],
)
def test_a_prior_that_must_be_given_again(tmp_path: Path, prior: Any) -> None:
    bnn = trained(lb.Bayesian(mlp(), prior=prior, kl=lb.MonteCarlo(3)))
    lb.save(bnn, tmp_path / "x.lb")
    model = mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(lb.errors.InputError, match="prior="):
        lb.load(tmp_path / "x.lb", model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert_same(bnn, lb.load(tmp_path / "x.lb", model, prior=prior), torch.randn(2, 3))


def test_a_prior_of_the_users_own_with_a_memory(tmp_path: Path) -> None:
    class Anchored(lb.priors.Prior):
        def remember(self, random_mean: Tensor) -> Tensor:
            return random_mean.detach().clone()

        def distribution(self, weight: Any, memory: Tensor | None) -> D.Distribution:
            assert memory is not None
            return D.Normal(memory, 0.5 + memory.abs())

    bnn = trained(lb.Bayesian(mlp(), prior=Anchored()))
    lb.save(bnn, tmp_path / "x.lb")
    assert_same(bnn, lb.load(tmp_path / "x.lb", mlp(), prior=Anchored()), torch.randn(2, 3))


# ---------------------------------------------------------------- files and models that do not belong together


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "x.lb"
    lb.save(trained(lb.Bayesian(mlp(), subspace=lb.random_k(0.5), prior=lb.priors.CentredPrior())), path)
    return path


def refused(
    path: Path, kind: type[BaseException], words: str | None = None, model: nn.Module | None = None, **more: Any
) -> None:
    """`load` raises ``kind``, and the model is what it was."""
    model = mlp() if model is None else model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(kind, match=words):
        lb.load(path, model, **more)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(before[name], after[name]) for name in before), "the model was changed by a load that failed"


def test_another_architecture(saved: Path) -> None:
    refused(
        saved,
        lb.errors.WrongModel,
        r"0\.weight.*\(8, 3\).*\(9, 3\)",
        nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 2)),
    )
    refused(saved, lb.errors.WrongModel, "layer.weight", nn.ModuleDict({"layer": nn.Linear(3, 8)}))  # type: ignore[arg-type]
    refused(saved, lb.errors.WrongModel, r"3\.weight", nn.Sequential(*mlp(), nn.Linear(2, 2)))
    refused(saved, lb.errors.WrongModel, r"2\.weight", nn.Sequential(nn.Linear(3, 8), nn.Tanh()))
    refused(saved, lb.errors.WrongModel, r"float32.*float64.*model\.to", mlp(dtype=torch.float64))


def test_a_prior_that_does_not_fit_leaves_the_model_alone(saved: Path) -> None:
    refused(saved, lb.errors.SelectionError, "nothing", prior={"nothing.*": D.Normal(0.0, 1.0)})
    refused(saved, lb.errors.NoClosedForm, "Cauchy", prior=D.Cauchy(0.0, 1.0))


def test_another_prior_may_be_given(saved: Path) -> None:
    assert lb.load(saved, mlp(), prior=D.Normal(0.0, 0.1)).kl() > 0


def test_a_memory_that_the_file_lacks_is_named(tmp_path: Path) -> None:
    """A centred prior needs the weights of the moment of conversion: a file of another prior has none."""
    lb.save(trained(lb.Bayesian(mlp())), tmp_path / "x.lb")
    refused(tmp_path / "x.lb", lb.errors.LeanBayesError, prior=lb.priors.CentredPrior())


def test_truncated_files(saved: Path) -> None:
    whole = saved.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for length in (9, 20, header - 1, header, header + 1, (header + len(whole)) // 2, len(whole) - 1):
        saved.write_bytes(whole[:length])
        refused(saved, lb.errors.TruncatedFile, "cut short")
    for length in (1, 7, 8):  # too short to say what it was
        saved.write_bytes(whole[:length])
        refused(saved, lb.errors.FileError)
    saved.write_bytes(b"")
    refused(saved, lb.errors.FileError)
    saved.write_bytes(whole + b"more")
    refused(saved, lb.errors.FileError)
    saved.write_bytes(whole)
    lb.load(saved, mlp())


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_file({"0.weight": torch.zeros(2)}, path)
    refused(path, lb.errors.ForeignFile, "leanbayes did not write it")
    for text in ("no json", "[1, 2]", "{}", '{"format": "new"}', "null"):
        save_file({"0.weight": torch.zeros(2)}, path, metadata={"leanbayes": text})
        refused(path, lb.errors.ForeignFile, "leanbayes")
    path.write_bytes(b"GIF89a" + bytes(100))
    refused(path, lb.errors.ForeignFile, "no safetensors")
    path.write_text("hello, this is a text file\n")
    refused(path, lb.errors.ForeignFile, "no safetensors")


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], Any]) -> None:
    """The same file with another header or other tensors."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["leanbayes"])
    tensors = load_file(path)
    change(header, tensors)
    save_file(tensors, path, metadata={"leanbayes": json.dumps(header)})


CHANGES: dict[str, Callable[[dict[str, Any], dict[str, Tensor]], Any]] = {
    "no ties": lambda header, tensors: header["root"].pop("ties"),
    "no random": lambda header, tensors: header["root"].pop("random"),
    "no posterior": lambda header, tensors: header["root"].pop("posterior"),
    "no kl": lambda header, tensors: header["root"].pop("kl"),
    "no root": lambda header, tensors: header.pop("root"),
    "no type": lambda header, tensors: header["root"].pop("type"),
    "unknown type": lambda header, tensors: header["root"].update(type="Oracle", parts={}, config={}, own=[]),
    "a part too many": lambda header, tensors: header.update(
        root={"type": "Ensemble", "config": {}, "own": [], "parts": {"0": header["root"], "1": header["root"]}}
    ),
    "unknown family": lambda header, tensors: header["root"]["posterior"].update(type="Wizard"),
    "unknown estimator": lambda header, tensors: header["root"]["kl"].update(type="Guess"),
    "unknown propagation": lambda header, tensors: header["root"].update(propagate="telepathy"),
    "unknown prior": lambda header, tensors: header["root"].update(prior={"distribution": "Nonsense", "fields": {}}),
    "a function as prior": lambda header, tensors: header["root"].update(
        prior={"distribution": "kl_divergence", "fields": {}}
    ),
    "unknown tensor": lambda header, tensors: header["root"]["random"].update({"9.weight": True}),
    "no rho": lambda header, tensors: tensors.pop(next(name for name in tensors if name.startswith("rho."))),
    "no index": lambda header, tensors: tensors.pop(next(name for name in tensors if name.startswith("index."))),
    "no memory": lambda header, tensors: tensors.pop(next(name for name in tensors if name.startswith("memory."))),
    "short rho": lambda header, tensors: tensors.update(
        {name: value[:-1].clone() for name, value in tensors.items() if name.startswith("rho.")}
    ),
    "far index": lambda header, tensors: tensors.update(
        {name: value + 10_000 for name, value in tensors.items() if name.startswith("index.")}
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_contradicts_itself(saved: Path, name: str) -> None:
    rewrite(saved, CHANGES[name])
    refused(saved, lb.errors.LeanBayesError)


def test_a_file_of_a_later_version(saved: Path) -> None:
    rewrite(saved, lambda header, tensors: header.update(format=99, novelty={"a": 1}))
    refused(saved, lb.errors.NewerFile, "99.*upgrade")


class Trap:
    """Unpickling this would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    victim = tmp_path / "sprung"
    for number, write in enumerate((pickle.dump, torch.save)):
        path = tmp_path / f"x{number}"
        with path.open("wb") as file:
            write(Trap(victim), file)
        refused(path, lb.errors.ForeignFile, "no safetensors")
        assert not victim.exists()
    with (tmp_path / "x0").open("rb") as file:
        pickle.load(file)  # noqa: S301 - the trap is a real one
    assert victim.exists()


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    bnn = lb.Bayesian(mlp())
    refused(tmp_path / "nowhere", lb.errors.FileError, "no file")
    refused(tmp_path, lb.errors.FileError)
    with pytest.raises(lb.errors.FileError, match="does not exist"):
        lb.save(bnn, tmp_path / "no" / "folder" / "x.lb")
    (tmp_path / "folder").mkdir()
    with pytest.raises(lb.errors.FileError, match="cannot save"):
        lb.save(bnn, tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]


def test_a_plain_module_is_saved_too(tmp_path: Path) -> None:
    model, x = mlp(), torch.randn(4, 3)
    lb.save(model, tmp_path / "x.lb", about={"trained": [1, 2.5, None]})
    again = lb.load(tmp_path / "x.lb", mlp())
    assert type(again) is nn.Sequential
    assert torch.equal(again(x), model(x))
    assert lb.about(tmp_path / "x.lb") == {"trained": [1, 2.5, None]}


def test_predictors_within_predictors_and_their_buffers(tmp_path: Path) -> None:
    members = [trained(lb.Bayesian(mlp(), subspace=lb.random_k(0.3))), trained(lb.Bayesian(mlp()))]
    whole = lb.baselines.Temperature(lb.baselines.Ensemble(*members))
    with torch.no_grad():
        whole.log_temperature.fill_(0.3)
    lb.save(whole, tmp_path / "x.lb")
    given = mlp()
    again = lb.load(tmp_path / "x.lb", given)
    assert again.log_temperature.item() == pytest.approx(0.3)
    inner = list(again.parts()["model"].parts().values())
    assert inner[0].model is given
    for one, two in zip(members, inner, strict=True):
        assert_same(one, two, torch.randn(4, 3))


def test_what_a_file_cannot_bring_back(tmp_path: Path) -> None:
    class Own(lb.baselines.Ensemble):
        pass

    with pytest.raises(lb.errors.InputError, match="Own is none of"):
        lb.save(Own(mlp(), mlp()), tmp_path / "x.lb")
    with pytest.raises(lb.errors.InputError, match="Bayesian"):
        lb.save(nn.Sequential(lb.Bayesian(mlp())), tmp_path / "x.lb")

    class Stateful(nn.Linear):
        def get_extra_state(self) -> object:
            return {"a": 1}

        def set_extra_state(self, state: object) -> None:
            pass

    with pytest.raises(lb.errors.InputError, match="extra state"):
        lb.save(lb.Bayesian(Stateful(2, 2)), tmp_path / "x.lb")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- whole or not at all


@pytest.mark.parametrize("moment", ["before", "half"])
def test_a_full_disk_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    before = saved.read_bytes()

    def full(tensors: dict[str, Tensor], filename: Any, metadata: Any = None) -> None:
        if moment == "half":
            Path(filename).write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("leanbayes._files.save_file", full)
    with pytest.raises(lb.errors.FileError, match="No space left"):
        lb.save(lb.Bayesian(mlp()), saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    with pytest.raises(lb.errors.FileError):
        lb.save(lb.Bayesian(mlp()), saved.parent / "new.lb")
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_folder_that_may_not_be_written(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "touch", forbidden)
    with pytest.raises(lb.errors.FileError, match="Permission denied"):
        lb.save(lb.Bayesian(mlp()), saved)


@pytest.mark.parametrize("blow", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_save_leaves_nothing_behind(
    saved: Path, monkeypatch: pytest.MonkeyPatch, blow: type[BaseException]
) -> None:
    before = saved.read_bytes()

    def interrupted(tensors: dict[str, Tensor], filename: Any, metadata: Any = None) -> None:
        Path(filename).write_bytes(b"half of it")
        raise blow

    monkeypatch.setattr("leanbayes._files.save_file", interrupted)
    with pytest.raises(blow):
        lb.save(lb.Bayesian(mlp()), saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_the_old_file_is_there_until_the_new_one_is(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment of writing the target still holds the old bytes: it is replaced, never written into."""
    before, seen = saved.read_bytes(), []

    def watching(tensors: dict[str, Tensor], filename: Any, metadata: Any = None) -> None:
        save_file(tensors, filename, metadata=metadata)
        folder = Path(filename).parent  # one of its own, beside the target, so that it is on the same disk
        seen.append((saved.read_bytes() == before, folder.parent == saved.parent and folder.name.endswith(".part")))

    monkeypatch.setattr("leanbayes._files.save_file", watching)
    bnn = lb.Bayesian(mlp())
    lb.save(bnn, saved)
    assert seen == [(True, True)]
    assert_same(bnn, lb.load(saved, mlp()), torch.randn(2, 3))


def test_what_cannot_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    """A family of the user's own has no name in a file: better to hear it now than when it is needed."""

    class Narrow(lb.posteriors.Normal):
        def spread(self, rho: Tensor) -> Tensor:
            return 0.1 * super().spread(rho)

    with pytest.raises(lb.errors.InputError, match="Narrow"):
        lb.save(lb.Bayesian(mlp(), posterior=Narrow()), tmp_path / "x.lb")


# ---------------------------------------------------------------- sparse models


def cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2)),
        *(nn.Flatten(), nn.Linear(16, 2)),
    )


def sparse_cnn(**options: Any) -> lb.Bayesian:
    own = {"propagate": "local", "prior": lb.priors.CentredPrior()} | options
    return trained(lb.Bayesian(cnn(), subspace=lb.sparse(0.4, inside=own.pop("inside", None)), **own))


IMAGES = (3, 1, 4, 4)


@pytest.mark.parametrize("propagate", ["sample", "mirrored", "local", "flipout", "moments"])
@pytest.mark.parametrize("inside", [None, lb.random_k(0.5), lb.layers("5")], ids=["all", "part", "last"])
def test_sparse_models(tmp_path: Path, propagate: str, inside: lb.subspace.Subspace | None) -> None:
    bnn = sparse_cnn(inside=inside, propagate=propagate)
    lb.save(bnn, tmp_path / "x.lb")
    for target in (cnn(), lb.make_sparse(cnn(), 0.4), lb.make_sparse(cnn(), 0.4, seed=9)):
        target(torch.randn(IMAGES))  # kernels may have made plans for the positions of this one
        again = lb.load(tmp_path / "x.lb", target)
        assert again.model is target
        assert_same(bnn, again, torch.randn(IMAGES))
        assert [type(module) for module in again.modules()] != [type(module) for module in cnn().modules()]
        assert again.summary() == bnn.summary()
        dense, other = bnn.densify().eval(), again.densify().eval()
        x = torch.randn(IMAGES)
        assert torch.equal(dense(x), other(x))


def test_a_sparse_file_is_small(tmp_path: Path) -> None:
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(2, 400), nn.Linear(400, 400)), subspace=lb.sparse(0.01))
    lb.save(bnn, tmp_path / "x.lb")
    assert (tmp_path / "x.lb").stat().st_size < 3 * 4 * 1600 + 3 * 4 * 1600 + 4000
    again = lb.load(tmp_path / "x.lb", nn.Sequential(nn.Linear(2, 400), nn.Linear(400, 400)))
    assert max(p.untyped_storage().nbytes() for p in again.parameters()) <= 4 * 1600


def test_sparse_modules_that_are_not_random_and_ensembles_of_them(tmp_path: Path) -> None:
    x = torch.randn(IMAGES)
    plain = lb.make_sparse(cnn(), 0.3, layout="erdos_renyi").eval()
    lb.save(plain, tmp_path / "plain")
    assert torch.equal(lb.load(tmp_path / "plain", cnn().eval())(x), plain(x))
    alone = lb.make_sparse(nn.Linear(5, 5), 0.3, dense=())
    lb.save(alone, tmp_path / "alone")
    again = lb.load(tmp_path / "alone", nn.Linear(5, 5))
    assert torch.equal(again(torch.ones(2, 5)), alone(torch.ones(2, 5)))
    both = lb.baselines.Ensemble(sparse_cnn().eval(), trained(lb.Bayesian(cnn())).eval())
    lb.save(both, tmp_path / "both")
    result = lb.load(tmp_path / "both", cnn()).eval()
    ours, theirs = (lb.predict(m, x, samples=2, method="loop", generator=seeded()) for m in (both, result))
    assert torch.equal(ours.mean, theirs.mean)


def block_cnn(block: int = 2, seed: int = 0) -> nn.Module:
    return lb.make_sparse(cnn(), 0.5, block=block, seed=seed).eval()


def test_blocks_survive_a_file(tmp_path: Path) -> None:
    x, model = torch.randn(IMAGES), block_cnn()
    lb.save(model, tmp_path / "blocks")
    assert [scatter.block for scatter in scatters(model).values()] == [2, 2]
    for target in (cnn().eval(), block_cnn(seed=3), block_cnn(block=1)):
        again = lb.load(tmp_path / "blocks", target)
        assert [scatter.block for scatter in scatters(again).values()] == [2, 2]
        assert torch.equal(again(x), model(x))
    lb.save(block_cnn(block=1), tmp_path / "single")
    again = lb.load(tmp_path / "single", block_cnn())
    assert [scatter.block for scatter in scatters(again).values()] == [1, 1]
    with torch.device("meta"):
        empty = cnn()
    assert [scatter.block for scatter in scatters(lb.load(tmp_path / "blocks", empty)).values()] == [2, 2]


@pytest.mark.parametrize("block", [4, 3, 1.5])
def test_a_file_with_other_blocks_than_its_positions_is_refused(tmp_path: Path, block: Any) -> None:
    wrong = block_cnn()
    next(iter(scatters(wrong).values())).block = block
    lb.save(wrong, tmp_path / "blocks")
    for model in (cnn(), block_cnn(block=1)):
        refused(tmp_path / "blocks", lb.errors.ForeignFile, "contradicts itself.*not in blocks", model)
        assert all(scatter.block == 1 for scatter in scatters(model).values())


def test_a_log_uniform_prior(tmp_path: Path) -> None:
    bnn = sparse_cnn(prior=lb.priors.LogUniformLaw(0.0))
    lb.save(bnn, tmp_path / "x.lb")
    assert_same(bnn, lb.load(tmp_path / "x.lb", cnn()), torch.randn(IMAGES))


def _index(tensors: dict[str, Tensor]) -> str:
    return next(name for name in tensors if name.endswith("3.parametrizations.weight.0.index"))


def _values(tensors: dict[str, Tensor]) -> str:
    return next(name for name in tensors if name == "model.3.parametrizations.weight.original")


SPARSE_CHANGES: dict[str, Callable[[dict[str, Any], dict[str, Tensor]], Any]] = {
    "far": lambda _, t: t[_index(t)].add_(10_000),
    "one beyond": lambda _, t: t[_index(t)].__setitem__(-1, 72),
    "negative": lambda _, t: t[_index(t)].__setitem__(0, -1),
    "turned": lambda _, t: t.update({_index(t): t[_index(t)].flip(0).contiguous()}),
    "twice": lambda _, t: t[_index(t)].__setitem__(1, int(t[_index(t)][0])),
    "fractions": lambda _, t: t.update({_index(t): t[_index(t)].float()}),
    "empty": lambda _, t: t.update({_index(t): t[_index(t)][:0].clone()}),
    "two axes": lambda _, t: t.update({_index(t): t[_index(t)][None].clone()}),
    "short positions": lambda _, t: t.update({_index(t): t[_index(t)][:-1].clone()}),
    "short values": lambda _, t: t.update({_values(t): t[_values(t)][:-1].clone()}),
    "no positions": lambda _, t: t.pop(_index(t)),
    "no values": lambda _, t: t.pop(_values(t)),
    "another shape": lambda h, _: h["root"]["sparse"].update({"3.parametrizations.weight.original": [9, 9]}),
    "no layer": lambda h, _: h["root"]["sparse"].update({"1.parametrizations.weight.original": [4]}),
    "no longer sparse": lambda h, _: h["root"].pop("sparse"),
    "sparse what?": lambda h, _: h["root"].update(sparse=7),
    "short scales": lambda _, t: t.update({n: v[:-1].clone() for n, v in t.items() if n.startswith("rho.")}),
}


@pytest.fixture
def saved_sparse(tmp_path: Path) -> Path:
    lb.save(sparse_cnn(), tmp_path / "sparse.lb")
    return tmp_path / "sparse.lb"


def partly_sparse() -> nn.Sequential:
    return lb.make_sparse(cnn(), 0.4, dense=("0", "5"))  # type: ignore[return-value]


@pytest.mark.parametrize("name", SPARSE_CHANGES)
def test_a_sparse_file_that_contradicts_itself(saved_sparse: Path, name: str) -> None:
    """Refused, and the model is as dense, as sparse or as half of it as it was, with its own positions."""
    rewrite(saved_sparse, SPARSE_CHANGES[name])
    for model in (cnn(), lb.make_sparse(cnn(), 0.4, seed=5), partly_sparse()):
        if name == "no longer sparse" and scatters(model).keys() == scatters(sparse_cnn().model).keys():
            continue  # the tensors say it all
        kinds, sparse = [type(module) for module in model.modules()], list(scatters(model))
        refused(saved_sparse, lb.errors.LeanBayesError, None, model)
        assert [type(module) for module in model.modules()] == kinds
        assert list(scatters(model)) == sparse
        assert [name for name, _ in model.named_parameters()]
        model(torch.randn(IMAGES))


def test_sparse_files_and_models_that_do_not_belong_together(saved_sparse: Path, saved: Path) -> None:
    wider = cnn()
    wider[3] = nn.Conv2d(4, 6, 3, groups=2)
    refused(saved_sparse, lb.errors.WrongModel, r"'3\.weight' has shape \(4, 2, 3, 3\)", wider)
    refused(saved_sparse, lb.errors.WrongModel, "tensors", mlp())
    refused(saved_sparse, lb.errors.WrongModel, "tensors", nn.Sequential(*cnn()[:5]))
    refused(saved_sparse, lb.errors.WrongModel, "shape", lb.make_sparse(cnn(), 0.3))
    refused(saved_sparse, lb.errors.WrongModel, "tensors", lb.make_sparse(cnn(), 0.4, dense=()))
    refused(saved_sparse, lb.errors.WrongModel, "float64", cnn().double())
    refused(saved, lb.errors.WrongModel, "tensors", lb.make_sparse(mlp(), 0.5))
    normed = cnn()
    normed[3] = parametrizations.weight_norm(normed[3])
    refused(saved_sparse, lb.errors.WrongModel, "tensors", normed)
    refused(saved_sparse, lb.errors.NoClosedForm, "Cauchy", cnn(), prior=D.Cauchy(0.0, 1.0))


def test_a_truncated_sparse_file(saved_sparse: Path) -> None:
    whole = saved_sparse.read_bytes()
    for length in (20, len(whole) // 2, len(whole) - 1):
        saved_sparse.write_bytes(whole[:length])
        refused(saved_sparse, lb.errors.TruncatedFile, "cut short", cnn())


def test_what_is_random_is_saved_beside_weights_that_another_tool_saves(tmp_path: Path) -> None:
    bnn = lb.Bayesian(nn.Linear(3, 2), subspace=lb.random_k(0.5), posterior=lb.posteriors.Radial(), propagate="local")
    with torch.no_grad():
        for _, parts in bnn.parts():
            parts.rho.normal_()
    lb.save(bnn, tmp_path / "random.lb", only="random", about={"adapter": "a"})
    again = lb.load(tmp_path / "random.lb", copy.deepcopy(bnn.model))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in bnn.state_dict().items())
    assert (again.posterior, again.propagate) == (bnn.posterior, bnn.propagate)
    assert lb.about(tmp_path / "random.lb") == {"adapter": "a"}
    big = nn.Linear(300, 300).requires_grad_(False)
    partial = lb.Bayesian(nn.Sequential(big, nn.Linear(300, 1)), subspace=lb.layers("1.*"))
    lb.save(partial, tmp_path / "small.lb", only="random")
    assert (tmp_path / "small.lb").stat().st_size < 5_000, "neither frozen weights nor means are in the file"


def test_scales_of_other_weights_are_refused(tmp_path: Path) -> None:
    bnn = lb.Bayesian(nn.Linear(3, 2), subspace=lb.layers("weight"))
    lb.save(bnn, tmp_path / "random.lb", only="random")
    model = copy.deepcopy(bnn.model)
    with torch.no_grad():
        model.bias[0] += 1e-6  # a weight that is not random, but was trained
    before = model.bias.clone()
    with pytest.raises(WrongModel, match=r"scales for other weights than the model has: 1 of 2 .*first \['bias'\]"):
        lb.load(tmp_path / "random.lb", model)
    assert torch.equal(model.bias, before)
    with pytest.raises(WrongModel, match=r"2 of 2 .*torch.float64 here"):
        lb.load(tmp_path / "random.lb", copy.deepcopy(bnn.model).double())
    with pytest.raises(WrongModel, match=r"the model lacks 2 of its 2 weights"):
        lb.load(tmp_path / "random.lb", nn.Sequential(nn.Linear(3, 2)))


def test_only_takes_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown value of only 'means'"):
        lb.save(lb.Bayesian(nn.Linear(1, 1)), tmp_path / "x.lb", only="means")
    with pytest.raises(InputError, match="a Linear has no such part"):
        lb.save(nn.Linear(1, 1), tmp_path / "x.lb", only="random")
    with pytest.raises(InputError, match="this model is sparse"):
        lb.save(lb.Bayesian(mlp(), subspace=lb.sparse(density=0.5)), tmp_path / "x.lb", only="random")


@pytest.mark.parametrize("only", [None, "random"])
def test_a_draw_is_not_saved_as_if_it_were_the_means(tmp_path: Path, only: Any) -> None:
    bnn = lb.Bayesian(nn.Linear(1, 1))
    with pytest.raises(InputError, match="the parameters hold a draw"), bnn.drawn():
        lb.save(bnn, tmp_path / "x.lb", only=only)
    assert not (tmp_path / "x.lb").exists()


@pytest.mark.parametrize("model", [lambda x: x, None, nn.Linear])
def test_only_a_module_is_saved(model: Any, tmp_path: Path) -> None:
    with pytest.raises(lb.errors.InputError, match="must be a torch"):
        lb.save(model, tmp_path / "a.lb")
