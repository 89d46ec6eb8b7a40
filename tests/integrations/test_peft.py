"""Bayesian LoRA: on tiny language models of three kinds, saved beside the adapter, and generating under a draw."""

import copy
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
