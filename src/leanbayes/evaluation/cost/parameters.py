"""How many numbers a model keeps."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from leanbayes.bayesian import Coordinates
from leanbayes.errors import InputError
from leanbayes.prediction import Predictor
from leanbayes.subspace import Scatter

__all__ = ["Parameters", "count_parameters"]


@dataclass(frozen=True)
class Parameters:
    """How many numbers a model keeps, by kind, and the bytes they take.

    Attributes:
        means: the parameters of the networks themselves, frozen ones too.
        scales: the raw scales of random weights.
        positions: where the random weights lie in their tensors, if not all are random.
        buffers: everything else, such as running statistics, the moments of SWAG, or what a prior remembers.
        bytes: the size of all of them.
        zeros: the entries of sparse weights that are not kept.
    """

    means: int = 0
    scales: int = 0
    positions: int = 0
    buffers: int = 0
    bytes: int = 0
    zeros: int = 0

    @property
    def density(self) -> float:
        """The share of the networks' parameters that is kept."""
        return self.means / max(self.means + self.zeros, 1)

    @property
    def trained(self) -> int:
        """Means and scales: (1 + r)θ numbers for a share r of random weights among θ."""
        return self.means + self.scales


def count_parameters(model: nn.Module) -> Parameters:
    """Count the numbers that a module, a `Bayesian` or a `Predictor` keeps. Memory that two tensors share counts once.

    >>> from leanbayes.bayesian import Bayesian
    >>> count_parameters(Bayesian(nn.Linear(3, 2)))
    Parameters(means=8, scales=8, positions=0, buffers=0, bytes=64, zeros=0)
    """
    counts = dict.fromkeys(("means", "scales", "positions", "buffers", "bytes"), 0)
    seen: set[tuple[object, ...]] = set()
    for kind, tensor in tensors_of(model):
        if is_lazy(tensor):
            raise InputError("the model has parameters without a shape yet; run one batch through it first")
        size = tensor.numel() * tensor.element_size()
        address = id(tensor) if tensor.is_meta else tensor.data_ptr()
        if (tensor.device, address, size) not in seen:
            seen.add((tensor.device, address, size))
            counts[kind] += tensor.numel()
            counts["bytes"] += size
    sparse = [module for module in modules_of(model) if isinstance(module, Scatter)]
    return Parameters(**counts, zeros=sum(module.size - len(module.index) for module in sparse))


def modules_of(model: nn.Module) -> Iterator[nn.Module]:
    """Yield every module inside, also those that a predictor names as parts but has not registered."""
    for module in model.modules():
        yield module
        if isinstance(module, Predictor):
            for part in module.parts().values():
                yield from modules_of(part)


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor with the field of `Parameters` that counts it."""
    for module in modules_of(model):
        own, buffers = module._parameters, module._buffers
        random = isinstance(module, Coordinates)
        yield from (("scales" if random else "means", tensor) for tensor in own.values() if tensor is not None)
        for name, tensor in buffers.items():
            if tensor is not None:
                positions = name == "index" and (random or isinstance(module, Scatter))
                yield "positions" if positions else "buffers", tensor
