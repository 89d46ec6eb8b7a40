"""MONAI: training on the evidence lower bound, windows of one draw, and bundles that carry a LeanBayes model.

`VariationalUpdate` is what a ``SupervisedTrainer`` does with each batch. `UncertainInferer` is an inferer for a
``SupervisedEvaluator``; of the network it makes predictions with uncertainty, window by window with one and the same
draw. `save_bundle` writes a bundle, whose network `load_network` reads. All of them take and return ``MetaTensor``.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leanbayes._arrays import dtype_of, numbers_of
from leanbayes._files import write_text
from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian
from leanbayes.errors import FileError, InputError, UnknownName
from leanbayes.integrations._checks import is_count, require_count, seeded
from leanbayes.integrations._optional import optional
from leanbayes.likelihood import LIKELIHOODS, Categorical, Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.objective import Terms, elbo
from leanbayes.prediction import predict
from leanbayes.storage import load, save
from leanbayes.train import fix_statistics
from leanbayes.train.norms import must_hold_statistics

with optional("leanbayes.integrations.monai", "medical", "monai", "ignite"):
    from monai.bundle import ConfigParser
    from monai.data import MetaTensor
    from monai.engines.utils import IterationEvents
    from monai.inferers import Inferer
    from monai.utils.enums import CommonKeys

__all__ = ["UncertainInferer", "VariationalUpdate", "load_network", "plain", "save_bundle"]

PARTS = ("mean", "total", "aleatoric", "epistemic")


def plain(value: Any) -> Any:
    """Return a ``MetaTensor`` as the tensor that it holds, without a copy, and anything else as it is."""
    return value.as_tensor() if isinstance(value, MetaTensor) else value


class VariationalUpdate:
    """One step of training on the evidence lower bound: ``SupervisedTrainer(..., iteration_update=...)``.

    The network of the trainer must be a `leanbayes.Bayesian`. The ``loss_function`` of the trainer is not used, because
    the likelihood takes its place. If the optimizer owns the scales, as `leanbayes.optim.IVON` does, the KL is in its
    update and not in the loss. While all examples of a batch share one draw, batch norms keep their statistics.

    Args:
        likelihood: what the outputs mean. `leanbayes.Categorical` takes labels (N, 1, ...), as MONAI has them.
        n_data: the number of examples in the training set.
        kl_weight: the weight of the KL; 1 is the evidence lower bound.
        samples: how many draws each step averages.
    """

    def __init__(self, likelihood: Likelihood, n_data: int, kl_weight: float = 1.0, samples: int = 1) -> None:
        self.likelihood = require_likelihood(likelihood)
        require_count("n_data", n_data)
        checked = Terms(kl_weight, samples=samples).kl_weight
        if not isinstance(checked, float):
            raise InputError(f"kl_weight must be a number, because this update knows no schedules; got {kl_weight!r}")
        self.n_data, self.kl_weight, self.samples = n_data, checked, samples

    def __call__(self, engine: Any, batchdata: Any) -> dict[str, Any]:
        """Make one step; return the batch and the loss under the keys that MONAI's handlers read."""
        bnn = unwrap(engine.network)
        if not isinstance(bnn, Bayesian):
            raise InputError(
                f"the network of the trainer must be a leanbayes.Bayesian, got a {type(bnn).__name__}; give "
                "network=leanbayes.Bayesian(net)"
            )
        if getattr(engine, "amp", False):
            raise InputError("the trainer has amp=True, which this update does not do; give amp=False")
        try:
            prepared = engine.prepare_batch(batchdata, engine.state.device, engine.non_blocking, **engine.to_kwargs)
        except KeyError as error:
            keys = list(batchdata) if isinstance(batchdata, Mapping) else type(batchdata).__name__
            raise InputError(
                f"the batch has the keys {keys}, and the trainer reads {error}; a batch of MONAI has the keys 'image' "
                "and 'label', or give the trainer prepare_batch=PrepareBatchDefault(...) of your own"
            ) from error
        if len(prepared) != 2:
            raise InputError(
                f"prepare_batch must return the pair (image, label), got {len(prepared)} values; give the trainer a "
                "prepare_batch that does"
            )
        image, label = prepared
        if label is None:
            raise InputError("the batch has no label; a batch of MONAI has the keys 'image' and 'label'")
        engine.state.output = {CommonKeys.IMAGE: image, CommonKeys.LABEL: label}
        engine.network.train()
        if must_hold_statistics(bnn):
            fix_statistics(bnn)
        owns_scales = getattr(engine.optimizer, "owns_scales", False)
        engine.optimizer.zero_grad(set_to_none=engine.optim_set_to_none)
        terms = elbo(
            engine.network,
            plain(image),
            self._targets(plain(label)),
            self.likelihood,
            n_data=self.n_data,
            kl_weight=self.kl_weight,
            samples=self.samples,
            with_kl=not owns_scales,
        )
        engine.fire_event(IterationEvents.FORWARD_COMPLETED)
        engine.state.output[CommonKeys.LOSS] = terms.loss
        engine.fire_event(IterationEvents.LOSS_COMPLETED)
        terms.loss.backward()
        engine.fire_event(IterationEvents.BACKWARD_COMPLETED)
        engine.optimizer.step()
        engine.fire_event(IterationEvents.MODEL_COMPLETED)
        output: dict[str, Any] = engine.state.output
        return output

    def _targets(self, label: Tensor) -> Tensor:
        """Return the labels without the channel of length 1 that MONAI gives to class indices."""
        if not isinstance(self.likelihood, Categorical):
            return label
        if label.dim() > 2 and label.shape[1] != 1:
            raise InputError(
                f"Categorical takes labels (N, 1, ...) of class indices, got the shape {tuple(label.shape)}; leave "
                "one-hot labels out, or give Bernoulli()"
            )
        return (label.squeeze(1) if label.dim() > 2 else label).long()


