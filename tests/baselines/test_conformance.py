import copy
import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from leanbayes.baselines import PREDICTORS
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.prediction import Predictor, outputs_of, predict
from tests.baselines.conformance import CASES

Build = Callable[[torch.dtype], Predictor]
FLOAT = torch.float32


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def build(request: pytest.FixtureRequest) -> Build:
    return request.param


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws_of(predictor: Predictor, x: object, count: int = 3, seed: int = 0) -> Tensor:
    return torch.stack(list(predictor.outputs(x, count, seeded(seed))))


def x_of(dtype: torch.dtype = FLOAT) -> Tensor:
    return torch.randn(5, 4, generator=seeded(3)).to(dtype)


def forget_measurement(predictor: nn.Module) -> None:
    for module in predictor.modules():
        if getattr(module, "method", None) == "auto":
            module.method = "loop"


def in_laboratory(cls: type) -> bool:
    """Whether a predictor belongs to the laboratory, which registers what it saves when it is imported."""
    return cls.__module__.startswith("leanbayes.lab.")


def test_every_predictor_is_listed_by_its_name() -> None:
    found, waiting = {}, [Predictor]
    while waiting:
        for cls in waiting.pop().__subclasses__():
            waiting.append(cls)
            private = cls.__name__.startswith("_")  # never saved
            shared = bool(cls.__subclasses__())  # what several predictors have in common is no predictor of its own
            ours = cls.__module__.startswith("leanbayes.")
            if ours and not in_laboratory(cls) and not private and not shared:
                found[cls.__name__] = cls
    assert found == {name: cls for name, cls in PREDICTORS.items() if not in_laboratory(cls)}


def test_inputs_may_be_a_tensor_a_tuple_or_a_mapping(build: Build) -> None:
    predictor = build(FLOAT)
    forget_measurement(predictor)
    a, b = x_of(), x_of().flip(0)
    one = predict(predictor, a + b, samples=3, generator=seeded())
    two = predict(predictor, (a, b), samples=3, generator=seeded())
    named = predict(predictor, {"b": b, "a": a}, samples=3, generator=seeded())
    assert one.mean.shape == (5, 3)
    torch.testing.assert_close(one.mean.sum(1), torch.ones(5))
    torch.testing.assert_close(two.mean, one.mean)
    torch.testing.assert_close(named.mean, one.mean)


def test_a_seed_gives_the_same_draws_and_leaves_torch_alone(build: Build) -> None:
    predictor = build(FLOAT)
    forget_measurement(predictor)
    state = torch.random.get_rng_state()
    first, again, other = (draws_of(predictor, x_of(), seed=seed, count=1) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (predictor.members is not None)


def test_draws_differ_from_each_other(build: Build) -> None:
    predictor = build(FLOAT)
    if predictor.members != 1:
        first, second = draws_of(predictor, x_of(), 2)
        assert not torch.equal(first, second)


def test_without_a_generator_torch_s_own_state_decides(build: Build) -> None:
    predictor = build(FLOAT)
    forget_measurement(predictor)
    torch.manual_seed(4)
    (first,) = predictor.outputs(x_of(), 1, None)
    torch.manual_seed(4)
    (again,) = predictor.outputs(x_of(), 1, None)
    assert torch.equal(first, again)


@pytest.mark.parametrize("training", [True, False])
def test_modes_gradients_and_hooks_are_as_before_even_between_draws(build: Build, training: bool) -> None:
    predictor = build(FLOAT).train(training)
    modes = {name: module.training for name, module in predictor.named_modules()}
    momenta = [module.momentum for module in predictor.modules() if isinstance(module, nn.BatchNorm1d)]
    weights = copy.deepcopy(predictor.state_dict())
    for out in predictor.outputs(x_of(), 1 if predictor.members == 1 else 2, seeded()):
        assert not out.requires_grad
        assert torch.is_grad_enabled()
        assert {name: module.training for name, module in predictor.named_modules()} == modes
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in predictor.modules())
    assert momenta == [module.momentum for module in predictor.modules() if isinstance(module, nn.BatchNorm1d)]
    assert all(torch.equal(value, weights[name]) for name, value in predictor.state_dict().items())


