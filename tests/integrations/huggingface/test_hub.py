"""Folders and repositories that hold a `Bayesian`: what is saved comes back, and nothing is random quietly."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForTokenClassification,
    GPT2LMHeadModel,
)

import leanbayes as lb
from leanbayes.errors import FileError, InputError, WrongModel
from leanbayes.integrations._folder import RANDOM_FILE
from leanbayes.integrations.huggingface import (
    BayesianHubMixin,
    from_pretrained,
    model_card,
    push_to_hub,
    save_pretrained,
)
from tests.integrations.huggingface.models import bert, gpt2, llama
from tests.integrations.matrix import shows


class Net(BayesianHubMixin, lb.Bayesian):
    """A class of a user's own."""

    def __init__(self, width: int = 4, rate: float = 0.5) -> None:
        layers = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))
        super().__init__(layers, subspace=lb.random_k(rate), posterior=lb.posteriors.Radial(), propagate="mirrored")


class FakeHub:
    """A hub in a folder: what is uploaded can be downloaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commits: list[dict[str, Any]] = []

    def api(self, token: str | None = None) -> Any:
        return SimpleNamespace(create_repo=self.create_repo, upload_folder=self.upload_folder, token=token)

    def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> Any:
        assert exist_ok
        (self.folder / repo_id).mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, repo_id: str, folder_path: Any, **options: Any) -> str:
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)
        self.commits.append(options)
        return f"https://hub/{repo_id}/commit/1"

    def download(self, repo_id: str, filename: str, **options: Any) -> str:
        path = self.folder / repo_id / filename
        if not path.is_file():
            raise EntryNotFoundError(f"no {filename}")
        return str(path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    for name in ("huggingface_hub.HfApi", "huggingface_hub.hub_mixin.HfApi"):
        monkeypatch.setattr(name, fake.api)
    for name in ("huggingface_hub.hf_hub_download", "huggingface_hub.hub_mixin.hf_hub_download"):
        monkeypatch.setattr(name, fake.download)
    return fake


def moved(bnn: Any) -> Any:
    """Every number moved away from where it starts, as training does."""
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return bnn


def same(one: lb.Bayesian, two: lb.Bayesian) -> bool:
    others = two.state_dict()
    equal = all(torch.equal(value, others[name]) for name, value in one.state_dict().items())
    settings = [(b.posterior, b.propagate, b.predict_by, str(b.prior), b.kl_estimator) for b in (one, two)]
    return equal and one.state_dict().keys() == others.keys() and settings[0] == settings[1]


@shows("Hugging Face Hub", "A class of your own is saved and loaded through PyTorchModelHubMixin, bit for bit.")
def test_a_class_of_ones_own_comes_back(tmp_path: Path) -> None:
    net = moved(Net(width=6, rate=0.3))
    net.save_pretrained(tmp_path / "net")
    assert json.loads((tmp_path / "net" / "config.json").read_text()) == {"rate": 0.3, "width": 6}
    again = Net.from_pretrained(tmp_path / "net")
    assert same(net, again)
    assert not again.training
    assert torch.equal(again.kl(), net.kl())
    noise = [torch.Generator().manual_seed(1) for _ in range(2)]
    x = torch.ones(2, 3)
    assert torch.equal(net.eval()(x, generator=noise[0]), again(x, generator=noise[1]))


@shows("Hugging Face Hub", "push_to_hub and from_pretrained work for a class of your own and for Transformers models.")
def test_what_is_pushed_can_be_pulled(hub: FakeHub) -> None:
    net = moved(Net(width=6))
    x, y = torch.randn(20, 3), torch.randint(2, (20,))
    evaluation = lb.evaluate(net, [(x, y)], likelihood=lb.Categorical(), samples=4)
    url = net.push_to_hub("me/net", model_card_kwargs={"evaluation": evaluation, "data": "noise"})
    assert url == "https://hub/me/net/commit/1"
    assert f"{evaluation.metrics['ece']:.4g}" in (hub.folder / "me/net/README.md").read_text()
    assert same(net, Net.from_pretrained("me/net"))
    bnn = moved(lb.Bayesian(bert()))
    push_to_hub(bnn, "me/bert", evaluation=evaluation, data="noise", private=True, revision="main")
    assert {RANDOM_FILE, "config.json", "model.safetensors", "README.md"} <= {
        path.name for path in (hub.folder / "me/bert").iterdir()
    }
    assert hub.commits[-1]["revision"] == "main"
    redirected = SimpleNamespace(
        from_pretrained=lambda source, **options: AutoModelForSequenceClassification.from_pretrained(
            hub.folder / source, **options
        )
    )
    assert same(bnn, from_pretrained("me/bert", redirected))
    (hub.folder / "me/empty").mkdir()
    (hub.folder / "me/empty/config.json").write_text("{}")
    with pytest.raises(FileError, match="the repository me/empty has no"):
        Net.from_pretrained("me/empty")


@shows("Transformers", "save_pretrained and from_pretrained bring a Bayesian back, also with tied weights.")
@pytest.mark.parametrize(
    ("make", "model_class"),
    [(bert, AutoModelForSequenceClassification), (gpt2, GPT2LMHeadModel)],
    ids=["bert", "gpt2"],
)
def test_a_model_of_transformers_comes_back(tmp_path: Path, make: Any, model_class: Any) -> None:
    bnn = moved(lb.Bayesian(make(), subspace=lb.random_k(0.2), predict_by="local"))
    save_pretrained(bnn, tmp_path)
    assert same(bnn, from_pretrained(tmp_path, model_class))
    assert "from_pretrained(folder_or_repository" in (tmp_path / "README.md").read_text()


def test_another_class_would_have_random_weights_and_is_refused(tmp_path: Path) -> None:
    save_pretrained(lb.Bayesian(bert()), tmp_path)
    with pytest.raises(WrongModel, match=r"does not fit BertForTokenClassification|scales for other weights"):
        from_pretrained(tmp_path, BertForTokenClassification)
    with pytest.raises(WrongModel, match=r"does not fit BertModel: unexpected keys \['classifier"):
        from_pretrained(tmp_path, AutoModel)


def test_weights_that_are_missing_or_other_are_refused(tmp_path: Path) -> None:
    save_pretrained(lb.Bayesian(bert()), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "classifier.weight"
    save_file(weights | {name: weights[name] + 1e-6}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WrongModel, match=r"scales for other weights than the model has: 1 of .*classifier.weight"):
        from_pretrained(tmp_path, AutoModelForSequenceClassification)
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WrongModel, match=r"missing keys \['classifier.weight'\].*would be random"):
        from_pretrained(tmp_path, AutoModelForSequenceClassification)
    (tmp_path / RANDOM_FILE).unlink()
    with pytest.raises(FileError, match=r"has no leanbayes\.safetensors: it holds a plain model"):
        from_pretrained(tmp_path, AutoModelForSequenceClassification)


def test_a_folder_of_the_mixin_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    Net(width=6).save_pretrained(tmp_path)
    with pytest.raises(WrongModel, match="another architecture"):
        Net.from_pretrained(tmp_path, width=5)
    with pytest.raises(InputError, match="drop strict=False"):
        Net.from_pretrained(tmp_path, strict=False)
    (tmp_path / RANDOM_FILE).unlink()
    with pytest.raises(FileError, match=r"has no leanbayes\.safetensors"):
        Net.from_pretrained(tmp_path)


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"width": 6', "[" * 100_000, "\\udcff"])
def test_a_damaged_configuration_is_an_error_of_ours(tmp_path: Path, text: str) -> None:
    Net(width=6).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(FileError, match=r"config\.json of .* does not hold the arguments of Net"):
        Net.from_pretrained(tmp_path)


def test_a_name_that_is_no_folder_and_no_repository_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection, the error said that a repository which nobody had seen holds a plain model."""

    def unreachable(*args: Any, **options: Any) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", unreachable)
    for attempt in (lambda: from_pretrained("me/nett", AutoModel), lambda: Net.from_pretrained("me/nett")):
        with pytest.raises(FileError, match=r"there is no folder 'me/nett' here, and no answer from the hub"):
            attempt()


