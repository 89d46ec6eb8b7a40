"""SWAG (Maddox et al. 2019), a Gaussian fitted to the weights that training passes through."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from leanbayes._calls import Inputs, call, call_with, split_batch
from leanbayes.baselines.seeds import draw_seeds
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite
from leanbayes.prediction import Predictor, in_eval

__all__ = ["Swag"]


class Swag(Predictor):
    """A model with weights w = mean + σ z₁/√2 + D z₂/√(2(K−1)) and standard normal z₁, z₂ (Maddox et al. 2019, eq. 1).

    The mean and σ² are those of all collected weights (σ² divides by their number). The K ≤ ``rank`` rows of D are the
    last collected weights minus the mean at their time. With ``rank=0`` there is no D, and w = mean + σ z₁
    (SWAG-Diagonal). The parameters that require gradients when this is built are random; the others stay as they are.

    The memory is 2 + rank times that of the random parameters, in float32 at least. Each draw has a seed and takes its
    noise from the CPU, so that a draw read from a file is the same on every device. A network with batch norm needs
    statistics for each draw: call `update_norms` after the last `collect`. These draws are then the only ones.

    Args:
        model: a plain module in training.
        rank: how many deviations are stored: 0, or at least 2.

    >>> model = nn.Linear(2, 1)
    >>> swag = Swag(model, rank=2)
    >>> for step in range(3):
    ...     _ = nn.init.constant_(model.weight, step)
    ...     swag.collect()
    >>> swag.mean[:2], [out.shape for out in swag.outputs(torch.ones(4, 2), 2, None)]
    (tensor([1., 1.]), [torch.Size([4, 1]), torch.Size([4, 1])])
    """

    mean: Tensor
    variance: Tensor
    deviations: Tensor
    collected: Tensor
    seeds: Tensor
    norm_means: Tensor
    norm_variances: Tensor

    def __init__(self, model: nn.Module, rank: int = 20) -> None:
        super().__init__()
        if any(isinstance(module, Bayesian | Predictor) for module in model.modules()):
            raise InputError(f"SWAG needs a plain module, got a {type(model).__name__} with draws of its own")
        if rank < 0 or rank == 1:
            raise InputError(f"rank must be 0 (diagonal) or at least 2 (one deviation has no covariance), got {rank}")
        self.model = model
        self.rank = rank
        self._allot([name for name, p in model.named_parameters() if p.requires_grad and p.is_floating_point()], 0)

    @property
    def members(self) -> int | None:  # type: ignore[override]
        """The number of draws that have batch-norm statistics; None, no limit, without such layers."""
        return len(self.seeds) or None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model as it is now, which is what is trained between one `collect` and the next."""
        return self.model(*args, **kwargs)

    @torch.no_grad()
    def collect(self) -> None:
        """Add the present weights to the mean and variance (by Welford's method, which keeps its digits) and to D."""
        now = torch.cat([p.detach().flatten().to(self.mean) for p in self._random().values()])
        if not torch.isfinite(now).all():
            raise NonFinite("the weights have NaN or infinite values; collect before training diverges")
        count = int(self.collected) + 1
        before = now - self.mean
        self.mean += before / count
        self.variance += (before * (now - self.mean) - self.variance) / count
        if self.rank:
            self.deviations[(count - 1) % self.rank] = now - self.mean
        self.collected += 1
        self._allot_norms(0)  # the draws that had statistics are no longer valid

    def sample(self, seed: int) -> dict[str, Tensor]:
        """Return the weights of one draw by name."""
        count = int(self.collected)
        if count < 2:
            raise InputError(f"{count} weights were collected: call collect() at least twice, such as once an epoch")
        source = torch.Generator().manual_seed(seed)
        noise = torch.randn(len(self.mean), dtype=self.mean.dtype, generator=source).to(self.mean.device)
        scale = self.variance.clamp_min(0).sqrt()
        if not self.rank:
            flat = self.mean + scale * noise
        else:
            rows = min(count, self.rank)
            second = torch.randn(rows, dtype=self.mean.dtype, generator=source).to(self.mean.device)
            low_rank = second @ self.deviations[:rows] / math.sqrt(2 * (rows - 1))
            flat = self.mean + scale * noise / math.sqrt(2) + low_rank
        parameters = self._random()
        pieces = flat.split([p.numel() for p in parameters.values()])
        return {name: piece.view(p.shape).to(p) for (name, p), piece in zip(parameters.items(), pieces, strict=True)}

    @torch.no_grad()
    def update_norms(
        self, batches: Iterable[Any], draws: int = 32, *, generator: torch.Generator | None = None
    ) -> None:
        """Compute the batch-norm statistics of ``draws`` weight draws over the training data.

        Each draw takes one pass over the data. Every batch has the same weight, as in
        `torch.optim.swa_utils.update_bn`. The model is left as it was. A model without such layers needs no statistics.

        Args:
            batches: pairs (inputs, targets).
            draws: how many weight draws get statistics.
            generator: the source of the draws' seeds.
        """
        if draws < 1:
            raise InputError(f"draws must be at least 1, got {draws}")
        if iter(batches) is batches:
            raise InputError("batches are read once for each draw: give a list or a DataLoader, not an iterator")
        if not self._norms():
            return
        seeds = draw_seeds(draws, generator)
        rows = []
        for seed in seeds:
            weights, statistics = self.sample(seed), self._fresh_statistics()
            seen = 0
            with in_eval(self.model), self._counting():
                for batch in batches:
                    x, _ = split_batch(batch)
                    self._pass(weights | statistics, x)
                    seen += 1
            if not seen:
                raise InputError("there are no batches: the statistics need training data")
            rows.append([_flat(statistics, kind).to(self.mean) for kind in ("running_mean", "running_var")])
        self._allot_norms(draws)
        self.seeds.copy_(torch.tensor(seeds))
        for row, (means, variances) in enumerate(rows):
            self.norm_means[row], self.norm_variances[row] = means, variances

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield passes with weight draws, each with its own batch-norm statistics."""
        if self._norms() and not len(self.seeds):
            raise InputError(
                f"the model has batch norm ({next(iter(self._norms()))!r} is the first), whose statistics are not "
                "those of sampled weights; call update_norms(batches, draws) after the last collect()"
            )
        if self.members is not None and draws > self.members:
            raise InputError(f"{draws} draws were asked for, but only {self.members} have batch-norm statistics")
        for draw, seed in enumerate(self.seeds.tolist()[:draws] if self.members else _lazily(draws, generator)):
            with in_eval(self.model), torch.no_grad():
                tensors = self.sample(seed)
                if self.members:
                    tensors |= self._statistics(draw)
                out = self._pass(tensors, x)
            yield out

    def random_tensors(self) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
        """Yield each random parameter with the mean and variance of its draws."""
        count, parameters = int(self.collected), self._random()
        if count < 2:
            raise InputError(f"{count} weights were collected: call collect() at least twice, then prune")
        variance = self.variance.clamp_min(0)
        if self.rank:
            rows = min(count, self.rank)
            variance = variance / 2 + self.deviations[:rows].square().sum(0) / (2 * (rows - 1))
        sizes = [parameter.numel() for parameter in parameters.values()]
        moments = zip(parameters.values(), self.mean.split(sizes), variance.split(sizes), strict=True)
        for parameter, mean, spread in moments:
            yield parameter, mean.view(parameter.shape), spread.view(parameter.shape)

    def make_certain(self, kept: Mapping[nn.Parameter, Tensor]) -> None:
        """Set the mean, the variance and the deviations of pruned weights to zero."""
        masks = [kept.get(p, torch.ones_like(p, dtype=torch.bool)).flatten() for p in self._random().values()]
        gone = ~torch.cat([mask.to(self.mean.device) for mask in masks])
        for tensor in (self.mean, self.variance, self.deviations):
            tensor.masked_fill_(gone, 0)

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return weight draws as differentiable functions: those that have batch-norm statistics, or new ones."""
        draws = draws if self.members is None else min(draws, self.members)
        seeds = draw_seeds(draws, source) if self.members is None else self.seeds.tolist()[:draws]

        def network(x: Tensor, draw: int, seed: int) -> Any:
            with torch.no_grad():
                tensors = self.sample(seed) | (self._statistics(draw) if self.members else {})
            return call_with(self.model, tensors, (x,), {})

        return [partial(network, draw=draw, seed=seed) for draw, seed in enumerate(seeds)]

    def parts(self) -> dict[str, nn.Module]:
        """Return the model."""
        return {"model": self.model}

    def config(self) -> dict[str, Any]:
        """Return the rank, the names of the random parameters, and how many draws have statistics."""
        return {"rank": self.rank, "names": list(self.names), "draws": len(self.seeds)}

    @classmethod
    def rebuild(cls, parts: dict[str, nn.Module], **config: Any) -> Self:
        """Rebuild what was saved, whatever requires gradients in the model now."""
        swag = cls(parts["model"], config["rank"])
        swag._allot(config["names"], config["draws"])
        return swag

    def extra_repr(self) -> str:
        """Describe what was collected."""
        return f"rank={self.rank}, collected={int(self.collected)}, random={self.mean.numel()}, draws={self.members}"

    def _allot(self, names: list[str], draws: int) -> None:
        own = dict(self.model.named_parameters())
        if not names or any(name not in own for name in names):
            raise InputError(
                f"SWAG needs trainable floating-point parameters, got {names[:3]} of a model with {list(own)[:3]}"
            )
        self.names = tuple(names)
        dtype, size = torch.float32, 0
        for name in names:
            dtype, size = torch.promote_types(dtype, own[name].dtype), size + own[name].numel()
        empty = torch.zeros(0, dtype=dtype, device=own[names[0]].device)
        self.register_buffer("mean", empty.new_zeros(size))
        self.register_buffer("variance", empty.new_zeros(size))
        self.register_buffer("deviations", empty.new_zeros(self.rank, size))
        self.register_buffer("collected", torch.zeros((), dtype=torch.int64, device=empty.device))
        self._allot_norms(draws)

    def _allot_norms(self, draws: int) -> None:
        width = sum(module.running_mean.numel() for module in self._norms().values())
        self.register_buffer("seeds", torch.zeros(draws, dtype=torch.int64, device=self.mean.device))
        self.register_buffer("norm_means", self.mean.new_zeros(draws, width))
        self.register_buffer("norm_variances", self.mean.new_zeros(draws, width))

    def _random(self) -> dict[str, nn.Parameter]:
        own = dict(self.model.named_parameters())
        return {name: own[name] for name in self.names}

    def _norms(self) -> dict[str, Any]:
        return {
            name: module
            for name, module in self.model.named_modules()
            if isinstance(module, _BatchNorm) and module.running_mean is not None
        }

    def _pass(self, tensors: dict[str, Tensor], x: Inputs) -> Any:
        return call(lambda *args, **kwargs: call_with(self.model, tensors, args, kwargs), x)

    def _fresh_statistics(self) -> dict[str, Tensor]:
        """Return empty running statistics, which a pass in train mode fills."""
        fresh = {}
        for name, module in self._norms().items():
            prefix = f"{name}." if name else ""
            fresh[f"{prefix}running_mean"] = torch.zeros_like(module.running_mean)
            fresh[f"{prefix}running_var"] = torch.ones_like(module.running_var)
            fresh[f"{prefix}num_batches_tracked"] = torch.zeros_like(module.num_batches_tracked)
        return fresh

    def _statistics(self, draw: int) -> dict[str, Tensor]:
        """Return the stored statistics of one draw by name."""
        fresh = self._fresh_statistics()
        for kind, row in (("running_mean", self.norm_means[draw]), ("running_var", self.norm_variances[draw])):
            names = [name for name in fresh if name.endswith(kind)]
            pieces = row.split([fresh[name].numel() for name in names])
            fresh |= {name: piece.to(fresh[name]) for name, piece in zip(names, pieces, strict=True)}
        return fresh

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Inside this context, norm layers average the statistics of all batches; other layers stay in eval mode."""
        before = [(module, module.momentum, module.training) for module in self._norms().values()]
        try:
            for module, _, _ in before:
                module.momentum, module.training = None, True
            yield
        finally:
            for module, momentum, mode in before:
                module.momentum, module.training = momentum, mode


def _flat(statistics: dict[str, Tensor], kind: str) -> Tensor:
    return torch.cat([value for name, value in statistics.items() if name.endswith(kind)])


def _lazily(count: int, generator: torch.Generator | None) -> Iterator[int]:
    for _ in range(count):
        yield from draw_seeds(1, generator)
