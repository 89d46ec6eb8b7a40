"""PEFT: low-rank adapters (LoRA) with random weights, for language models and other large models.

LoRA adds to a frozen weight W the product B·A of two thin matrices, and trains these alone. Random thin matrices give a
large model uncertainty for a few thousand scales. `bayesian_lora` makes them random, `save_adapter` writes the scales
beside the adapter that PEFT writes, and `load_adapter` reads both.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian
from leanbayes.errors import FileError, InputError, UnknownName, WrongModel
from leanbayes.integrations._folder import RANDOM_FILE, write_random
from leanbayes.integrations._optional import optional
from leanbayes.storage import about, load
from leanbayes.subspace import layers

with optional("leanbayes.integrations.peft", "huggingface", "peft"):
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

__all__ = ["bayesian_lora", "generate", "load_adapter", "save_adapter"]

_MATRICES: dict[str, tuple[str, ...]] = {
    "A": ("lora_A", "lora_embedding_A"),
    "B": ("lora_B", "lora_embedding_B"),
    "both": ("lora_A", "lora_embedding_A", "lora_B", "lora_embedding_B"),
}


def bayesian_lora(model: Any, *, random: Literal["A", "B", "both"] = "A", **options: Any) -> Bayesian:
    """Make the low-rank matrices of the active adapter random.

    By default the matrices A are random, as in BLoB (Wang et al. 2024). PEFT starts B at zero. So the model starts
    without uncertainty, exactly as it was pretrained, and its uncertainty comes as far as the adapter learns.

    Args:
        model: what ``peft.get_peft_model`` returns for a ``LoraConfig``.
        random: which of the two matrices are random: "A", "B" or "both".
        options: further arguments of `leanbayes.Bayesian`, such as ``posterior``, ``prior`` and ``propagate``.

    Returns:
        The `Bayesian` around ``model``. Everything that does not belong to the adapter stays as it is.
    """
    if random not in _MATRICES:
        raise UnknownName.of("value of random", random, _MATRICES)
    if "subspace" in options:
        raise InputError("bayesian_lora chooses the subspace itself; use random=, or lb.Bayesian(model, subspace=...)")
    adapter = _adapter_of(model)
    _refuse_merged(model, ())
    names = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and _is_matrix(name.split("."), _MATRICES[random], adapter)
    ]
    if not names:
        raise InputError(
            f"the adapter {adapter!r} has no matrices {random} that train; its configuration is "
            f"{type(model.peft_config[adapter]).__name__}. Give what get_peft_model(model, LoraConfig(...)) returns, "
            "and for an adapter from a file is_trainable=True"
        )
    bnn = Bayesian(model, subspace=layers(*names), **options)
    _watch(model)
    return bnn


def save_adapter(bnn: nn.Module, folder: str | Path) -> None:
    """Write the adapter as PEFT does, and the scales beside it.

    The folder is an ordinary folder of PEFT, from which ``PeftModel.from_pretrained`` reads the adapter at its means.

    Args:
        bnn: what `bayesian_lora` returned, trained.
        folder: the folder of the adapter; it is made if needed.
    """
    core = unwrap(bnn)
    if not isinstance(core, Bayesian):
        raise InputError(
            f"save_adapter takes a lb.Bayesian around a PEFT model, got a {type(core).__name__}; use its own "
            "save_pretrained, or make it Bayesian first: bayesian_lora(model)"
        )
    adapter = _adapter_of(core.model)
    core.weights()  # raises inside drawn(), where the parameters hold a draw and not the means
    core.model.save_pretrained(str(folder), selected_adapters=[adapter])  # type: ignore[operator]
    write_random(core, folder)


def load_adapter(model: nn.Module, folder: str | Path, **options: Any) -> Bayesian:
    """Read what `save_adapter` wrote.

    Scales that do not belong to the weights of the adapter are an error, and so is an adapter of which PEFT would leave
    a part at random values.

    Args:
        model: the base model, without an adapter.
        folder: the folder.
        options: further arguments of ``PeftModel.from_pretrained``.

    Returns:
        The `Bayesian` around the PEFT model. Its adapter trains on unless ``is_trainable=False``.
    """
    if isinstance(model, PeftModel | Bayesian):
        raise InputError(f"load_adapter takes the base model, got a {type(model).__name__}; build the base model anew")
    if not isinstance(model, nn.Module):
        raise InputError(f"load_adapter takes the base model, a torch.nn.Module, got a {type(model).__name__}")
    file = Path(folder) / RANDOM_FILE
    if not file.is_file():
        raise FileError(
            f"{folder} has no {RANDOM_FILE}, so save_adapter did not write it; a plain adapter is read by "
            "PeftModel.from_pretrained and made random by bayesian_lora"
        )
    adapter = about(file).get("adapter")
    if not isinstance(adapter, str) or adapter in ("", "..") or Path(adapter).name != adapter:  # a path leads elsewhere
        raise FileError(f"{file} does not say to which adapter it belongs, so save_adapter did not write it")
    place = Path(folder) if adapter == "default" else Path(folder) / adapter
    if not place.is_dir():  # PEFT would take the path for the name of a repository on the hub
        raise FileError(f"{file} belongs to the adapter {adapter!r}, and there is no folder {place}; copy it again")
    arguments: dict[str, Any] = {"is_trainable": True} | options
    try:
        whole = PeftModel.from_pretrained(model, str(place), adapter_name=adapter, **arguments)
    except (RuntimeError, ValueError) as error:
        raise WrongModel(
            f"the adapter in {place} does not fit a {type(model).__name__}; give the base model that it was trained "
            f"on. PEFT says: {error}"
        ) from error
    bnn: Bayesian = load(file, whole)
    _watch(whole)
    return bnn


def generate(
    bnn: nn.Module, draws: int, *, generator: torch.Generator | None = None, **arguments: Any
) -> Iterator[Any]:
    """Generate once for each of several draws of the weights.

    Each draw is written into the parameters while ``generate`` of the model runs (see `leanbayes.Bayesian.drawn`). How
    much the texts of different draws differ says how sure the model is.

    Args:
        bnn: a `Bayesian` around a model that has ``generate``.
        draws: how many draws.
        generator: draws the weights; tokens that are sampled use torch's global state, as always.
        arguments: the arguments of ``generate``, such as ``input_ids`` and ``max_new_tokens``.

    Yields:
        What ``generate`` returns in each draw.
    """
    core = unwrap(bnn)
    if not isinstance(core, Bayesian) or not hasattr(core.model, "generate"):
        kind = type(core.model if isinstance(core, Bayesian) else core).__name__
        raise InputError(f"generate takes a lb.Bayesian around a model that has generate(), got a {kind}")
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise InputError(f"draws must be a whole number of at least 1, got {draws!r}")
    return _generated(core, draws, generator, arguments)


def _generated(
    bnn: Bayesian, draws: int, generator: torch.Generator | None, arguments: dict[str, Any]
) -> Iterator[Any]:
    for _ in range(draws):
        with bnn.drawn(generator) as network:
            returned = network.generate(**arguments)  # type: ignore[operator]
        yield returned


def _adapter_of(model: Any) -> str:
    """Return the name of the only active adapter."""
    if not isinstance(model, PeftModel):
        advice = (
            "give bnn.model" if isinstance(model, Bayesian) else "first call peft.get_peft_model(model, LoraConfig())"
        )
        raise InputError(f"the model must be a PeftModel, got a {type(model).__name__}; {advice}")
    active: list[str] = list(model.active_adapters)
    if len(active) != 1:
        raise InputError(f"exactly one adapter must be active, got {active}; choose it: model.set_adapter(...)")
    return active[0]


def _is_matrix(path: list[str], matrices: tuple[str, ...], adapter: str) -> bool:
    """Whether a parameter is a low-rank matrix: "….lora_A.default.weight", or "….lora_embedding_A.default"."""
    return any(first in matrices and second == adapter for first, second in pairwise(path))


def _watch(model: Any) -> None:
    """Refuse passes through a merged adapter, also those of ``generate``, which calls the model inside directly."""
    model.register_forward_pre_hook(_refuse_merged)
    model.get_base_model().register_forward_pre_hook(_refuse_merged)


def _refuse_merged(model: nn.Module, args: Any) -> None:  # noqa: ARG001
    """Raise if the adapter is merged into the base weights, because a draw of the adapter would then do nothing."""
    if any(layer.merged for layer in model.modules() if isinstance(layer, LoraLayer)):
        raise InputError(
            "the adapter is merged into the base weights, so draws of it would do nothing; call model.unmerge_adapter()"
        )
