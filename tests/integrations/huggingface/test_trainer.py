"""`BayesianTrainer`: columns, the KL, optimizers, checkpoints, resuming, and predictions with uncertainty."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForSequenceClassification, Trainer

import leanbayes as lb
from leanbayes.errors import FileError, InputError, WrongModel
from leanbayes.integrations._folder import RANDOM_FILE
from leanbayes.integrations.huggingface import BayesianTrainer, from_pretrained
from leanbayes.integrations.peft import bayesian_lora, load_adapter
from tests.integrations.huggingface.models import arguments, bert, gpt2, llama, sentences, texts
from tests.integrations.matrix import shows

BATCH = {
    "input_ids": torch.tensor([[3, 4, 5, 6, 7], [9, 8, 7, 6, 5]]),
    "attention_mask": torch.ones(2, 5, dtype=torch.long),
    "labels": torch.tensor([0, 2]),
}


def still(**options: Any) -> Any:
    """A BERT without dropout, so that the weights are all that is random."""
    return bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options)


def state(bnn: lb.Bayesian) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in bnn.state_dict().items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


@shows("Transformers", "Trainer adds the KL to the model's own loss: for classes it is the loss of lb.elbo.")
@pytest.mark.parametrize("propagate", ["sample", "local"])
def test_the_loss_is_that_of_the_elbo(tmp_path: Path, propagate: str) -> None:
    bnn = lb.Bayesian(still(), propagate=propagate)
    trainer = BayesianTrainer(bnn, arguments(tmp_path), train_dataset=sentences(), kl_weight=lb.anneal(1.0, 0.5))
    trainer.state.global_step, trainer.state.max_steps = 1, 2
    bnn.train()
    torch.manual_seed(3)
    loss = trainer.compute_loss(bnn, dict(BATCH))
    torch.manual_seed(3)
    inputs = {name: value for name, value in BATCH.items() if name != "labels"}
    elbo = lb.elbo(bnn, inputs, BATCH["labels"], lb.Categorical(), n_data=12, kl_weight=0.75)
    torch.testing.assert_close(loss, elbo.loss)
    with torch.no_grad():
        torch.manual_seed(3)
        evaluated = trainer.compute_loss(bnn.eval(), dict(BATCH))
    torch.testing.assert_close(evaluated, elbo.nll, msg="an evaluation has no KL")


@pytest.mark.parametrize("make", [still, llama])
@pytest.mark.parametrize("parts", [1, 3])
def test_parts_of_a_batch_add_up_to_one_kl(tmp_path: Path, make: Any, parts: int) -> None:
    """The gradients with and without the KL differ by its gradient over n_data, however many parts a batch has."""
    bnn = lb.Bayesian(make())
    words = dict(BATCH) if make is still else {"input_ids": BATCH["input_ids"], "labels": BATCH["input_ids"]}
    gradients = []
    for weight in (1.0, 0.0):
        options = arguments(tmp_path, gradient_accumulation_steps=parts)
        trainer = BayesianTrainer(bnn, options, train_dataset=sentences(), n_data=50, kl_weight=weight)
        trainer.current_gradient_accumulation_steps = parts
        bnn.zero_grad()
        torch.manual_seed(3)
        for _ in range(parts):
            items = torch.tensor(8 * parts) if trainer.model_accepts_loss_kwargs else None
            trainer.training_step(bnn, dict(words), items)
        gradients.append([parameter.grad.clone() for parameter in bnn.parameters()])
    (expected,) = (torch.autograd.grad(bnn.kl() / 50, list(bnn.parameters()), allow_unused=True),)
    for with_kl, without, gradient in zip(*gradients, expected, strict=True):
        assert gradient is not None
        torch.testing.assert_close(with_kl - without, gradient, rtol=1e-3, atol=1e-5)


@shows("Transformers", "Trainer keeps the columns that the model inside takes, and drops the others.")
def test_columns_of_the_model_inside_are_kept_and_others_dropped(tmp_path: Path) -> None:
    trainer = BayesianTrainer(lb.Bayesian(still()), arguments(tmp_path), train_dataset=sentences())
    batch = next(iter(trainer.get_train_dataloader()))
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert trainer.label_names == ["labels"]
    with pytest.raises(ValueError, match="The batch received was empty"):  # of the plain Trainer, which says so
        Trainer(lb.Bayesian(still()), arguments(tmp_path), train_dataset=sentences()).train()


def ivon(bnn: lb.Bayesian) -> dict[str, Any]:
    optimizer = lb.optim.IVON(bnn, lr=0.05, n_data=12, steps=6)
    return {"optimizers": (optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=6))}


def adapter() -> Any:
    return bayesian_lora(get_peft_model(llama(), LoraConfig(r=2, task_type="CAUSAL_LM", lora_dropout=0.1)))


RESUMED = [
    pytest.param(
        lambda: lb.Bayesian(bert(), subspace=lb.random_k(0.3)), sentences, lambda bnn: {}, {},
        marks=shows("Transformers", "A training of Trainer that is resumed ends with the same weights bit for bit."),
        id="bert",
    ),
    pytest.param(
        lambda: lb.Bayesian(bert()), sentences, ivon, {"max_grad_norm": 0.0},
        marks=shows("Transformers", "Trainer trains by IVON, also when it is resumed."), id="ivon",
    ),
    pytest.param(
        lambda: lb.Bayesian(gpt2()), texts, lambda bnn: {"n_data": 48}, {},
        marks=shows("Transformers", "Trainer saves and resumes a Bayesian with tied weights."), id="gpt2",
    ),
    pytest.param(
        adapter, texts, lambda bnn: {"n_data": 48}, {},
        marks=shows("PEFT", "Trainer trains, saves and resumes Bayesian LoRA."), id="lora",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "data", "more", "options"), RESUMED)
def test_a_training_that_is_resumed_ends_bit_for_bit(
    tmp_path: Path, make: Any, data: Any, more: Any, options: dict[str, Any]
) -> None:
    def trainer() -> BayesianTrainer:
        bnn = make()
        settings = arguments(tmp_path, save_strategy="epoch", **options)
        return BayesianTrainer(bnn, settings, train_dataset=data(), kl_weight=lb.anneal(1.0, 0.5), **more(bnn))

    whole = trainer()
    start = state(whole.bayesian)
    whole.train()
    assert not same(state(whole.bayesian), start)
    again = trainer()
    with torch.no_grad():  # what is resumed must not depend on what was there
        for _, parts in again.bayesian.parts():
            parts.rho.zero_()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert again.state.global_step == 6
    assert same(state(again.bayesian), state(whole.bayesian))


@shows("Transformers", "A checkpoint of Trainer is a folder of Transformers, with its configuration.")
def test_a_checkpoint_has_the_configuration_and_can_be_loaded(tmp_path: Path) -> None:
    bnn = lb.Bayesian(still(), subspace=lb.random_k(0.3))
    BayesianTrainer(bnn, arguments(tmp_path, save_strategy="epoch"), train_dataset=sentences()).train()
    folder = tmp_path / "checkpoint-6"
    assert (folder / "config.json").is_file()
    again = from_pretrained(folder, AutoModelForSequenceClassification)
    assert same(state(again), state(bnn))
    plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = {name: value for name, value in BATCH.items() if name != "labels"}
    with bnn.eval().at_mean(), torch.no_grad():
        torch.testing.assert_close(plain(**inputs).logits, bnn(**inputs).logits, rtol=0, atol=0)


def test_an_adapter_that_was_trained_by_trainer_is_loaded_by_its_own_function(tmp_path: Path) -> None:
    bnn = adapter()
    trainer = BayesianTrainer(bnn, arguments(tmp_path), train_dataset=texts(), n_data=48)
    trainer.train()
    trainer.save_model(str(tmp_path / "adapter"))
    assert same(state(load_adapter(llama(), tmp_path / "adapter")), state(bnn))


def test_the_best_epoch_comes_back_with_its_scales(tmp_path: Path) -> None:
    bnn = lb.Bayesian(still())
    often = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    settings = arguments(tmp_path, metric_for_best_model="eval_loss", **often)
    trainer = BayesianTrainer(bnn, settings, train_dataset=sentences(), eval_dataset=sentences())
    trainer.train()
    best = from_pretrained(trainer.state.best_model_checkpoint, AutoModelForSequenceClassification)
    assert same(state(best), state(bnn))
    assert set(trainer.evaluate()) >= {"eval_loss"}


@shows("Transformers", "from_pretrained and resuming never leave weights or scales at random values quietly.")
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    bnn = lb.Bayesian(still())
    BayesianTrainer(bnn, arguments(tmp_path, save_strategy="epoch"), train_dataset=sentences()).train()
    folder = tmp_path / "checkpoint-3"

    def resumed(model: lb.Bayesian) -> None:
        settings = arguments(tmp_path, save_strategy="epoch")
        BayesianTrainer(model, settings, train_dataset=sentences()).train(resume_from_checkpoint=str(folder))

    with pytest.raises(WrongModel, match="makes other weights random"):
        resumed(lb.Bayesian(still(), subspace=lb.random_k(0.5)))
    with pytest.raises(WrongModel, match="has the posterior Normal"):
        resumed(lb.Bayesian(still(), posterior=lb.posteriors.Radial()))
    with pytest.raises(WrongModel, match="another architecture"):
        resumed(lb.Bayesian(llama()))
    (tmp_path / "checkpoint-6" / RANDOM_FILE).replace(folder / RANDOM_FILE)
    with pytest.raises(WrongModel, match="scales for other weights"):
        resumed(lb.Bayesian(still()))
    (folder / RANDOM_FILE).unlink()
    with pytest.raises(FileError, match=r"has no leanbayes\.safetensors"):
        resumed(lb.Bayesian(still()))


@shows("Transformers", "Trainer predicts a data set with uncertainty and measures its calibration.")
def test_predictions_are_those_of_predict(tmp_path: Path) -> None:
    bnn = lb.Bayesian(still(), predict_by="sample")
    data = sentences(6)
    trainer = BayesianTrainer(bnn, arguments(tmp_path, per_device_eval_batch_size=4), train_dataset=sentences())
    prediction = trainer.predict_with_uncertainty(data, samples=8, seed=1)
    noise = torch.Generator().manual_seed(1)
    ids = torch.tensor([row["input_ids"] for row in data])
    parts = [
        lb.predict(bnn, {"input_ids": part, "attention_mask": torch.ones_like(part)}, samples=8, generator=noise)
        for part in (ids[:4], ids[4:])
    ]
    torch.testing.assert_close(prediction.mean, torch.cat([part.mean for part in parts]))
    torch.testing.assert_close(prediction.epistemic, torch.cat([part.epistemic for part in parts]))
    measured = trainer.measure(data, samples=8, seed=1)
    labels = torch.tensor([row["labels"] for row in data])
    assert measured.metrics["accuracy"] == pytest.approx((prediction.mean.argmax(1) == labels).float().mean().item())
    trainer.create_model_card(dataset="sentences")
    assert f"{measured.metrics['nll']:.4g}" in (tmp_path / "README.md").read_text()


def test_scales_have_their_own_group_without_decay(tmp_path: Path) -> None:
    bnn = lb.Bayesian(still())
    settings = arguments(tmp_path, weight_decay=0.1)
    groups = BayesianTrainer(bnn, settings, train_dataset=sentences(), scale_lr=0.5).create_optimizer().param_groups
    scales = {id(parts.rho) for _, parts in bnn.parts()}
    assert {id(parameter) for parameter in groups[-1]["params"]} == scales
    assert (groups[-1]["lr"], groups[-1]["weight_decay"]) == (0.5, 0.0)
    everything = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(everything) == len(set(everything)) == len(list(bnn.parameters()))


def test_the_targets_of_a_language_model_are_counted_and_must_be_known(tmp_path: Path) -> None:
    data = texts()
    data[0] = data[0] | {"labels": [-100] * 3 + data[0]["labels"][3:]}
    trainer = BayesianTrainer(lb.Bayesian(llama()), arguments(tmp_path), train_dataset=data)
    before = torch.get_rng_state()
    assert trainer.count_targets() == 12 * 4 - 2
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(InputError, match="several targets for each example"):
        trainer.train()
    trainer.n_data = trainer.count_targets()
    trainer.train()
    assert math.isfinite(trainer.bayesian.kl().item())


def test_batch_norms_keep_their_statistics(tmp_path: Path) -> None:
    class Normed(type(still())):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.dropout = nn.BatchNorm1d(config.hidden_size)

    bnn = lb.Bayesian(Normed(still().config))
    BayesianTrainer(bnn, arguments(tmp_path), train_dataset=sentences()).train()
    assert not bnn.model.dropout.running_mean.any()


@pytest.mark.filterwarnings("default")
def test_scales_that_did_not_move_are_warned_about(tmp_path: Path) -> None:
    settings = arguments(tmp_path, learning_rate=1e-9, num_train_epochs=7)
    with pytest.warns(lb.errors.ScalesDidNotMove, match="after 21 steps"):
        BayesianTrainer(lb.Bayesian(still()), settings, train_dataset=sentences()).train()


def test_bad_input_is_named(tmp_path: Path) -> None:
    settings, bnn = arguments(tmp_path), lb.Bayesian(still())
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (still(), {}, "got a BertForSequenceClassification; convert it"),
        (None, {}, "takes a lb.Bayesian as its model, got none"),
        (lb.Bayesian(nn.Linear(1, 1)), {}, "this one is around a Linear"),
        (lb.Bayesian(still(), propagate="moments"), {}, r"propagate=Moments.* makes none"),
        (bnn, {"kl_weight": -1.0}, "kl_weight must be"),
        (bnn, {"kl_weight": lb.Terms(1.0)}, "kl_weight must be a number"),
        (bnn, {"n_data": 0}, "n_data must be"),
        (bnn, {"scale_lr": 0.0}, "scale_lr must be"),
        (bnn, {"scale_lr": "fast"}, "scale_lr must be a positive number or None, got 'fast'"),
        (bnn, {"args": arguments(tmp_path, label_smoothing_factor=0.1)}, "a smoothed loss is no likelihood"),
        (bnn, {"args": arguments(tmp_path, gradient_checkpointing=True)}, "gradient_checkpointing_enable"),
    ]
    for model, options, message in cases:
        with pytest.raises(InputError, match=message):
            BayesianTrainer(model, **({"args": settings, "train_dataset": sentences()} | options))
    clipped = BayesianTrainer(bnn, settings, train_dataset=sentences(), **ivon(copy.deepcopy(bnn)))
    with pytest.raises(InputError, match=r"max_grad_norm=1\.0 clips the gradients of the scales"):
        clipped.train()
    with pytest.raises(InputError, match="not empty"):
        clipped.predict_with_uncertainty([])
    with pytest.raises(InputError, match="there is no data set to predict"):
        clipped.predict_with_uncertainty(None)
    with pytest.raises(InputError, match="seed must be a whole number or None, got 'first'"):
        clipped.predict_with_uncertainty(sentences(), seed="first")
    with pytest.raises(InputError, match="measuring needs one tensor of labels"):
        clipped.measure([{"input_ids": [3, 4]}])