class UncertainInferer(Inferer):
    """An inferer that returns the mean prediction and its uncertainty as channels of one tensor.

    Args:
        inferer: an inferer of MONAI, such as ``SlidingWindowInferer``, that calls the network window by window. In each
            draw all windows see the same weights, so that nothing changes at their borders. None predicts whole images
            by the network's own ``predict_by``, for example in one pass of moments.
        samples: how many draws a prediction averages.
        likelihood: what the outputs mean: a `leanbayes.Likelihood`, or its name for a bundle.
        parts: which parts of a `leanbayes.Prediction` are returned, in this order along the channels. "mean" has a
            channel for each class, and the uncertainties have one each.
        seed: makes the draws the same in every call; None for others in every call.
    """

    def __init__(
        self,
        inferer: Inferer | None = None,
        samples: int = 8,
        likelihood: Likelihood | str = "Categorical",
        parts: Sequence[str] = ("mean", "total", "epistemic"),
        seed: int | None = None,
    ) -> None:
        super().__init__()
        unknown = [part for part in parts if part not in PARTS]
        if unknown or not parts:
            raise UnknownName.of("part of a prediction", unknown[0] if unknown else None, PARTS)
        named = LIKELIHOODS.named(likelihood)() if isinstance(likelihood, str) else likelihood
        self.likelihood = require_likelihood(named)
        if inferer is not None and (isinstance(inferer, type) or not callable(inferer)):
            what = inferer.__name__ if isinstance(inferer, type) else repr(inferer)
            raise InputError(f"inferer must be an inferer of MONAI, such as SlidingWindowInferer((96, 96)), got {what}")
        require_count("samples", samples)
        seeded(seed, "cpu")  # raises for what is no seed
        self.inferer, self.samples, self.parts, self.seed = inferer, samples, tuple(parts), seed

    def __call__(self, inputs: Any, network: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the parts of the prediction for a batch, with the meta data of the inputs if they have any.

        Args:
            inputs: the images, (N, channels, ...).
            network: a `leanbayes.Bayesian`, or any other model that `leanbayes.predict` takes.
            args: go to the inferer of MONAI.
            kwargs: go to the inferer of MONAI.
        """
        if not isinstance(network, nn.Module):
            raise InputError(f"the network must be a torch.nn.Module, got a {type(network).__name__}")
        inferer, images = self.inferer, plain(inputs)
        if isinstance(images, np.ndarray):
            images = numbers_of(images, dtype_of(network))
        if not isinstance(images, Tensor):
            raise InputError(f"the images must be a tensor (N, channels, ...), got a {type(inputs).__name__}")
        through = None if inferer is None else lambda net, x: plain(inferer(x, net, *args, **kwargs))
        prediction = predict(
            network,
            images,
            likelihood=self.likelihood,
            samples=self.samples,
            through=through,
            generator=seeded(self.seed, images.device),
        )
        channels = []
        for part in self.parts:
            value = getattr(prediction, part)
            channels.append(value if value.dim() == prediction.mean.dim() else value.unsqueeze(1))
        result = torch.cat(channels, 1)
        if not isinstance(inputs, MetaTensor):
            return result
        meta = MetaTensor(result)
        meta.copy_meta_from(inputs)
        return meta


def load_network(bundle: str | Path, model: nn.Module) -> nn.Module:
    """Return the network of a bundle that `save_bundle` wrote. Nothing is unpickled.

    Args:
        bundle: the folder of the bundle.
        model: the plain network that the bundle's configuration describes; its weights are replaced.
    """
    network: nn.Module = load(Path(bundle) / "models" / "model.lb", model)
    return network


def save_bundle(
    folder: str | Path,
    bnn: Bayesian,
    model: Mapping[str, Any],
    *,
    roi_size: Sequence[int] | None = None,
    sw_batch_size: int = 4,
    samples: int = 8,
    likelihood: str = "Categorical",
    description: str = "A network with uncertainty, trained with LeanBayes.",
    bundle_version: str = "0.1.0",
) -> Path:
    """Write a bundle of MONAI that carries a LeanBayes model; return its folder.

    The bundle has ``configs/inference.json`` with the objects "network" and "inferer", ``configs/metadata.json``, and
    ``models/model.lb``. Its configuration runs no code of its own: it has no ``$`` expressions.

    Args:
        folder: the folder to write, which must not exist yet or be empty.
        bnn: the network.
        model: how MONAI builds the plain network: ``{"_target_": "UNet", "spatial_dims": 2, ...}``. It is built and
            compared with ``bnn`` before anything is written.
        roi_size: the size of sliding windows; None for whole images.
        sw_batch_size: how many windows are computed at a time.
        samples: how many draws a prediction averages.
        likelihood: the name of the likelihood.
        description: a sentence for the bundle's metadata.
        bundle_version: the version of the bundle.
    """
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise FileError(f"{str(root)!r} is a file and no folder; give a new folder")
    if root.exists() and any(root.iterdir()):
        raise FileError(f"the folder {str(root)!r} is not empty; give a new one")
    inner = unwrap(bnn)
    if not isinstance(inner, Bayesian):
        raise InputError(f"a bundle carries a leanbayes.Bayesian, got a {type(inner).__name__}")
    if not isinstance(likelihood, str):
        raise InputError(f'likelihood must be a name, such as "Categorical", got a {type(likelihood).__name__}')
    LIKELIHOODS.named(likelihood)
    require_count("samples", samples)
    require_count("sw_batch_size", sw_batch_size)
    if roi_size is not None and not (isinstance(roi_size, Sequence) and all(map(is_count, roi_size))):
        raise InputError(f"roi_size must be the size of a window, such as (96, 96), or None, got {roi_size!r}")
    _check_alike(_built(model), inner.model)
    windows = None
    if roi_size is not None:
        windows = {"_target_": "SlidingWindowInferer", "roi_size": list(roi_size), "sw_batch_size": sw_batch_size}
    here = "leanbayes.integrations.monai"
    inference = {
        "bundle_root": ".",
        "network_def": dict(model),
        "network": {"_target_": f"{here}.load_network", "bundle": "@bundle_root", "model": "@network_def"},
        "inferer": {
            "_target_": f"{here}.UncertainInferer",
            **({} if windows is None else {"inferer": windows}),
            "samples": samples,
            "likelihood": likelihood,
        },
    }
    metadata = {
        "version": bundle_version,
        "changelog": {bundle_version: "first version"},
        "monai_version": version("monai"),
        "pytorch_version": version("torch"),
        "numpy_version": version("numpy"),
        "required_packages_version": {"leanbayes": version("leanbayes")},
        "task": "prediction with uncertainty",
        "description": description,
        "authors": "",
        "copyright": "",
        "network_data_format": {"inputs": {}, "outputs": {}},
    }
    (root / "configs").mkdir(parents=True)
    (root / "models").mkdir()
    save(inner, root / "models" / "model.lb")
    write_text(root / "configs" / "inference.json", json.dumps(inference, indent=2) + "\n")
    write_text(root / "configs" / "metadata.json", json.dumps(metadata, indent=2) + "\n")
    return root


def _built(model: Any) -> Any:
    """Return what MONAI builds from a configuration."""
    if not isinstance(model, Mapping):
        raise InputError(
            'model must be the configuration of the plain network, such as {"_target_": "UNet", "spatial_dims": 2, '
            f"...}}, got a {type(model).__name__}"
        )
    try:
        return ConfigParser({"network_def": dict(model)}).get_parsed_content("network_def")
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"MONAI cannot build {dict(model)}: {error.__cause__ or error}") from error


def _check_alike(built: Any, model: nn.Module) -> None:
    """Raise if the configuration builds another network than the one that is saved."""
    if not isinstance(built, nn.Module):
        raise InputError(f"the configuration builds a {type(built).__name__} and no torch.nn.Module")
    ours = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in built.state_dict().items()}
    different = next((name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)), None)
    if different is not None:
        raise InputError(
            f"the configuration builds another network: {different!r} has the shape {theirs.get(different)} there and "
            f"{ours.get(different)} in the model"
        )
