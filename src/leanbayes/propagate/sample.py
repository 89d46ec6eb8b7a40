"""`Sample`: one weight draw for a batch (Blundell et al. 2015; Abboud et al. 2024), alone or in balanced groups."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leanbayes.errors import InputError
from leanbayes.posteriors import Normal
from leanbayes.propagate.propagation import Propagation, Weights

__all__ = ["Sample"]


@dataclass(frozen=True, repr=False)
class Sample(Propagation):
    """One weight draw for the whole batch: every pass is an ordinary network.

    In a balanced group of draws of a prediction the noise of all draws sums to zero, and each of them alone is a
    correct draw. Groups of two are antithetic pairs, μ + Δ and μ − Δ (Hammersley and Morton 1956). Larger groups are
    Normal draws that all have the correlation −1/(n − 1), the least that n draws can share. What the outputs owe to
    the noise at first order cancels in a group. Where scales are small, as with 1 % of the weights random, far fewer
    passes then give the mean prediction and the total uncertainty with the same error. The epistemic uncertainty is of
    second order: of G groups of n draws it has the error of G(n − 1) independent draws, so large groups suit it best.

    A training step draws one network, so balance plays no part in training.

    Args:
        balanced: how many successive draws of a prediction sum to zero noise; 1 for independent draws. For 2 the
            posterior must be symmetric about its mean, for more than 2 it must be `Normal`. If the number of draws is
            not a multiple, the last group is not complete.

    >>> Sample().name, Sample(balanced=4)
    ('sample', Sample(balanced=4))
    """

    name: ClassVar[str] = "sample"
    plain_draws: ClassVar[bool] = True
    draws_ahead: ClassVar[bool] = True
    works_on_pieces: ClassVar[bool] = True
    balanced: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.balanced, bool) or not isinstance(self.balanced, int) or self.balanced < 1:
            raise InputError(
                f"balanced must be a number of draws of at least 1, got {self.balanced!r}; for antithetic pairs give "
                "Sample(balanced=2)"
            )

    def __repr__(self) -> str:
        """Return the call that makes this value."""
        return "Sample()" if self.balanced == 1 else f"Sample(balanced={self.balanced})"

    @property
    def group(self) -> int:
        """How many successive draws of a prediction depend on each other."""
        return self.balanced

    def noises(self, weights: Weights, generator: torch.Generator | None) -> Iterator[dict[str, Tensor]]:
        """Yield the noise of one draw after the other; that of each group sums to zero.

        Given the sum z of the t draws before it, a draw of a group of n is N(−z / (n − t), v) with v =
        n(n − t − 1) / ((n − 1)(n − t)). This is the conditional law of standard Normal numbers with the correlation
        −1/(n − 1), and the last draw is −z.
        """
        if self.balanced == 1:
            yield from super().noises(weights, generator)
        self._require_balance(weights)
        n = self.balanced
        while True:
            sums = {name: weight.noise(generator) for name, weight in weights.items()}
            yield {name: values.clone() for name, values in sums.items()}
            for left in range(n - 1, 0, -1):
                noise = {name: values / -left for name, values in sums.items()}
                if left > 1:
                    deviation = math.sqrt(n * (left - 1) / ((n - 1) * left))
                    for name, weight in weights.items():
                        noise[name].add_(weight.noise(generator), alpha=deviation)
                for name, values in sums.items():
                    values.add_(noise[name])
                yield noise

    def stand_ins(
        self,
        weights: Weights,
        model: nn.Module,  # noqa: ARG002
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        """Draw plain tensors: w = μ + σξ at the random coordinates, μ elsewhere."""
        return {name: weight.draw(generator) for name, weight in weights.items()}

    def _require_balance(self, weights: Weights) -> None:
        for family in {weight.family for weight in weights.values()}:
            if self.balanced == 2 and not family.symmetric:
                raise InputError(
                    f"pairs of draws need noise that is symmetric about 0, which {family} is not; use Sample()"
                )
            if self.balanced > 2 and not isinstance(family, Normal):
                raise InputError(
                    f"groups of {self.balanced} balanced draws need a Normal posterior, and this one is {family}; use "
                    "Sample(balanced=2)" + ("" if family.symmetric else " with a symmetric posterior, or Sample()")
                )
