"""What no random weight has touched runs once for all draws, and no model can tell the difference."""

import copy
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

import leanbayes as lb
from leanbayes.lab.models import resnet18
from leanbayes.propagate.shared import Diverged, SharedPrefix

SAMPLES = 5


@pytest.fixture(autouse=True, scope="module")
def _always_share() -> Iterator[None]:
    """Share however little there is to share: whether it pays is a matter of time, and not of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["leanbayes.prediction.draws"], "_SHARE_FROM", -1.0)
        yield


def first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def naive(bnn: lb.Bayesian, inputs: Any, samples: int, seed: int) -> Tensor:
    """Each draw a pass of its own, by torch alone."""
    generator = torch.Generator().manual_seed(seed)
    bnn.eval()
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.no_grad():
        return torch.stack(
            [first(functional_call(bnn.model, bnn.draw(generator=generator), args)).clone() for _ in range(samples)]
        )


def shared(bnn: lb.Bayesian, inputs: Any, samples: int, seed: int, method: str = "loop") -> Tensor:
    result = lb.predict(
        bnn,
        inputs,
        likelihood=lb.Gaussian(1.0),
        samples=samples,
        keep_samples=True,
        method=method,
        generator=torch.Generator().manual_seed(seed),
        output=first,
    )
    assert result.samples is not None
    return result.samples


def check(model: nn.Module, inputs: Any, *random: str, samples: int = SAMPLES) -> tuple[nn.Module, nn.Module]:
    """Outputs, buffers and inputs after ``samples`` draws are those of the naive loop, bit for bit."""
    bnn = lb.Bayesian(model, subspace=lb.layers(*random), posterior=lb.posteriors.Normal(0.5))
    other = copy.deepcopy(bnn)
    own, given_inputs = copy.deepcopy(inputs), copy.deepcopy(inputs)
    torch.manual_seed(11)
    expected = naive(other, own, samples, seed=3)
    torch.manual_seed(11)
    result = shared(bnn, given_inputs, samples, seed=3)
    assert result.shape == expected.shape
    assert torch.equal(result, expected), f"{(result - expected).abs().amax(tuple(range(1, result.dim())))} by draw"
    assert not torch.equal(result[0], result[1]), "the draws do not differ: nothing was tested"
    for (name, buffer), (_, wanted) in zip(bnn.model.named_buffers(), other.model.named_buffers(), strict=True):
        assert torch.equal(buffer, wanted), f"buffer {name}"
    for leaf, wanted in zip(given_inputs if isinstance(inputs, tuple) else (given_inputs,),
                            own if isinstance(inputs, tuple) else (own,), strict=True):  # fmt: skip
        assert torch.equal(leaf, wanted), "the inputs were changed in another way"
    return bnn.model, other.model


def linear(n: int = 6, m: int = 6) -> nn.Linear:
    return nn.Linear(n, m)


class Net(nn.Module):
    """A clean layer ``a``, a random one ``r``, a clean one ``b``; ``rule`` says how they meet."""

    def __init__(self, rule: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.r, self.b = linear(), linear(), linear()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("memory", torch.zeros(4, 6))
        self.rule = rule

    def forward(self, x: Tensor) -> Any:
        return self.rule(self, x)


def x46() -> Tensor:
    return torch.randn(4, 6)


# ---------------------------------------------------------------- ordinary networks


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.one, self.two, self.three = (
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)) for _ in range(3)
        )
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        for block in (self.one, self.two, self.three):
            x = self.relu(block(x).add_(x))
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.bottom = nn.Conv2d(8, 8, 3, padding=1)
        self.up2, self.up1 = nn.ConvTranspose2d(8, 4, 2, 2), nn.ConvTranspose2d(8, 4, 2, 2)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.down1(x))
        two = F.relu(self.down2(F.max_pool2d(one, 2)))
        low = F.relu(self.bottom(F.max_pool2d(two, 2)))
        up = torch.cat([self.up2(low), two[:, :4]], 1)
        return self.head(torch.cat([self.up1(up), one], 1))


@pytest.mark.parametrize("random", ["stem", "one.0", "three.1", "head"])
def test_residual_net_with_in_place_relu(random: str) -> None:
    check(Residual(), torch.randn(2, 1, 8, 8), random)


@pytest.mark.parametrize("random", ["down1", "down2", "bottom", "up2", "up1", "head"])
def test_unet_with_skips(random: str) -> None:
    check(UNet(), torch.randn(2, 1, 8, 8), random)


@pytest.mark.parametrize("random", ["0", "2", "4"])
def test_layers_in_a_row(random: str) -> None:
    check(nn.Sequential(linear(), nn.ReLU(), linear(), nn.ReLU(inplace=True), linear()), x46(), random)


@pytest.mark.parametrize("random", ["lstm", "encoder.linear1", "head"])
def test_transformer_and_lstm(random: str) -> None:
    """To rounding only: in the first pass torch leaves its fused encoder layer, because a mode watches."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 6, batch_first=True)
            self.encoder = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
            self.head = linear()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(self.lstm(x)[0]).mean(1))

    bnn, x = lb.Bayesian(Both(), subspace=lb.layers(random), posterior=lb.posteriors.Normal(0.3)), torch.randn(4, 3, 6)
    torch.testing.assert_close(shared(bnn, x, 5, seed=1), naive(bnn, x, 5, seed=1))


