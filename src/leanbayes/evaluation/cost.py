"""What a method costs: numbers kept, floating-point operations, seconds and memory, and what 001's formulas say."""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_backward_flop_count, sdpa_flop_count

from leanbayes._calls import Inputs, batch_size
from leanbayes._ops.sparse_products import counting
from leanbayes.bayesian import Bayesian, Coordinates, refuse_random_parts
from leanbayes.errors import InputError, UnknownName
from leanbayes.likelihood import Likelihood
from leanbayes.objective import elbo
from leanbayes.prediction import Predictor, outputs_of
from leanbayes.subspace import Scatter
from leanbayes.train.norms import fix_statistics

__all__ = [
    "Cost",
    "Parameters",
    "Relative",
    "Timing",
    "cost_of",
    "count_flops",
    "count_parameters",
    "formula_flops",
    "forward_flops",
    "measure",
    "peak_memory",
    "table_1",
    "training_flops",
]


@dataclass(frozen=True)
class Cost:
    """The costs of one run, as a comparison keeps them; None is what was not measured.

    ``parameters`` are means and scales, ``random`` the scales alone, ``bytes`` all that the model keeps, ``density``
    the share of the means that a sparse model stores. FLOPs are those of one batch, ``peak_memory`` is in bytes.
    """

    parameters: int
    random: int
    bytes: int
    flops_forward: int | None = None
    flops_train: int | None = None
    flops_formula: float | None = None
    train_seconds: float | None = None
    predict_seconds: float | None = None
    peak_memory: int | None = None
    density: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name} must be finite and at least 0, got {value}")


def cost_of(
    model: nn.Module, x: Inputs, y: Tensor, likelihood: Likelihood, *, samples: int = 1, draws: int | None = None
) -> Cost:
    """All that one batch can tell of a model, which is left as it was; seconds and formula are the caller's to add.

    ``peak_memory`` is that of one training step with ``samples`` draws: activations and gradients. What an optimizer
    keeps comes on top (Adam: two numbers for each parameter).

    >>> from leanbayes.likelihood import Categorical
    >>> cost = cost_of(nn.Linear(4, 3), torch.zeros(8, 4), torch.zeros(8, dtype=torch.long), Categorical())
    >>> cost.parameters, cost.bytes, cost.flops_forward, cost.flops_train
    (15, 60, 192, 384)
    """
    size = count_parameters(model)
    with _left_as_found(model, likelihood, training=True):
        flops = count_flops(lambda: _training_step(model, x, y, likelihood, samples))
        peak = peak_memory(lambda: _training_step(model, x, y, likelihood, samples), _device(model))
    return Cost(
        size.trained,
        size.scales,
        size.bytes,
        forward_flops(model, x, draws=draws),
        flops,
        peak_memory=peak,
        density=size.density if size.zeros else None,
    )


@dataclass(frozen=True)
class Parameters:
    """How many numbers a model keeps, by kind, and the bytes they take.

    ``means`` are the networks' own parameters, frozen ones too; ``scales`` and ``positions`` what randomness adds to
    them; ``buffers`` all else: running statistics, the moments of SWAG, what a prior remembers.
    """

    means: int = 0
    scales: int = 0
    positions: int = 0
    buffers: int = 0
    bytes: int = 0
    zeros: int = 0  # of sparse weights, which are not kept

    @property
    def density(self) -> float:
        """The share of the networks' parameters that is kept."""
        return self.means / max(self.means + self.zeros, 1)

    @property
    def trained(self) -> int:
        """Means and scales: (1 + r)θ for a share r of random weights (001, appendix B)."""
        return self.means + self.scales


def count_parameters(model: nn.Module) -> Parameters:
    """Count what a module, a `Bayesian` or a `Predictor` keeps; memory that two tensors share counts once.

    >>> count_parameters(Bayesian(nn.Linear(3, 2)))
    Parameters(means=8, scales=8, positions=0, buffers=0, bytes=64, zeros=0)
    """
    counts = dict.fromkeys(("means", "scales", "positions", "buffers", "bytes"), 0)
    seen: set[tuple[object, ...]] = set()
    for kind, tensor in _tensors(model):
        if is_lazy(tensor):
            raise InputError("the model has parameters without a shape yet; run one batch through it first")
        size = tensor.numel() * tensor.element_size()
        place = id(tensor) if tensor.is_meta else tensor.data_ptr()
        if (tensor.device, place, size) not in seen:
            seen.add((tensor.device, place, size))
            counts[kind] += tensor.numel()
            counts["bytes"] += size
    sparse = [module for module in _modules(model) if isinstance(module, Scatter)]
    return Parameters(**counts, zeros=sum(module.size - len(module.index) for module in sparse))


