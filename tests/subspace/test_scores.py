import copy
import math
from collections import OrderedDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from leanbayes.errors import InputError, NonFinite, UnknownName
from leanbayes.subspace import sensitivity, slots_of, top_k
from tests.oracles import assert_close, gradient_magnitudes, in_double, mean_within_standard_errors

Batches = list[tuple[Tensor, Tensor]]


class Net(nn.Module):
    """Convolution, batch norm, dropout, a parameter that nothing uses, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(12, 3)
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.full((3,), 1.5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.tanh(self.conv(x)))
        return self.fc(self.drop(h.flatten(1))) * self.frozen


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    with in_double():
        model = Net()
        for _ in range(3):
            model(torch.randn(8, 1, 4, 4))  # running statistics other than the initial ones
    return model


@pytest.fixture
def batches() -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 1, 4, 4, dtype=torch.float64, generator=generator),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for size in (4, 5, 2)
    ]


def examples(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    for x, y in batches:
        for i in range(len(x)):
            yield x[i : i + 1], y[i : i + 1]


def explicit(model: nn.Module, batches: Batches, of: str, power: int, per: str) -> dict[str, Tensor]:
    """The definition, by a loop of autograd calls on a copy in eval mode."""
    model = copy.deepcopy(model).eval()
    units = batches if per == "batch" else list(examples(batches))
    if of == "loss":
        scalars = [lambda x=x, y=y: F.cross_entropy(model(x), y) for x, y in units]
    else:
        scalars = [lambda x=x, o=o: model(x)[:, o].mean() for x, _ in units for o in range(3)]
    return {name: total / len(units) for name, total in gradient_magnitudes(model, scalars, power).items()}


@pytest.mark.parametrize("per", ["batch", "example"])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("of", ["loss", "output"])
class TestAgainstExplicitLoops:
    def test_equal(self, net, batches, of, power, per):
        loss = F.cross_entropy if of == "loss" else None
        result = sensitivity(net, batches, loss, of=of, power=power, per=per)
        assert_close(result, explicit(net, batches, of, power, per))
        assert float(result["conv.weight"].min()) > 0

    def test_the_model_may_be_in_training_mode_and_gradients_off(self, net, batches, of, power, per):
        expected = explicit(net, batches, of, power, per)
        net.train()
        with torch.no_grad():
            result = sensitivity(net, batches, F.cross_entropy, of=of, power=power, per=per)
        assert_close(result, expected)

    def test_plain_tensors_for_trainable_parameters_only(self, net, batches, of, power, per):
        result = sensitivity(net, batches, F.cross_entropy, of=of, power=power, per=per)
        params = {name: p for name, p in net.named_parameters() if p.requires_grad}
        assert list(result) == list(params)
        assert "frozen" not in result
        assert not result["unused"].any()
        for name, score in result.items():
            assert type(score) is Tensor
            assert not score.requires_grad
            assert (score.shape, score.dtype) == (params[name].shape, params[name].dtype)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 1000, None])
@pytest.mark.parametrize("of", ["loss", "output"])
def test_chunks_do_not_change_the_result(net, batches, of, chunk):
    result = sensitivity(net, batches, F.cross_entropy, of=of, power=2, per="example", chunk=chunk)
    assert_close(result, explicit(net, batches, of, 2, "example"))


def test_scores_can_be_selected_by(net, batches):
    scores = sensitivity(net, batches, F.cross_entropy)
    assert [slot.name for slot in slots_of(net) if slot.parameter.requires_grad] == list(scores)
    chosen = top_k(scores, k=10).select(net)
    assert sum(scores[n].numel() if v is None else len(v) for n, v in chosen.items()) == 10


def test_a_tied_parameter_gathers_both_gradients():
    with in_double():
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
        model[2].weight = model[0].weight
        x, y = torch.randn(5, 3), torch.randn(5, 3)
        expected = gradient_magnitudes(model, [lambda: F.mse_loss(model(x), y)], 1)
    for per in ("batch", "example"):
        if per == "example":
            expected = gradient_magnitudes(
                model, [lambda i=i: F.mse_loss(model(x[i : i + 1]), y[i : i + 1]) / 5 for i in range(5)], 1
            )
        assert list(expected) == ["0.weight"]
        assert_close(sensitivity(model, [(x, y)], F.mse_loss, per=per), expected)


def test_magnitudes_do_not_cancel_at_an_optimum():
    """Signed gradients of the two examples sum to zero; their magnitudes do not (the reason for ``per``)."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    x, y = torch.ones(2, 1), torch.tensor([[1.0], [-1.0]])
    assert sensitivity(model, [(x, y)], F.mse_loss)["weight"].item() == 0
    assert sensitivity(model, [(x, y)], F.mse_loss, per="example")["weight"].item() == 2