# ---------------------------------------------------------------- how much is saved


@pytest.fixture
def convolutions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Every convolution that really runs, by the shape of its weight."""
    calls: list[tuple[int, ...]] = []
    real = torch.conv2d

    def counting(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if torch.overrides.has_torch_function((input, weight)):
            return torch.overrides.handle_torch_function(counting, (input, weight), input, weight, *args, **kwargs)
        calls.append(tuple(weight.shape))
        return real(input, weight, *args, **kwargs)

    monkeypatch.setattr(F, "conv2d", counting)
    return calls


def test_the_clean_part_of_a_resnet_runs_once(convolutions: list[tuple[int, ...]]) -> None:
    bnn = lb.Bayesian(resnet18(num_classes=3), subspace=lb.layers("layer4.1.conv2", "fc"))
    lb.predict(bnn, torch.randn(1, 3, 8, 8), samples=6, method="loop")
    assert len(convolutions) == 20 + 5  # all twenty once, the last one in each of five more draws


def test_without_sharing_everything_runs_every_time(convolutions: list[tuple[int, ...]]) -> None:
    """The counter counts: the first layer is random, so nothing can be shared but its own input."""
    bnn = lb.Bayesian(UNet(), subspace=lb.layers("down1"))
    lb.predict(bnn, torch.randn(1, 1, 8, 8), likelihood=lb.Categorical(), samples=6, method="loop")
    assert len(convolutions) == 6 * 4


def test_a_submodule_called_twice_runs_once(convolutions: list[tuple[int, ...]]) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.r = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.r(self.c(x)) + self.c(x) * self.r(self.c(self.c(x)))

    check(Twice(), torch.randn(2, 1, 4, 4), "r")
    convolutions.clear()
    shared(lb.Bayesian(Twice(), subspace=lb.layers("r")), torch.randn(2, 1, 4, 4), 4, seed=0)
    assert len(convolutions) == 4 + 2 * 4  # c four times in the first pass, then never; r twice in every pass


@pytest.mark.parametrize("method", ["loop", "vmap"])
def test_vmap_shares_too(method: str) -> None:
    bnn, x = lb.Bayesian(UNet(), subspace=lb.layers("head")), torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(shared(bnn, x, 6, 2, method), naive(bnn, x, 6, 2))


def chain(net: Net, x: Tensor, made: list[weakref.ref[Tensor]]) -> Tensor:
    for _ in range(10):
        x = torch.tanh(net.a(x))
        made.append(weakref.ref(x))
    return net.r(x)


def recorded(made: list[weakref.ref[Tensor]]) -> SharedPrefix:
    model, x = Net(lambda net, x: chain(net, x, made)), x46()
    prefix = SharedPrefix(model, ["r.weight", "r.bias"], x)
    with prefix, torch.no_grad():
        model(x)
    prefix.finish_recording()
    return prefix


def test_only_what_a_random_operation_reads_is_kept() -> None:
    """Ten clean activations, of which a random layer reads the last."""
    made: list[weakref.ref[Tensor]] = []
    prefix = recorded(made)
    assert prefix.usable
    assert [ref() is not None for ref in made] == [False] * 9 + [True]
    check(Net(lambda net, x: chain(net, x, [])), x46(), "r")


def test_a_record_that_would_keep_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one activation that is kept has 96 bytes."""
    for limit in (96, 95):
        monkeypatch.setattr("leanbayes.propagate.shared._MOST_BYTES", limit)
        made: list[weakref.ref[Tensor]] = []
        prefix = recorded(made)
        assert prefix.usable == (limit == 96)
        assert (made[-1]() is not None) == (limit == 96)
        check(Net(lambda net, x: chain(net, x, [])), x46(), "r")


