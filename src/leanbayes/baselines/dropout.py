"""Monte Carlo dropout (Gal and Ghahramani 2016), in which dropout stays on during prediction."""

import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils._pytree import tree_map

from leanbayes._calls import Inputs, call, map_tensors
from leanbayes._calls import batch_size as size_of
from leanbayes.baselines.seeds import draw_seeds
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.prediction import Predictor, in_eval

__all__ = ["MCDropout"]


class MCDropout(Predictor):
    """A model whose dropout is on in every pass, in eval mode too. Everything else in it stays in eval mode.

    The dropout of the model itself is used: its dropout layers, and the dropout inside torch's attention and recurrent
    layers. (`F.dropout` in a ``forward`` cannot be seen from outside.) A model without dropout gets dropout through
    hooks during each pass: after the first convolution of each block, which is an innermost module with two or more
    convolutions, and after each fully connected layer but the output layer. The paper on sensitivity-guided subnetworks
    does so (appendix H.3.2). Dropped logits would make the prediction meaningless. Therefore, where the output layer is
    the only fully connected one, as in a ResNet, dropout is applied to its input.

    Args:
        model: a plain module; ``fit(MCDropout(model), ...)`` trains it.
        rate: the share that inserted dropout sets to zero; the model's own layers keep their rates.

    >>> MCDropout(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))).inserted
    {'0': 'output'}
    """

    draws_differ_within_batch: ClassVar[bool] = True

    def __init__(self, model: nn.Module, rate: float = 0.2) -> None:
        super().__init__()
        if any(isinstance(module, Bayesian | Predictor) for module in model.modules()):
            raise InputError(f"dropout needs a plain module, got a {type(model).__name__} with draws of its own")
        if not 0 < rate < 1:
            raise InputError(f"rate must be above 0 and below 1, got {rate}")
        self.model = model
        self.rate = rate
        self.own = [name for name, module in model.named_modules() if _drops(module)]
        self.inserted = {} if self.own else _insertions(model)
        if not self.own and not self.inserted:
            raise InputError(
                f"{type(model).__name__} has no dropout, and neither a linear layer nor a block of convolutions after "
                "which dropout could be inserted; add nn.Dropout layers to it"
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run one pass with dropout, in train and in eval mode. The noise comes from torch's global random state."""
        with self._dropping():
            return self.model(*args, **kwargs)

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield passes that differ by what is dropped. Each leaves torch's global random state as it was."""
        devices = {tensor.device.index for tensor in self.model.parameters() if tensor.is_cuda}
        for _ in range(draws):
            (seed,) = draw_seeds(1, generator)
            with torch.random.fork_rng(sorted(devices)), in_eval(self), torch.no_grad():
                torch.default_generator.manual_seed(seed)
                for device in devices:
                    torch.cuda.default_generators[device].manual_seed(seed)
                out = call(self, x)
            yield out

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return passes with fixed dropout masks as differentiable functions; all inputs share the masks of a draw."""
        devices = sorted({p.device.index for p in self.parameters() if p.is_cuda})

        def one(row: Inputs) -> Any:
            return map_tensors(lambda leaf: leaf[0], call(self, map_tensors(lambda leaf: leaf.unsqueeze(0), row)))

        def network(x: Inputs, seed: int) -> Any:
            def reseed() -> None:
                torch.default_generator.manual_seed(seed)
                for device in devices:
                    torch.cuda.default_generators[device].manual_seed(seed)

            with torch.random.fork_rng(devices):
                return _row_by_row(one, x, reseed)

        return [partial(network, seed=seed) for seed in draw_seeds(draws, source)]

    def parts(self) -> dict[str, nn.Module]:
        """Return the model."""
        return {"model": self.model}

    def config(self) -> dict[str, Any]:
        """Return the rate."""
        return {"rate": self.rate}

    def extra_repr(self) -> str:
        """Describe where dropout is."""
        return f"own={self.own}" if self.own else f"rate={self.rate}, inserted={self.inserted}"

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Inside this context, dropout is on: the model's own layers are in train mode, or hooks are installed."""
        modules = dict(self.model.named_modules())
        # In eval mode an encoder layer takes a fused path, which has neither dropout nor hooks.
        switched = [module for module in modules.values() if isinstance(module, nn.TransformerEncoderLayer)]
        switched += [modules[name] for name in self.own]
        modes = [(module, module.training) for module in switched]
        fired: list[bool] = []

        def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:  # noqa: ARG001
            fired.append(True)
            return F.dropout(output, self.rate)

        def before(module: nn.Module, args: Any) -> Any:  # noqa: ARG001
            if not args:
                return None
            fired.append(True)
            return F.dropout(args[0], self.rate), *args[1:]

        with ExitStack() as undo:
            for name, side in self.inserted.items():
                module = modules[name]
                hook = (
                    module.register_forward_hook(after)
                    if side == "output"
                    else module.register_forward_pre_hook(before)
                )
                undo.callback(hook.remove)
            try:
                for module in switched:
                    module.training = True
                yield
            finally:
                for module, mode in modes:
                    module.training = mode
        if self.inserted and not fired:
            raise InputError(
                f"none of the layers {list(self.inserted)} was called, so nothing was dropped; "
                "add nn.Dropout layers to the model"
            )


def _row_by_row(function: Callable[[Inputs], Any], x: Inputs, reseed: Callable[[], None]) -> Any:
    """Apply ``function`` to each row with the same randomness: vmapped, or one row after the other if need be."""
    try:
        reseed()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it has no batching rule
            return vmap(function, randomness="same")(x)
    except (RuntimeError, ValueError, Warning):
        rows = []
        for place in range(size_of(x)):
            reseed()
            rows.append(function(map_tensors(operator.itemgetter(place), x)))
        return tree_map(lambda *leaves: torch.stack(leaves), rows[0], *rows[1:])


def _drops(module: nn.Module) -> bool:
    """Return whether a module drops something in train mode by itself."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


def _insertions(model: nn.Module) -> dict[str, str]:
    """Return the layers at which dropout is inserted, with the side of each: "output" or "input"."""
    modules = dict(model.named_modules())
    convolutions = [name for name, module in modules.items() if isinstance(module, _ConvNd)]
    linear = [
        name
        for name, module in modules.items()
        if isinstance(module, nn.Linear) and not isinstance(module, NonDynamicallyQuantizableLinear)
    ]  # attention has such a layer, but does not call it
    inside = {
        outer: [name for name in convolutions if name != outer and (not outer or name.startswith(f"{outer}."))]
        for outer in modules
    }
    blocks = {outer: names for outer, names in inside.items() if len(names) > 1}
    sides = {}
    for outer, names in blocks.items():
        if not any(inner != outer and (not outer or inner.startswith(f"{outer}.")) for inner in blocks):
            sides[names[0]] = "output"
    if len(linear) == 1:
        sides[linear[0]] = "input"
    return sides | dict.fromkeys(linear[:-1], "output")
