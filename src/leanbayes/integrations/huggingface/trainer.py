"""The ``Trainer`` of Transformers for a `Bayesian`: columns, the KL, optimizers, saving with config, and resuming.

The plain ``Trainer`` reads the signature of the model's ``forward`` to decide which columns of the data to keep, and
the ``forward`` of a `Bayesian` takes whatever its model takes. `BayesianTrainer` lets it look at the model inside.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._calls import prediction_tensor, require_function
from leanbayes.bayesian import Bayesian
from leanbayes.errors import FileError, InputError, WrongModel
from leanbayes.evaluation import Evaluation, evaluate
from leanbayes.integrations._checks import checked_weight, require_count, seeded
from leanbayes.integrations._folder import RANDOM_FILE, write_random
from leanbayes.integrations._optional import optional
from leanbayes.integrations.huggingface.card import model_card
from leanbayes.integrations.huggingface.hub import require_pretrained
from leanbayes.likelihood import Categorical, Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.objective import Constant, Schedule, Terms
from leanbayes.prediction import Prediction, predict
from leanbayes.prediction.prediction import joined
from leanbayes.propagate import OnePass
from leanbayes.storage import load
from leanbayes.train.norms import fix_statistics, has_statistics, must_hold_statistics
from leanbayes.train.random_states import states_restored
from leanbayes.train.scales import log_scales, movement, warn_if_still
from leanbayes.train.schedules import kl_schedule

with optional("leanbayes.integrations.huggingface.trainer", "huggingface", "transformers", "accelerate"):
    from transformers import Trainer, TrainerCallback
    from transformers.utils import can_return_loss, find_labels

__all__ = ["BayesianTrainer"]

_IGNORED = -100


class BayesianTrainer(Trainer):
    """A ``transformers.Trainer`` that trains a `Bayesian` around a model of Transformers or PEFT on the ELBO.

    The model computes its own loss from the labels, as always with ``Trainer``, and the trainer adds
    kl_weight · KL / n_data. An optimizer that owns the scales, such as ``optimizers=(lb.optim.IVON(...), None)``, gets
    the loss without the KL and is handed its weight. Checkpoints are folders of Transformers or PEFT with
    ``leanbayes.safetensors`` beside the weights, and a training that is resumed from one ends with the same weights bit
    for bit where a plain model does.

    Args:
        model: the `Bayesian`.
        args: the ``TrainingArguments``.
        n_data: over how many targets the loss of the whole training set is averaged. By default it is the number of
            examples. It must be given if an example has several targets, as for language models, whose loss is a mean
            over tokens; `count_targets` counts them.
        kl_weight: the weight of the KL: a number, a function of the share of training that is done, or its name.
        scale_lr: the learning rate of the scales; by default that of the means.
        options: all other arguments of ``Trainer``.
    """

    model: Any
    optimizer: Any

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        *,
        n_data: int | None = None,
        kl_weight: float | str | Schedule = 1.0,
        scale_lr: float | None = None,
        **options: Any,
    ) -> None:
        if model is None:
            raise InputError(
                "BayesianTrainer takes a lb.Bayesian as its model, got none; model_init= does not replace it"
            )
        self.bayesian = require_pretrained(model, "BayesianTrainer")
        _check(self.bayesian, args, n_data, kl_weight, scale_lr)
        checked = Terms(kl_weight).kl_weight
        if isinstance(checked, float):
            checked = Constant(checked)
        self.kl_schedule: Schedule = kl_schedule(checked) if isinstance(checked, str) else checked
        self.n_data, self.scale_lr = n_data, scale_lr
        self.measured: Evaluation | None = None
        super().__init__(model=model, args=args, **options)
        given = self.args.label_names
        inner = self._inner()
        self.label_names = find_labels(type(inner)) if given is None else given
        self.can_return_loss = can_return_loss(type(inner))
        self.model_accepts_loss_kwargs = _accepts_loss_kwargs(inner)
        if hasattr(self, "_loss_shifts_labels"):
            self._loss_shifts_labels = _shifts_labels(inner)
        inner.config.use_cache = False  # keys and values of a draw must not outlive the draw
        self.add_callback(_HandOver(self))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as ``Trainer.train`` does, and warn if the scales ended where they began."""
        if self._owner() is not None and self.args.max_grad_norm:
            raise InputError(
                f"max_grad_norm={self.args.max_grad_norm} clips the gradients of the scales, from which "
                f"{type(self._owner()).__name__} computes the curvature; give TrainingArguments(max_grad_norm=0.0) and "
                "the optimizer its own clip="
            )
        start = log_scales(self.bayesian)
        result = super().train(*args, **kwargs)
        end = log_scales(self.bayesian)
        if start is not None and end is not None:
            warn_if_still(movement(start, end, self.state.global_step))
        return result

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of the model, in training with the KL added."""
        training = torch.is_grad_enabled() and model.training
        if training and has_statistics(self.bayesian) and must_hold_statistics(self.bayesian):
            fix_statistics(self.bayesian)
        labels = [inputs[name] for name in self.label_names if isinstance(inputs.get(name), Tensor)]
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if training and self._owner() is None:
            share = self._parts() if self._scaled(num_items_in_batch) else 1
            term = self.kl_weight() / (self._size(labels) * share) * self.bayesian.kl()
            loss = loss + term.to(loss.device)
        return (loss, outputs) if return_outputs else loss

    def kl_weight(self) -> float:
        """Return the present weight of the KL."""
        return checked_weight(self.kl_schedule, min(1.0, self.state.global_step / max(self.state.max_steps, 1)))

    def count_targets(self) -> int:
        """Return how many targets the training set has: labels that are not −100, without those that no logit meets.

        The whole training set is read once. Random states stay as they are.
        """
        skipped = 1 if getattr(self, "_loss_shifts_labels", False) else 0
        with states_restored():
            batches = (
                [batch[name] for name in self.label_names if name in batch] for batch in self._training_batches()
            )
            return sum(int((label[..., skipped:] != _IGNORED).sum()) for batch in batches for label in batch)

    def predict_with_uncertainty(
        self,
        dataset: Any,
        *,
        likelihood: Likelihood | None = None,
        samples: int | Literal["auto"] = 32,
        seed: int | None = None,
        output: Callable[[Any], Any] = prediction_tensor,
    ) -> Prediction:
        """Predict a data set: the mean of the predictions and their uncertainty, as `leanbayes.predict` gives them."""
        chosen = Categorical() if likelihood is None else require_likelihood(likelihood)
        require_function("output", output)
        noise = seeded(seed, self.args.device)
        parts = [
            predict(self.bayesian, x, likelihood=chosen, samples=samples, generator=noise, output=output)
            for x, _ in self._pairs(dataset)
        ]
        if not parts:
            raise InputError("there are no examples to predict; give a data set that is not empty")
        return joined(parts, torch.arange(sum(map(len, parts))))

    def measure(
        self,
        dataset: Any,
        *,
        likelihood: Likelihood | None = None,
        samples: int | Literal["auto"] = 32,
        seed: int | None = None,
    ) -> Evaluation:
        """Measure accuracy, calibration and uncertainty on a data set with labels, as `leanbayes.evaluate` does.

        The model card of this trainer shows the figures.
        """
        noise = seeded(seed, self.args.device)
        chosen = Categorical() if likelihood is None else require_likelihood(likelihood)
        pairs = self._pairs(dataset, labelled=True)
        self.measured = evaluate(self.bayesian, pairs, likelihood=chosen, samples=samples, generator=noise)
        return self.measured

    def create_optimizer(self, model: Any = None) -> Any:
        """Create the optimizer as ``Trainer`` does, with the scales in a group of their own, without weight decay."""
        if self.optimizer is not None:
            return self.optimizer
        optimizer: Any = super().create_optimizer() if model is None else super().create_optimizer(model)
        scales = [parts.rho for _, parts in self.bayesian.parts() if parts.rho.requires_grad]
        identities = {id(scale) for scale in scales}
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in identities]
        optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
        if scales:
            rate = self.args.learning_rate if self.scale_lr is None else self.scale_lr
            optimizer.add_param_group({"params": scales, "lr": rate, "weight_decay": 0.0})
        return optimizer

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> Any:
        """Make the predictions of a batch by one draw of the weights."""
        if ignore_keys is None:
            ignore_keys = getattr(self._inner().config, "keys_to_ignore_at_inference", ["past_key_values"])
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Write the model card, with the figures of `measure`."""
        card = model_card(self.bayesian, evaluation=self.measured, data=kwargs.get("dataset"))
        card.save(Path(self.args.output_dir) / "README.md")

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:  # noqa: ARG002
        self.bayesian.weights()  # raises inside drawn(), where the parameters hold a draw and not the means
        with self._looking_inside():
            super()._save(output_dir)
        if self.args.should_save:
            write_random(self.bayesian, self.args.output_dir if output_dir is None else output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:  # noqa: ARG002
        file = Path(resume_from_checkpoint) / RANDOM_FILE
        if not file.is_file():
            raise FileError(
                f"{resume_from_checkpoint} has no {RANDOM_FILE}, so BayesianTrainer did not write it, and the scales "
                "would stay where they are; give a checkpoint of this trainer"
            )
        super()._load_from_checkpoint(resume_from_checkpoint, model=self.bayesian.model)
        saved: Bayesian = load(file, self.bayesian.model, prior=self.bayesian.prior)  # raises for other weights
        ours, theirs = dict(self.bayesian.parts()), dict(saved.parts())
        if [(n, p.rho.shape) for n, p in ours.items()] != [(n, p.rho.shape) for n, p in theirs.items()]:
            raise WrongModel(f"{file} makes other weights random than this model does; build the model as it was")
        if saved.posterior != self.bayesian.posterior:
            raise WrongModel(f"{file} has the posterior {saved.posterior}, and this model {self.bayesian.posterior}")
        with torch.no_grad():
            for name, part in ours.items():  # in place, because the optimizer holds the scales
                for kind in ("rho", "index", "memory"):
                    if getattr(part, kind) is not None:
                        getattr(part, kind).copy_(getattr(theirs[name], kind))

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raise where ``Trainer`` warns: a weight that the checkpoint lacks would stay as it is."""
        aliases: dict[int, list[str]] = {}
        for name, parameter in self.bayesian.model.named_parameters(remove_duplicate=False):
            aliases.setdefault(id(parameter), []).append(name)
        lacking = set(load_result.missing_keys)
        tied = {name for names in aliases.values() if not lacking.issuperset(names) for name in names}
        if lacking - tied or load_result.unexpected_keys:
            raise WrongModel(
                f"the checkpoint lacks {sorted(lacking - tied)[:3]} and has {list(load_result.unexpected_keys)[:3]} "
                "besides, so it holds another architecture; build the model as it was"
            )

    def _set_signature_columns_if_needed(self) -> None:
        with self._looking_inside():
            super()._set_signature_columns_if_needed()

    @contextmanager
    def _looking_inside(self) -> Iterator[None]:
        """Inside this context, the trainer sees the model inside the `Bayesian`."""
        before = self.model
        self.model = self.bayesian.model
        try:
            yield
        finally:
            self.model = before

    def _inner(self) -> Any:
        """Return the model of Transformers, also from inside a PEFT model."""
        model: Any = self.bayesian.model
        return model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model

    def _owner(self) -> Any:
        """Return the optimizer if it owns the scales, from inside the wrapper that accelerate puts around it."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return optimizer if getattr(optimizer, "owns_scales", False) else None

    def _parts(self) -> int:
        """Return into how many parts the present batch is cut."""
        return int(getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps))

    def _scaled(self, num_items_in_batch: Any) -> bool:
        """Whether the losses of the parts of a batch add up to its mean, so that ``Trainer`` does not divide them."""
        stated = getattr(self, "loss_is_scaled_for_ga", None)
        if stated is not None:
            return bool(stated)
        return bool(self.model_accepts_loss_kwargs and num_items_in_batch is not None) or bool(self.compute_loss_func)

    def _size(self, labels: list[Tensor]) -> int:
        if self.n_data is None:
            shapes = [tuple(label.shape) for label in labels]
            if any(label.dim() > 1 and label.shape[1:].numel() > 1 for label in labels):
                raise InputError(
                    f"labels of shape {shapes} give several targets for each example, and the loss is a mean over all "
                    "of them, so n_data must be the number of targets in the training set: BayesianTrainer(n_data=...) "
                    "or trainer.n_data = trainer.count_targets() before train()"
                )
            try:
                self.n_data = len(self.train_dataset)
            except TypeError:
                raise InputError(
                    f"the training data are a {type(self.train_dataset).__name__} without a length; give the number of "
                    "examples: BayesianTrainer(n_data=...)"
                ) from None
        return self.n_data

    def _training_batches(self) -> Iterator[Mapping[str, Any]]:
        yield from self.get_train_dataloader()

    def _pairs(self, dataset: Any, labelled: bool = False) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield the inputs and the labels of each batch, on the device of the model."""
        if dataset is None:
            raise InputError("there is no data set to predict; give one whose examples the model takes")
        for batch in self.get_test_dataloader(dataset):
            inputs = dict(self._prepare_inputs(batch))
            labels = [inputs.pop(name) for name in self.label_names if name in inputs]
            if labelled and len(labels) != 1:
                raise InputError(
                    f"measuring needs one tensor of labels in each example, named one of {self.label_names}; the "
                    f"examples have {list(inputs)} and {len(labels)} labels"
                )
            yield inputs, labels[0] if len(labels) == 1 else None


class _HandOver(TrainerCallback):
    """Hands the present KL weight to an optimizer that owns the scales."""

    def __init__(self, trainer: BayesianTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Write the weight into the groups of the optimizer."""
        owner = self.trainer._owner()
        for group in owner.param_groups if owner is not None else ():
            group["kl_weight"] = self.trainer.kl_weight()


