"""Folders and repositories of Hugging Face that hold a `Bayesian`.

There are two ways. A model of Transformers or PEFT is saved by its own ``save_pretrained``, with its configuration, and
the scales stand beside it in ``leanbayes.safetensors``; so the folder is an ordinary one, which Transformers reads as
the model at its means. A class of your own takes the `BayesianHubMixin`, whose folder holds the whole model in that
file and the arguments of the class in ``config.json``.

Loading never leaves a weight at a random value quietly: a weight that the folder lacks, and scales that do not belong
to the weights, are errors.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian
from leanbayes.errors import FileError, ForeignFile, InputError, LeanBayesError, WrongModel
from leanbayes.evaluation import Evaluation
from leanbayes.integrations._folder import RANDOM_FILE, write_random
from leanbayes.integrations._optional import optional
from leanbayes.integrations.huggingface.card import model_card
from leanbayes.priors import PriorLike
from leanbayes.storage import load, save

with optional("leanbayes.integrations.huggingface", "huggingface", "huggingface_hub"):
    import huggingface_hub
    from huggingface_hub import ModelCard, PyTorchModelHubMixin
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

_NO_ANSWER = (LocalEntryNotFoundError, RepositoryNotFoundError, HFValidationError)

__all__ = ["BayesianHubMixin", "from_pretrained", "push_to_hub", "save_pretrained"]


def save_pretrained(
    bnn: nn.Module,
    folder: str | Path,
    *,
    evaluation: Evaluation | None = None,
    data: str | None = None,
    **options: Any,
) -> None:
    """Write a `Bayesian` around a model of Transformers or PEFT to a folder: configuration, means, scales and card.

    Args:
        bnn: the model.
        folder: the folder; it is made if needed.
        evaluation: what `leanbayes.evaluate` measured, for the model card.
        data: the name of the data that it was measured on.
        options: further arguments of ``save_pretrained`` of the model inside.
    """
    core = require_pretrained(bnn, "save_pretrained")
    core.weights()  # raises inside drawn(), where the parameters hold a draw and not the means
    card = model_card(core, evaluation=evaluation, data=data, usage=_usage(core))
    core.model.save_pretrained(str(folder), **options)  # type: ignore[operator]
    write_random(core, folder)
    card.save(Path(folder) / "README.md")


def from_pretrained(
    source: str | Path, model_class: Any, *, revision: str | None = None, prior: PriorLike | None = None, **options: Any
) -> Bayesian:
    """Read a `Bayesian` from a folder that `save_pretrained` wrote, or from a repository of the hub.

    Args:
        source: the folder, or the name of the repository, such as "me/my-model".
        model_class: the class of the model inside, or a class that finds it, such as
            ``AutoModelForSequenceClassification``.
        revision: the branch, tag or commit of the repository.
        prior: the prior; needed only if the saved prior was one that a file cannot hold.
        options: further arguments of ``from_pretrained`` of that class.
    """
    if not hasattr(model_class, "from_pretrained"):
        raise InputError(
            f"model_class must be a class with from_pretrained, such as AutoModelForSequenceClassification, got "
            f"{model_class!r}"
        )
    file = _random_file(source, revision, {name: options[name] for name in ("cache_dir", "token") if name in options})
    loaded = model_class.from_pretrained(str(source), revision=revision, output_loading_info=True, **options)
    if not (isinstance(loaded, tuple) and isinstance(loaded[0], nn.Module)):
        raise InputError(
            f"model_class must be a class of models, such as AutoModelForSequenceClassification, and from_pretrained "
            f"of {model_class!r} returned none"
        )
    model, report = loaded
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if report.get(kind):
            raise WrongModel(
                f"{source} does not fit {type(model).__name__}: {kind.replace('_', ' ')} "
                f"{sorted(map(str, report[kind]))[:3]} and so on, {len(report[kind])} in all, so that weights would "
                "be random; give the class that was saved"
            )
    bnn: Bayesian = load(file, model, prior=prior)
    return bnn


def push_to_hub(
    bnn: nn.Module,
    repo_id: str,
    *,
    evaluation: Evaluation | None = None,
    data: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    commit_message: str = "Add a Bayesian model of LeanBayes",
) -> str:
    """Upload what `save_pretrained` writes to a repository of the hub, which is made if needed.

    Returns:
        The address of the commit.
    """
    require_pretrained(bnn, "push_to_hub")
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(bnn, folder, evaluation=evaluation, data=data)
        api = huggingface_hub.HfApi(token=token)
        repository = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
        return str(
            api.upload_folder(repo_id=repository, folder_path=folder, revision=revision, commit_message=commit_message)
        )


class BayesianHubMixin(PyTorchModelHubMixin):
    """Gives a class that derives from `leanbayes.Bayesian` the methods ``push_to_hub`` and ``from_pretrained``.

    The arguments of the class go into ``config.json``, as always with this mixin. ``from_pretrained`` builds the class
    with them and reads the file of `leanbayes.save`, so means, scales, positions, posterior and prior come back bit for
    bit. A file that does not fit the class is an error. ``push_to_hub(..., model_card_kwargs={"evaluation": ...})``
    writes the figures that `leanbayes.evaluate` measured into the model card.

        class Net(BayesianHubMixin, lb.Bayesian):
            def __init__(self, width: int = 16) -> None:
                super().__init__(nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2)))
    """

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> Any:
        """Build the class from a folder that ``save_pretrained`` wrote, or from a repository of the hub.

        Args:
            source: the folder, or the name of the repository, such as "me/my-model".
            options: further arguments of ``from_pretrained`` of the mixin, and arguments of the class.
        """
        damaged = f"config.json of {source} does not hold the arguments of {cls.__name__}; copy it again"
        config = Path(source) / "config.json"
        try:
            if config.is_file() and not isinstance(json.loads(config.read_text(encoding="utf-8")), dict):
                raise ForeignFile(damaged)
            return super().from_pretrained(source, **options)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ForeignFile(f"{damaged} ({error})") from error
        except _NO_ANSWER as error:
            raise _nothing_there(source, error) from error

    def _save_pretrained(self, save_directory: Path) -> None:
        if not isinstance(self, Bayesian):
            raise InputError(
                f"{type(self).__name__} has the BayesianHubMixin and is no lb.Bayesian; derive it from both: "
                f"class {type(self).__name__}(BayesianHubMixin, lb.Bayesian)"
            )
        save(self, save_directory / RANDOM_FILE)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        map_location: str | torch.device = "cpu",
        strict: bool = True,
        **model_kwargs: Any,
    ) -> Any:
        if not strict:
            raise InputError(f"{cls.__name__}.from_pretrained never leaves weights at random values; drop strict=False")
        how = {"cache_dir": cache_dir, "force_download": force_download, "token": token}
        file = _random_file(model_id, revision, how | {"local_files_only": local_files_only})
        try:
            net: Any = cls(**model_kwargs)
        except (TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError) as error:
            if isinstance(error, LeanBayesError):
                raise
            raise InputError(
                f"{cls.__name__} cannot be built with the arguments {model_kwargs!r:.200} from config.json: {error}"
            ) from error
        saved = load(file, net.model)
        net.coordinates, net.posterior, net.kl_estimator = saved.coordinates, saved.posterior, saved.kl_estimator
        net._propagate, net._predict_by = saved._propagate, saved._predict_by
        net.prior, net._priors = saved.prior, saved._priors
        return net.to(map_location).eval()

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:  # noqa: ARG002
        """Make the model card; the keyword arguments are those of `model_card`."""
        core: Any = self
        return model_card(core, **({"name": type(self).__name__} | kwargs))


def require_pretrained(bnn: Any, what: str) -> Bayesian:
    """Return the `Bayesian` inside all wrappers; raise unless it is one around a model that can save itself."""
    core = unwrap(bnn)
    if not isinstance(core, Bayesian):
        raise InputError(
            f"{what} takes a lb.Bayesian around a model of Transformers or PEFT, got a {type(core).__name__}; convert "
            "it: lb.Bayesian(model)"
        )
    if not (hasattr(core.model, "save_pretrained") and hasattr(core.model, "config")):
        raise InputError(
            f"{what} takes a lb.Bayesian around a model of Transformers or PEFT, and this one is around a "
            f"{type(core.model).__name__}; for a class of your own use BayesianHubMixin, lb.fit and lb.save"
        )
    return core


def _nothing_there(source: str | Path, error: Exception) -> FileError:
    """Return the error for a name that is no folder here and that the hub does not answer to."""
    return FileError(
        f"there is no folder {str(source)!r} here, and no answer from the hub for a repository of this name "
        f"({type(error).__name__}); correct the name, or check the connection and the token"
    )


def _random_file(source: str | Path, revision: str | None, options: dict[str, Any]) -> Path:
    """Return the path of the file of LeanBayes in a folder or a repository."""
    advice = "it holds a plain model, which from_pretrained of its own class reads and lb.Bayesian(model) makes random"
    if Path(source).is_dir():
        if not (Path(source) / RANDOM_FILE).is_file():
            raise FileError(f"{source} has no {RANDOM_FILE}: {advice}")
        return Path(source) / RANDOM_FILE
    try:
        return Path(huggingface_hub.hf_hub_download(str(source), RANDOM_FILE, revision=revision, **options))
    except _NO_ANSWER as error:
        raise _nothing_there(source, error) from error
    except EntryNotFoundError as error:
        raise FileError(f"the repository {source} has no {RANDOM_FILE}: {advice}") from error


def _usage(bnn: Bayesian) -> str:
    if hasattr(bnn.model, "peft_config"):
        return "from leanbayes.integrations.peft import load_adapter\n\nbnn = load_adapter(base_model, folder)"
    inner = type(bnn.model).__name__
    return (
        "import leanbayes as lb\nfrom leanbayes.integrations.huggingface import from_pretrained\n"
        f"from transformers import {inner}\n\n"
        f"bnn = from_pretrained(folder_or_repository, {inner})\nprediction = lb.predict(bnn, inputs)"
    )