class TestProbes:
    @pytest.fixture
    def model(self) -> nn.Module:
        torch.manual_seed(2)
        with in_double():
            return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4))

    @pytest.mark.parametrize("per", ["batch", "example"])
    def test_the_mean_of_squares_is_unbiased(self, model, per):
        x = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        exact = explicit_outputs(model, x, per)
        generator = torch.Generator().manual_seed(0)
        runs = [
            sensitivity(model, [(x, None)], of="output", power=2, per=per, probes=1, generator=generator)
            for _ in range(300)
        ]
        for name, expected in exact.items():
            mean_within_standard_errors(torch.stack([run[name] for run in runs]), expected)

    def test_several_probes_are_averaged(self, model):
        x = torch.randn(3, 2, dtype=torch.float64)
        many = sensitivity(
            model, [(x, None)], of="output", power=2, probes=3, generator=torch.Generator().manual_seed(5)
        )
        generator = torch.Generator().manual_seed(5)
        signs = torch.randint(0, 2, (3, 4), generator=generator) * 2.0 - 1.0
        scalars = [lambda row=row: (model(x) * row).sum(1).mean() for row in signs]
        expected = gradient_magnitudes(model, scalars, 2)
        assert_close(many, {name: total / 3 for name, total in expected.items()})

    def test_reproducible_from_the_generator(self, model):
        x = torch.randn(3, 2, dtype=torch.float64)
        first, again, other = (
            sensitivity(model, [(x, None)], of="output", probes=2, generator=torch.Generator().manual_seed(seed))
            for seed in (0, 0, 3)
        )
        assert torch.equal(first["0.weight"], again["0.weight"])
        assert not torch.equal(first["0.weight"], other["0.weight"])

    def test_one_output_needs_one_probe(self):
        model = nn.Linear(2, 1).double()
        x = torch.randn(3, 2, dtype=torch.float64)
        exact = sensitivity(model, [(x, None)], of="output", power=2)
        assert_close(sensitivity(model, [(x, None)], of="output", power=2, probes=1), exact)

    def test_too_many_outputs_ask_for_probes(self):
        model = nn.Linear(1, 1025)
        with pytest.raises(InputError, match=r"1025 outputs an example; take random combinations of them: probes=8"):
            sensitivity(model, [(torch.ones(1, 1), None)], of="output")
        result = sensitivity(model, [(torch.ones(1, 1), None)], of="output", power=2, probes=2)
        assert torch.equal(result["bias"], torch.ones(1025))

    def test_every_axis_of_the_output_counts(self):
        with in_double():
            model = nn.Conv1d(1, 2, 2)
            x = torch.randn(3, 1, 4)
        expected = gradient_magnitudes(
            model, [lambda c=c, t=t: model(x)[:, c, t].mean() for c in range(2) for t in range(3)], 2
        )
        assert_close(sensitivity(model, [(x, None)], of="output", power=2), expected)


def explicit_outputs(model: nn.Module, x: Tensor, per: str) -> dict[str, Tensor]:
    units = [x] if per == "batch" else list(x.split(1))
    scalars = [lambda part=part, o=o: model(part)[:, o].mean() for part in units for o in range(4)]
    return {name: total / len(units) for name, total in gradient_magnitudes(model, scalars, 2).items()}


