"""MONAI: training by its trainer, windows of one draw, meta data, and bundles."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import MetaTensor
from monai.inferers import SlidingWindowInferer, sliding_window_inference
from monai.networks.nets import UNet
from torch import nn

import leanbayes as lb
from leanbayes.integrations.monai import UncertainInferer, VariationalUpdate, load_network, plain, save_bundle
from tests.integrations.matrix import shows
from tests.integrations.pages import run_page

NET = {
    "_target_": "UNet",
    "spatial_dims": 2,
    "in_channels": 1,
    "out_channels": 2,
    "channels": [4, 8],
    "strides": [2],
}


def unet(**options: Any) -> lb.Bayesian:
    torch.manual_seed(0)
    net = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,))
    return lb.Bayesian(net, posterior=lb.posteriors.Normal(init_scale=0.1), **options)


def images(count: int = 2, size: int = 8) -> MetaTensor:
    values = torch.randn(count, 1, size, size, generator=torch.Generator().manual_seed(0))
    return MetaTensor(values, affine=2 * torch.eye(4), meta={"filename_or_obj": "scan.nii"})


@shows("MONAI", "Sliding windows of a prediction see one and the same weight draw, and keep the meta data.")
@shows("MONAI", "A MetaTensor keeps its meta data through a prediction.")
def test_windows_of_one_draw_with_meta_data() -> None:
    bnn, x = unet(), images()
    windows = SlidingWindowInferer((4, 4), 3, overlap=0.5)
    result = UncertainInferer(windows, samples=3, seed=5)(x, bnn)
    assert isinstance(result, MetaTensor)
    assert result.shape == (2, 2 + 1 + 1, 8, 8)
    torch.testing.assert_close(result.affine, x.affine)
    assert result.meta["filename_or_obj"] == "scan.nii"
    source, draws = torch.Generator().manual_seed(5), []
    bnn.eval()
    for _ in range(3):  # by hand: the draw is held while all windows pass
        with torch.no_grad(), bnn.frozen(source):
            draws.append(sliding_window_inference(plain(x), (4, 4), 3, bnn, overlap=0.5).softmax(1))
    mean = torch.stack(draws).mean(0)
    torch.testing.assert_close(plain(result)[:, :2], mean)
    torch.testing.assert_close(plain(result)[:, 2], torch.special.entr(mean).sum(1))


def test_whole_images_are_predicted_by_the_network_s_own_propagation() -> None:
    bnn, x = unet(predict_by="moments"), images()
    result = UncertainInferer(parts=("mean", "aleatoric"))(x, bnn)
    want = lb.predict(bnn, plain(x), samples=8)
    torch.testing.assert_close(plain(result), torch.cat([want.mean, want.aleatoric[:, None]], 1))
    assert type(UncertainInferer()(plain(x), bnn)) is torch.Tensor


@shows("MONAI", "A bundle carries a LeanBayes model, and MONAI's parser builds network and inferer from it.")
def test_a_bundle_brings_the_network_and_its_uncertainty(tmp_path: Path) -> None:
    bnn, x = unet(), images()
    folder = save_bundle(tmp_path / "bundle", bnn, NET, roi_size=(4, 4), samples=4)
    parser = ConfigParser()
    parser.read_config(folder / "configs" / "inference.json")
    parser["bundle_root"] = str(folder)
    parser["inferer"]["seed"] = 1
    network, inferer = (parser.get_parsed_content(name) for name in ("network", "inferer"))
    assert isinstance(network, lb.Bayesian)
    got = inferer(x, network)
    want = UncertainInferer(SlidingWindowInferer((4, 4), 4), 4, seed=1)(x, bnn)
    torch.testing.assert_close(plain(got), plain(want))
    metadata = json.loads((folder / "configs" / "metadata.json").read_text())
    assert metadata["required_packages_version"]["leanbayes"]
    assert "$" not in (folder / "configs" / "inference.json").read_text(), "the configuration runs no code"


def trainer(bnn: nn.Module, update: Any, optimizer: Any, data: Any, **options: Any) -> Any:
    pytest.importorskip("ignite", reason="MONAI's engines need pytorch-ignite")
    from monai.engines import SupervisedTrainer

    return SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=2,
        train_data_loader=data,
        network=bnn,
        optimizer=optimizer,
        loss_function=None,
        iteration_update=update,
        **options,
    )


def batches() -> list[dict[str, Any]]:
    x = images(4)
    return [{"image": x[:2], "label": (x[:2] > 0).float()}, {"image": x[2:], "label": (x[2:] > 0).float()}]


@shows("MONAI", "SupervisedTrainer trains on the evidence lower bound, by Adam or by natural gradients.")
@pytest.mark.parametrize("name", ["adam", "ivon"])
def test_the_trainer_makes_the_steps_of_a_loop_by_hand(name: str) -> None:
    def optimizer(bnn: lb.Bayesian) -> Any:
        if name == "ivon":
            return lb.optim.IVON(bnn, lr=0.1, n_data=4, steps=4)
        return torch.optim.Adam(bnn.parameter_groups(lr=0.01))

    by_monai, by_hand = unet(), unet()
    torch.manual_seed(1)
    engine = trainer(by_monai, VariationalUpdate(lb.Categorical(), n_data=4), optimizer(by_monai), batches())
    losses: list[float] = []
    from ignite.engine import Events

    def note(engine: Any) -> None:
        losses.append(float(engine.state.output[0]["loss"]))  # the trainer hands each example a dictionary of its own

    engine.add_event_handler(Events.ITERATION_COMPLETED, note)
    engine.run()
    torch.manual_seed(1)
    hand = optimizer(by_hand)
    by_hand.train()
    for _ in range(2):
        for batch in batches():
            hand.zero_grad()
            x, y = plain(batch["image"]), plain(batch["label"]).squeeze(1).long()
            lb.elbo(by_hand, x, y, lb.Categorical(), n_data=4, with_kl=name != "ivon").loss.backward()
            hand.step()
    assert len(losses) == 4
    for (key, got), want in zip(by_monai.state_dict().items(), by_hand.state_dict().values(), strict=True):
        torch.testing.assert_close(got, want, msg=key)


def test_bad_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(lb.errors.InputError, match="n_data must be a whole number of at least 1, got 0"):
        VariationalUpdate(lb.Categorical(), 0)
    with pytest.raises(lb.errors.InputError, match=r"is no leanbayes.Likelihood"):
        VariationalUpdate(nn.CrossEntropyLoss(), 3)
    with pytest.raises(lb.errors.InputError, match=r"kl_weight must be a number, .* got 'warm_up'"):
        VariationalUpdate(lb.Categorical(), 3, kl_weight="warm_up")
    with pytest.raises(lb.errors.InputError, match=r"such as SlidingWindowInferer\(\(96, 96\)\), got SlidingWindow"):
        UncertainInferer(SlidingWindowInferer)
    with pytest.raises(lb.errors.InputError, match="samples must be a whole number of at least 1, got 0"):
        UncertainInferer(samples=0)
    with pytest.raises(lb.errors.InputError, match="seed must be a whole number or None, got 'first'"):
        UncertainInferer(seed="first")
    with pytest.raises(lb.errors.InputError, match=r"the images must be a tensor \(N, channels, ...\), got a dict"):
        UncertainInferer()({"image": images()}, unet())
    with pytest.raises(lb.errors.InputError, match="unknown part of a prediction 'variance'"):
        UncertainInferer(parts=("mean", "variance"))
    with pytest.raises(lb.errors.InputError, match="unknown likelihood 'Categoric'"):
        UncertainInferer(likelihood="Categoric")
    with pytest.raises(lb.errors.InputError, match=r"must be a torch.nn.Module, got a function"):
        UncertainInferer()(images(), lambda x: x)
    with pytest.raises(lb.errors.InputError, match=r"builds another network: .* has the shape"):
        save_bundle(tmp_path / "a", unet(), {**NET, "channels": [4, 6]})
    with pytest.raises(lb.errors.InputError, match=r"carries a leanbayes.Bayesian, got a Linear"):
        save_bundle(tmp_path / "a", nn.Linear(1, 1), NET)
    for model, message in (
        ("UNet", 'such as {"_target_": "UNet", .* got a str'),
        ({**NET, "_target_": "Unett"}, "MONAI cannot build .*Unett"),
        ({**NET, "depth": 3}, "MONAI cannot build .*depth"),
    ):
        with pytest.raises(lb.errors.InputError, match=message):
            save_bundle(tmp_path / "a", unet(), model)
    with pytest.raises(lb.errors.InputError, match=r"roi_size must be the size of a window, .* got 8"):
        save_bundle(tmp_path / "a", unet(), NET, roi_size=8)
    with pytest.raises(lb.errors.InputError, match="samples must be a whole number of at least 1, got 0"):
        save_bundle(tmp_path / "a", unet(), NET, samples=0)
    with pytest.raises(lb.errors.InputError, match=r"likelihood must be a name, .* got a Categorical"):
        save_bundle(tmp_path / "a", unet(), NET, likelihood=lb.Categorical())
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    with pytest.raises(lb.errors.FileError, match="is a file and no folder"):
        save_bundle(tmp_path / "file", unet(), NET)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(lb.errors.FileError, match="is not empty"):
        save_bundle(tmp_path / "full", unet(), NET)
    with pytest.raises(lb.errors.FileError):
        load_network(tmp_path, nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": nn.Conv2d(1, 2, 1)}, "must be a leanbayes.Bayesian, got a Conv2d"),
        ({"batch": {"image": torch.zeros(1, 1, 4, 4), "label": torch.zeros(1, 3, 4, 4)}}, r"labels \(N, 1, ...\)"),
        ({"batch": {"img": torch.zeros(1, 1, 4, 4), "seg": torch.zeros(1, 1, 4, 4)}}, r"has the keys \['img', 'seg'\]"),
        ({"batch": {"image": torch.zeros(1, 1, 4, 4)}}, "the batch has no label"),
    ],
)
def test_a_trainer_that_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    bnn = change.get("network", unet())
    data = [change["batch"]] if "batch" in change else batches()
    engine = trainer(
        bnn, VariationalUpdate(lb.Categorical(), n_data=4), torch.optim.SGD(bnn.parameters(), lr=0.1), data
    )
    with pytest.raises(lb.errors.InputError, match=message):
        engine.run()


@shows("MONAI", "The code of the page on MONAI runs.")
def test_the_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("ignite", reason="MONAI's engines need pytorch-ignite")
    run_page("docs/integrations/monai.md", tmp_path)