def count_flops(function: Callable[[], object]) -> int:
    """Floating-point operations in ``function``, by torch's `FlopCounterMode`: two for each multiply and add.

    Only products are counted (matrix products, convolutions, attention), not activations, norms, losses or noise; of
    sparse weights, where kernels for them run, only those by stored entries.
    What torch miscounts or leaves out is put right: gradients of grouped convolutions, and on the CPU attention and
    recurrent layers. `nn.Bilinear`, and recurrent layers on CUDA, are not counted.

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
    """FLOPs of predicting one batch with so many draws, as `predict` makes them: work that they share counts once.

    By default one draw, or every member of a predictor that has members. The model is left as it was.

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

    with _left_as_found(model, training=False), torch.no_grad():
        if isinstance(model, Predictor):
            draw()  # the first time it may try several ways of drawing, to find the fastest
        return count_flops(draw)


def training_flops(model: nn.Module, x: Inputs, y: Tensor, likelihood: Likelihood, *, samples: int = 1) -> int:
    """FLOPs of one training step, forward and backward, with ``samples`` draws; for a predictor, of one for each part.

    The model is left as it was: weights, gradients, buffers, modes and the random state.

    >>> from leanbayes.likelihood import Categorical
    >>> training_flops(nn.Linear(4, 3), torch.zeros(8, 4), torch.zeros(8, dtype=torch.long), Categorical())
    384
    """
    with _left_as_found(model, likelihood, training=True):
        return count_flops(lambda: _training_step(model, x, y, likelihood, samples))


@dataclass(frozen=True)
class Relative:
    """A row of 001's Table 1: ``parameters`` in units of θ, ``flops`` of f_d, ``memory`` of m, of the plain model."""

    parameters: float
    flops: float
    memory: float


def table_1(
    method: str, *, members: int = 5, samples: int = 5, rate: float = 0.01, pretraining_epochs: float = 0
) -> Relative:
    """001's Table 1 as printed, for "deterministic", "ensemble", "vi" or "partial"; the defaults are 001's choices.

    Its last row adds a training's pretraining, 3 f_d · epochs, to one step's (1 + r)(N + 2) f_d; with
    ``pretraining_epochs=0`` that row is a step like the others, and `formula_flops` adds up a whole training.
    What `training_flops` counts is different, where M is ``members``, N ``samples`` and r ``rate``:

    - a plain step is 3 f_d less the first layer's gradient for its input, which nobody needs;
    - the ELBO of N draws goes back through each of them: 3 N f_d. 001 charges for one backward pass, 2 f_d;
    - drawing weights is no product. ``sample`` counts like the plain model, without the factor 2 or 1 + r; ``local``
      and ``flipout`` have a second product wherever a layer has any random weight, so a factor of up to 2 at any r;
    - 001's code keeps a dense σ, so its memory is 2 m; here k scales and k positions are kept (`count_parameters`).

    >>> table_1("vi", samples=5).flops, table_1("partial", rate=0.01, pretraining_epochs=10).flops
    (14, 37.07)
    """
    if members < 1 or samples < 1 or not 0 <= rate <= 1 or not 0 <= pretraining_epochs < math.inf:
        raise InputError(
            "need members and samples of at least 1, a rate from 0 to 1 and pretraining_epochs of at least 0, "
            f"got {members}, {samples}, {rate} and {pretraining_epochs}"
        )
    rows = {
        "deterministic": Relative(1, 3, 1),
        "ensemble": Relative(members, 3 * members, members),
        "vi": Relative(2, 2 * (samples + 2), 2),
        "partial": Relative(1 + rate, 3 * pretraining_epochs + (1 + rate) * (samples + 2), 2),
    }
    if method not in rows:
        raise UnknownName.of("method", method, rows)
    return rows[method]


def formula_flops(
    method: str, forward: float, *, epochs: float = 1, pretraining_epochs: float = 0, **settings: Any
) -> float:
    """001's FLOPs of a whole training in one unit: f_d · (3 · epochs_pretrain + step · epochs), step from `table_1`.

    ``forward`` is f_d of all that one epoch sees; given that of one batch, "epochs" are steps. With ``epochs=1`` the
    partial method gives what Table 1 prints.

    >>> formula_flops("partial", 100, epochs=10, pretraining_epochs=10, samples=5, rate=0.01)
    10070.0
    """
    if not (0 <= forward < math.inf and 0 <= epochs < math.inf and 0 <= pretraining_epochs < math.inf):
        raise InputError(
            f"forward, epochs and pretraining_epochs must be finite and at least 0, "
            f"got {forward}, {epochs} and {pretraining_epochs}"
        )
    plain, step = table_1("deterministic").flops, table_1(method, **settings).flops
    return forward * (plain * pretraining_epochs + step * epochs)


@dataclass(frozen=True)
class Timing:
    """Seconds of several calls."""

    best: float
    median: float
    repeats: int


