"""The bits of tensors: random numbers that inputs decide, and the fingerprint of a predictor."""

import json
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, map_tensors
from leanbayes._files import checksum, tensor_checksum
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.prediction import Predictor
from leanbayes.train.fingerprint import described

__all__ = ["Guard", "fingerprint_of", "noise_of"]

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
_PART = 2**20  # words at a time
_ODD = -7046029254386353131  # 2⁶⁴/φ as a signed number, the increment of splitmix64
_FIRST, _SECOND = -4658895280553007687, -7723592293110705685  # the factors of splitmix64


def noise_of(inputs: Inputs, seed: int) -> Tensor:
    """Return one number between 0 and 1 for each input, which the input and the seed decide.

    The numbers behave as uniform draws, because they mix all bits of an input. As they depend on nothing else, a
    randomised score remains one fixed function of input and class: the same for each batch size, order and repetition,
    and exchangeable whenever the examples are. A generator that starts anew in each call would give the first input of
    every call the same number, and coverage would then be that of this one number.

    >>> x = torch.tensor([[0.2, 0.8], [0.3, 0.7]])
    >>> bool((noise_of(x, 0) == noise_of(x.flip(0), 0).flip(0)).all()), bool((noise_of(x, 0) == noise_of(x, 1)).any())
    (True, False)
    """
    leaves: list[Tensor] = []
    map_tensors(lambda leaf: leaves.append(leaf) if leaf.dim() else None, inputs)
    mixed: Tensor | None = None
    for leaf in leaves:
        bits = _words(leaf).reshape(len(leaf), -1).long()
        columns = torch.arange(1, bits.shape[1] + 1, device=bits.device)
        row = _mix(bits + columns * _ODD).sum(1)
        mixed = row if mixed is None else _mix(mixed + _ODD) + row.to(mixed.device)
    if mixed is None:
        raise InputError(f"the inputs hold no tensor with a batch axis, got a {type(inputs).__name__}")
    final = _mix(mixed + seed * _ODD % (1 << 62))
    return (final & ((1 << 53) - 1)).double() / (1 << 53)


def fingerprint_of(model: nn.Module) -> str:
    """Return a digest of all that decides what a predictor predicts: its weights, buffers and settings."""
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    content = {"settings": _settings(model), "tensors": {name: tensor_checksum(value) for name, value in state.items()}}
    return checksum(json.dumps(content, sort_keys=True).encode())


class Guard:
    """Remembers the fingerprint of a predictor, and notices when the predictor no longer has it.

    A look comes first at sums of all bits, times their places, and at the counters by which torch counts changes. It
    happens on the device, and costs little beside a prediction. Only if it differs from that of the last check is the
    whole fingerprint computed.

    Args:
        fingerprint: what the predictor had when it was calibrated.
    """

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._seen: Any = None

    def check(self, model: nn.Module) -> None:
        """Raise if the predictor has changed."""
        now = _glance(model)
        if now == self._seen:
            return
        if fingerprint_of(model) != self.fingerprint:
            raise InputError(
                "the predictor has changed since it was calibrated (its weights, its precision or how it predicts), so "
                "the guarantee no longer holds; call calibrate again with data that the predictor was not trained on"
            )
        self._seen = now


def _glance(model: nn.Module) -> Any:
    state = [value for value in model.state_dict().values() if isinstance(value, Tensor)]
    memory = tuple((value._version, value.data_ptr(), value.dtype, value.shape) for value in state)
    sums: dict[torch.device, list[Tensor]] = {}
    for value in state:
        sums.setdefault(value.device, []).append(_placed_sum(_words(value).flatten()))
    return memory, tuple(tuple(torch.stack(of).tolist()) for of in sums.values()), json.dumps(_settings(model))


def _placed_sum(words: Tensor) -> Tensor:
    """Return Σ place·word, part by part so that no large tensor is made; integers wrap around."""
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for part in words.split(_PART) if words.numel() else ():
        places = torch.arange(1, 2 * len(part), 2, dtype=torch.int32, device=words.device)
        total = 31 * total + (part.to(torch.int64) * places).sum()
    return total


def _settings(model: nn.Module) -> Any:
    """Describe what is no tensor and shapes predictions. It is the same in another process."""
    if isinstance(model, Predictor):
        parts = {name: _settings(part) for name, part in model.parts().items()}
        return {"type": type(model).__name__, "config": described(model.config()), "parts": parts}
    if isinstance(model, Bayesian):
        return {"posterior": described(model.posterior), "predict_by": described(model.predict_by)}
    return None


def _words(value: Tensor) -> Tensor:
    """Return the bits of a tensor as integers of the same size."""
    value = value.detach()
    if value.dtype == torch.bool:
        return value.to(torch.int8)
    if value.is_complex():
        value = torch.view_as_real(value)
    return value.contiguous().view(_INTEGERS[value.element_size()])


def _mix(bits: Tensor) -> Tensor:
    """Return the finaliser of splitmix64 (Steele et al. 2014); integers wrap around."""
    bits = bits.bitwise_xor(_shifted(bits, 30)).mul_(_FIRST)
    bits.bitwise_xor_(_shifted(bits, 27)).mul_(_SECOND)
    return bits.bitwise_xor_(_shifted(bits, 31))


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Shift to the right and fill up with zeros; torch fills up with the sign."""
    return (bits >> places).bitwise_and_((1 << (64 - places)) - 1)
