"""Subspaces: the choice of the coordinates of a model that become random."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from leanbayes.errors import InputError, NonFinite, SelectionError, UnknownName
from leanbayes.subspace.ranking import Scores, all_finite, highest
from leanbayes.subspace.slots import Eligible, Slot, anything, matches, slots_of
from leanbayes.subspace.storage import dense_name

__all__ = ["Selection", "Subspace", "everything", "layers", "random_k", "top_k"]

Selection = dict[str, Tensor | None]
"""The sorted flat positions of the random coordinates by the name of the tensor; None stands for all of them."""

Scope = Literal["global", "layer"]


class Subspace(ABC):
    """A choice of coordinates. Frozen parameters are never chosen.

    Attributes:
        eligible: a function of a `Slot` that returns whether its coordinates may be random.
    """

    eligible: Eligible

    @abstractmethod
    def choose(self, pool: list[Slot]) -> Selection:
        """Choose among the parameters in ``pool``, which are trainable and eligible."""

    def select(self, model: nn.Module) -> Selection:
        """Return the random coordinates of ``model``. If there are none, an error says why."""
        slots = slots_of(model)
        pool = [slot for slot in slots if slot.parameter.requires_grad and slot.size and self.eligible(slot)]
        if not pool:
            frozen = sum(not slot.parameter.requires_grad for slot in slots)
            raise SelectionError(
                f"none of the model's {len(slots)} parameters can be random: {frozen} are frozen and the eligibility "
                f"predicate refused the rest; the first are {[slot.name for slot in slots[:3]]}"
            )
        selection = self.choose(pool)
        for slot in pool:
            if slot.name in selection and getattr(slot.module, "sparse", False):
                raise InputError(f"{slot.name!r} has sparse gradients, which a draw cannot pass on; set sparse=False")
        return selection


@dataclass(frozen=True)
class Everything(Subspace):
    """All coordinates of every eligible tensor."""

    eligible: Eligible = anything

    def choose(self, pool: list[Slot]) -> Selection:
        """Choose whole tensors."""
        return {slot.name: slot.whole for slot in pool}


@dataclass(frozen=True)
class Layers(Subspace):
    """All coordinates of the tensors whose name, or the name of whose module, matches a glob."""

    patterns: tuple[str, ...]
    eligible: Eligible = anything

    def choose(self, pool: list[Slot]) -> Selection:
        """Choose whole tensors by name. A pattern without a match is an error."""
        names = [dense_name(slot.name) for slot in pool]
        for pattern in self.patterns:
            if not any(matches(name, pattern) for name in names):
                raise SelectionError(
                    f"{self.patterns}: {pattern!r} matched none of {len(names)} trainable parameters; "
                    f"the first are {names[:3]}"
                )
        chosen = [slot for slot in pool if any(matches(dense_name(slot.name), p) for p in self.patterns)]
        return {slot.name: slot.whole for slot in chosen}


@dataclass(frozen=True)
class Ranked(Subspace):
    """The k coordinates with the highest scores, in the whole model or in each layer."""

    rate: float | None
    k: int | None
    scope: Scope
    eligible: Eligible

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.k is None):
            raise SelectionError(f"give either rate or k, got rate={self.rate} and k={self.k}")
        if self.rate is not None and not 0 < self.rate <= 1:
            raise SelectionError(f"rate must be above 0 and at most 1 (0.01 is 1 %), got {self.rate}")
        if self.k is not None and self.k < 1:
            raise SelectionError(f"k must be at least 1, got {self.k}")
        if self.scope not in ("global", "layer"):
            raise UnknownName.of("scope", self.scope, ["global", "layer"])
        if self.scope == "layer" and self.k is not None:
            raise SelectionError('scope="layer" takes a rate: the same share of each layer')

    @abstractmethod
    def scores_of(self, pool: list[Slot]) -> list[Tensor]:
        """Return the scores of all coordinates, one flat tensor for each slot."""

    def choose(self, pool: list[Slot]) -> Selection:
        """Choose the coordinates with the highest scores of the whole model, or of each layer."""
        scores = [Scores(score, slot.padding) for slot, score in zip(pool, self.scores_of(pool), strict=True)]
        groups: dict[str, list[int]] = {}
        for position, slot in enumerate(pool):
            groups.setdefault(slot.layer if self.scope == "layer" else "", []).append(position)
        selection: Selection = {}
        for members in groups.values():
            count = self._count([pool[i] for i in members])
            positions = highest([scores[i] for i in members], count) if count else []
            for i, index in zip(members, positions, strict=bool(count)):
                if index is None or len(index):
                    selection[pool[i].name] = None if index is None else index.to(pool[i].parameter.device)
        if not selection:
            total = sum(slot.size for slot in pool)
            raise SelectionError(f"rate {self.rate} of {total} coordinates is less than one; raise the rate, or give k")
        return {slot.name: selection[slot.name] for slot in pool if slot.name in selection}

    def _count(self, slots: list[Slot]) -> int:
        total = sum(slot.size for slot in slots)
        if self.k is None:
            assert self.rate is not None
            return round(self.rate * total)
        if self.k > total:
            raise SelectionError(f"k = {self.k} is more than the {total} coordinates that may be random")
        return self.k


@dataclass(frozen=True)
class TopK(Ranked):
    """The k coordinates with the highest scores that the user gives, such as sensitivities."""

    scores: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def scores_of(self, pool: list[Slot]) -> list[Tensor]:
        """Return the scores of the user after checking that they fit the model."""
        missing = [slot.name for slot in pool if slot.name not in self.scores]
        if missing:
            raise SelectionError(
                f"these scores are of another model: {len(missing)} of {len(pool)} parameters have none, first "
                f"{missing[:3]}; the scores name {list(self.scores)[:3]}"
            )
        flat = []
        for slot in pool:
            score = self.scores[slot.name]
            if score.shape != slot.parameter.shape:
                raise SelectionError(
                    f"these scores are of another model: {slot.name!r} has shape {tuple(slot.parameter.shape)}, "
                    f"its scores {tuple(score.shape)}"
                )
            if not all_finite(score):
                bad = int((~torch.isfinite(score)).sum())
                raise NonFinite(
                    f"{bad} of {score.numel()} scores of {slot.name!r} are NaN or infinite; "
                    f"check the loss and the batches that sensitivity got"
                )
            flat.append(score.detach().flatten())
        return flat


@dataclass(frozen=True)
class RandomK(Ranked):
    """k coordinates that are drawn uniformly, the baseline that a score must beat."""

    seed: int = 0

    def scores_of(self, pool: list[Slot]) -> list[Tensor]:
        """Return distinct uniform ranks, which depend on the seed alone."""
        sizes = [slot.parameter.numel() for slot in pool]
        ranks = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(self.seed))
        return list(torch.split(ranks, sizes))


def everything(*, eligible: Eligible = anything) -> Subspace:
    """Make every eligible coordinate random: the fully Bayesian network.

    Args:
        eligible: a function of a `Slot` that returns whether its coordinates may be random.

    >>> list(everything().select(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    return Everything(eligible)


def layers(*patterns: str, eligible: Eligible = anything) -> Subspace:
    """Make whole tensors random whose parameter name or module name matches a glob.

    Args:
        *patterns: the globs, in which ``*`` also matches dots.
        eligible: a function of a `Slot` that returns whether its coordinates may be random.

    >>> list(layers("1").select(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))))
    ['1.weight', '1.bias']
    """
    if not patterns:
        raise SelectionError('layers needs at least one pattern, such as layers("fc") or layers("layer4.*")')
    return Layers(patterns, eligible)


def top_k(
    scores: Mapping[str, Tensor],
    rate: float | None = None,
    *,
    k: int | None = None,
    scope: Scope = "global",
    eligible: Eligible = anything,
) -> Subspace:
    """Make the coordinates with the highest scores random.

    Abboud et al. 2024 and sensitivity-guided subnetworks choose by `sensitivity`.

    Args:
        scores: the scores by the names of the parameters, each shaped as its parameter.
        rate: the share of the eligible coordinates that becomes random, such as 0.01. Give either ``rate`` or ``k``.
        k: the number of coordinates that becomes random.
        scope: "global" ranks the coordinates of the whole model together, as the papers' figures of layer sparsity
            need. "layer" chooses the same share of each layer.
        eligible: a function of a `Slot` that returns whether its coordinates may be random.

    >>> model = nn.Linear(3, 1)
    >>> scores = {"weight": torch.tensor([[1.0, 5.0, 2.0]]), "bias": torch.tensor([3.0])}
    >>> top_k(scores, rate=0.5).select(model)
    {'weight': tensor([1], dtype=torch.int32), 'bias': None}
    """
    return TopK(rate, k, scope, eligible, scores)


def random_k(
    rate: float | None = None,
    *,
    k: int | None = None,
    scope: Scope = "global",
    seed: int = 0,
    eligible: Eligible = anything,
) -> Subspace:
    """Make coordinates random that are drawn uniformly without replacement.

    Args:
        rate: the share of the eligible coordinates that becomes random. Give either ``rate`` or ``k``.
        k: the number of coordinates that becomes random.
        scope: "global" draws from the whole model, "layer" the same share from each layer.
        seed: the seed of the draw.
        eligible: a function of a `Slot` that returns whether its coordinates may be random.

    >>> sum(v.numel() for v in random_k(k=3, seed=1).select(nn.Linear(50, 2)).values())
    3
    """
    return RandomK(rate, k, scope, eligible, seed)