def measure(function: Callable[[], object], repeats: int = 5) -> Timing:
    """Wall time of ``function``: the best and the median of ``repeats`` calls, each until CUDA has done its work.

    No call is thrown away: the first may be slow, which the best, and of three or more the median, do not feel.

    >>> measure(lambda: time.sleep(0.01), repeats=3).best >= 0.01
    True
    """
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, got {repeats}")
    seconds = []
    for _ in range(repeats):
        _synchronize()
        start = time.perf_counter()
        function()
        _synchronize()
        seconds.append(time.perf_counter() - start)
    return Timing(min(seconds), statistics.median(seconds), repeats)


def peak_memory(function: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """By how many bytes ``function``, at its peak, raises the memory of tensors above where it was before.

    On CUDA this is what torch's allocator counts. On the CPU it is the same quantity, from the allocations that torch's
    profiler sees: exact and the same every time, but without Python's own objects, memory freed that was taken before,
    other threads, and the scratch of libraries with allocators of their own. Profiling records every operation: give it
    a step, not a training.

    >>> peak_memory(lambda: torch.zeros(1000, dtype=torch.float64).sum())
    8008
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    if device.type != "cpu":
        raise InputError(f"memory is measured on cpu and cuda, not on {device.type!r}")
    with _quiet_profiler(), profile(profile_memory=True) as recorded:
        function()
    results: Any = recorded.kineto_results
    changes = [event for event in results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


class _NoTracker:
    """In place of the counter's own, which hooks into every module, and what has hooks shares no work between draws."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _conv_backward(*args: Any, **kwargs: Any) -> int:  # noqa: ARG001
    """Each gradient, for the input and for the weight, takes as many products as the forward pass, groups or not."""
    gradient, x, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
    return int(wanted[0] + wanted[1]) * int(conv_flop_count(x, weight, gradient, transposed))


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


def _recurrent(x: Any, from_input: Any, from_state: Any, *_: Any, **__: Any) -> int:
    """One layer in one direction: both weight matrices at each of the (time, batch) places."""
    return int(2 * math.prod(x[:-1]) * (math.prod(from_input) + math.prod(from_state)))


_FORMULAS: dict[Any, Any] = {
    torch.ops.aten.convolution_backward: _conv_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent,
    torch.ops.aten.mkldnn_rnn_layer_backward: lambda *shapes, **_: 2 * _recurrent(*shapes),
}


def _training_step(model: nn.Module, x: Inputs, y: Tensor, likelihood: Likelihood, samples: int) -> None:
    if isinstance(model, Predictor):
        for part in model.parts().values():
            _training_step(part, x, y, likelihood, samples)
        return
    trained = [p for p in (*model.parameters(), *likelihood.parameters()) if p.requires_grad]
    if not trained:
        raise InputError("no parameter of the model requires a gradient, so there is no training step to count")
    with torch.enable_grad():
        loss = elbo(model, x, y, likelihood, n_data=batch_size(x), samples=samples).loss
    torch.autograd.grad(loss, trained, allow_unused=True)  # into no parameter's own .grad


def _modules(model: nn.Module) -> Iterator[nn.Module]:
    """Every module inside, also those that a predictor names as parts but has not registered."""
    for module in model.modules():
        yield module
        if isinstance(module, Predictor):
            for part in module.parts().values():
                yield from _modules(part)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for module in _modules(model):
        own, buffers = module._parameters, module._buffers
        random = isinstance(module, Coordinates)
        yield from (("scales" if random else "means", tensor) for tensor in own.values() if tensor is not None)
        for name, tensor in buffers.items():
            if tensor is not None:
                positions = name == "index" and (random or isinstance(module, Scatter))
                yield "positions" if positions else "buffers", tensor


def _device(model: nn.Module) -> torch.device:
    return next((tensor.device for _, tensor in _tensors(model)), torch.device("cpu"))


@contextmanager
def _left_as_found(*models: nn.Module, training: bool) -> Iterator[None]:
    """Inside, modules are in the mode asked for; after, modes, buffers and the random state are what they were."""
    modules = {id(module): module for model in models for module in _modules(model)}.values()
    modes = [(module, module.training) for module in modules]
    buffers = [(m, name, b, b.clone()) for m in modules for name, b in m._buffers.items() if b is not None]
    cuda = {tensor.device for model in models for _, tensor in _tensors(model) if tensor.is_cuda}
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


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Without this, the profiler's library writes to the terminal when it starts and stops."""
    level = "KINETO_LOG_LEVEL"
    if level in os.environ:
        yield
        return
    os.environ[level] = "99"
    try:
        yield
    finally:
        os.environ.pop(level, None)


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_allocated(device):
                torch.cuda.synchronize(device)