# ---------------------------------------------------------------- models that change things in place


def fills_zeros(net: Net, x: Tensor) -> Tensor:
    out = torch.zeros(4, 6)
    out[:, :3] = net.r(x)[:, :3]
    out[:, 3:] = net.a(x)[:, 3:]
    return net.b(out)


def fills_zeros_twice(net: Net, x: Tensor) -> Tensor:
    one, two = torch.zeros(4, 6), torch.zeros(4, 6)
    one += net.r(x)
    two += net.a(x)
    return one * 2 + two + torch.zeros(4, 6)


def returns_what_it_filled(net: Net, x: Tensor) -> Tensor:
    out = x.new_empty(4, 6)
    for row in range(4):
        out[row] = net.r(net.a(x)[row])
    return out


def fills_through_a_view(net: Net, x: Tensor) -> Tensor:
    out = torch.zeros(4, 6)
    out[:, 0].copy_(net.r(x)[:, 0])
    out.view(-1)[5:9].add_(net.a(x).reshape(-1)[:4])
    return out


def changes_after_a_random_read(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    r = net.r(h)
    h.mul_(2.0).add_(1.0)
    return r + net.b(h)


def changes_before_a_random_read(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    kept = h.clone()
    h.relu_()
    return net.r(h) + kept


def changes_through_a_view(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    half = h[:, :3]
    r = net.r(h)
    half.neg_()
    return r + h


def clean_change_through_a_view(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    h[:, :3].neg_()
    h.view(2, 12)[0].mul_(3.0)
    return net.r(h) + h


def random_into_clean(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    h += net.r(x)
    return net.b(h)


def random_into_a_view_of_clean(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    h.view_as(net.r(x)).add_(net.r(x))
    return net.b(h)


def expands_and_changes(net: Net, x: Tensor) -> Tensor:
    h, r = net.a(x), net.r(x)
    same = h.type_as(r)
    same.mul_(0.5)
    return r * h


def changes_its_input(net: Net, x: Tensor) -> Tensor:
    x.mul_(0.9)
    return net.r(net.a(x))


def changes_its_input_through_a_view(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    x[:, 0].add_(1.0)
    return net.r(h)


def changes_its_input_behind_autograds_back(net: Net, x: Tensor) -> Tensor:
    x.data.mul_(0.9)
    return net.r(net.a(x))


def same_zeros_changed_alike(net: Net, x: Tensor) -> Tensor:
    one, two = torch.zeros(4, 6), torch.zeros(4, 6)
    one.add_(1.0)
    two.add_(1.0)
    one.mul_(3.0)
    return net.r(one) + net.r(two) * two


def second_of_two_zeros_filled(net: Net, x: Tensor) -> Tensor:
    one, two = torch.zeros(4, 6), torch.zeros(4, 6)
    two[:, 0] = 1.0
    return net.r(one) + net.r(two) * 3


def second_of_two_results_changed(net: Net, x: Tensor) -> Tensor:
    """The same layer on the same input gives the same values, in memory of their own."""
    one, two = net.a(x), net.a(x)
    two.relu_()
    return net.r(one) + net.r(two) * 3


def returns_its_changed_input(net: Net, x: Tensor) -> Tensor:
    x.add_(net.r(x).tanh())
    return x


def out_arguments(net: Net, x: Tensor) -> Tensor:
    out = torch.empty(4, 6)
    torch.add(net.a(x), 1.0, out=out)
    r = net.r(out)
    torch.mul(out, r, out=out)
    return out + r


@pytest.mark.parametrize(
    "rule",
    [
        fills_zeros,
        fills_zeros_twice,
        returns_what_it_filled,
        fills_through_a_view,
        changes_after_a_random_read,
        changes_before_a_random_read,
        changes_through_a_view,
        clean_change_through_a_view,
        random_into_clean,
        random_into_a_view_of_clean,
        expands_and_changes,
        changes_its_input,
        changes_its_input_through_a_view,
        changes_its_input_behind_autograds_back,
        same_zeros_changed_alike,
        second_of_two_zeros_filled,
        second_of_two_results_changed,
        returns_its_changed_input,
        out_arguments,
    ],
)
def test_changes_in_place(rule: Callable[[Any, Tensor], Any]) -> None:
    check(Net(rule), x46(), "r")


# ---------------------------------------------------------------- state that a pass leaves behind


def counts(net: Net, x: Tensor) -> Tensor:
    net.count += 1
    return net.r(net.a(x)) * net.count


def counts_by_replacing(net: Net, x: Tensor) -> Tensor:
    net.count = net.count + 1
    return net.r(net.a(x)) * net.count


def counts_behind_autograds_back(net: Net, x: Tensor) -> Tensor:
    net.count.data.add_(1)
    return net.r(net.a(x)) * net.count


def moving_average(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    net.memory.lerp_(h, 0.1)
    return net.r(h) - net.memory


def replaces_a_buffer_by_a_clean_result(net: Net, x: Tensor) -> Tensor:
    before, net.memory = net.memory, net.a(x)
    return net.r(x) + before


def counts_when_it_likes(net: Net, x: Tensor) -> Tensor:
    """The first pass counts or not; a later one may do otherwise."""
    r = net.r(net.a(x))
    if r.sum() > 0:
        net.count += 1
    return r


def batch_statistics_in_eval(net: Net, x: Tensor) -> Tensor:
    mean, var = net.memory[0], net.memory[1]
    return net.r(F.batch_norm(net.a(x), mean, var, training=True))


@pytest.mark.parametrize(
    "rule",
    [
        counts,
        counts_by_replacing,
        counts_behind_autograds_back,
        moving_average,
        replaces_a_buffer_by_a_clean_result,
        counts_when_it_likes,
        batch_statistics_in_eval,
    ],
)
def test_buffers_are_left_as_the_loop_leaves_them(rule: Callable[[Any, Tensor], Any]) -> None:
    model, _ = check(Net(rule), x46(), "r", samples=8)
    if rule.__name__.startswith("counts") and rule is not counts_when_it_likes:
        assert model.count == 8


def test_batch_norm_that_is_always_in_training() -> None:
    class Always(nn.BatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:
            return F.batch_norm(input, self.running_mean, self.running_var, training=True, momentum=0.1)

    model, _ = check(nn.Sequential(linear(), Always(6), linear()), x46(), "2", samples=6)
    assert not torch.equal(model[1].running_mean, torch.zeros(6))


def test_a_clean_activation_that_is_kept_is_the_activation() -> None:
    """Models remember things for plots; forward hooks do, too."""

    def rule(net: Net, x: Tensor) -> Tensor:
        net.seen = net.a(x)
        return net.r(net.seen)

    model, other = check(Net(rule), x46(), "r")
    assert torch.equal(model.seen, other.seen)


def test_a_forward_hook_sees_the_activation() -> None:
    model, x, seen = Net(lambda net, x: net.r(net.a(x))), x46(), []
    expected = model.a(x).detach()
    model.a.register_forward_hook(lambda module, args, output: seen.append(output))
    shared(lb.Bayesian(model, subspace=lb.layers("r")), x, 4, seed=0)
    assert len(seen) == 4
    for output in seen:
        torch.testing.assert_close(output, expected)


def test_an_activation_kept_for_the_next_pass() -> None:
    def rule(net: Net, x: Tensor) -> Tensor:
        before = getattr(net, "before", x)
        net.before = net.a(x)
        return net.r(before) + before

    check(Net(rule), x46(), "r")


# ---------------------------------------------------------------- clean outputs


def test_an_output_that_no_random_weight_touches() -> None:
    """Mean from a random head, log-variance from a clean one."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mean, self.log_variance = linear(), linear(6, 2), linear(6, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.body(x))
            return self.mean(h), self.log_variance(h)

    bnn, x = lb.Bayesian(Heads(), subspace=lb.layers("mean")), x46()
    result = lb.predict(bnn, x, likelihood=lb.Gaussian("input"), samples=6, method="loop")
    expected = bnn.model(x)[1].exp().detach()
    torch.testing.assert_close(result.aleatoric, expected)


def test_a_clean_output_does_not_end_the_sharing(convolutions: list[tuple[int, ...]]) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mean, self.noise = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 1, 1), nn.Conv2d(4, 1, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.body(x))
            return self.mean(h), self.noise(h)[..., :1, :1].expand(-1, -1, 6, 6)

    bnn = lb.Bayesian(Heads(), subspace=lb.layers("mean"))
    lb.predict(bnn, torch.randn(2, 1, 8, 8), likelihood=lb.Gaussian("input"), samples=6, method="loop")
    assert [convolutions.count((4, 1, 3, 3)), convolutions.count((1, 4, 3, 3))] == [1, 1]
    assert convolutions.count((1, 4, 1, 1)) == 6


def test_a_random_weight_that_the_output_does_not_need() -> None:
    bnn = lb.Bayesian(Net(lambda net, x: net.a(x)), subspace=lb.layers("r"))
    x = x46()
    result = lb.predict(bnn, x, likelihood=lb.Gaussian(1.0), samples=4, method="loop")
    torch.testing.assert_close(result.mean, bnn.model.a(x).detach())
    assert (result.epistemic == 0).all()


def test_a_weight_that_is_the_output() -> None:
    """y = θ: each draw is the weight itself, and must not change when the next one is drawn."""

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.theta.expand(len(x), 2)

    check(Constant(), torch.zeros(3, 1), "theta")


# ---------------------------------------------------------------- randomness of the model's own


def noise_by_randn(net: Net, x: Tensor) -> Tensor:
    return net.r(x) * 0 + net.b(torch.randn(4, 6))


def noise_by_dropout(net: Net, x: Tensor) -> Tensor:
    return net.r(x) * 0 + F.dropout(net.a(x), 0.5, training=True)


def noise_by_dropout_in_place(net: Net, x: Tensor) -> Tensor:
    return net.r(x) * 0 + F.dropout(net.a(x), 0.5, training=True, inplace=True)


def noise_in_place(net: Net, x: Tensor) -> Tensor:
    return net.r(x) * 0 + torch.empty(4, 6).normal_()


def noise_by_generator(net: Net, x: Tensor) -> Tensor:
    if not hasattr(net, "generator"):
        net.generator = torch.Generator().manual_seed(4)
    return net.r(x) * 0 + torch.randn(4, 6, generator=net.generator)


def noise_like(net: Net, x: Tensor) -> Tensor:
    return net.r(x) * 0 + net.a(x) + torch.rand_like(x) * torch.bernoulli(torch.full((4, 6), 0.5))


@pytest.mark.parametrize(
    "rule",
    [noise_by_randn, noise_by_dropout, noise_by_dropout_in_place, noise_in_place, noise_by_generator, noise_like],
)
def test_a_models_own_noise_is_fresh_in_every_draw(rule: Callable[[Any, Tensor], Any]) -> None:
    """The random weight is multiplied by zero, so what varies is the model's own noise: all of it, every time."""
    torch.manual_seed(0)
    x = x46()
    draws = shared(lb.Bayesian(Net(rule), subspace=lb.layers("r")), x, 300, seed=3)
    centred = draws - draws.mean(0)
    assert (draws.std(0) > 1e-3).all()
    neighbours = (centred[1:] * centred[:-1]).mean(0) / centred.square().mean(0)  # correlation ~ N(0, 1/300)
    assert neighbours.abs().max() < 5 / 300**0.5


@pytest.mark.parametrize(
    "rule",
    [noise_by_randn, noise_by_dropout, noise_by_dropout_in_place, noise_in_place, noise_by_generator, noise_like],
)
def test_a_models_own_noise_is_that_of_the_loop(rule: Callable[[Any, Tensor], Any]) -> None:
    check(Net(rule), x46(), "r")


# ---------------------------------------------------------------- control flow and shapes


def branches_on_random_values(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    r = net.r(h)
    if r.sum() > 0:
        return r + net.b(h)
    return r - net.b(h.relu())


def branches_and_changes(net: Net, x: Tensor) -> Tensor:
    """A later pass may change in place what the first only read."""
    h = net.a(x)
    r = net.r(h)
    if r[0, 0] > 0:
        h.view_as(r).add_(r)
    return r + h


def branches_and_returns_a_clean_result(net: Net, x: Tensor) -> Tensor:
    """No operation reads the output once more: it must be right as it is."""
    h = net.a(x)
    if net.r(x)[0, 0] > 0:
        h.neg_()
    return h


def loops_a_random_number_of_times(net: Net, x: Tensor) -> Tensor:
    h, r = net.a(x), net.r(x)
    for _ in range(int(r.abs().sum().item()) % 4):
        h = torch.tanh(net.b(h))
    return h + r


def branches_on_clean_values(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    scale = h.abs().max().item()
    if bool((h > 0).any()) and len(h) == 4 and float(h.mean()) < scale:
        h = h / scale
    return net.r(h)


def asks_for_shapes(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    n, d = h.shape
    assert (n, d) == (4, 6) == (h.size(0), h.size(-1))
    assert h.dim() == h.ndim == 2
    assert h.numel() == 24
    assert h.dtype == torch.float32
    assert h.stride() == (6, 1)
    assert h.is_contiguous()
    assert h.device.type == x.device.type
    grid = torch.arange(d, dtype=h.dtype).expand(n, d) + torch.ones(n, d) + h.new_zeros(n, d) + torch.eye(n, d)
    rows = [row * 2 for row in h]
    return net.r(grid) + torch.stack(rows) + torch.full_like(h, 0.5) + h[torch.arange(n), :][:, [1, 0, 2, 3, 4, 5]]


def slices_and_indexes(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    parts = [h[1:3], h[..., ::2].repeat(1, 2)[:2], h[None, -1].expand(2, 6), h[:, h.sum(0) > -1e9][2:]]
    index = torch.topk(h, 2, dim=0).indices
    return net.r(torch.cat(parts)[:4]) + h.gather(0, index).repeat(2, 1)


def chunks_splits_stacks(net: Net, x: Tensor) -> Tensor:
    a, b = net.a(x).chunk(2, dim=1)
    c, d, e = torch.split(net.b(x), [1, 2, 3], dim=1)
    values, indices = net.a(x).max(dim=1)
    r = net.r(torch.cat([a, c, d], 1))
    top, bottom = r.chunk(2, 1)
    return torch.stack([top + b, bottom * e], 1).flatten(1) + values[:, None] + indices[:, None]


def through_numpy(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.r(h) + torch.from_numpy(h.detach().numpy().copy()) + torch.tensor(h.tolist())


def einsum_and_friends(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    return torch.einsum("nd,nd->n", h, net.r(h))[:, None] + (h @ h.T @ net.r(x)) + F.pad(h, (1, 0))[:, :6]


def keyword_and_operator_spellings(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.r(-h + 1 - h / 2 + 2 ** h.clamp(max=1)) + torch.sum(h, dim=1, keepdim=True) + torch.where(h > 0, h, 0.0)


@pytest.mark.parametrize(
    "rule",
    [
        branches_on_random_values,
        branches_and_changes,
        branches_and_returns_a_clean_result,
        loops_a_random_number_of_times,
        branches_on_clean_values,
        asks_for_shapes,
        slices_and_indexes,
        chunks_splits_stacks,
        through_numpy,
        einsum_and_friends,
        keyword_and_operator_spellings,
    ],
)
def test_control_flow_and_shapes(rule: Callable[[Any, Tensor], Any]) -> None:
    check(Net(rule), x46(), "r", samples=12)


def test_tuple_inputs_and_inputs_that_are_not_used() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.r = linear(), linear()

        def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            return self.r(self.a(x)) + y

    check(Two(), (x46(), x46(), x46()), "r")


# ---------------------------------------------------------------- code that a mode does not see


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def test_custom_autograd_functions() -> None:
    check(Net(lambda net, x: net.r(Square.apply(net.a(x))) + Square.apply(net.a(x))), x46(), "r")


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp().sum()


# Scripted parts are still common in the models of others, whatever torch thinks of them by now.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("middle", [nn.Sequential(nn.Tanh(), nn.Linear(6, 6)), Sum()], ids=["linear", "sum"])
def test_scripted_submodules(middle: nn.Module) -> None:
    """No mode sees inside: what they are given must be the real thing."""

    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.r = linear(), linear()
            self.middle = torch.jit.script(middle)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.r(h) + self.middle(h)

    check(Scripted(), x46(), "r")


def test_autocast_is_part_of_what_an_operation_does() -> None:
    """The same layer on the same tensor, once in bfloat16 and once not."""

    def rule(net: Net, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = net.a(x)
        assert low.dtype == torch.bfloat16
        r = net.r(x)
        return (r + low) * 100 + r * net.a(x)

    check(Net(rule), x46(), "r")


def test_inference_mode() -> None:
    """Tensors made in inference mode have no version counter."""
    bnn = lb.Bayesian(Net(lambda net, x: net.r(net.a(x))), subspace=lb.layers("r"))
    x = x46()
    expected = naive(bnn, x, 4, seed=2)
    with torch.inference_mode():
        assert torch.equal(shared(bnn, x, 4, seed=2), expected)
        assert torch.equal(shared(bnn, x.clone(), 4, seed=2), expected)


@pytest.mark.parametrize("propagate", ["mirrored", "local", "flipout"])
def test_other_propagations_share_as_well(propagate: str, convolutions: list[tuple[int, ...]]) -> None:
    bnn = lb.Bayesian(UNet(), subspace=lb.layers("head"), propagate=propagate, posterior=lb.posteriors.Normal(0.5))
    x = torch.randn(2, 1, 8, 8)
    generator, expected = torch.Generator().manual_seed(3), []
    bnn.eval()
    with torch.no_grad():
        for _ in range(4):
            expected.append(bnn(x, generator=generator))
    convolutions.clear()
    assert torch.equal(shared(bnn, x, 4, seed=3), torch.stack(expected))
    clean = [shape for shape in convolutions if shape[0] != 2]
    assert len(clean) == 3


# ---------------------------------------------------------------- the mode itself


def test_a_value_that_was_written_over_is_not_handed_out() -> None:
    """The first pass changes a clean value in place before a random one meets it; a later pass asks for the old one."""
    layer, x, noise = linear(3, 3), torch.randn(2, 3), torch.randn(2, 3)
    prefix = SharedPrefix(layer, [], x)
    with prefix, torch.no_grad():
        layer(x).relu_() + noise
    prefix.finish_recording()
    assert prefix.usable
    with torch.no_grad():
        with prefix.replay():
            again = layer(x).relu_() + noise
        assert torch.equal(again, layer(x).relu() + noise)
        with pytest.raises(Diverged), prefix.replay():
            layer(x) + noise


# ---------------------------------------------------------------- any little program

REGISTERS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("clean"), REGISTERS, REGISTERS),
    st.tuples(st.just("random"), REGISTERS, REGISTERS),
    st.tuples(
        st.sampled_from(
            [
                "add", "mul", "cat", "relu", "relu_", "add_", "copy_", "column_", "rows_", "view_", "alias", "slice",
                "zeros", "item", "branch", "branch_", "data_", "buffer_", "memory", "where", "unbind", "as_",
            ]
        ),
        REGISTERS,
        REGISTERS,
    ),
)  # fmt: skip


class Program(nn.Module):
    """Registers of one shape; each step reads two of them and adds one, or changes one in place."""

    def __init__(self, steps: list[tuple[str, int, int]], last: str) -> None:
        super().__init__()
        self.a, self.r = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("memory", torch.ones(3, 4))
        self.steps, self.last = steps, last

    def forward(self, x: Tensor) -> Tensor:
        registers = [x, self.r(x)]
        for name, i, j in self.steps:
            a, b = registers[-1 - i % len(registers)], registers[-1 - j % len(registers)]
            made = self.step(name, a, b)
            if made is not None:
                registers.append(made)
        if self.last == "sum":
            return torch.stack(registers).sum(0) + registers[1]
        return registers[-1] + 0 * registers[1] if self.last == "touched" else registers[-1]

    def step(self, name: str, a: Tensor, b: Tensor) -> Tensor | None:
        match name:
            case "clean":
                return torch.tanh(self.a(a))
            case "random":
                return torch.tanh(self.r(a))
            case "add":
                return torch.tanh(a + b)
            case "mul":
                return a * b.sigmoid()
            case "cat":
                return torch.cat([a, b], 1).chunk(2, 1)[1]
            case "relu":
                return F.relu(a)
            case "where":
                return torch.where(a > b, a, -b)
            case "unbind":
                return torch.stack([p - q.mean() for p, q in zip(a.unbind(0), b, strict=True)])
            case "alias":
                return a
            case "slice":
                return a[:]
            case "zeros":
                return torch.zeros(3, 4)
            case "memory":
                return self.memory
            case "item":
                return a * max(-1.0, min(1.0, b.sum().item()))
            case "as_":
                return a.view_as(b).mul_(0.5)
            case "branch":
                return torch.tanh(a + 1) if b.sum() > 0 else F.relu(a)
            case "branch_":
                return a.neg_() if b[0, 0] > 0 else None
            case "relu_":
                F.relu_(a)
            case "add_":
                a.add_(b).tanh_()
            case "copy_":
                a.copy_(b.clone())
            case "column_":
                a[:, 0] = b[:, 1].clone()
            case "rows_":
                a[1:].mul_(0.5)
            case "view_":
                a.view(-1)[2:7].add_(b.reshape(-1)[:5].clone()).tanh_()
            case "data_":
                a.data.mul_(0.5)
            case "buffer_":
                self.memory.mul_(0.5).add_(b.tanh())
        return None


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(STEPS, min_size=1, max_size=9), st.sampled_from(["sum", "touched", "last"]))
@example([("clean", 1, 0), ("clean", 0, 0), ("clean", 1, 0), ("clean", 0, 0), ("relu_", 1, 0)], "sum")
@example([("as_", 1, 0)], "last")
def test_any_program_gives_what_the_loop_gives(steps: list[tuple[str, int, int]], last: str) -> None:
    torch.manual_seed(1)
    bnn = lb.Bayesian(Program(steps, last), subspace=lb.layers("r"), posterior=lb.posteriors.Normal(0.7))
    other, x = copy.deepcopy(bnn), torch.randn(3, 4)
    y = x.clone()
    expected = naive(other, y, 4, seed=5)
    result = shared(bnn, x, 4, seed=5)
    assert torch.equal(result, expected)
    assert torch.equal(bnn.model.memory, other.model.memory)
    assert torch.equal(x, y)
