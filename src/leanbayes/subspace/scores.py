"""Sensitivity of the loss or of the output to each parameter: the score that 000 and 001 select by."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from leanbayes._calls import batch_size, call, call_with, map_tensors, prediction_tensor, split_batch, take
from leanbayes.errors import InputError, NonFinite, UnknownName
from leanbayes.subspace.select import slots_of

__all__ = ["sensitivity"]

Params = dict[str, Tensor]
Loss = Callable[[Any, Any], Tensor]

_EXACT_OUTPUTS = 1024  # beyond this many outputs per example a full Jacobian is refused: ask for probes
_CHUNK_NUMBERS = 2**26  # per-example gradients held at once, in numbers


def sensitivity(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss | None = None,
    *,
    of: Literal["loss", "output"] = "loss",
    power: Literal[1, 2] = 1,
    per: Literal["batch", "example"] = "batch",
    n_batches: int | None = None,
    chunk: int | None = None,
    probes: int | None = None,
    generator: torch.Generator | None = None,
    output: Callable[[Any], Any] = prediction_tensor,
) -> dict[str, Tensor]:
    """The mean of |g| (``power=1``, 001) or g² (``power=2``, 000) for every trainable parameter.

    g is the gradient of the loss, or with ``of="output"`` of each output in turn, summed over the outputs: the
    ∂f/∂θ of 001's own derivation (eq. 6), where σ_y² = Σᵢ (∂f/∂θᵢ)² σᵢ². Signed gradients summed over a set tend to
    zero at an optimum, so magnitudes are taken per batch or per example, and then averaged.

    Args:
        model: runs in eval mode; its mode, gradients, buffers and the random state are left as they were.
        batches: pairs (inputs, targets).
        loss: ``loss(output, targets)`` giving a scalar; not needed for ``of="output"``.
        of: whose sensitivity.
        power: 1 for absolute, 2 for squared gradients.
        per: one backward pass a batch, or one gradient an example (vectorised in chunks).
        n_batches: stop after so many.
        chunk: examples at a time for ``per="example"``; by default what fits in about a quarter of a gigabyte.
        probes: for ``of="output"`` with many outputs: so many random ±1 combinations of them instead of each in turn
            (their mean of g² is an unbiased estimate of the sum of squares over the outputs).
        generator: for the probes.
        output: picks the tensor that matters from what the model returns.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> x = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    >>> sensitivity(model, [(x, None)], of="output", per="example")
    {'weight': tensor([[2., 0.]])}
    """
    _check(of, power, per, n_batches, chunk, probes, loss)
    params = {slot.name: slot.parameter.detach() for slot in slots_of(model) if slot.parameter.requires_grad}
    if not params:
        raise InputError("every parameter of the model is frozen: there is nothing to be sensitive to")
    if chunk is None:
        chunk = max(1, _CHUNK_NUMBERS // sum(p.numel() for p in params.values()))
    totals = {name: torch.zeros_like(p, dtype=_wide(p.dtype)) for name, p in params.items()}
    count, seen = 0, 0
    with _untouched(model):
        for batch in islice(batches, n_batches):
            seen += 1
            inputs, targets = split_batch(batch)
            functions = _scalars(model, inputs, loss if of == "loss" else None, probes, generator, output)
            for function in functions:
                count += _accumulate(totals, function, params, inputs, targets, power, chunk if per == "example" else 0)
    if not seen:
        raise InputError("sensitivity was given no batches; is the iterator used up?")
    for name, total in totals.items():
        if not torch.isfinite(total).all():
            raise NonFinite(f"the sensitivity of {name!r} is NaN or infinite; check the loss and the batches for NaN")
    outputs = 1 if of == "loss" else (len(functions) if probes is None else 1)
    return {name: total * (outputs / count) for name, total in totals.items()}


Scalar = Callable[[Params, Any, Any], Tensor]


def _scalars(
    model: nn.Module,
    inputs: Any,
    loss: Loss | None,
    probes: int | None,
    generator: torch.Generator | None,
    output: Callable[[Any], Any],
) -> list[Scalar]:
    """The scalars of (params, inputs, targets) whose gradients are wanted: the loss, or each output (or probe)."""

    def run(params: Params, x: Any) -> Any:
        tensors = params | {name: buffer.clone() for name, buffer in model.named_buffers()}  # a pass may change them
        return output(call(lambda *args, **kwargs: call_with(model, tensors, args, kwargs), x))

    if loss is not None:
        chosen = loss
        return [lambda params, x, y: chosen(run(params, x), y)]
    with torch.no_grad():
        first = run({}, take(inputs, slice(0, 1)))
    if not isinstance(first, Tensor):
        raise InputError(f"the output is a {type(first).__name__}; pick a tensor: output=lambda returned: returned[0]")
    numbers = first[0].numel()

    def combination(direction: Tensor) -> Scalar:
        return lambda params, x, _: (run(params, x).flatten(1) * direction).sum(1).mean()

    device = next(model.parameters()).device
    if probes is not None:
        signs = torch.randint(0, 2, (probes, numbers), generator=generator, device=device) * 2.0 - 1.0
        return [combination(row) for row in signs]
    if numbers > _EXACT_OUTPUTS:
        raise InputError(f"the model has {numbers} outputs an example; take random combinations of them: probes=8")
    return [combination(row) for row in torch.eye(numbers, device=device)]


def _accumulate(
    totals: Params, function: Scalar, params: Params, inputs: Any, targets: Any, power: int, chunk: int
) -> int:
    """Add |g|^power to the totals, for the batch (``chunk`` 0) or for each example; return how many were added."""
    if not chunk:
        leaves = {name: p.requires_grad_() for name, p in params.items()}
        with torch.enable_grad():
            value = _scalar(function(leaves, inputs, targets))
            gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        for total, gradient in zip(totals.values(), gradients, strict=True):
            if gradient is not None:
                wide = gradient.to(total.dtype)
                total += wide.abs() if power == 1 else wide.square()
        return 1

    constants = {name: p.detach() for name, p in params.items()}
    size = batch_size(inputs)
    for start in range(0, size, chunk):
        x, y = take((inputs, targets), slice(start, start + chunk))
        try:
            found = _gradient_of_each(function, constants, x, y)
        except RuntimeError:  # an op without a batching rule (recurrent nets): one example after the other
            for row in range(batch_size(x)):
                one = slice(row, row + 1)
                _accumulate(totals, function, params, take(x, one), take(y, one), power, 0)
            continue
        for name, gradient in found.items():
            wide = gradient.to(totals[name].dtype)
            totals[name] += (wide.abs() if power == 1 else wide.square()).sum(0)
    return size


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Sums of many gradients need at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _gradient_of_each(function: Scalar, params: Params, x: Any, y: Any) -> Params:
    """The gradient for every example, along a new first axis. Scalars and what is no tensor belong to all examples."""
    batched: list[Tensor] = []
    map_tensors(lambda leaf: batched.append(leaf) if leaf.dim() else None, (x, y))

    def of_example(p: Params, rows: list[Tensor]) -> Params:
        row = iter(rows)
        one_x, one_y = map_tensors(lambda leaf: next(row).unsqueeze(0) if leaf.dim() else leaf, (x, y))
        gradient: Params = grad(lambda q: _scalar(function(q, one_x, one_y)))(p)
        return gradient

    found: Params = vmap(of_example, in_dims=(None, 0), randomness="different")(params, batched)
    return found


def _scalar(value: Tensor) -> Tensor:
    if value.dim() != 0:
        raise InputError(f"the loss must be a scalar, got shape {tuple(value.shape)}; reduce it by mean or sum")
    return value


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; modes, buffers and random states put back after."""
    modes = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    model.eval()
    try:
        # cuDNN has no backward pass for recurrent nets in eval mode; the native kernels have.
        with torch.random.fork_rng(devices), torch.backends.cudnn.flags(enabled=not recurrent):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)


def _check(
    of: str, power: int, per: str, n_batches: int | None, chunk: int | None, probes: int | None, loss: Any
) -> None:
    if of not in ("loss", "output"):
        raise UnknownName.of("of", of, ["loss", "output"])
    if per not in ("batch", "example"):
        raise UnknownName.of("per", per, ["batch", "example"])
    if power not in (1, 2):
        raise InputError(f"power must be 1 (absolute) or 2 (squared), got {power}")
    for name, value in (("n_batches", n_batches), ("chunk", chunk), ("probes", probes)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if of == "loss" and loss is None:
        raise InputError('give the loss, such as torch.nn.functional.cross_entropy, or ask for of="output"')
