"""The sensitivity of the loss, or of the outputs, to each parameter.

Abboud et al. 2024 and sensitivity-guided subnetworks choose the random weights by this score.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from leanbayes._calls import (
    batch_size,
    call,
    call_with,
    map_tensors,
    prediction_tensor,
    require_function,
    split_batch,
    take,
)
from leanbayes._wrappers import unwrap
from leanbayes.errors import InputError, NonFinite, UnknownName
from leanbayes.subspace.ranking import all_finite
from leanbayes.subspace.slots import slots_of

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
    """Return how strongly the loss, or the outputs, depend on each trainable parameter.

    The score is the mean of |g| (``power=1``, as in sensitivity-guided subnetworks) or of g² (``power=2``, as in Abboud
    et al. 2024). Here g is the gradient of the loss. With ``of="output"``, g is the gradient of one output, and the
    score is summed over the outputs. This is ∂f/∂θ in the derivation of sensitivity-guided subnetworks (eq. 6), where
    σ_y² = Σᵢ (∂f/∂θᵢ)² σᵢ². At an optimum the signed gradients of a whole set sum to about zero, so the function takes
    the size of the gradient of each batch or each example, and then the mean.

    Args:
        model: the model; of a wrapper, the module inside. It runs in evaluation mode. Its mode, gradients and buffers
            and the random state are afterwards what they were.
        batches: the batches, each a pair (inputs, targets).
        loss: a function ``loss(output, targets)`` that returns a scalar. With ``of="output"`` it is not needed.
        of: "loss" or "output", whose sensitivity is measured.
        power: 1 for absolute gradients, 2 for squared ones.
        per: "batch" takes one gradient for each batch, "example" one for each example.
        n_batches: how many batches are used at most. By default all are.
        chunk: how many examples are computed at once with ``per="example"``. By default their gradients take about a
            quarter of a gigabyte.
        probes: with ``of="output"`` and many outputs, how many random ±1 combinations of the outputs take the place of
            the outputs. Their mean of g² is an unbiased estimate of the sum of squares over the outputs.
        generator: the source of the random combinations.
        output: picks the tensor that matters from what the model returns.

    Returns:
        The scores by the names of the parameters, each shaped as its parameter.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> x = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    >>> sensitivity(model, [(x, None)], of="output", per="example")
    {'weight': tensor([[2., 0.]])}
    """
    _check(of, power, per, n_batches, chunk, probes, loss)
    model = unwrap(model)
    params = {slot.name: slot.parameter.detach() for slot in slots_of(model) if slot.parameter.requires_grad}
    if not params:
        raise InputError("every parameter of the model is frozen; call requires_grad_() on those to be scored")
    if chunk is None:
        chunk = max(1, _CHUNK_NUMBERS // sum(p.numel() for p in params.values()))
    totals: Params = {}
    count, seen = 0, 0
    with _untouched(model):
        for batch in islice(batches, n_batches):
            seen += 1
            inputs, targets = split_batch(batch)
            functions = _scalars(model, inputs, loss if of == "loss" else None, probes, generator, output)
            for function in functions:
                count += _accumulate(totals, function, params, inputs, targets, power, chunk if per == "example" else 0)
    if not seen:
        raise InputError("sensitivity got no batches; give a list or a DataLoader, not an iterator that is used up")
    for name, p in params.items():
        if name not in totals:  # the loss does not depend on it
            totals[name] = torch.zeros_like(p, dtype=_wide(p.dtype))
        if not all_finite(totals[name]):
            raise NonFinite(f"the sensitivity of {name!r} is NaN or infinite; check the loss and the batches for NaN")
    outputs = 1 if of == "loss" else (len(functions) if probes is None else 1)
    return {name: totals[name].mul_(outputs / count) for name in params}


Scalar = Callable[[Params, Any, Any], Tensor]


def _scalars(
    model: nn.Module,
    inputs: Any,
    loss: Loss | None,
    probes: int | None,
    generator: torch.Generator | None,
    output: Callable[[Any], Any],
) -> list[Scalar]:
    """Return the functions whose gradients are wanted: the loss, or each output, or each combination of outputs."""

    def run(params: Params, x: Any) -> Any:
        tensors = params | {name: buffer.clone() for name, buffer in model.named_buffers()}  # a pass may change buffers
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
    """Add |g|^power to the totals, for the batch (``chunk`` 0) or for each example, and return how many were added."""
    if not chunk:
        _score_in_backward(totals, function, params, inputs, targets, power)
        return 1

    size = batch_size(inputs)
    for start in range(0, size, chunk):
        x, y = take((inputs, targets), slice(start, start + chunk))
        by_name = _gradient_of_each(function, params, x, y) if chunk > 1 else None
        if by_name is None:
            for row in range(batch_size(x)):
                one = slice(row, row + 1)
                _score_in_backward(totals, function, params, take(x, one), take(y, one), power)
            continue
        for name, gradient in by_name.items():
            wide = gradient.to(_wide(gradient.dtype))
            _add(totals, name, (wide.abs() if power == 1 else wide.square()).sum(0))
    return size


def _score_in_backward(totals: Params, function: Scalar, params: Params, inputs: Any, targets: Any, power: int) -> None:
    """Add |g|^power of one scalar to the totals. Each gradient is scored in place as soon as it is known.

    So the gradients of the whole model never exist together: what was a gradient becomes a score, or is freed.
    """

    def score(name: str, leaf: Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        assert gradient is not None
        wide = gradient.to(_wide(gradient.dtype))
        _add(totals, name, wide.abs_() if power == 1 else wide.square_())

    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    for name, leaf in leaves.items():
        leaf.register_post_accumulate_grad_hook(partial(score, name))
    with torch.enable_grad():
        value = _scalar(function(leaves, inputs, targets))
        torch.autograd.backward(value, inputs=list(leaves.values()))


def _add(totals: Params, name: str, scores: Tensor) -> None:
    if name in totals:
        totals[name] += scores
    else:
        totals[name] = scores


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the totals; sums of many gradients need at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _gradient_of_each(function: Scalar, params: Params, x: Any, y: Any) -> Params | None:
    """Return the gradients of all examples along a new first axis. Scalars and other objects belong to all examples.

    None says that an operation has no batching rule, as in recurrent networks.
    """
    batched: list[Tensor] = []
    map_tensors(lambda leaf: batched.append(leaf) if leaf.dim() else None, (x, y))

    def of_example(p: Params, rows: list[Tensor]) -> Params:
        row = iter(rows)
        one_x, one_y = map_tensors(lambda leaf: next(row).unsqueeze(0) if leaf.dim() else leaf, (x, y))
        gradient: Params = grad(lambda q: _scalar(function(q, one_x, one_y)))(p)
        return gradient

    try:
        gradients: Params = vmap(of_example, in_dims=(None, 0), randomness="different")(params, batched)
    except RuntimeError:
        return None
    return gradients


def _scalar(value: Tensor) -> Tensor:
    if value.dim() != 0:
        raise InputError(f"the loss must be a scalar, got shape {tuple(value.shape)}; reduce it by mean or sum")
    return value


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and bring back its modes, its buffers and the random states afterwards."""
    modes = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    model.eval()
    try:
        # In evaluation mode cuDNN has no backward pass for recurrent networks, but the native kernels have one.
        with torch.random.fork_rng(devices), torch.backends.cudnn.flags(enabled=not recurrent):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, values in buffers:
                buffer.copy_(values)


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
    if loss is not None:
        require_function("loss", loss)
