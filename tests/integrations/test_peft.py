"""Bayesian LoRA: on tiny language models of three kinds, saved beside the adapter, and generating under a draw."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import leanbayes as lb
from leanbayes.integrations._folder import RANDOM_FILE
from leanbayes.integrations.peft import bayesian_lora, generate, load_adapter, save_adapter
from tests.integrations.matrix import shows
from tests.integrations.pages import run_page

TOKENS = {"vocab_size": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "max_position_embeddings": 32}


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**TOKENS, **SIZES))


def qwen2() -> Any:
    return Qwen2ForCausalLM(Qwen2Config(**TOKENS, **SIZES))


def gpt2() -> Any:  # with tied embeddings
    return GPT2LMHeadModel(GPT2Config(**TOKENS, n_embd=16, n_layer=2, n_head=2, n_positions=32))


KINDS = [
    pytest.param(llama, marks=shows("PEFT", "LoRA on Llama becomes Bayesian, trains, is saved and generates.")),
    pytest.param(qwen2, marks=shows("PEFT", "LoRA on Qwen2 becomes Bayesian, trains, is saved and generates.")),
    pytest.param(gpt2, marks=shows("PEFT", "LoRA on GPT-2 becomes Bayesian, trains, is saved and generates.")),
]


def base(kind: Callable[[], Any]) -> Any:
    torch.manual_seed(1)
    return kind().eval()


def lora(kind: Callable[[], Any], **settings: Any) -> Any:
    fan = {"fan_in_fan_out": True} if kind is gpt2 else {}
    return get_peft_model(base(kind), LoraConfig(r=2, lora_alpha=4, task_type="CAUSAL_LM", **fan, **settings))


def trained(bnn: lb.Bayesian) -> lb.Bayesian:
    """Every number of the adapter moved away from where it starts, as training does."""
    with torch.no_grad():
        for parameter in bnn.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return bnn


IDS = torch.tensor([[1, 5, 9, 3], [1, 7, 7, 4]])


@pytest.mark.parametrize("kind", KINDS)
def test_training_moves_the_adapter_and_its_scales_alone(kind: Callable[[], Any]) -> None:
    bnn = bayesian_lora(lora(kind), random="both")
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    optimizer = torch.optim.Adam(bnn.parameter_groups(lr=0.02))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = bnn(input_ids=IDS, labels=IDS).loss + 1e-4 * bnn.kl()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < sum(losses[:5])
    moved = {name for name, value in bnn.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert any(name.startswith("coordinates") for name in moved)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_comes_back_bit_for_bit(kind: Callable[[], Any], tmp_path: Path) -> None:
    bnn = trained(bayesian_lora(lora(kind), propagate="local", posterior=lb.posteriors.Radial()))
    save_adapter(bnn, tmp_path / "adapter")
    again = load_adapter(base(kind), tmp_path / "adapter")
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in bnn.state_dict().items())
    assert (again.posterior, again.propagate) == (bnn.posterior, bnn.propagate)
    assert sorted(again.parameter_groups()[0]) == sorted(bnn.parameter_groups()[0])
    plain = PeftModel.from_pretrained(base(kind), str(tmp_path / "adapter")).eval()
    with bnn.at_mean(), torch.no_grad():
        torch.testing.assert_close(plain(IDS).logits, bnn(IDS).logits, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_generation_under_a_draw_is_that_of_its_weights(kind: Callable[[], Any]) -> None:
    """Greedy tokens by hand, from the logits of a copy of the network whose parameters are the draw."""
    bnn = trained(bayesian_lora(lora(kind), random="both"))
    means = {name: value.clone() for name, value in bnn.model.state_dict().items()}
    texts = list(
        generate(bnn, 3, generator=torch.Generator().manual_seed(2), input_ids=IDS, max_new_tokens=4, do_sample=False)
    )
    source = torch.Generator().manual_seed(2)
    for text in texts:
        with bnn.drawn(source) as network:
            other = copy.deepcopy(network).eval()
        ids = IDS
        with torch.no_grad():
            for _ in range(4):
                ids = torch.cat([ids, other(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
        upto = text.shape[1]  # generation ends once every sequence has ended
        for row, expected in zip(text, ids[:, :upto], strict=True):
            ended = (expected[4:] == 2).nonzero()
            last = 5 + int(ended[0]) if len(ended) else upto
            assert torch.equal(row[:last], expected[:last])
    assert all(torch.equal(value, means[name]) for name, value in bnn.model.state_dict().items())


@shows("PEFT", "Predictions of the next token average several draws and have uncertainties.")
@pytest.mark.parametrize("kind", [llama, gpt2])
def test_the_next_token_is_predicted_by_several_draws(kind: Callable[[], Any]) -> None:
    bnn = trained(bayesian_lora(lora(kind)))
    noise = torch.Generator().manual_seed(4)
    next_token = lambda returned: returned.logits[:, -1]  # noqa: E731
    prediction = lb.predict(bnn, {"input_ids": IDS}, samples=8, generator=noise, output=next_token, method="loop")
    noise = torch.Generator().manual_seed(4)
    draws = []
    for _ in range(8):
        with bnn.drawn(noise) as network, torch.no_grad():
            draws.append(network(IDS).logits[:, -1].softmax(-1))
    torch.testing.assert_close(prediction.mean, torch.stack(draws).mean(0))
    assert (prediction.epistemic > 0).all()


def test_by_default_a_new_adapter_has_no_uncertainty_and_a_learnt_one_has() -> None:
    bnn = bayesian_lora(lora(llama))
    assert all(".lora_A.default" in name for name, _ in bnn.parts())
    assert len(list(bnn.parts())) == 4
    with torch.no_grad():
        torch.testing.assert_close(bnn(IDS).logits, base(llama)(IDS).logits, rtol=0, atol=0)
        trained(bnn)
        assert not torch.equal(bnn(IDS).logits, bnn(IDS).logits)


def test_an_adapter_of_another_name_and_an_embedding(tmp_path: Path) -> None:
    model = get_peft_model(base(gpt2), LoraConfig(r=2, target_modules=["wte"], task_type="CAUSAL_LM"), "mine")
    bnn = trained(bayesian_lora(model, random="both"))
    assert len(list(bnn.parts())) == 2
    save_adapter(bnn, tmp_path)
    again = load_adapter(base(gpt2), tmp_path)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in bnn.state_dict().items())


@shows("PEFT", "Scales that belong to another adapter are refused.")
def test_scales_of_another_adapter_are_refused(tmp_path: Path) -> None:
    save_adapter(trained(bayesian_lora(lora(llama))), tmp_path / "one")
    save_adapter(trained(trained(bayesian_lora(lora(llama)))), tmp_path / "two")
    with pytest.raises(lb.errors.WrongModel, match=r"does not fit a Linear; give the base model .* PEFT says"):
        load_adapter(torch.nn.Linear(3, 2), tmp_path / "two")
    (tmp_path / "two" / RANDOM_FILE).replace(tmp_path / "one" / RANDOM_FILE)
    with pytest.raises(lb.errors.WrongModel, match="scales for other weights than the model has"):
        load_adapter(base(llama), tmp_path / "one")
    with pytest.raises(lb.errors.FileError, match=r"has no leanbayes\.safetensors"):
        load_adapter(base(llama), tmp_path / "two")


@pytest.mark.parametrize("name", ["../one", "..", "/one", "other", "", 3])
def test_a_file_names_no_adapter_outside_of_its_folder(tmp_path: Path, name: Any) -> None:
    """A forged file read the adapter of any folder, or of a repository on the hub."""
    bnn = trained(bayesian_lora(lora(llama)))
    save_adapter(bnn, tmp_path / "one")
    (tmp_path / "two").mkdir()
    lb.save(bnn, tmp_path / "two" / RANDOM_FILE, only="random", about={"adapter": name})
    with pytest.raises(lb.errors.FileError, match=r"does not say to which adapter|there is no folder"):
        load_adapter(base(llama), tmp_path / "two")


def test_a_merged_adapter_is_refused() -> None:
    bnn = trained(bayesian_lora(lora(llama)))
    bnn.model.merge_adapter()
    with pytest.raises(lb.errors.InputError, match="merged into the base weights"):
        bnn(IDS)
    with pytest.raises(lb.errors.InputError, match="merged into the base weights"):
        list(generate(bnn, 1, input_ids=IDS, max_new_tokens=1))
    bnn.model.unmerge_adapter()
    bnn(IDS)


def test_a_draw_is_not_saved_as_an_adapter(tmp_path: Path) -> None:
    bnn = bayesian_lora(lora(llama))
    with pytest.raises(lb.errors.InputError, match="hold a draw"), bnn.drawn():
        save_adapter(bnn, tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def frozen() -> Any:
    return lora(llama).requires_grad_(False)


def prompts() -> Any:
    return get_peft_model(base(llama), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: bayesian_lora(base(llama)), "must be a PeftModel, got a LlamaForCausalLM"),
        (lambda: bayesian_lora(lb.Bayesian(lora(llama))), "got a Bayesian; give bnn.model"),
        (lambda: bayesian_lora(prompts()), "its configuration is PromptTuningConfig"),
        (lambda: bayesian_lora(frozen()), "no matrices A that train"),
        (lambda: bayesian_lora(lora(llama), random="C"), "unknown value of random 'C'"),
        (lambda: bayesian_lora(lora(llama), subspace=lb.everything()), "chooses the subspace itself"),
        (lambda: save_adapter(lora(llama), "x"), "takes a lb.Bayesian around a PEFT model, got a PeftModel"),
        (lambda: load_adapter(lora(llama), "x"), "takes the base model, got a PeftModel"),
        (lambda: load_adapter("llama", "x"), "takes the base model, a torch.nn.Module, got a str"),
        (lambda: generate(base(llama), 2), "around a model that has generate"),
        (lambda: generate(lb.Bayesian(torch.nn.Linear(1, 1)), 2), "got a Linear"),
        (lambda: generate(lb.Bayesian(lora(llama)), 0), "draws must be"),
    ],
)
def test_bad_input_is_named(attempt: Callable[[], Any], message: str) -> None:
    with pytest.raises(lb.errors.InputError, match=message):
        attempt()


@shows("PEFT", "The code of the page on PEFT runs.")
def test_the_page_runs(tmp_path: Path) -> None:
    run_page("docs/integrations/peft.md", tmp_path)


# ---------------------------------------------------------------- checkpoints, half precision, and one pass


def ready(kind: Callable[[], Any], dtype: torch.dtype, dropout: float, by: str, checkpoint: bool) -> lb.Bayesian:
    torch.manual_seed(1)
    model: Any = get_peft_model(
        kind().to(dtype), LoraConfig(r=2, lora_alpha=4, task_type="CAUSAL_LM", lora_dropout=dropout)
    )
    torch.manual_seed(2)
    bnn = trained(bayesian_lora(model, random="both", propagate=by)).train()
    if checkpoint:
        model.config.use_cache = False
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return bnn


def gradients(bnn: lb.Bayesian) -> tuple[dict[str, torch.Tensor], int]:
    """Return the gradients of a seeded step, and how often the first layer ran."""
    runs: list[None] = []
    layer: Any = bnn.model.get_base_model().model.layers[0].self_attn  # type: ignore[operator]
    hook = layer.register_forward_pre_hook(lambda *_: runs.append(None))
    torch.manual_seed(5)  # for dropout
    bnn(input_ids=IDS, labels=IDS, generator=torch.Generator().manual_seed(3)).loss.backward()
    hook.remove()
    return {name: p.grad for name, p in bnn.named_parameters() if p.grad is not None}, len(runs)


@pytest.mark.parametrize(
    ("kind", "dtype", "dropout", "by"),
    [
        (llama, torch.bfloat16, 0.3, "sample"),
        (llama, torch.float32, 0.0, "mirrored"),
        (llama, torch.bfloat16, 0.0, "local"),
        (qwen2, torch.bfloat16, 0.3, "flipout"),
    ],
)
def test_checkpoints_change_no_gradient(kind: Any, dtype: torch.dtype, dropout: float, by: str) -> None:
    """What is computed again in the backward pass sees the draw, and the dropout, that it saw in the forward pass."""
    plain, once = gradients(ready(kind, dtype, dropout, by, checkpoint=False))
    again, twice = gradients(ready(kind, dtype, dropout, by, checkpoint=True))
    assert (once, twice) == (1, 2)
    assert plain.keys() == again.keys()
    assert any(name.startswith("coordinates") for name in plain)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.parametrize("by", ["ivon", "gradients"])
def test_an_adapter_trains_in_half_precision_with_checkpoints(by: str) -> None:
    bnn = ready(llama, torch.bfloat16, 0.0, "sample", checkpoint=True)
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    ivon = by == "ivon"
    optimizer: Any = (
        lb.optim.IVON(bnn, lr=2.0, n_data=10_000, steps=40) if ivon else torch.optim.Adam(bnn.parameter_groups(lr=0.02))
    )
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = bnn(input_ids=IDS, labels=IDS, generator=generator).loss
        (loss if ivon else loss + 1e-4 * bnn.kl()).backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.2  # draws move these sums by some hundredths
    after = bnn.state_dict()
    assert after["model.base_model.model.lm_head.weight"].dtype is torch.bfloat16
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "lora_" in name}


@pytest.mark.parametrize(("kind", "attention"), [(llama, "sdpa"), (qwen2, "eager")])
def test_one_pass_through_a_language_model(kind: Callable[[], Any], attention: str) -> None:
    """Where every weight is random, moments agree with draws as far as transformers do (docs/moments.md)."""
    model = base(kind)
    model.set_attn_implementation(attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(8)  # so that attention attends to something
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(lb.posteriors.GaussianRho(-4.0, 0.0)))
    arguments = {"input_ids": IDS, "use_cache": False}
    mean, variance = lb.moments(bnn, arguments, output=lambda returned: returned.logits)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([bnn(**arguments, generator=generator).logits for _ in range(300)])
    spread = draws.std(0)
    ratio = variance.sqrt() / spread
    assert 0.85 < ratio.mean() < 1.35
    at_means = model(**arguments).logits
    off, plain_off = (((one - draws.mean(0)) / spread).abs().mean() for one in (mean, at_means))
    assert off < 0.25 < plain_off  # of a standard deviation; the draws leave 0.05 to chance


def test_an_operation_without_a_rule_names_the_module() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.matrix_exp(x)

    model = base(llama)
    model.model.layers[1].mlp = Odd()
    bnn = lb.Bayesian(model, subspace=lb.layers("model.layers.0.*"))
    with pytest.raises(
        lb.errors.MissingRule, match=r"matrix_exp.*'model\.layers\.1\.mlp' \(Odd\).*predict_by=\"sample\""
    ):
        lb.moments(bnn, {"input_ids": IDS, "use_cache": False}, output=lambda returned: returned.logits)


# ---------------------------------------------------------------- tokens and texts


def predicted(bnn: lb.Bayesian, ids: torch.Tensor, mask: torch.Tensor) -> lb.Prediction:
    return lb.predict(
        bnn,
        {"input_ids": ids, "attention_mask": mask},
        likelihood=lb.Categorical(class_axis=-1),
        samples=6,
        method="loop",
        keep_samples=True,
        generator=torch.Generator().manual_seed(4),
        output=lambda returned: returned.logits,
    )


@pytest.mark.parametrize("kind", [llama, qwen2])
def test_tokens_and_texts_have_the_uncertainty_that_explicit_sums_give(kind: Callable[[], Any]) -> None:
    bnn = trained(bayesian_lora(lora(kind), random="both"))
    ids = torch.tensor([[1, 5, 9, 3], [1, 7, 0, 0]])
    mask = (ids != 0).long()
    prediction = predicted(bnn, ids, mask)
    assert prediction.mean.shape == (2, 24, 4)
    assert prediction.total.shape == (2, 4)
    assert prediction.samples is not None
    texts, means = prediction.over_tokens(mask), prediction.over_tokens(mask).per_token()
    for row, length in enumerate((4, 2)):
        total = aleatoric = 0.0
        for token in range(length):
            laws = [law[row, :, token].double().tolist() for law in prediction.samples]
            mixture = [sum(law[word] for law in laws) / 6 for word in range(24)]
            total -= sum(p * math.log(p) for p in mixture)
            aleatoric -= sum(p * math.log(p) for law in laws for p in law) / 6
        assert texts.total[row].item() == pytest.approx(total, rel=1e-4)
        assert texts.aleatoric[row].item() == pytest.approx(aleatoric, rel=1e-4)
        assert texts.epistemic[row].item() == pytest.approx(total - aleatoric, rel=1e-2, abs=1e-4)
        assert means.total[row].item() == pytest.approx(total / length, rel=1e-4)
    assert texts.tokens.tolist() == [4, 2]


def test_padding_changes_nothing() -> None:
    bnn = trained(bayesian_lora(lora(llama), random="both"))
    ids = torch.tensor([[1, 7, 4, 0, 0], [1, 5, 9, 3, 8]])
    mask = (ids != 0).long()
    padded = predicted(bnn, ids, mask).over_tokens(mask)
    alone = predicted(bnn, ids[:1, :3], mask[:1, :3]).over_tokens()
    torch.testing.assert_close(padded.total[:1], alone.total)
    torch.testing.assert_close(padded.epistemic[:1], alone.epistemic, rtol=1e-3, atol=1e-5)


def test_masks_that_do_not_fit() -> None:
    bnn = bayesian_lora(lora(llama))
    prediction = predicted(bnn, IDS, torch.ones_like(IDS))
    for mask in (torch.ones(2, 3), torch.full((2, 4), 2), torch.full((2, 4), torch.nan)):
        with pytest.raises(lb.errors.InputError, match="attention mask"):
            prediction.over_tokens(mask)
    with pytest.raises(lb.errors.InputError, match="text 1 has no token"):
        prediction.over_tokens(torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]]))
    with pytest.raises(lb.errors.InputError, match=r"\(N, tokens\)"):
        lb.predict(torch.nn.Linear(2, 3), torch.zeros(1, 2)).over_tokens()
    with pytest.raises(lb.errors.ShapeMismatch, match="class_axis=-1"):
        lb.predict(bnn, {"input_ids": IDS}, output=lambda returned: returned.logits)
