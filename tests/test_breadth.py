"""Unmodified models of many makers: convert, train a step, predict, save, load, and get the same back."""

import copy
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from monai.networks import nets
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

import leanbayes as lb
from leanbayes._calls import call, prediction_tensor

PROPAGATIONS = ["sample", "mirrored", "local", "flipout"]
CLASSES, BATCH = 3, 4


class UNet(nn.Module):
    """Two levels, batch norm, in-place activations, a skip by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.bottom = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        return self.head(torch.cat([skip, self.up(self.bottom(skip))], dim=1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6, padding_idx=0)
        self.body = kind(6, 5, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.head = nn.Linear(10, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.body(self.embedding(tokens))
        return self.head(hidden.mean(1))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, groups=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, CLASSES),
    )  # fmt: skip


def bert() -> nn.Module:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=12,
            max_position_embeddings=12,
            num_labels=CLASSES,
        )
    )


def hugging_face_vit() -> nn.Module:
    return ViTForImageClassification(
        ViTConfig(
            image_size=16,
            patch_size=8,
            num_channels=1,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=12,
            num_labels=CLASSES,
        )
    )


def images(side: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(BATCH, 1, side, side)


def tokens() -> Tensor:
    return torch.randint(1, 12, (BATCH, 7))


def sentences() -> dict[str, Tensor]:
    mask = torch.ones(BATCH, 6, dtype=torch.long)
    mask[1:, 4:] = 0
    return {"input_ids": torch.randint(0, 20, (BATCH, 6)), "attention_mask": mask}


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    pixels: tuple[int, ...] = ()
    output: Callable[[Any], Any] = prediction_tensor

    def target(self) -> Tensor:
        return torch.randint(0, CLASSES, (BATCH, *self.pixels))


MONAI: dict[str, Any] = {"spatial_dims": 2, "in_channels": 1}
CASES = {
    "mlp": Case(mlp, lambda: torch.randn(BATCH, 6)),
    "cnn": Case(cnn, images(10)),
    "unet": Case(UNet, images(8), (8, 8)),
    "lstm": Case(functools.partial(Recurrent, nn.LSTM), tokens),
    "gru": Case(functools.partial(Recurrent, nn.GRU), tokens),
    "encoder": Case(Encoder, lambda: torch.randn(BATCH, 5, 8)),
    "monai unet": Case(
        lambda: nets.UNet(**MONAI, out_channels=CLASSES, channels=(4, 8), strides=(2,), num_res_units=1),
        images(8),
        (8, 8),
    ),
    "monai resnet": Case(
        lambda: nets.ResNet(
            "basic", [1, 1, 1, 1], [4, 4, 8, 8], spatial_dims=2, n_input_channels=1, num_classes=CLASSES
        ),
        images(16),
    ),
    "monai densenet": Case(
        lambda: nets.DenseNet(**MONAI, out_channels=CLASSES, init_features=4, growth_rate=4, block_config=(2, 2)),
        images(16),
    ),
    "monai vit": Case(
        lambda: nets.ViT(
            **MONAI,
            img_size=(16, 16),
            patch_size=(8, 8),
            hidden_size=8,
            mlp_dim=12,
            num_layers=2,
            num_heads=2,
            classification=True,
            num_classes=CLASSES,
        ),
        images(16),
        output=lambda returned: returned[0],
    ),
    "bert": Case(bert, sentences),
    "hugging face vit": Case(hugging_face_vit, images(16)),
}
SUBSPACES = {"5 %": lb.random_k(0.05), "everything": lb.everything()}


@pytest.mark.parametrize("propagate", PROPAGATIONS)
@pytest.mark.parametrize("subspace", SUBSPACES)
@pytest.mark.parametrize("name", CASES)
def test_a_life_from_conversion_to_loading(tmp_path: Path, name: str, subspace: str, propagate: str) -> None:
    case = CASES[name]
    model, x, y = case.make(), case.inputs(), case.target()
    plain = copy.deepcopy(model)
    bnn = lb.Bayesian(model, subspace=SUBSPACES[subspace], posterior=lb.posteriors.Normal(0.2), propagate=propagate)
    assert bnn.model is model

    bnn.eval()
    plain.eval()
    with bnn.at_mean(), torch.no_grad():
        assert torch.equal(case.output(call(bnn, x)), case.output(call(plain, x)))
    assert not torch.equal(case.output(call(bnn, x)), case.output(call(bnn, x)))

    bnn.train()
    before = {key: parameter.detach().clone() for key, parameter in bnn.named_parameters()}
    optimizer = torch.optim.SGD(bnn.parameter_groups(lr=0.05))
    result = lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, output=case.output)
    result.loss.backward()
    optimizer.step()
    assert torch.isfinite(result.loss)
    moved = {key: not torch.equal(before[key], parameter) for key, parameter in bnn.named_parameters()}
    assert all(moved[key] for key in moved if key.startswith("coordinates.")), moved
    assert all(moved["model." + key] for key, _ in bnn.parts() if before["model." + key].any()), moved
    assert all(torch.isfinite(parameter).all() for parameter in bnn.parameters())

    prediction = lb.predict(bnn, x, samples=3, output=case.output)
    assert prediction.mean.shape == (BATCH, CLASSES, *case.pixels)
    assert prediction.total.shape == (BATCH, *case.pixels)
    torch.testing.assert_close(prediction.mean.sum(1), torch.ones(BATCH, *case.pixels))
    assert (prediction.epistemic.reshape(BATCH, -1).amax(1) > 0).all()

    lb.save(bnn, tmp_path / "model.lb")
    loaded = lb.load(tmp_path / "model.lb", case.make())
    bnn.eval()
    loaded.eval()
    one, two = (
        case.output(call(functools.partial(each, generator=torch.Generator().manual_seed(5)), x))
        for each in (bnn, loaded)
    )
    assert torch.equal(one, two)
    again, same = (
        lb.predict(
            each, x, samples=3, method="loop", output=case.output, generator=torch.Generator().manual_seed(5)
        ).mean
        for each in (bnn, loaded)
    )
    torch.testing.assert_close(again, same)


@pytest.mark.parametrize("name", ["encoder", "bert", "hugging face vit", "monai vit"])
def test_fused_attention_sees_the_drawn_weights(name: str) -> None:
    """In eval mode without gradients torch takes fused kernels: the same numbers as with gradients, for one network."""
    case = CASES[name]
    bnn, x = lb.Bayesian(case.make(), posterior=lb.posteriors.Normal(0.2)).eval(), case.inputs()
    with bnn.frozen():
        slow = case.output(call(bnn, x)).detach()
        with torch.no_grad():
            fast = case.output(call(bnn, x))
    with bnn.at_mean(), torch.no_grad():
        mean = case.output(call(bnn, x))
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    assert (fast - mean).abs().max() > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_the_draws_are_those_of_a_loop_over_torch(name: str) -> None:
    """`predict` shares and streams; a plain loop with functional_call gives the same mean."""
    case = CASES[name]
    bnn, x = (
        lb.Bayesian(case.make(), subspace=lb.random_k(0.05), posterior=lb.posteriors.Normal(0.3)).eval(),
        case.inputs(),
    )
    generator, draws = torch.Generator().manual_seed(5), []
    with torch.no_grad():
        for _ in range(4):
            weights = bnn.draw(generator=generator)
            out = call(lambda *a, w=weights, **k: torch.func.functional_call(bnn.model, w, a, k), x)
            draws.append(F.softmax(case.output(out), 1))
    result = lb.predict(
        bnn, x, samples=4, method="loop", output=case.output, generator=torch.Generator().manual_seed(5)
    ).mean
    torch.testing.assert_close(result, torch.stack(draws).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_automatic_way_is_one_of_the_ways(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """vmap is tried, and where a model cannot be vmapped nothing is lost: the draws are those of the loop."""
    monkeypatch.setattr(sys.modules["leanbayes.prediction.draws"], "_SMALL_CALL", 10.0)
    case = CASES[name]
    bnn, x = lb.Bayesian(case.make(), subspace=lb.random_k(0.05), posterior=lb.posteriors.Normal(0.3)), case.inputs()
    loop, auto = (
        lb.predict(
            bnn, x, samples=10, method=method, output=case.output, generator=torch.Generator().manual_seed(5)
        ).mean
        for method in ("loop", "auto")
    )
    torch.testing.assert_close(loop, auto, rtol=1e-4, atol=1e-5)
