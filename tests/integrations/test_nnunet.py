"""nnU-Net: folds as an ensemble, networks as the start of Bayesian ones, and files that must not run code."""

import codecs
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import leanbayes as lb
from leanbayes.errors import FileError, ForeignFile, InputError, LeanBayesError, TruncatedFile
from leanbayes.integrations.nnunet import read_ensemble, read_network, read_plans
from tests.integrations.matrix import shows
from tests.integrations.nnunet_folder import KINDS, nnunet_folder
from tests.integrations.pages import run_page


def image(dims: int = 2, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 1, *[16] * dims, generator=torch.Generator().manual_seed(0))


@shows("nnU-Net", "The network of a fold gives the logits that nnU-Net's own network gives, bit for bit.")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [2, 3])
def test_a_fold_gives_the_logits_of_its_network(tmp_path: Path, kind: str, dims: int) -> None:
    folder, networks = nnunet_folder(tmp_path, kind, dims)
    x = image(dims)
    for fold, original in enumerate(networks):
        ours = read_network(folder, fold)
        assert not ours.training
        assert torch.equal(ours(x), original(x)[0])  # nnU-Net trains with the outputs of all resolutions
        deep = read_network(folder, fold, deep_supervision=True)(x)
        assert [torch.equal(a, b) for a, b in zip(deep, original(x), strict=True)] == [True, True]
    assert not torch.equal(read_network(folder, 0)(x), read_network(folder, 1)(x))


@shows("nnU-Net", "The trained folds are an Ensemble, whose prediction is the mean of the folds' probabilities.")
def test_folds_are_an_ensemble(tmp_path: Path) -> None:
    folder, networks = nnunet_folder(tmp_path, folds=3)
    x = image()
    ensemble = read_ensemble(folder)
    assert ensemble.members == 3
    prediction = lb.predict(ensemble, x, likelihood=read_plans(folder).likelihood)
    expected = torch.stack([net(x)[0].softmax(1) for net in networks]).mean(0)
    torch.testing.assert_close(prediction.mean, expected)
    assert (prediction.epistemic > 0).any()
    assert read_ensemble(folder, [2, 0]).members == 2
    lb.save(ensemble, tmp_path / "ensemble.lb")
    back = lb.load(tmp_path / "ensemble.lb", read_network(folder))
    torch.testing.assert_close(lb.predict(back, x, likelihood=lb.Categorical()).mean, expected)


@shows("nnU-Net", "A trained network is the start of a partial Bayesian one, which trains and is saved.")
def test_a_network_is_the_start_of_a_partial_bayesian_one(tmp_path: Path) -> None:
    folder, _ = nnunet_folder(tmp_path)
    net, x = read_network(folder), image()
    y = (x[:, 0] > 0).long()
    before = net(x)
    scores = lb.sensitivity(net, [(x, y)], lb.Categorical())
    bnn = lb.Bayesian(net, subspace=lb.top_k(scores, rate=0.01))
    lb.fit(bnn, [(x, y)], likelihood=lb.Categorical(), epochs=3)
    lb.save(bnn, tmp_path / "bnn.lb")
    back = lb.load(tmp_path / "bnn.lb", read_network(folder))
    draws = [lb.predict(model, x, samples=4, generator=torch.Generator().manual_seed(1)).mean for model in (bnn, back)]
    torch.testing.assert_close(*draws)
    assert not torch.equal(draws[0], before.softmax(1))


def test_plans_say_what_the_network_needs(tmp_path: Path) -> None:
    folder, _ = nnunet_folder(tmp_path)
    plans = read_plans(folder)
    assert (plans.configuration, plans.channels, plans.labels) == ("2d", 1, ("background", "lesion"))
    assert (plans.patch_size, plans.spacing, plans.regions) == ((16, 16), (1.5, 1.5), False)
    assert isinstance(plans.likelihood, lb.Categorical)
    assert read_plans(folder, "2d_again").spacing == (2.0, 2.0)
    change(
        folder / "dataset.json", lambda content: content.update(labels={"background": 0, "whole": [1, 2], "core": 2})
    )
    regions = read_plans(folder)
    assert (regions.labels, regions.regions) == (("whole", "core"), True)
    assert isinstance(regions.likelihood, lb.Bernoulli)
    change(folder / "dataset.json", lambda content: content.update(labels={"background": 0, "a": 1, "ignore": 2}))
    assert read_plans(folder).labels == ("background", "a")


