"""IVON: natural-gradient variational inference at the price of Adam (Shen et al. 2024).

The posterior of a random weight is q = N(m, σ²) with σ² = 1/(λ(h + δ)). Here λ is the effective number of examples, δ
is the precision of the prior divided by λ, and h is a running estimate of the curvature of the mean loss. One step
computes

    g ← β₁ g + (1 − β₁) ĝ                                     ĝ: gradient of the mean loss with respect to m
    h ← h + ρ(ĥ − h) + ½ ρ²(ĥ − h)²/(h + δ),  ρ = 1 − β₂       ĥ: estimate of the curvature
    m ← m − α (h₀ + δ) (g/(1 − β₁ᵗ) + δ(m − m₀)) / (h + δ)      m₀: mean of the prior

The KL divergence is part of this update, so the loss must not contain it.

**The learning rate and the initial curvature.** The step is α (h₀ + δ)/(h + δ) times the momentum, where h₀ is the
curvature at the start. So the first step is α times the gradient, as in SGD with momentum. A coordinate whose curvature
grows to ten times its start moves ten times less. The choice of h₀ therefore scales every later step: since
h₀ + δ = 1/(λσ₀²), a training that starts with half the scale σ₀ takes steps that are four times as long once the
curvature has reached its level, and needs a lower α.

**The curvature estimate.** For a Gaussian, ∂/∂σ E[loss] = σ E[∂²loss/∂w²] (Bonnet's and Price's theorems). So
ĥ = (∂loss/∂σ)/σ estimates the expected curvature for every propagation whose gradient with respect to σ is unbiased:
sample, mirrored, flipout, local and moments. For one weight draw w = m + σξ it is the paper's estimate ĝ·ξ/σ.

**Where the estimate is biased.** Mirrored draws give the halves of a batch the weights m + σξ and m − σξ. Without batch
statistics each half sees a correct draw, and the estimate is unbiased. Batch norm in training mode couples the halves:
the loss of each depends on the weights of both through the statistics. Write L(w₁, w₂) for the loss of a batch whose
halves see w₁ and w₂. The expected estimate is E[L₁₁ + L₂₂ − 2L₁₂], the curvature along opposite changes of the two. One
draw for the whole batch would have E[L₁₁ + L₂₂ + 2L₁₂], the curvature along a common change, most of which batch norm
undoes. In prediction the statistics do not follow the draw; then there is no L₁₂, and L₁₁ and L₂₂ lack what each half
changes in the statistics. ``tests/optim/test_ivon.py`` checks the two expectations against Hessians.

**Means by Adam.** The step above is that of SGD where curvatures are nearly alike, and its rate must be chosen for each
network. With ``means="adam"`` the means follow Adam on the gradient of the same objective, ĝ + δ(m − m₀), while scales
follow the curvature as before. The rate is then one that suits Adam, and the same for all coordinates.

**Averages.** With ``average=0.5`` the optimizer keeps the running mean of the means over the last half of the steps,
and `IVON.use_averages` puts it into the model (Izmailov et al. 2018). At a constant learning rate the means travel
around a wide minimum, whose middle predicts better than any point on the way.

**h + δ stays positive.** Write u = h + δ and x = ρ(ĥ − h)/u. Then u becomes u(1 + x + x²/2) = ½u((1 + x)² + 1) ≥ u/2.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leanbayes._sharding import (
    added_entries,
    gathered_entries,
    is_piece,
    local,
    local_gradient,
    piece_like,
    same_for_all,
)
from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.optim.averages import begin_again, coming_turn, count_step, first_averaged, write_averages
from leanbayes.optim.curvature import CurvatureSummary, summarise
from leanbayes.optim.groups import groups_of
from leanbayes.optim.random_tensor import random_tensors
from leanbayes.optim.settings import (
    DEFAULT_RATES,
    INITIAL_CURVATURE,
    beta2_for,
    check_kl_weight,
    check_settings,
    require_positive,
)
from leanbayes.optim.starts import usual_sizes
from leanbayes.optim.sweeps import (
    AdamRule,
    FusedRow,
    Kept,
    NaturalRule,
    adam_sweep,
    by_kernel,
    flat_array,
    fused_sweep,
    in_pieces,
    natural_sweep,
    plain_call,
    refuse_non_finite,
    worth_kernel,
    write_scales,
)
from leanbayes.optim.targets import Target, check_start, check_tensors, replace_priors, target_of
from leanbayes.posteriors import Normal

__all__ = ["IVON"]

_WIDEST_START = 0.9  # of the prior's scale, so that the initial curvature is positive
_ADAM_BETAS, _ADAM_EPSILON = (0.9, 0.999), 1e-8
_NOTHING = np.empty(0, np.float32)  # in the place of an average
_FIXED = (
    "n_data", "temperature", "initial_scale", "initial_curvature", "relative_scale", "prior_precisions", "means",
    "average_from",
)  # fmt: skip


@dataclass(frozen=True)
class _Kind:
    """What the rows of one sweep have in common, beside the numbers of the rule."""

    device: torch.device
    dtype: torch.dtype
    gradient: bool
    means: bool
    centre: bool


class IVON(Optimizer):
    """An optimizer that trains the means and the scales of a `Bayesian` by natural gradients.

    The scales need no learning rate of their own: they follow from the curvature that the optimizer estimates. A step
    costs one backward pass, as a step of Adam does. Coordinates that are not random, such as norms or the rest of a
    partly random tensor, are trained by Adam with the learning rate ``plain_lr``.

    After every step the scales of ``bnn`` are those of q, so predicting, saving and pruning work as usual. In a loop of
    your own, use the loss without the KL divergence: ``lb.elbo(..., with_kl=False).loss``. `lb.fit` does so by itself.

    **Clipping.** Clip the gradients of the means only, ``clip_grad_norm_(bnn.model.parameters(), 1.0)``, as `lb.fit`
    does: a clipped gradient of the scales would be a wrong curvature. ``clip`` limits the preconditioned step instead.

    **Mixed precision.** Weights stay in float32, and the passes run under ``torch.autocast``. With scaled losses, call
    ``scaler.step(optimizer)``, which divides the gradients of means and scales by the factor of the loss and leaves out
    steps whose gradients are not finite. Without a scaler, ``step`` raises `NonFinite` for such gradients before it
    changes anything. It looks at them in main memory only, since on a GPU every step would wait for the answer.

    **Several processes.** The scales are parameters of ``bnn``, so DistributedDataParallel averages both gradients, and
    all processes make the same step. Where ``fully_shard`` or tensor parallelism has cut the weights, build the
    optimizer afterwards: its state is cut as the weights are, and each process makes the step of its pieces.

    **What stays still.** A mean whose gradient is None does not move, and neither does a curvature whose scale has no
    gradient. An error in the middle of a step, such as an interrupt from the keyboard, may leave a part of the weights
    one step behind, and the scales are still those of q.

    Args:
        bnn: the model, with a Normal posterior that has one scale for each weight. A newer IVON of the same model takes
            its scales over, and the older one then refuses to step.
        lr: the learning rate α of the random weights, by default 0.5, or 0.002 with ``means="adam"``. A mapping of
            patterns such as ``{"fc.*": 0.1, "*": 0.5}`` gives each parameter the rate of the first pattern that matches
            its name, and makes a parameter group for each.
        n_data: how many examples the training set has.
        temperature: the effective number of examples λ is ``n_data / temperature``. A temperature below 1 makes the
            posterior narrower, which helps networks that are not fitted yet, and data with augmentation.
        weight_decay: δ. By default it follows from the prior of ``bnn``. A number replaces that prior by
            N(0, 1/(λδ)), so that the KL divergence that is reported stays true.
        initial_scale: σ₀, the scale that every random weight starts with. The initial curvature is then
            h₀ = 1/(λσ₀²) − δ, which must be positive, so σ₀ must be below the scale of the prior.
        initial_curvature: h₀, in place of ``initial_scale``. The scales then start at 1/√(λ(h₀ + δ)). If no start is
            given, h₀ is 0.1.
        relative_scale: σ₀ as a multiple of the usual size of the weights of each tensor, 1/√(3·fan-in), in place of
            the two others. It is at most 0.9 of the scale of the prior.
        beta1: how much of the momentum a step keeps.
        beta2: how much of the curvature a step keeps. By default it is 1 − 5/steps, so that the curvature can move
            within the training.
        steps: how many steps the training takes, from which ``beta2`` is chosen.
        clip: the largest absolute value of a coordinate of the preconditioned step, before the learning rate.
        plain_lr: the learning rate of the coordinates that are not random. With ``means="adam"`` all coordinates have
            the rate ``lr``.
        means: how the means are trained, by natural gradients ("natural") or by Adam ("adam").
        average: the share of the steps, at the end of the training, over which means are averaged. It needs ``steps``.
            `lb.fit` puts the averages into the model; in a loop of your own, call `use_averages` at the end.
        kl_weight: the weight β of the KL at the start; `lb.fit` gives the present one before each step. It divides λ.
        others: more parameters to train by Adam, such as those of a likelihood.

    >>> bnn = Bayesian(nn.Linear(3, 2))
    >>> optimizer = IVON(bnn, lr=0.1, n_data=100, steps=10)
    >>> torch.nn.functional.mse_loss(bnn(torch.ones(4, 3)), torch.zeros(4, 2)).backward()
    >>> optimizer.step()
    """

    owns_scales = True

    def __init__(
        self,
        bnn: Bayesian,
        lr: float | Mapping[str, float] | None = None,
        *,
        n_data: int,
        temperature: float = 1.0,
        weight_decay: float | None = None,
        initial_scale: float | None = None,
        initial_curvature: float | None = None,
        relative_scale: float | None = None,
        beta1: float = 0.9,
        beta2: float | None = None,
        steps: int | None = None,
        clip: float | None = None,
        plain_lr: float = 2e-3,
        means: Literal["natural", "adam"] = "natural",
        average: float = 0.0,
        kl_weight: float = 1.0,
        others: Iterable[nn.Parameter] = (),
    ) -> None:
        bnn = unwrap(bnn)
        if isinstance(bnn, Bayesian) and not (isinstance(bnn.posterior, Normal) and bnn.posterior.per == "weight"):
            raise InputError(
                f"IVON needs a Normal posterior with one scale for each weight, got {bnn.posterior}; "
                "use posterior=lb.posteriors.Normal()"
            )
        if n_data < 1 or (steps is not None and steps < 1):
            raise InputError(f"n_data and steps must be at least 1, got {n_data} and {steps}")
        starts = {
            "initial_scale": initial_scale, "initial_curvature": initial_curvature, "relative_scale": relative_scale
        }  # fmt: skip
        check_settings(temperature, starts, beta1, beta2, clip, plain_lr, means, average)
        lr = DEFAULT_RATES[means] if lr is None else lr
        for rate in lr.values() if isinstance(lr, Mapping) else (lr,):
            require_positive(lr=rate)
        require_positive(weight_decay=weight_decay)
        check_kl_weight(kl_weight)
        beta2 = beta2_for(steps) if beta2 is None else beta2
        if average and steps is None:
            raise InputError("averaging over a share of the training needs its length; say it with steps=")
        tensors = random_tensors(bnn)
        check_tensors(tensors)
        if all(start is None for start in starts.values()):
            starts["initial_curvature"] = INITIAL_CURVATURE
        size = n_data / (temperature * kl_weight)
        if weight_decay is not None:
            replace_priors(bnn, scale=1 / math.sqrt(size * weight_decay))
        sizes = usual_sizes(bnn.model, tensors)
        self._targets = [target_of(bnn, tensor, usual) for tensor, usual in zip(tensors, sizes, strict=True)]
        for target in self._targets:
            check_start(target, initial_scale)
        self._by_mean = {id(target.tensor.mean): target for target in self._targets}
        settings: dict[str, Any] = {
            "plain_lr": plain_lr,
            "n_data": n_data,
            "temperature": temperature,
            "kl_weight": kl_weight,
            "initial_size": size,
            **starts,
            "prior_precisions": sorted({target.precision for target in self._targets}),
            "beta1": beta1,
            "beta2": beta2,
            "clip": clip,
            "means": means,
            "average_from": first_averaged(average, steps or 1),
            "taken": 0,
            "averaged": 0,
        }
        groups = groups_of(bnn, lr, list(others), [tensor.rho for tensor in tensors])
        super().__init__(groups, {"lr": groups[0]["lr"], "start_lr": groups[0]["lr"], **settings})
        self._bnn, self._owner, self.average = bnn, object(), average
        self._sharded = any(is_piece(parameter) for group in groups for parameter in group["params"])
        self._kept = {id(target): Kept() for target in self._targets}
        vars(bnn)["_scale_owner"] = self._owner
        with torch.no_grad():
            for target in self._targets:
                rho = target.tensor.rho.detach()
                curvature = torch.full_like(rho, self._start(target))
                self.state[target.tensor.rho] = {"curvature": curvature, "step": 0}
                if means == "natural":
                    self.state[target.tensor.rho]["momentum"] = torch.zeros_like(rho)
            self._write_scales()
            self._make_state()

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Make one step from the gradients of the mean loss with respect to means and raw scales."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if vars(self._bnn).get("_scale_owner") is not self._owner:
            raise InputError(
                "a newer IVON was built for this model and has taken over its scales, so this one would undo its "
                "steps; use the newer one, or build one more"
            )
        check_kl_weight(self.param_groups[0]["kl_weight"])
        gone = next((target for target in self._targets if target.tensor.rho not in self.state), None)
        if gone is not None:
            raise InputError(
                f"the scales of {gone.tensor.name!r} are another parameter than when this IVON was built; call "
                "fully_shard, parallelize_module or .to(...) first, and build the optimizer afterwards"
            )
        rows = self._fused_rows()
        self._check_gradients(rows)
        copies: list[tuple[Target, Tensor]] = []  # the random means of partly random tensors
        try:
            done = self._fused_steps(rows)
            self._natural_steps(copies, done)
            self._adam_steps(done)
        except BaseException:
            self._write_scales()
            raise
        finally:
            for target, random_means in copies:  # Adam has moved the whole tensor
                target.tensor.set_random_mean(random_means)
        count_step(self, self._without_scales(done))
        return loss

    def use_averages(self) -> bool:
        """Write the averages of the means into the model, and return whether there are any.

        Call it once, after the last step. Recompute the statistics of batch norms afterwards, as `lb.fit` does: those
        in the model belong to other weights.
        """
        return write_averages(self, self._without_scales())

    def forget_averages(self) -> None:
        """Let averages begin anew. `lb.fit` calls it first, so that a training is not averaged with an earlier one."""
        begin_again(self)

    def _without_scales(self, done: Container[int] = ()) -> list[Tensor]:
        """Return all trained parameters, without the raw scales and those whose identities are given."""
        scales = {id(target.tensor.rho) for target in self._targets}
        every = [parameter for group in self.param_groups for parameter in group["params"] if id(parameter) not in done]
        return [parameter for parameter in every if id(parameter) not in scales and parameter.requires_grad]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Bring back what `state_dict` returned, for the same model and the same settings.

        The learning rates, the decays and the KL weight come from ``state_dict``, as in every optimizer of torch. What
        defines the posterior must be the same: the number of examples, the temperature, the start and the prior.
        """
        saved = state_dict["param_groups"]
        if len(saved) == len(self.param_groups):  # otherwise torch says what differs
            for name in _FIXED:
                ours, theirs = self.param_groups[0][name], saved[0].get(name)
                if ours != theirs:
                    raise InputError(
                        f"this IVON has {name}={ours}, and the state that is loaded has {theirs}; build it as it was "
                        "when the state was saved"
                    )
            # The keys of a state are numbers, or names where torch.distributed.checkpoint has written it.
            pairs = [
                pair
                for ours, theirs in zip(self.param_groups, saved, strict=True)
                for pair in zip(theirs["params"], ours["params"], strict=False)
            ]
            for key, parameter in pairs:
                _check_entries(parameter, state_dict["state"].get(key, {}))
        super().load_state_dict(state_dict)

    def adopt_scales(self, rho: Tensor, changed: Tensor) -> None:
        """Take over raw scales that somebody else has written, such as those of sparse weights that have just come.

        Args:
            rho: the raw scales of one random tensor.
            changed: which of them, as a mask.
        """
        target = next((target for target in self._targets if target.tensor.rho is rho), None)
        if target is None:
            return
        curvature = (target.tensor.scale().square().reciprocal_() - target.precision) / self._size()
        entries = self.state[target.tensor.rho]
        entries["curvature"] = torch.where(changed, curvature, entries["curvature"])
        begin_again(self)

    def summary(self) -> CurvatureSummary:
        """Return how far the scales have moved from their start."""
        size = self.param_groups[0]["initial_size"]
        starts = [(self._start(target) * size + target.precision) ** -0.5 for target in self._targets]
        return summarise(starts, [target.tensor.scale() for target in self._targets])

    def _check_gradients(self, rows: list[tuple[Target, FusedRow]]) -> None:
        """Raise before anything is changed if a gradient is sparse, or in main memory not finite."""
        trained = [
            parameter for group in self.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        if rows and not self._sharded and all(row.all_finite() for _, row in rows):
            checked = {id(parameter) for target, _ in rows for parameter in (target.tensor.mean, target.tensor.rho)}
            trained = [parameter for parameter in trained if id(parameter) not in checked]
        gradients = [local_gradient(parameter) for parameter in trained]

        def name_of(position: int) -> str:
            names = {id(parameter): name for name, parameter in self._bnn.model.named_parameters()}
            names |= {id(target.tensor.rho): f"the scale of {target.tensor.name}" for target in self._targets}
            return names.get(id(trained[position]), "a further parameter")

        for position, gradient in enumerate(gradients):
            if gradient.layout != torch.strided:
                raise InputError(
                    f"IVON needs dense gradients, and that of {name_of(position)} is sparse; use sparse=False"
                )
        refuse_non_finite(gradients, name_of, lambda spoiled: same_for_all(spoiled, trained))

    def _fused_rows(self) -> list[tuple[Target, FusedRow]]:
        """Return the wholly random tensors whose means follow Adam and which one kernel can update, if that pays."""
        candidates = []
        for group in self.param_groups:
            if group["means"] != "adam":
                continue
            for parameter in group["params"]:
                target = self._by_mean.get(id(parameter))
                if target is None or target.tensor.index is not None or target.centre is None:
                    continue
                rho = target.tensor.rho
                if parameter.grad is not None and rho.grad is not None:
                    candidates.append((group, target, parameter, rho))
        count = sum(rho.numel() for *_, rho in candidates)
        if not worth_kernel(count, self.param_groups[0]["taken"]) or not plain_call():
            return []
        turn, rows, rules = coming_turn(self), [], dict[tuple[Any, ...], tuple[NaturalRule, AdamRule]]()
        for group, target, mean, rho in candidates:
            state = self._adam_state(mean)
            average = turn.average(state, mean)
            kept: tuple[Tensor, ...] = (self.state[rho]["curvature"], rho, mean, state["first"], state["second"])
            kept = kept if average is None else (*kept, average)
            gradients: tuple[Any, Any] = (rho.grad, mean.grad)
            if self._sharded:
                kept, gradients = tuple(map(local, kept)), (local_gradient(rho), local_gradient(mean))
            arrays = self._kept[id(target)].arrays(kept)
            if arrays is None or arrays[1].size != arrays[2].size:
                continue
            of_rho, of_mean = (flat_array(gradient, arrays[1].size) for gradient in gradients)
            if of_rho is None or of_mean is None:
                continue
            step = state["step"] + 1
            key = (id(group), target.precision, target.centre, step)
            if key not in rules:
                rules[key] = (self._rule(target, group, 1), _adam_rule(group["lr"], step))
            curvature, raw, values, first, second, *middle = arrays
            flat = (curvature, raw, of_rho, values, of_mean, first, second, *(middle or [_NOTHING]))
            tensors = (kept[0], kept[1], gradients[0], kept[2], gradients[1], kept[3], kept[4])
            rows.append((target, FusedRow(tensors, average, turn.share, *rules[key], flat)))
        return rows

    def _fused_steps(self, rows: list[tuple[Target, FusedRow]]) -> set[int]:
        """Make the steps of these tensors, and return the identities of the parameters that hold their means."""
        for target, _ in rows:
            self.state[target.tensor.mean]["step"] += 1
        if rows:
            fused_sweep([row for _, row in rows])
        return {id(target.tensor.mean) for target, _ in rows}

    def _make_state(self) -> None:
        """Make all that the optimizer will remember, which is 0 at the start.

        `torch.distributed.checkpoint` reads from a file only what the optimizer has when the file is read.
        """
        scales = {id(target.tensor.rho) for target in self._targets}
        for group in self.param_groups:
            for parameter in group["params"]:
                target = self._by_mean.get(id(parameter))
                if id(parameter) in scales or not parameter.requires_grad:
                    continue
                if group["means"] == "adam" or target is None or target.tensor.index is not None:
                    self._adam_state(parameter)
                else:  # torch.distributed.checkpoint refuses parameters without any state
                    self.state[parameter]["step"] = 0
                if group["average_from"] is not None:
                    self.state[parameter]["average"] = parameter.detach().clone()

    def _adam_state(self, parameter: Tensor) -> dict[str, Any]:
        """Return what Adam remembers of a parameter, which is 0 at the start."""
        state: dict[str, Any] = self.state[parameter]
        if "first" not in state:
            state["step"] = 0
            values = parameter.detach()
            state["first"], state["second"] = torch.zeros_like(values), torch.zeros_like(values)
        return state

    def _natural_steps(self, copies: list[tuple[Target, Tensor]], done: set[int]) -> None:
        """Make the steps of all random coordinates; the random means of partly random tensors go to ``copies``."""
        targets = [target for target in self._targets if id(target.tensor.mean) not in done]
        if not targets:
            return
        groups = {id(parameter): group for group in self.param_groups for parameter in group["params"]}
        sweeps: dict[tuple[NaturalRule, _Kind], list[list[Tensor]]] = {}
        for target in targets:
            tensor, state = target.tensor, self.state[target.tensor.rho]
            rho, mean, memory = tensor.rho, tensor.mean, tensor.parts.memory
            moves = mean.grad is not None and id(mean) in groups and groups[id(mean)]["means"] == "natural"
            if rho.grad is None and not moves:
                continue
            row = [local(state["curvature"]), local(rho)]
            if rho.grad is not None:
                row.append(local_gradient(rho))
            if moves:
                state["step"] += 1
                means = tensor.random_mean()
                if tensor.index is None:
                    self.state[mean]["step"] = state["step"]
                else:
                    copies.append((target, means))
                row += [means, tensor.mean_gradient(), local(state["momentum"])]
                if target.centre is None:
                    assert memory is not None
                    row.append(_piece_of_memory(memory, rho))
            kind = _Kind(rho.device, rho.dtype, rho.grad is not None, moves, moves and target.centre is None)
            rule = self._rule(target, groups.get(id(mean), self.param_groups[0]), max(state["step"], 1))
            sweeps.setdefault((rule, kind), []).append(row)
        for (rule, kind), rows in sweeps.items():
            if kind.gradient and not kind.centre:
                rows = [row for row in rows if not by_kernel(rule, row)]
            for columns in in_pieces(rows):
                curvature, rho_, *rest = columns
                gradient = rest.pop(0) if kind.gradient else None
                means_ = (rest[0], rest[1], rest[2]) if kind.means else None
                natural_sweep(rule, curvature, rho_, gradient, means_, rest[3] if kind.centre else None)

    def _adam_steps(self, done: set[int]) -> None:
        """Make the steps of the coordinates that are not random or, if Adam trains the means, of all."""
        sweeps: dict[tuple[AdamRule, torch.device, torch.dtype], list[list[Tensor]]] = {}
        scales = {id(target.tensor.rho) for target in self._targets}
        for group in self.param_groups:
            by_adam = group["means"] == "adam"
            # The rate of the plain coordinates follows the schedule of the learning rate.
            rate = group["lr"] if by_adam else group["plain_lr"] * group["lr"] / group["start_lr"]
            for parameter in group["params"]:
                if id(parameter) in done or id(parameter) in scales or parameter.grad is None:
                    continue
                target = self._by_mean.get(id(parameter))
                if target is not None and target.tensor.index is None and not by_adam:
                    continue
                state = self._adam_state(parameter)
                state["step"] += 1
                rule = _adam_rule(rate, state["step"])
                gradient = self._with_prior(target) if target is not None and by_adam else local_gradient(parameter)
                row = [local(value) for value in (parameter.detach(), gradient, state["first"], state["second"])]
                sweeps.setdefault((rule, parameter.device, parameter.dtype), []).append(row)
        for (rule, _, _), rows in sweeps.items():
            for columns in in_pieces(rows):
                adam_sweep(rule, *columns)

    def _with_prior(self, target: Target) -> Tensor:
        """Return the gradient of a tensor with that of the prior, δ(m − m₀) for random coordinates."""
        tensor = target.tensor
        assert tensor.mean.grad is not None
        centres, factor = target.centres(), target.precision / self._size()
        if tensor.index is not None and is_piece(tensor.mean):
            slope = (gathered_entries(tensor.mean.detach(), tensor.index) - centres) * factor
            return added_entries(tensor.mean.grad, tensor.index, slope)
        if isinstance(centres, Tensor):
            centres = _piece_of_memory(centres, tensor.rho)
        slope = (tensor.random_mean() - centres) * factor
        if tensor.index is None:
            return local_gradient(tensor.mean) + slope  # type: ignore[no-any-return]
        return tensor.mean.grad.flatten().index_add(0, tensor.index.long(), slope).view(tensor.mean.shape)

    def _rule(self, target: Target, group: Mapping[str, Any], step: int) -> NaturalRule:
        size = self._size()
        return NaturalRule(
            size=size,
            decay=target.precision / size,
            centre=target.centre or 0.0,
            start=self._start(target),
            lr=float(group["lr"]),
            beta1=group["beta1"],
            forget=1 - group["beta2"],
            correction=1 - group["beta1"] ** step,
            clip=group["clip"],
        )

    def _size(self) -> float:
        """Return λ. A KL weight of β divides it, because β KL is the KL of a likelihood to the power of 1/β."""
        group = self.param_groups[0]
        return float(group["n_data"] / (group["temperature"] * group["kl_weight"]))

    def _start(self, target: Target) -> float:
        """Return h₀: as the user gave it, or 1/(λσ₀²) − δ with the λ and δ of the start."""
        group = self.param_groups[0]
        if group["initial_curvature"] is not None:
            return float(group["initial_curvature"])
        scale = group["initial_scale"]
        if scale is None:
            scale = min(group["relative_scale"] * target.usual, _WIDEST_START * target.precision**-0.5)
        return float((scale**-2 - target.precision) / group["initial_size"])

    @torch.no_grad()
    def _write_scales(self) -> None:
        """Write σ = (λh + prior precision)^(−½) into the model."""
        size = self._size()
        for target in self._targets:
            rho = target.tensor.rho
            decay = target.precision / size
            curvature = local(self.state[rho]["curvature"])
            precision = (curvature + decay).clamp_min_(torch.finfo(rho.dtype).eps * decay)
            write_scales([local(rho)], [precision.mul_(size).rsqrt_()])


def _piece_of_memory(memory: Tensor, rho: Tensor) -> Tensor:
    """Return what the prior remembers of the coordinates whose scales this process holds."""
    return piece_like(memory, rho) if is_piece(rho) else memory


def _adam_rule(rate: float, step: int) -> AdamRule:
    corrections = (1 - _ADAM_BETAS[0] ** step, 1 - _ADAM_BETAS[1] ** step)
    return AdamRule(rate, _ADAM_BETAS, _ADAM_EPSILON, corrections)


def _check_entries(parameter: Tensor, entries: Mapping[str, Any]) -> None:
    for name, value in entries.items():
        if isinstance(value, Tensor) and (value.shape != parameter.shape or value.dtype != parameter.dtype):
            raise InputError(
                f"the state that is loaded has a {name} of shape {tuple(value.shape)} and type {value.dtype} for a "
                f"parameter of shape {tuple(parameter.shape)} and type {parameter.dtype}; it belongs to another model"
            )