@pytest.mark.parametrize("per", ["batch", "example"])
@pytest.mark.parametrize("of", ["loss", "output"])
class TestTheModelIsLeftAsItWas:
    def snapshot(self, model: nn.Module) -> dict[str, Any]:
        return {
            "modes": [module.training for module in model.modules()],
            "state": {name: t.detach().clone() for name, t in model.state_dict().items()},
            "flags": [p.requires_grad for p in model.parameters()],
            "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
            "identity": [id(t) for t in (*model.parameters(), *model.buffers())],
            "rng": torch.get_rng_state(),
        }

    def same(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        for key in ("modes", "flags", "identity"):
            assert before[key] == after[key], key
        assert torch.equal(before["rng"], after["rng"])
        assert before["state"].keys() == after["state"].keys()
        assert all(torch.equal(before["state"][name], after["state"][name]) for name in before["state"])
        for old, new in zip(before["grads"], after["grads"], strict=True):
            assert (old is None and new is None) or torch.equal(old, new)

    def test_modes_gradients_buffers_flags_and_random_state(self, net, batches, of, per):
        net.train()
        net.norm.eval()
        net.fc.weight.grad = torch.full_like(net.fc.weight, 7.0)
        before = self.snapshot(net)
        assert True in before["modes"]
        assert False in before["modes"]
        sensitivity(net, batches, F.cross_entropy, of=of, per=per)
        self.same(before, self.snapshot(net))
        assert net.conv.weight.grad is None

    def test_with_a_shuffling_loader(self, net, of, per):
        data = TensorDataset(torch.randn(12, 1, 4, 4, dtype=torch.float64), torch.randint(0, 3, (12,)))
        loader = DataLoader(data, batch_size=5, shuffle=True)
        net.train()
        before = self.snapshot(net)
        sensitivity(net, loader, F.cross_entropy, of=of, per=per, probes=2 if of == "output" else None)
        self.same(before, self.snapshot(net))

    def test_when_something_fails_on_the_way(self, net, batches, of, per):
        def broken(output: Any) -> Any:
            torch.rand(3)
            raise ZeroDivisionError("half way")

        net.train()
        before = self.snapshot(net)
        with pytest.raises(ZeroDivisionError, match="half way"):
            sensitivity(net, batches, F.cross_entropy, of=of, per=per, output=broken)
        self.same(before, self.snapshot(net))

    def test_with_buffers_that_the_forward_pass_replaces(self, of, per):
        """``self.steps = self.steps + 1`` makes a new tensor; copying into the old one does not bring it back."""

        class Counting(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(2, 3)
                self.register_buffer("steps", torch.zeros(()))
                self.register_buffer("last", torch.zeros(3))

            def forward(self, x: Tensor) -> Tensor:
                out = self.fc(x)
                self.steps = self.steps + 1
                self.last = out.detach().mean(0)
                return out

        model, batches = Counting(), [(torch.randn(4, 2), torch.randint(0, 3, (4,)))]
        before = self.snapshot(model)
        sensitivity(model, batches, F.cross_entropy, of=of, per=per)
        copy.deepcopy(model)
        self.same(before, self.snapshot(model))

    def test_with_buffers_that_the_forward_pass_updates_in_place(self, of, per):
        class Counting(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(2, 3)
                self.register_buffer("steps", torch.zeros(()))
                self.register_buffer("last", torch.zeros(3))

            def forward(self, x: Tensor) -> Tensor:
                out = self.fc(x)
                self.steps += 1
                self.last.copy_(out.detach().mean(0))
                return out

        model, batches = Counting(), [(torch.randn(4, 2), torch.randint(0, 3, (4,)))]
        before = self.snapshot(model)
        sensitivity(model, batches, F.cross_entropy, of=of, per=per)
        self.same(before, self.snapshot(model))


class TestNumberOfBatches:
    def test_it_stops_and_takes_no_more(self, net, batches):
        taken = []

        def stream() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in batches:
                taken.append(len(batch[0]))
                yield batch

        source = stream()
        result = sensitivity(net, source, F.cross_entropy, n_batches=2)
        assert taken == [4, 5]
        assert_close(result, explicit(net, batches[:2], "loss", 1, "batch"))
        assert len(next(source)[0]) == 2

    def test_more_than_there_are_is_all(self, net, batches):
        result = sensitivity(net, batches, F.cross_entropy, n_batches=99)
        assert_close(result, explicit(net, batches, "loss", 1, "batch"))

    def test_an_endless_stream(self, net, batches):
        def forever() -> Iterator[tuple[Tensor, Tensor]]:
            while True:
                yield batches[0]

        result = sensitivity(net, forever(), F.cross_entropy, n_batches=3)
        assert_close(result, explicit(net, batches[:1], "loss", 1, "batch"))


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell = cell(3, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
class TestRecurrentNets:
    @pytest.fixture
    def model(self, cell) -> nn.Module:
        torch.manual_seed(3)
        with in_double():
            return Recurrent(cell)

    @pytest.fixture
    def batches(self) -> Batches:
        generator = torch.Generator().manual_seed(1)
        return [
            (
                torch.randn(n, 5, 3, dtype=torch.float64, generator=generator),
                torch.randint(0, 3, (n,), generator=generator),
            )
            for n in (3, 2)
        ]

    @pytest.mark.parametrize("per", ["batch", "example"])
    @pytest.mark.parametrize("of", ["loss", "output"])
    def test_against_the_explicit_loop(self, model, batches, of, per):
        for chunk in (None, 2):
            result = sensitivity(model, batches, F.cross_entropy, of=of, per=per, chunk=chunk)
            assert_close(result, explicit(model, batches, of, 1, per))

    @pytest.mark.parametrize("per", ["batch", "example"])
    def test_the_cell_keeps_its_own_weights(self, model, batches, per):
        x = batches[0][0]
        before = model(x)
        sensitivity(model, batches, F.cross_entropy, per=per)
        assert torch.equal(model(x), before)
        assert {id(w) for w in model.cell._flat_weights} == {id(p) for p in model.cell.parameters()}
        with torch.no_grad():
            model.cell.weight_ih_l0.mul_(2)
        assert not torch.equal(model(x), before)
        twin = copy.deepcopy(model)
        assert torch.equal(twin(x), model(x))
        model(x).sum().backward()
        assert model.cell.weight_hh_l1_reverse.grad is not None


class TestInputsAndOutputs:
    @pytest.fixture
    def model(self) -> nn.Module:
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(2, 3), nn.Linear(4, 3)

            def forward(
                self, left: Tensor, right: Tensor, mask: Tensor | None = None, double: bool = False, factor: Any = 1.0
            ) -> Tensor:
                out = (self.a(left) * self.b(right).tanh()) * factor
                return out * 2 if double else out

        torch.manual_seed(4)
        with in_double():
            return Two()

    @pytest.fixture
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        left, right = (torch.randn(4, n, dtype=torch.float64, generator=generator) for n in (2, 4))
        return left, right, torch.randint(0, 3, (4,), generator=generator)

    def expected(self, model: nn.Module, parts: tuple[Tensor, Tensor, Tensor], per: str, factor: float) -> Any:
        left, right, y = parts
        rows = [slice(None)] if per == "batch" else [slice(i, i + 1) for i in range(4)]
        scalars = [lambda r=r: F.cross_entropy(model(left[r], right[r]) * factor, y[r]) for r in rows]
        return {name: total / len(rows) for name, total in gradient_magnitudes(model, scalars, 1).items()}

    @pytest.mark.parametrize("per", ["batch", "example"])
    @pytest.mark.parametrize("kind", [tuple, list, dict, OrderedDict])
    def test_tuples_and_mappings(self, model, parts, per, kind):
        left, right, y = parts
        inputs = kind(right=right, left=left) if issubclass(kind, dict) else kind([left, right])
        result = sensitivity(model, [(inputs, y)], F.cross_entropy, per=per)
        assert_close(result, self.expected(model, parts, per, 1.0))

    @pytest.mark.parametrize("per", ["batch", "example"])
    @pytest.mark.parametrize(
        ("extra", "factor"),
        [({"double": True}, 2.0), ({"mask": None}, 1.0), ({"factor": 3.0}, 3.0), ({"factor": torch.tensor(3.0)}, 3.0)],
        ids=["flag", "none", "number", "scalar tensor"],
    )
    def test_what_is_not_a_batch_is_handed_through(self, model, parts, per, extra, factor):
        left, right, y = parts
        result = sensitivity(model, [({"left": left, "right": right, **extra}, y)], F.cross_entropy, per=per)
        assert_close(result, self.expected(model, parts, per, factor))

    @pytest.mark.parametrize("per", ["batch", "example"])
    def test_targets_in_a_mapping(self, model, parts, per):
        left, right, y = parts
        result = sensitivity(
            model, [((left, right), {"label": y})], lambda out, t: F.cross_entropy(out, t["label"]), per=per
        )
        assert_close(result, self.expected(model, parts, per, 1.0))

    @pytest.mark.parametrize("per", ["batch", "example"])
    @pytest.mark.parametrize("wrap", [lambda t: SimpleNamespace(logits=t, loss=None), lambda t: {"logits": t}])
    @pytest.mark.parametrize("of", ["loss", "output"])
    def test_an_output_with_logits(self, net, batches, per, wrap, of):
        class Wrapped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: Tensor) -> Any:
                return wrap(self.net(x))

        result = sensitivity(Wrapped(), batches, F.cross_entropy, of=of, per=per)
        expected = explicit(net, batches, of, 1, per)
        assert_close({name.removeprefix("net."): score for name, score in result.items()}, expected)

    def test_the_output_may_be_picked(self, net, batches):
        class Wrapped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: Tensor) -> Any:
                return "auxiliary", [self.net(x)]

        result = sensitivity(Wrapped(), batches, F.cross_entropy, output=lambda returned: returned[1][0])
        assert_close(
            {name.removeprefix("net."): s for name, s in result.items()}, explicit(net, batches, "loss", 1, "batch")
        )
        with pytest.raises(InputError, match="returned a tuple, which is no tensor"):
            sensitivity(Wrapped(), batches, F.cross_entropy)

    def test_a_pair_of_outputs_says_what_to_do(self):
        """A model that returns mean and log-variance has no one tensor to differentiate."""

        class Pair(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(2, 2)

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                return self.fc(x), self.fc(x)

        batch = (torch.randn(3, 2), torch.randn(3, 2))
        loss = F.gaussian_nll_loss
        assert sensitivity(Pair(), [batch], lambda out, y: loss(out[0], y, out[1].exp()))["fc.weight"].shape == (2, 2)
        with pytest.raises(InputError, match="output="):
            sensitivity(Pair(), [batch], of="output")


class TestHalfPrecision:
    def test_many_batches_do_not_stall_the_sum(self):
        """In bfloat16, 256 + 1 is 256: sums over batches need more digits than the weights have."""
        model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
        batch = (torch.ones(1, 1, dtype=torch.bfloat16), None)
        result = sensitivity(model, [batch] * 1000, lambda out, _: out.sum())
        assert result["weight"].item() == pytest.approx(1.0, rel=0.01)


class TestErrors:
    @pytest.mark.parametrize("batches", [[], iter(())])
    def test_no_batches(self, net, batches):
        with pytest.raises(InputError, match="got no batches; give a list"):
            sensitivity(net, batches, F.cross_entropy)

    def test_a_used_up_iterator(self, net, batches):
        source = iter(batches)
        sensitivity(net, source, F.cross_entropy)
        with pytest.raises(InputError, match="no batches"):
            sensitivity(net, source, F.cross_entropy)

    @pytest.mark.parametrize("per", ["batch", "example"])
    def test_a_loss_that_is_no_scalar(self, net, batches, per):
        with pytest.raises(InputError, match=r"must be a scalar, got shape \((4|1),\); reduce it by mean or sum"):
            sensitivity(net, batches, lambda out, y: F.cross_entropy(out, y, reduction="none"), per=per)

    @pytest.mark.parametrize("per", ["batch", "example"])
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_inputs_that_are_not_finite(self, net, batches, per, bad):
        batches[1][0][2, 0, 1, 1] = bad
        with pytest.raises(NonFinite, match=r"sensitivity of 'conv\.weight' is NaN or infinite.*batches for NaN"):
            sensitivity(net, batches, F.cross_entropy, per=per)

    def test_everything_frozen(self, net, batches):
        with pytest.raises(InputError, match="every parameter of the model is frozen"):
            sensitivity(net.requires_grad_(False), batches, F.cross_entropy)

    def test_a_lazy_model(self):
        with pytest.raises(InputError, match="'weight' has no shape yet"):
            sensitivity(nn.LazyLinear(2), [(torch.ones(1, 1), None)], F.mse_loss)

    def test_no_loss(self, net, batches):
        with pytest.raises(InputError, match=r'give the loss.*or ask for of="output"'):
            sensitivity(net, batches)

    @pytest.mark.parametrize("batch", [torch.ones(4, 2), (torch.ones(2), None, None), {"x": 1, "y": 2}])
    def test_a_batch_that_is_no_pair(self, net, batch):
        with pytest.raises(InputError, match="a batch must be a pair"):
            sensitivity(net, [batch], F.cross_entropy)

    def test_an_empty_batch(self, net, batches):
        x, y = batches[0]
        with pytest.raises(InputError, match="the batch is empty"):
            sensitivity(net, [(x[:0], y[:0])], F.cross_entropy, per="example")

    def test_mistakes_of_the_caller_are_not_hidden_by_the_fallback(self, net, batches):
        x, y = batches[0]
        with pytest.raises(RuntimeError, match=r"shape|size|channels"):
            sensitivity(net, [(x[:, :, :2], y)], F.cross_entropy, per="example")

    @pytest.mark.parametrize(
        ("arguments", "error", "match"),
        [
            ({"of": "input"}, UnknownName, r"unknown of 'input'; choose from \['loss', 'output'\]"),
            ({"per": "epoch"}, UnknownName, r"unknown per 'epoch'; choose from \['batch', 'example'\]"),
            ({"power": 3}, InputError, "power must be 1 .* or 2 .*, got 3"),
            ({"power": 0}, InputError, "got 0"),
            ({"n_batches": 0}, InputError, "n_batches must be at least 1, got 0"),
            ({"chunk": 0}, InputError, "chunk must be at least 1, got 0"),
            ({"probes": -1}, InputError, "probes must be at least 1, got -1"),
        ],
    )
    def test_bad_arguments(self, net, batches, arguments, error, match):
        with pytest.raises(error, match=match):
            sensitivity(net, batches, F.cross_entropy, **arguments)
