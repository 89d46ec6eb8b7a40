"""How many floating-point operations a prediction or a training step takes."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_backward_flop_count, sdpa_flop_count

from leanbayes._calls import Inputs, batch_size
from leanbayes._ops.sparse_products import counting
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError
from leanbayes.evaluation.cost.parameters import modules_of, tensors_of
from leanbayes.likelihood import Likelihood
from leanbayes.objective import elbo
from leanbayes.prediction import Predictor, outputs_of
from leanbayes.train.norms import fix_statistics

__all__ = ["count_flops", "forward_flops", "training_flops"]


def count_flops(function: Callable[[], object]) -> int:
    """Count the floating-point operations in ``function`` with torch's `FlopCounterMode`.

    A multiplication with its addition counts as two. Only products are counted (matrix products, convolutions and
    attention), not activations, norms, losses or noise. Where kernels for sparse weights run, only products with
    stored entries count. The function corrects what torch miscounts: the gradients of grouped convolutions, and on the
    CPU attention and recurrent layers. `nn.Bilinear`, and recurrent layers on CUDA, are not counted.

    >>> count_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60
    """
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    counter.mod_tracker = _NoTracker()  # type: ignore[assignment]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # fused layers of torch's transformers have no formula
    try:
        with counter, counting() as sparse:
            function()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops()) + sum(sparse)


def forward_flops(model: nn.Module, x: Inputs, *, draws: int | None = None) -> int:
    """Count the FLOPs of predicting one batch as `predict` does it. Work that draws share counts once.

    The model is left as it was.

    Args:
        model: anything that `predict` takes.
        x: the inputs of the batch.
        draws: how many draws; by default one, or every member of a predictor that has members.

    >>> forward_flops(nn.Linear(4, 3), torch.zeros(8, 4))  # 2 · 8 · 4 · 3
    192
    """
    members = model.members if isinstance(model, Predictor) else None
    wanted = (members or 1) if draws is None else draws
    if wanted < 1:
        raise InputError(f"draws must be at least 1, got {draws}")
    if not isinstance(model, Predictor):
        refuse_random_parts(model)
    batch_size(x)

    def draw() -> None:
        for _ in outputs_of(model, x, wanted):
            pass

    with left_as_found(model, training=False), torch.no_grad():
        if isinstance(model, Predictor):
            draw()  # the first call may try several ways of drawing to find the fastest
        return count_flops(draw)


def training_flops(model: nn.Module, x: Inputs, y: Tensor, likelihood: Likelihood, *, samples: int = 1) -> int:
    """Count the FLOPs of one training step, forward and backward, with ``samples`` draws.

    For a predictor it is one step for each of its parts. The model is left as it was: weights, gradients, buffers,
    modes and the random state.

    >>> from leanbayes.likelihood import Categorical
    >>> training_flops(nn.Linear(4, 3), torch.zeros(8, 4), torch.zeros(8, dtype=torch.long), Categorical())
    384
    """
    with left_as_found(model, likelihood, training=True):
        return count_flops(lambda: training_step(model, x, y, likelihood, samples))


class _NoTracker:
    """Replaces the counter's tracker, which hooks into every module: modules with hooks share no work between draws."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _conv_backward(*args: Any, **kwargs: Any) -> int:  # noqa: ARG001
    """Each gradient, for the input and for the weight, takes as many products as the forward pass, with any groups."""
    gradient, x, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
    return int(wanted[0] + wanted[1]) * int(conv_flop_count(x, weight, gradient, transposed))


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


def _recurrent(x: Any, from_input: Any, from_state: Any, *_: Any, **__: Any) -> int:
    """One layer in one direction: both weight matrices at each of the (time, batch) positions."""
    return int(2 * math.prod(x[:-1]) * (math.prod(from_input) + math.prod(from_state)))


_FORMULAS: dict[Any, Any] = {
    torch.ops.aten.convolution_backward: _conv_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent,
    torch.ops.aten.mkldnn_rnn_layer_backward: lambda *shapes, **_: 2 * _recurrent(*shapes),
}


def training_step(model: nn.Module, x: Inputs, y: Tensor, likelihood: Likelihood, samples: int) -> None:
    """Run one training step without an update; for a predictor, one for each part."""
    if isinstance(model, Predictor):
        for part in model.parts().values():
            training_step(part, x, y, likelihood, samples)
        return
    trained = [p for p in (*model.parameters(), *likelihood.parameters()) if p.requires_grad]
    if not trained:
        raise InputError("no parameter of the model requires a gradient, so there is no training step to measure")
    with torch.enable_grad():
        loss = elbo(model, x, y, likelihood, n_data=batch_size(x), samples=samples).loss
    torch.autograd.grad(loss, trained, allow_unused=True)  # leaves the .grad of all parameters alone


@contextmanager
def left_as_found(*models: nn.Module, training: bool) -> Iterator[None]:
    """Put modules into train or eval mode, and restore modes, buffers and the random state afterwards."""
    modules = {id(module): module for model in models for module in modules_of(model)}.values()
    modes = [(module, module.training) for module in modules]
    buffers = [(m, name, b, b.clone()) for m in modules for name, b in m._buffers.items() if b is not None]
    cuda = {tensor.device for model in models for _, tensor in tensors_of(model) if tensor.is_cuda}
    try:
        with torch.random.fork_rng(devices=list(cuda)):
            for model in models:
                model.train(training)
            for module in modules:
                if isinstance(module, Predictor):
                    for part in module.parts().values():
                        part.train(training)
            if training:
                for module in modules:
                    if isinstance(module, Bayesian):
                        fix_statistics(module)  # as `fit` does
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer.copy_(before)
