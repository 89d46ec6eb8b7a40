"""Checkpoints: how many stay, what they hold, and what is refused."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import leanbayes as lb
from leanbayes import _files
from leanbayes._files import read_tensors, write_tensors
from leanbayes.train import batches
from leanbayes.train.checkpoint import Checkpoints, Training, module_state

BATCHES = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))] * 3


def train(folder: Path, **options: Any) -> lb.Bayesian:
    torch.manual_seed(2)
    model = dict(options.pop("model", {}))
    bnn = lb.Bayesian(model.pop("net", nn.Linear(3, 2)).to(model.pop("dtype", torch.float32)), **model)
    batches = [(x.to(next(bnn.parameters()).dtype), y) for x, y in options.pop("train", BATCHES)]
    lb.fit(bnn, batches, **({"likelihood": lb.Categorical(), "epochs": 2, "checkpoint": folder} | options))
    return bnn


@pytest.mark.parametrize(("every", "keep", "steps"), [(None, 2, [3, 6]), (1, 3, [4, 5, 6]), (4, 1, [6])])
def test_the_newest_stay(tmp_path: Path, every: int | None, keep: int, steps: list[int]) -> None:
    train(tmp_path, checkpoint=lb.Checkpointing(tmp_path, every, keep))
    files = Checkpoints(tmp_path, keep).files()
    assert [int(path.stem.removeprefix("step-")) for path in files] == steps


def loader(change: float = 0.0, part: Sequence[int] | None = None) -> DataLoader[Any]:
    """The batches as a loader whose last example, or the choice of examples, may differ."""
    x, y = (torch.cat(tensors) for tensors in zip(*BATCHES, strict=True))
    x[-1] += change
    data = TensorDataset(x, y)
    return DataLoader(data if part is None else Subset(data, part), batch_size=4)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (BATCHES, [*BATCHES[:-1], (BATCHES[-1][0] + 1e-3, BATCHES[-1][1])]),
        (loader(), loader(1e-3)),
        (loader(part=range(10)), loader(part=[*range(9), 11])),
    ],
    ids=["list", "loader", "subset"],
)
def test_data_in_memory_that_differ_after_the_first_batch_make_another_training(
    tmp_path: Path, first: Any, second: Any
) -> None:
    def fit(data: Any) -> None:
        torch.manual_seed(2)
        lb.fit(lb.Bayesian(nn.Linear(3, 2)), data, likelihood=lb.Categorical(), epochs=2, checkpoint=tmp_path)

    fit(first)
    fit(first)
    with pytest.raises(lb.errors.OtherTraining, match=r"holds a training with {'data\.numbers'"):
        fit(second)


def test_of_large_data_evenly_spaced_examples_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_MOST_BYTES", 64)
    data = torch.zeros(32, 1)  # 128 bytes, so that every second example counts
    others = [data.clone().index_fill_(0, torch.tensor(place), 1.0) for place in (4, 5)]
    sums = [batches._checksum_of_tensors(TensorDataset(values)) for values in (data, *others)]
    assert sums[0] != sums[1]
    assert sums[0] == sums[2]


def other_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(x + 1e-3, y) for x, y in BATCHES]


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"optimizer": lb.Optimization(lr=0.1)}, r"optimizer\.groups\[0\]\.lr': 0\.001.*lr': 0\.1"),
        ({"optimizer": lb.Optimization(scale_lr=0.1)}, r"optimizer\.groups\[1\]\.lr'"),
        ({"optimizer": lb.Optimization(weight_decay=0.1)}, r"weight_decay': 0\.0.*weight_decay': 0\.1"),
        ({"optimizer": "sgd"}, r"optimizer\.type': 'Adam'.*'SGDWithAdamForScales'"),
        ({"optimizer": lambda groups: torch.optim.Adam(groups, betas=(0.8, 0.999))}, r"betas\[0\]': 0\.9.*0\.8"),
        ({"optimizer": lb.Optimization(schedule="cosine")}, "'schedule': None.*CosineAnnealingLR"),
        ({"optimizer": lb.Optimization(clip=1.0)}, "'clip': None.*'clip': 1.0"),
        ({"optimizer": lb.Optimization(micro_batches=2)}, "'parts': 1.*'parts': 2"),
        ({"optimizer": lb.Optimization(hold_statistics=False)}, "hold_statistics"),
        ({"kl_weight": 0.5}, r"'kl_weight\.values\[0\]': 1\.0.*0\.5"),
        ({"kl_weight": lb.anneal(0.3)}, "kl_weight"),
        ({"kl_weight": lambda progress: 0.3}, "kl_weight"),
        ({"kl_weight": lb.Terms(1.0, temperature=0.5)}, r"'terms\.temperature': 1\.0.*0\.5"),
        ({"samples": 2}, r"'terms\.samples': 1.*2"),
        ({"seed": 1}, "'seed': 0.*'seed': 1"),
        ({"n_data": 50}, "'n_data': 12.*'n_data': 50"),
        ({"likelihood": lb.Categorical(class_weights=torch.tensor([1.0, 2.0]))}, "likelihood"),
        ({"output": lambda returned: returned}, "output"),
        ({"validate": BATCHES}, "'validation': None"),
        ({"train": other_batches()}, r"data\.first batch\.checksum"),
        ({"train": [(x[:, :], y) for x, y in BATCHES] + BATCHES[:1]}, "'batches': 3.*'batches': 4"),
        ({"model": {"prior": torch.distributions.Normal(0.0, 2.0)}}, r"'model\.prior\.scale': 1\.0.*2\.0"),
        ({"model": {"posterior": lb.posteriors.Normal(0.2)}}, r"'model\.posterior\.init_scale': 0\.05.*0\.2"),
        ({"model": {"posterior": lb.posteriors.Radial()}}, r"'model\.posterior\.type': 'Normal'.*'Radial'"),
        ({"model": {"propagate": "local"}}, r"'model\.propagate\.type': 'Sample'.*'Local'"),
        ({"model": {"kl": lb.MonteCarlo(5)}}, r"'model\.kl\.type': 'Exact'.*'MonteCarlo'"),
        ({"model": {"subspace": lb.random_k(0.5)}}, r"model\.subspace"),
        ({"model": {"dtype": torch.float64}}, r"'model\.dtype\[0\]': 'float32'.*'float64'"),
        ({"model": {"net": nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1))}}, r"model\.architecture"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_setting_that_changes_the_result_makes_another_training(
    tmp_path: Path, other: dict[str, Any], field: str
) -> None:
    """Another learning rate, prior, dtype or data set went on with the old training, or with half of it."""
    train(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(lb.errors.OtherTraining, match=r"holds a training with.*this one has.*another folder") as caught:
        train(tmp_path, **other)
    assert re.search(field, str(caught.value)), caught.value
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_refused_checkpoint_changes_nothing_in_the_model(tmp_path: Path) -> None:
    train(tmp_path)
    bnn = lb.Bayesian(nn.Linear(3, 2))
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    with pytest.raises(lb.errors.OtherTraining):
        lb.fit(bnn, BATCHES, likelihood=lb.Categorical(), epochs=2, checkpoint=tmp_path, seed=5)
    assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())


def test_the_same_settings_in_other_objects_go_on(tmp_path: Path) -> None:
    def options() -> dict[str, Any]:
        how = lb.Optimization(
            lambda groups: torch.optim.RMSprop(groups, lr=0.01),
            schedule=lambda optimizer, steps: torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: 1 - step / steps
            ),
        )
        likelihood = lb.Categorical(class_weights=torch.tensor([1.0, 2.0]))
        return {"optimizer": how, "likelihood": likelihood, "kl_weight": lambda progress: 0.3 * progress}

    whole = train(tmp_path, **options())
    files = Checkpoints(tmp_path, 2).files()
    files[-1].unlink()
    resumed = train(tmp_path, **options())
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())


def test_a_checkpoint_of_version_0_1_is_continued_with_a_warning(tmp_path: Path) -> None:
    """Version 0.1 wrote fewer settings, and no state of the engine."""
    whole = train(tmp_path / "whole")
    train(tmp_path / "old", checkpoint=lb.Checkpointing(tmp_path / "old", every=1, keep=6))
    files = Checkpoints(tmp_path / "old", 6).files()
    header, tensors = read_tensors(files[1], "checkpoint", 1)
    run = header["progress"]["run"]
    header["progress"]["run"] = {name: run[name] for name in ("epochs", "batches", "n_data", "seed", "parts")}
    header["progress"]["epochs"] = []
    del header["progress"]["engine"]
    write_tensors(files[1], {name: value for name, value in tensors.items() if name[:4] != "note"}, header)
    for newer in files[2:]:
        newer.unlink()
    with pytest.warns(lb.errors.UncheckedCheckpoint, match=r"did not record.*optimizer.*likelihood.*choose another"):
        resumed = train(tmp_path / "old")
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())


@pytest.mark.parametrize("damage", ["cut", "empty", "zeros", "flipped", "text"])
def test_a_damaged_checkpoint_is_replaced_by_the_one_before_it(tmp_path: Path, damage: str) -> None:
    """The run stopped, although the previous checkpoint was there; a flipped bit became a weight."""
    whole = train(tmp_path / "whole", validate=BATCHES)
    options: dict[str, Any] = {"validate": BATCHES, "checkpoint": lb.Checkpointing(tmp_path / "run", every=1, keep=3)}
    train(tmp_path / "run", **options)
    *_, previous, newest = Checkpoints(tmp_path / "run", 3).files()
    data = bytearray(newest.read_bytes())
    data[-3] ^= 64
    newest.write_bytes(
        {"cut": data[:-9], "empty": b"", "zeros": bytes(len(data)), "flipped": data, "text": b"hello, hello"}[damage]
    )
    with pytest.warns(lb.errors.DamagedCheckpoint, match=rf"{newest.name} cannot be read.*{previous.name}, the check"):
        resumed = train(tmp_path / "run", **options)
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())
    assert len(Checkpoints(tmp_path / "run", 3).files()) == 3
    train(tmp_path / "run", **options)  # without a warning


def test_no_readable_checkpoint_is_an_error(tmp_path: Path) -> None:
    train(tmp_path)
    for path in Checkpoints(tmp_path, 2).files():
        path.write_bytes(b"")
    with pytest.raises(lb.errors.FileError, match=r"no checkpoint in .* can be read.*remove the folder"):
        train(tmp_path)


def test_the_remains_of_a_kill_are_swept(tmp_path: Path) -> None:
    remains = tmp_path / f".step-0000000001.safetensors.{_files._machine()}-{2**22 + 1}-0123abcd.part"
    remains.write_bytes(b"half a checkpoint")
    train(tmp_path)
    assert not remains.exists()


def test_a_long_history_fits_into_a_checkpoint(tmp_path: Path) -> None:
    """A header has a bound of 100,000 values, and a training may have any number of epochs."""
    train(tmp_path)
    store = Checkpoints(tmp_path, 2)
    bnn = lb.Bayesian(nn.Linear(3, 2))
    row = asdict(lb.train.Epoch(0, 0.1, 0.2, 0.3, 1.0, None, 0.5))
    rows = [row | {"epoch": index, "validation": None if index % 2 else 0.1 * index} for index in range(30_000)]
    training = Training(bnn, torch.optim.Adam(bnn.parameters()), None, {"epochs": rows, "run": {}})
    store.save(training, 90_000)
    restored = Training(bnn, torch.optim.Adam(bnn.parameters()), None, {})
    assert store.restore(restored, lambda path, progress: None) is not None
    assert restored.progress["epochs"] == rows


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(lb.errors.FileError, match="cannot make the checkpoint folder"):
        train(tmp_path / "file" / "folder")


def test_tied_tensors_are_held_once() -> None:
    model = nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)})
    model["two"].weight = model["one"].weight
    assert list(module_state(model)) == ["one.weight", "one.bias", "two.bias"]