def test_predicts_in_eval_mode_whatever_the_mode_was(build: Build) -> None:
    predictor = build(FLOAT)
    forget_measurement(predictor)
    assert torch.equal(draws_of(predictor.train(), x_of(), 1), draws_of(predictor.eval(), x_of(), 1))


def test_a_copy_predicts_the_same_and_is_independent(build: Build) -> None:
    predictor = build(FLOAT)
    forget_measurement(predictor)
    before = draws_of(predictor, x_of(), 1)
    other = copy.deepcopy(predictor)
    assert torch.equal(draws_of(other, x_of(), 1), before)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()
    assert torch.equal(draws_of(predictor, x_of(), 1), before)


def test_float64_stays_float64(build: Build) -> None:
    predictor = build(torch.float64)
    assert draws_of(predictor, x_of(torch.float64), 1).dtype == torch.float64
    assert predict(predictor, x_of(torch.float64), samples=2).mean.dtype == torch.float64


def test_parts_config_and_buffers_make_it_again(build: Build) -> None:
    predictor = build(torch.float64)
    forget_measurement(predictor)
    parts = copy.deepcopy(predictor.parts())
    for part in parts.values():
        part.requires_grad_(True)
    again = type(predictor).rebuild(parts, **json.loads(json.dumps(predictor.config())))
    kept, fresh = dict(predictor.named_buffers(recurse=False)), dict(again.named_buffers(recurse=False))
    assert {name: (value.shape, value.dtype) for name, value in kept.items()} == {
        name: (value.shape, value.dtype) for name, value in fresh.items()
    }
    for name, value in kept.items():
        fresh[name].copy_(value)
    assert again.members == predictor.members
    x, count = x_of(torch.float64), min(3, predictor.members or 3)
    assert torch.equal(draws_of(again, x, count), draws_of(predictor, x, count))
    assert dict(again.config()) == dict(predictor.config())


def test_its_own_buffers_are_its_only_tensors_beside_the_parts(build: Build) -> None:
    predictor = build(FLOAT)
    own = {name for name, _ in predictor.named_buffers(recurse=False)}
    inside = {id(tensor) for part in predictor.parts().values() for tensor in (*part.parameters(), *part.buffers())}
    for name, tensor in (*predictor.named_parameters(), *predictor.named_buffers()):
        assert name in own or id(tensor) in inside, name


def test_more_samples_than_members_are_not_made(build: Build) -> None:
    predictor = build(FLOAT)
    result = predict(predictor, x_of(), samples=40)
    assert result.draws.tolist() == [min(40, predictor.members or 40)] * 5
    if predictor.members not in (None, 1):  # one draw may be repeated: it is the same
        with pytest.raises(InputError, match="draws were asked"):
            list(predictor.outputs(x_of(), predictor.members + 1, None))


def test_auto_draws_and_batches_work(build: Build) -> None:
    result = predict(build(FLOAT), x_of(), samples="auto", max_samples=12, batch_size=2)
    assert result.mean.shape == (5, 3)
    assert torch.isfinite(result.mean).all()
    assert (result.draws >= 1).all()


def test_forward_returns_what_the_model_returns_with_gradients(build: Build) -> None:
    predictor = build(FLOAT).train()
    out = predictor(x_of(), b=x_of())
    assert out.shape == (5, 3)
    out.sum().backward()
    assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in predictor.parameters())


def test_outputs_of_speaks_with_every_predictor(build: Build) -> None:
    predictor = build(FLOAT)
    forget_measurement(predictor)
    assert torch.equal(next(outputs_of(predictor, x_of(), 1, seeded())), draws_of(predictor, x_of(), 1)[0])


def test_a_whole_with_a_bayesian_part_is_refused() -> None:
    mixed = nn.Sequential(Bayesian(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 3))
    for cls in PREDICTORS.values():
        others = {"LaplaceApproximation": ({"weight": 1},), "Windowed": ((4, 4),)}
        arguments = others.get(cls.__name__, ())
        with pytest.raises(InputError, match=r"Bayesian|draws of its own"):
            cls(mixed, *arguments)