def _check(bnn: Bayesian, args: Any, n_data: Any, kl_weight: Any, scale_lr: Any) -> None:
    if isinstance(kl_weight, Terms):
        raise InputError(f"kl_weight must be a number, a schedule or its name, got {kl_weight}")
    if n_data is not None:
        require_count("n_data", n_data)
    if scale_lr is not None and not (isinstance(scale_lr, int | float) and 0 < scale_lr < float("inf")):
        raise InputError(f"scale_lr must be a positive number or None, got {scale_lr!r}")
    if isinstance(bnn.propagate, OnePass):
        raise InputError(
            f"the model computes its loss from draws of the weights, and propagate={bnn.propagate} makes none; use "
            'propagate="sample", "mirrored", "local" or "flipout" in training, and predict_by= for the prediction'
        )
    for name in ("label_smoothing_factor", "gradient_checkpointing"):
        if getattr(args, name, None):
            advice = {
                "label_smoothing_factor": "a smoothed loss is no likelihood; leave it 0",
                "gradient_checkpointing": "call bnn.model.gradient_checkpointing_enable() yourself",
            }[name]
            raise InputError(f"BayesianTrainer does not take {name}={getattr(args, name)}: {advice}")


def _accepts_loss_kwargs(model: Any) -> bool:
    if hasattr(model, "accepts_loss_kwargs"):
        return bool(model.accepts_loss_kwargs)
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def _shifts_labels(model: Any) -> bool:
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    loss = LOSS_MAPPING.get(getattr(model, "loss_type", None))
    return loss is ForCausalLMLoss and not getattr(model.config, "is_encoder_decoder", False)