def change(path: Path, how: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    how(content)
    path.write_text(json.dumps(content))


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@shows("nnU-Net", "A checkpoint that would run code is refused, and nothing of it runs.")
def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    folder, _ = nnunet_folder(tmp_path)
    file, mark = folder / "fold_0" / "checkpoint_final.pth", tmp_path / "ran"
    content = torch.load(file, weights_only=False)
    torch.save(content | {"logging": Bomb(mark)}, file)
    with pytest.raises(ForeignFile, match="more than weights and plain values"):
        read_network(folder)
    assert not mark.exists()
    file.write_bytes(pickle.dumps(Bomb(mark), protocol=2))  # no archive of torch, but a bare pickle
    with pytest.raises(LeanBayesError):
        read_network(folder)
    assert not mark.exists()


class Call:
    """A pickle that calls a function that torch's reader of weights allows."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def test_a_small_checkpoint_cannot_fill_the_memory(tmp_path: Path) -> None:
    """Before, each of these was read: bytes that were packed, made by their number, or doubled by a codec."""
    folder, _ = nnunet_folder(tmp_path)
    file = folder / "fold_0" / "checkpoint_final.pth"
    whole, content = file.read_bytes(), torch.load(file, weights_only=False)
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in old.namelist():
            packed.writestr(name, old.read(name))
    with pytest.raises(ForeignFile, match="unpack to more than its size"):
        read_network(folder)
    twice = Call(codecs.encode, Call(codecs.encode, b"ab", "hex"), "hex")
    for hostile in (Call(bytearray, 10), twice):
        torch.save(content | {"logging": hostile}, file)
        with pytest.raises(ForeignFile, match="more than weights and plain values"):
            read_network(folder)
    torch.save(content, file, _use_new_zipfile_serialization=False)  # a format without sizes and checksums
    with pytest.raises(LeanBayesError, match="no checkpoint of nnU-Net"):
        read_network(folder)
    file.write_bytes(whole)
    for count in (10**7, [10**7, 1, 1]):  # this would build layers for hours

        def lengthen(content: dict[str, Any], count: Any = count) -> None:
            content["configurations"]["2d"]["architecture"]["arch_kwargs"]["n_conv_per_stage"] = count

        change(folder / "plans.json", lengthen)
        with pytest.raises(ForeignFile, match="more layers than"):
            read_network(folder)


def test_a_flipped_bit_is_an_error(tmp_path: Path) -> None:
    """Before, torch read the other number: it does not look at the checksums that it writes."""
    folder, _ = nnunet_folder(tmp_path)
    file = folder / "fold_0" / "checkpoint_final.pth"
    damaged = bytearray(file.read_bytes())
    weights = torch.load(file, weights_only=False)["network_weights"]
    first = next(iter(weights.values())).numpy().tobytes()
    damaged[bytes(damaged).index(first) + 3] ^= 0x40
    file.write_bytes(damaged)
    with pytest.raises(TruncatedFile, match="checksum"):
        read_network(folder)


@pytest.mark.parametrize(
    "name",
    ["os.system", "torch.nn.Linear", "dynamic_network_architectures.architectures.unet.os", "my_package.PlainConvUNet"],
)
def test_plans_cannot_name_other_code(tmp_path: Path, name: str) -> None:
    folder, _ = nnunet_folder(tmp_path)

    def rename(content: dict[str, Any]) -> None:
        content["configurations"]["2d"]["architecture"]["network_class_name"] = name

    change(folder / "plans.json", rename)
    with pytest.raises(InputError, match="must not decide which code runs"):
        read_network(folder)


def test_plans_cannot_name_other_layers(tmp_path: Path) -> None:
    folder, _ = nnunet_folder(tmp_path)

    def rename(content: dict[str, Any]) -> None:
        content["configurations"]["2d"]["architecture"]["arch_kwargs"]["nonlin"] = "os.system"

    change(folder / "plans.json", rename)
    with pytest.raises(ForeignFile, match=r"the layer 'os.system'"):
        read_network(folder)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder, _ = nnunet_folder(tmp_path)
    with pytest.raises(FileError, match=r"no file .*fold_7"):
        read_network(folder, 7)
    with pytest.raises(InputError, match="different numbers"):
        read_ensemble(folder, [0, 0])
    with pytest.raises(InputError, match="configurations"):
        read_plans(folder, "3d_fullres")
    with pytest.raises(InputError, match="trained with the configuration '2d', not '2d_again'"):
        read_network(folder, configuration="2d_again")
    with pytest.raises(FileError, match=r"plans\.json"):
        read_plans(tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(FileError, match=r"no fold_\*"):
        read_ensemble(tmp_path / "none")
    file = folder / "fold_0" / "checkpoint_final.pth"
    data = file.read_bytes()
    for cut in (0, 10, len(data) // 2, len(data) - 50):
        file.write_bytes(data[:cut])
        with pytest.raises(LeanBayesError):
            read_network(folder)
    torch.save({"state_dict": {}}, file)
    with pytest.raises(ForeignFile, match="no network_weights"):
        read_network(folder)


def test_plans_that_ask_for_another_or_a_giant_network(tmp_path: Path) -> None:
    folder, _ = nnunet_folder(tmp_path)
    for features in ([4, 8, 32], [10**6, 10**6, 10**6]):  # the second one would need terabytes

        def widen(content: dict[str, Any], features: list[int] = features) -> None:
            content["configurations"]["2d"]["architecture"]["arch_kwargs"]["features_per_stage"] = features

        change(folder / "plans.json", widen)
        with pytest.raises(ForeignFile, match="does not fit the network"):
            read_network(folder)
    change(folder / "plans.json", lambda content: content["configurations"]["2d"].pop("architecture"))
    with pytest.raises(ForeignFile, match=r"nnU-Net 2\.4"):
        read_network(folder)
    change(folder / "plans.json", lambda content: content["configurations"]["2d"].update(inherits_from="2d"))
    with pytest.raises(ForeignFile, match="inherits from"):
        read_network(folder)
    (folder / "plans.json").write_text("[]")
    with pytest.raises(ForeignFile):
        read_network(folder)
    (folder / "plans.json").write_text("{")
    with pytest.raises(ForeignFile, match="no JSON"):
        read_network(folder)


@shows("nnU-Net", "The code of the page on nnU-Net runs.")
def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nnunet_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    run_page("docs/integrations/nnunet.md", tmp_path)
