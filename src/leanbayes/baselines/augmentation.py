"""Test-time augmentation: a model sees each image as it is, flipped and shifted, and the predictions are averaged."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, map_tensors, prediction_tensor, split_batch
from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError, UnknownName
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.prediction import Predictor, in_eval, outputs_of
from leanbayes.prediction.prediction import networks_of

__all__ = ["FLIPS", "SHIFTS", "Augmented", "require_images"]

FLIPS = {"identity": (), "horizontal": (-1,), "vertical": (-2,), "both": (-2, -1)}
"""The axes that each flip reverses. The image as it is counts as a flip of no axis."""

SHIFTS = {"left": (-1, 1), "right": (-1, -1), "up": (-2, 1), "down": (-2, -1)}
"""The axis along which each shift moves an image, and the direction in which its pixels are read."""


class Augmented(Predictor):
    """A model that sees each image in several views: as it is, flipped, or shifted by a few pixels.

    Each draw is a draw of the model for one of the views, so the prediction averages over views. Where a model
    returns something for each pixel, flips are undone in its outputs. Shifts are refused there, because the pixels at
    the border would have no prediction.

    Args:
        model: a plain module, a `Bayesian` or another `Predictor`, whose input is one tensor of images
            (N, channels, height, width).
        views: names of `FLIPS` and `SHIFTS`, each once.
        shift: by how many pixels the shifts move an image; the pixels at its border are repeated.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> seen = Augmented(model, views=("identity", "horizontal"))
    >>> x = torch.arange(4.0).view(1, 1, 2, 2)
    >>> outs = list(seen.outputs(x, 2, None))
    >>> seen.members, bool(torch.equal(outs[1], model(x.flip(-1))))
    (2, True)
    """

    def __init__(self, model: nn.Module, views: Sequence[str] = ("identity", "horizontal"), shift: int = 1) -> None:
        super().__init__()
        model = unwrap(model)
        if not isinstance(model, Predictor):
            refuse_random_parts(model)
        for view in views:
            if view not in FLIPS and view not in SHIFTS:
                raise UnknownName.of("view", view, (*FLIPS, *SHIFTS))
        if not views or isinstance(views, str) or len(set(views)) < len(views):
            raise InputError(f"views must be a list of names, at least one and each once, got {views!r}")
        if not isinstance(shift, int) or shift < 1:
            raise InputError(f"shift must be a whole number of pixels of at least 1, got {shift!r}")
        self.model, self.views, self.shift = model, tuple(views), shift

    @property
    def members(self) -> int | None:  # type: ignore[override]
        """The number of views times that of the model's draws; None if the model has no limit."""
        inner = _members(self.model)
        return None if inner is None else inner * len(self.views)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run one pass for the images as they are."""
        return self.model(*args, **kwargs)

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield draws of the model for one view after the other, with flips undone."""
        images = require_images(x)
        if self.members is not None and draws > self.members:
            raise InputError(f"{draws} draws were asked of a predictor that has {self.members}")
        order = self.order(draws)
        sources = {
            view: outputs_of(self.model, self._seen(images, view), order.count(view), generator)
            for view in dict.fromkeys(order)
        }
        for view in order:
            yield self._undone(next(sources[view]), view, images)

    def order(self, draws: int) -> list[str]:
        """Return the view of each draw.

        Views take turns. If there are too few draws for all pairs of a view and a member of an ensemble, but enough
        for two views, each view takes all members before the next one, because no member should be left out.
        """
        inner, count = _members(self.model), len(self.views)
        if inner is not None and 2 * inner <= draws < inner * count:
            return [self.views[draw // inner] for draw in range(draws)]
        return [self.views[draw % count] for draw in range(draws)]

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return the draws of the model for one view after the other as differentiable functions."""
        order = self.order(draws if self.members is None else min(draws, self.members))

        def seen(x: Tensor, network: Callable[[Tensor], Any], view: str) -> Any:
            images = require_images(x)
            return self._undone(network(self._seen(images, view)), view, images)

        most = max(order.count(view) for view in order)
        inner = networks_of(self.model, most, source)
        turns = [order[:draw].count(view) for draw, view in enumerate(order)]
        return [partial(seen, network=inner[turn], view=view) for turn, view in zip(turns, order, strict=True)]

    def parts(self) -> dict[str, nn.Module]:
        """Return the model."""
        return {"model": self.model}

    def config(self) -> dict[str, Any]:
        """Return the views and the shift."""
        return {"views": list(self.views), "shift": self.shift}

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        model: nn.Module,
        batches: Iterable[Any],
        likelihood: Likelihood,
        *,
        shift: int = 1,
        samples: int = 8,
        generator: torch.Generator | None = None,
    ) -> "Augmented":
        """Choose the views that suit the data: those with the least validation NLL of the mean prediction.

        A digit that is flipped is another sign, and a street scene has no upside down. So the choice is between no
        flips, horizontal ones, vertical ones and both, each with and without shifts. It may be the image as it is.

        Args:
            model: anything that predicts images.
            batches: validation data as pairs (images, targets).
            likelihood: what the outputs of the model mean.
            shift: by how many pixels shifts move an image; 0 tries none. Predictions for each pixel have none.
            samples: how many draws of a random model each view averages.
            generator: the source of randomness for the draws.

        Returns:
            The model with these views.
        """
        require_likelihood(likelihood)
        inner = _members(unwrap(model))
        draws = samples if inner is None else min(samples, inner)
        policies: list[tuple[str, ...]] = []
        sums: list[Tensor] = []
        for batch in batches:
            x, y = split_batch(batch)
            if not policies:
                policies = _policies(shifts=shift > 0 and likelihood.kind(y) != "pixels")
                everything = cls(
                    model, list(dict.fromkeys(view for policy in policies for view in policy)), max(shift, 1)
                )
            outs: dict[str, list[Any]] = {view: [] for view in everything.views}
            with in_eval(likelihood):
                number = draws * len(everything.views)
                for view, out in zip(everything.order(number), everything.outputs(x, number, generator), strict=True):
                    outs[view].append(prediction_tensor(out))
                scores = [_nll(likelihood, [out for view in policy for out in outs[view]], y) for policy in policies]
            sums = [total + score for total, score in zip(sums, scores, strict=True)] if sums else scores
        if not policies:
            raise InputError("there are no batches to choose the views on; give validation batches")
        return cls(model, min(zip(policies, map(float, sums), strict=True), key=lambda pair: pair[1])[0], max(shift, 1))

    def extra_repr(self) -> str:
        """Describe the views."""
        return f"views={self.views}, shift={self.shift}"

    def _seen(self, images: Tensor, view: str) -> Tensor:
        """The images in this view."""
        if view in FLIPS:
            return images.flip(FLIPS[view]) if FLIPS[view] else images
        axis, direction = SHIFTS[view]
        size = images.shape[axis]
        if self.shift >= size:
            raise InputError(f"images of {size} pixels cannot be shifted by {self.shift}; lower shift")
        index = torch.arange(size, device=images.device) + direction * self.shift
        return images.index_select(axis, index.clamp(0, size - 1))

    def _undone(self, out: Any, view: str, images: Tensor) -> Any:
        """The output with the flip undone, where it has a value for each pixel."""

        def undo(leaf: Tensor) -> Tensor:
            if leaf.dim() < 3:
                return leaf
            if leaf.dim() == 3 and leaf.shape[1:] != images.shape[-2:]:
                raise InputError(
                    f"the model returns {tuple(leaf.shape)} for images of {tuple(images.shape)}, and it is not clear "
                    "which axes are those of the image; let it return (N, classes, height, width)"
                )
            if view in SHIFTS:
                raise InputError(
                    "shifts cannot be undone at the border of a prediction for each pixel; give flips only, such as "
                    'views=("identity", "horizontal")'
                )
            return leaf.flip(FLIPS[view]) if FLIPS[view] else leaf

        return map_tensors(undo, out)


def require_images(x: Inputs) -> Tensor:
    """Return the inputs if they are a batch of images, which can be flipped and shifted; otherwise raise."""
    if isinstance(x, Tensor) and x.dim() >= 4:
        return x
    got = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
    raise InputError(
        "test-time augmentation flips and shifts images (N, channels, height, width), and the inputs are "
        f"{got}; columns of a table cannot be flipped, so leave it out for such data"
    )


def _members(model: nn.Module) -> int | None:
    if isinstance(model, Predictor):
        return model.members
    return None if isinstance(model, Bayesian) else 1


def _policies(shifts: bool) -> list[tuple[str, ...]]:
    """The sets of views to choose from, those with the fewest views first, which win a tie."""
    flips = [("identity",), ("identity", "horizontal"), ("identity", "vertical"), tuple(FLIPS)]
    return [*flips, *((*views, *SHIFTS) for views in flips)] if shifts else flips


def _nll(likelihood: Likelihood, outs: list[Any], y: Tensor) -> Tensor:
    """The NLL of the mean prediction of all outputs, summed in float64; for numbers that of the Gaussian."""
    if likelihood.has_logits:
        rows = torch.stack([likelihood.logit_rows(out) for out in outs]).double()
        keep = likelihood.counted(y).flatten().to(rows.device)
        return likelihood.mixture_nll(rows[:, keep], y.to(rows.device).flatten()[keep]).sum()
    parts = likelihood.uncertainty_of_outputs(iter(outs), len(outs))
    error = parts.mean.double() - y.to(parts.mean.device)
    return 0.5 * (parts.total.double().log() + error.square() / parts.total.double()).sum()
