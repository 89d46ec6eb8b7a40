import copy

import pytest
import torch
from torch import Tensor, nn

from leanbayes.baselines import Ensemble, MCDropout, Swag, Temperature
from leanbayes.baselines import ensemble as ensemble_module
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.models import resnet18
from leanbayes.prediction import predict


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
        self.head = nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.body(x))}


class Branching(nn.Module):
    """Looks at its values, which a vmapped pass cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.fc(x)
        return out if out.sum().item() > 0 else -out


class Counting(nn.Module):
    """Differs from its like in a plain attribute, which no tensor and no repr shows."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.fc, self.power = nn.Linear(4, 3), power

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) ** self.power


def convolutional(count: int = 3) -> list[nn.Module]:
    models: list[nn.Module] = [Convolutional() for _ in range(count)]
    for number, model in enumerate(models):
        for _ in range(3):
            model(torch.randn(8, 1, 6, 6) * (number + 1))  # statistics that differ
    return models


def outs(ensemble: Ensemble, x: Tensor) -> list[Tensor]:
    assert ensemble.members is not None
    result = list(ensemble.outputs(x, ensemble.members, None))
    return [out["logits"] if isinstance(out, dict) else out for out in result]


def test_together_equals_the_loop_equals_each_member_by_hand() -> None:
    models, x = convolutional(), torch.randn(5, 1, 6, 6)
    together = outs(Ensemble(*models, method="together"), x)
    loop = outs(Ensemble(*models, method="loop"), x)
    with torch.no_grad():
        by_hand = [model.eval()(x)["logits"] for model in models]
    for a, b, c in zip(together, loop, by_hand, strict=True):
        torch.testing.assert_close(a, b)
        assert torch.equal(b, c)
    assert not torch.allclose(by_hand[0], by_hand[1])


def test_together_follows_weights_that_change() -> None:
    models, x = convolutional(2), torch.randn(5, 1, 6, 6)
    ensemble = Ensemble(*models, method="together")
    outs(ensemble, x)
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.mul_(2)
    torch.testing.assert_close(outs(ensemble, x)[1], models[1].eval()(x)["logits"])


def test_together_equals_the_loop_for_a_resnet() -> None:
    models, x = [resnet18(3) for _ in range(2)], torch.randn(2, 3, 8, 8)
    for a, b in zip(
        outs(Ensemble(*models, method="together"), x), outs(Ensemble(*models, method="loop"), x), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_prediction_is_the_mean_of_the_members_probabilities() -> None:
    models, x = [nn.Linear(4, 3) for _ in range(5)], torch.randn(6, 4)
    for method in ("auto", "together", "loop"):
        result = predict(Ensemble(*models, method=method), x, samples="auto")
        torch.testing.assert_close(result.mean, torch.stack([model(x).softmax(1) for model in models]).mean(0))
        assert result.draws.tolist() == [5] * 6
        few = predict(Ensemble(*models, method=method), x, samples=2)
        torch.testing.assert_close(few.mean, torch.stack([model(x).softmax(1) for model in models[:2]]).mean(0))


def test_auto_keeps_the_faster_way_and_measures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(6, 4)
    for slow in ("_one", "_together"):
        ensemble = Ensemble(*(nn.Linear(4, 3) for _ in range(3)))
        whole = getattr(Ensemble, slow)

        clock = [0.0]

        def delayed(*args: object, whole: object = whole, clock: list[float] = clock) -> object:
            clock[0] += 0.05
            return whole(*args)

        with monkeypatch.context() as patch:
            patch.setattr(ensemble_module, "_now", lambda device, clock=clock: clock[0])
            patch.setattr(Ensemble, slow, delayed)
            outs(ensemble, x)
        assert ensemble._faster == {x.device: slow == "_one"}
        monkeypatch.setattr(Ensemble, "_measure", None)  # not called again
        outs(ensemble, x)
        monkeypatch.undo()


@pytest.mark.parametrize(
    "models",
    [
        [nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3))],
        [Branching(), Branching()],
        [nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(0.1)), nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(0.9))],
        [nn.Linear(4, 3), nn.Linear(4, 3, bias=False)],
        [Counting(1), Counting(2)],
    ],
    ids=["architecture", "control flow", "setting", "shape", "attribute"],
)
def test_what_cannot_be_stacked_is_looped(models: list[nn.Module]) -> None:
    x = torch.randn(6, 4)
    ensemble = Ensemble(*models)
    for _ in range(2):
        for out, model in zip(outs(ensemble, x), models, strict=True):
            assert torch.equal(out, model(x))
    assert list(ensemble._faster.values()) == [False]


def test_recurrent_members_predict_as_alone() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    models, x = [Recurrent() for _ in range(2)], torch.randn(6, 7, 4)
    ensemble = Ensemble(*models)
    for _ in range(2):
        for out, model in zip(outs(ensemble, x), models, strict=True):
            torch.testing.assert_close(out, model(x))


def test_together_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match="member 1 has a different architecture"):
        Ensemble(nn.Linear(4, 3), nn.Linear(4, 2), method="together")
    with pytest.raises(InputError, match="random members"):
        Ensemble(Bayesian(nn.Linear(4, 3)), Bayesian(nn.Linear(4, 3)), method="together")


def test_random_members_go_round_with_new_draws() -> None:
    models = [Bayesian(nn.Linear(4, 3)) for _ in range(2)]
    ensemble, x = Ensemble(*models), torch.randn(6, 4)
    assert ensemble.members is None
    result = list(ensemble.outputs(x, 5, torch.Generator().manual_seed(0)))
    assert len(result) == 5
    for draw, out in enumerate(result):
        gaps = [(out - model.model(x)).abs().mean() for model in models]
        assert gaps[draw % 2] < gaps[1 - draw % 2]  # near its own means
        assert gaps[draw % 2] > 0
    assert not torch.equal(result[0], result[2])


def test_members_with_few_draws_bound_the_whole() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    parts = []
    for _ in range(2):
        swag = Swag(copy.deepcopy(model), rank=0)
        swag.collect()
        with torch.no_grad():
            swag.model[0].weight += 1
        swag.collect()
        swag.update_norms([(torch.randn(8, 4), None)], 3)
        parts.append(swag)
    ensemble = Ensemble(*parts)
    assert ensemble.members == 6
    assert len({out.sum().item() for out in ensemble.outputs(torch.randn(5, 4), 6, None)}) == 6
    assert Ensemble(MCDropout(nn.Linear(4, 3)), parts[0]).members == 6
    assert Ensemble(Temperature(nn.Linear(4, 3)), Temperature(nn.Linear(4, 3))).members == 2


def test_one_member_is_a_plain_model() -> None:
    model, x = nn.Linear(4, 3), torch.randn(6, 4)
    result = predict(Ensemble(model), x)
    torch.testing.assert_close(result.mean, model(x).softmax(1))
    assert result.epistemic.abs().max() < 1e-6


def test_forward_is_the_mean_of_outputs() -> None:
    models, x = convolutional(2), torch.randn(5, 1, 6, 6)
    ensemble = Ensemble(*models).eval()
    expected = (models[0](x)["logits"] + models[1](x)["logits"]) / 2
    torch.testing.assert_close(ensemble(x)["logits"], expected)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InputError, match="at least one module"):
        Ensemble()
    with pytest.raises(InputError, match=r"at least one module, got .*list"):
        Ensemble([nn.Linear(1, 1)])  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="fastest"):
        Ensemble(nn.Linear(1, 1), method="fastest")  # type: ignore[arg-type]
