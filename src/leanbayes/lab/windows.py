"""Predictions window by window for images of any size, by MONAI's sliding windows.

In each draw all windows of a case see the same weights, and in one pass of moments there are no draws at all. So a
segmentation does not change at the borders of windows.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, prediction_tensor
from leanbayes.baselines import PREDICTORS
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError, MissingPackage
from leanbayes.prediction import Predictor, in_eval, laws_of
from leanbayes.prediction.prediction import networks_of
from leanbayes.propagate.outputs import IndependentOutputs, Outputs

__all__ = ["Windowed"]

_AT_A_TIME = 4  # windows that the network sees in one call
_OVERLAP = 0.25  # of two neighbouring windows, along each axis


@PREDICTORS.register
class Windowed(Predictor):
    """A predictor of small images as a predictor of images of any size.

    Where windows overlap, their outputs are averaged with weights that fall off towards the border of a window
    (MONAI's mode "gaussian"). For one pass of moments, the standard deviations are averaged as the means are: the same
    weights make the outputs of both windows, so their noise is shared and does not average out.

    Args:
        model: a `Bayesian`, a `Predictor` or a plain network that was trained on windows.
        window: the sides of a window.
    """

    def __init__(self, model: nn.Module, window: tuple[int, ...]) -> None:
        super().__init__()
        if not isinstance(model, Predictor):
            refuse_random_parts(model)
        self.model, self.window = model, window

    @property
    def members(self) -> int | None:  # type: ignore[override]
        """As many draws as the model has: one of a plain network."""
        if isinstance(self.model, Predictor):
            return self.model.members
        return None if isinstance(self.model, Bayesian) and not self.model.held else 1

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield the output for whole images in each draw."""
        source = generator
        if source is None or source.device.type != "cpu":
            source = torch.Generator().manual_seed(int(torch.randint(2**63 - 1, (), generator=None)))
        for network in self._networks(draws, source):
            with in_eval(self.model), torch.no_grad():  # left again before the caller gets the output
                out = self._slide(_image(x), partial(_output_of, network))
            yield out

    def laws(self, x: Inputs, output: Callable[[Any], Any] = prediction_tensor) -> list[Outputs] | None:
        """Return the distributions of the outputs for whole images, if one pass gives those of a window."""
        image = _image(x)
        probe = image.new_zeros(1, image.shape[1], *self.window)
        laws = laws_of(self.model, probe, output)
        if laws is None:
            return None

        def moments(part: Tensor) -> Tensor:
            of_part = laws_of(self.model, part, output) or []
            return torch.cat([piece for law in of_part for piece in (law.mean, law.variance.sqrt())], 1)

        pieces = self._slide(image, moments).chunk(2 * len(laws), 1)
        return [IndependentOutputs(pieces[2 * k], pieces[2 * k + 1].square()) for k in range(len(laws))]

    def parts(self) -> dict[str, nn.Module]:
        """Return the model."""
        return {"model": self.model}

    def config(self) -> dict[str, Any]:
        """Return the window."""
        return {"window": list(self.window)}

    @classmethod
    def rebuild(cls, parts: dict[str, nn.Module], **config: Any) -> "Windowed":
        """Make the predictor again."""
        return cls(parts["model"], tuple(config["window"]))

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return draws as functions of whole images."""

        def through(network: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
            return lambda x: self._slide(x, partial(_output_of, network))

        return [through(network) for network in networks_of(self.model, draws, source)]

    def _networks(self, draws: int, source: torch.Generator) -> Iterator[Callable[[Tensor], Any]]:
        """Yield the draws one by one; only the members of an ensemble are there all at once."""
        if self.members is not None:
            yield from networks_of(self.model, draws, source)
            return
        for _ in range(draws):
            yield from networks_of(self.model, 1, source)

    def _slide(self, x: Tensor, network: Callable[[Tensor], Tensor]) -> Tensor:
        try:
            from monai.inferers import sliding_window_inference
        except ImportError as error:
            raise MissingPackage.of("prediction by windows", "monai", "medical") from error
        whole: Tensor = sliding_window_inference(
            x, self.window, _AT_A_TIME, network, overlap=_OVERLAP, mode="gaussian", padding_mode="constant", cval=0.0
        )
        return whole


def _output_of(network: Callable[[Tensor], Any], window: Tensor) -> Tensor:
    output: Tensor = prediction_tensor(network(window))
    return output


def _image(x: Inputs) -> Tensor:
    if not isinstance(x, Tensor):
        raise InputError(f"windows are cut from a tensor of images, got a {type(x).__name__}")
    return x