@pytest.mark.parametrize("width", ["six", None, -1, 2**62, 1.5])
def test_arguments_that_build_no_model_are_named(tmp_path: Path, width: Any) -> None:
    Net(width=6).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"width": width, "rate": 0.5}))
    with pytest.raises(InputError, match=r"Net cannot be built with the arguments .*width"):
        Net.from_pretrained(tmp_path)


def test_bad_input_is_named(tmp_path: Path) -> None:
    class NoBayesian(BayesianHubMixin, nn.Linear):
        pass

    with pytest.raises(InputError, match=r"is no lb\.Bayesian; derive it from both"):
        NoBayesian(1, 1).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="got a BertForSequenceClassification"):
        save_pretrained(bert(), tmp_path)
    with pytest.raises(InputError, match="around a Linear"):
        push_to_hub(lb.Bayesian(nn.Linear(1, 1)), "me/net")
    with pytest.raises(InputError, match="model_class must be a class with from_pretrained, such as"):
        from_pretrained(tmp_path, bert)
    with pytest.raises(InputError, match="data must be the name of the data, got a int"):
        save_pretrained(lb.Bayesian(bert()), tmp_path, data=3)
    with pytest.raises(InputError, match=r"tags must be a list of words, got the text 'cells'; give \['cells'\]"):
        model_card(lb.Bayesian(bert()), tags="cells")
    save_pretrained(lb.Bayesian(bert()), tmp_path / "saved")
    with pytest.raises(InputError, match=r"a class of models, .*BertConfig.* returned none"):
        from_pretrained(tmp_path / "saved", BertConfig)
    bnn = lb.Bayesian(llama())
    with pytest.raises(InputError, match="hold a draw"), bnn.drawn():
        save_pretrained(bnn, tmp_path / "draw")
    assert not (tmp_path / "draw").exists()
