import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.bayesian import Bayesian
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.propagate import PROPAGATIONS, OnePass
from leanbayes.propagate.flipout import RULES as FLIPOUT
from leanbayes.propagate.linear_ops import LINEAR_OPS, along_channels, channel_axis, signs_like
from leanbayes.propagate.local import RULES as LOCAL
from leanbayes.propagate.mirrored import RULES as MIRRORED
from leanbayes.subspace import layers, top_k
from tests.oracles import covariance_within_standard_errors, mean_within_standard_errors, moments_within_standard_errors
from tests.propagate.cases import CASES, RANDOM, Case, setting, stand_in

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # vmap loops over bilinear
]

every_propagation = pytest.mark.parametrize(
    "propagate", [name for name, kind in PROPAGATIONS.items() if not issubclass(kind, OnePass)]
)

DRAWS = 3000  # five standard errors are then 13 % of a variance

COMBINATIONS = [(case, random) for case in CASES for random in (RANDOM if case.bias else ("weight", "part of both"))]


def test_every_operation_with_a_rule_has_a_case():
    tried = {case.operation for case in CASES}
    assert set(LINEAR_OPS) <= tried
    assert set(LOCAL.rules) == tried
    assert set(FLIPOUT.rules) == tried | {F.batch_norm}  # see test_flipout.py
    assert set(MIRRORED.rules) == {*LINEAR_OPS, F.batch_norm}  # see test_mirrored.py


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_operation_on_squares_is_the_variance_of_dense_algebra(case):
    """Var[y] = op(x², σ²) + σ_b², for no weight stands twice in one output: the two oracles agree."""
    made = setting(case, "both")
    if case.operation is F.embedding:
        squared = made.x
    else:
        squared = tuple(part.square() for part in made.x) if isinstance(made.x, tuple) else made.x.square()
    bias = None if made.bias is None else made.bias.spread.square()
    result = case.run(squared, made.weight.spread.square(), bias)
    torch.testing.assert_close(result, made.variance(), rtol=1e-12, atol=1e-12)


@every_propagation
class TestMoments:
    @pytest.mark.parametrize(("case", "random"), COMBINATIONS, ids=str)
    def test_the_joint_law_of_all_outputs_is_that_of_dense_algebra(self, propagate, case, random):
        """E[y] is the operation at the means, Var[y] = (J Σ Jᵀ)ᵢᵢ for all of them; what covaries tells them apart.

        Under ``sample`` the whole batch sees one weight: J Σ Jᵀ. Under ``mirrored`` so does each half of it, and the
        halves covary with the sign turned, where there is a rule (`LINEAR_OPS`). Under ``flipout`` each example
        does, and examples do not covary. Under ``local`` no two outputs covary.
        """
        made = setting(case, random)
        draws = made.draws(propagate, DRAWS)
        mean, covariance = made.mean(), made.covariance()
        variance = covariance.diagonal().view(mean.shape)
        assert (variance > 0).any()
        moments_within_standard_errors(draws, mean, variance)
        examples = (
            torch.zeros(()) if "no batch" in case.name else torch.arange(len(mean)).view(-1, *[1] * (mean.dim() - 1))
        )
        example = examples.expand(mean.shape).flatten()
        second = (example >= (examples.numel() + 1) // 2) & (case.operation in LINEAR_OPS)
        together = {
            "sample": torch.ones_like(covariance),
            "mirrored": 1 - 2 * (second[:, None] != second[None, :]).double(),
            "flipout": (example[:, None] == example[None, :]).double(),
            "local": torch.eye(mean.numel(), dtype=torch.float64),
        }
        covariance_within_standard_errors(draws, mean, covariance * together[propagate])
        still = variance < 1e-20
        torch.testing.assert_close(draws[:, still], mean[still].expand(DRAWS, -1), rtol=1e-12, atol=1e-12)

    def test_a_module_draw_by_draw(self, propagate):
        """Not vectorised: the passes of `Bayesian` as a training loop makes them."""
        model = nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.Flatten(), nn.Linear(8, 2)).double()
        x = torch.randn(2, 1, 4, 4, dtype=torch.float64)
        for part in ("0", "2"):
            bnn = Bayesian(model, subspace=layers(part), propagate=propagate, posterior=Normal(0.4))
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                draws = torch.stack([bnn(x, generator=generator) for _ in range(800)])
            hidden = model[:2](x)
            if part == "2":
                variance = (0.4**2 * (hidden.square().sum(1, keepdim=True) + 1)).expand(2, 2)
            else:
                patches = F.unfold(x, 2, stride=2)  # [batch, 4, 4 positions]
                outer = (
                    torch.einsum("bkp,bkq->bpq", patches, patches) + 1
                )  # the kernel and bias are shared by all positions
                if propagate == "local":
                    outer = torch.diag_embed(outer.diagonal(dim1=1, dim2=2))  # positions are drawn independently
                head = model[2].weight.view(2, 2, 4)  # [output, channel, position]
                variance = 0.4**2 * torch.einsum("ocp,bpq,ocq->bo", head, outer, head)
            moments_within_standard_errors(draws, model(x), variance)

    def test_keywords_or_positions_are_the_same(self, propagate):
        weight = RandomWeight("w", torch.randn(2, 3), None, torch.full((2, 3), 0.5), Normal())
        bias = RandomWeight("b", torch.randn(2), None, torch.full((2,), 0.5), Normal())
        x = torch.randn(4, 3)

        def run(by_name: bool) -> Tensor:
            generator = torch.Generator().manual_seed(0)
            w, b = (stand_in(propagate, value, generator) for value in (weight, bias))
            return F.linear(bias=b, input=x, weight=w) if by_name else F.linear(x, w, b)

        assert torch.equal(run(True), run(False))

    def test_a_plain_tensor_comes_out(self, propagate):
        for case in CASES:
            made = setting(case, "both")
            stand_ins = [stand_in(propagate, w) if w is not None else None for w in (made.weight, made.bias)]
            assert type(case.run(made.x, *stand_ins)) is Tensor

    def test_an_embedding_with_a_largest_norm(self, propagate):
        """``max_norm`` rescales rows of the table, so the table is a draw: its rows are short, the mean untouched."""
        model = nn.Embedding(6, 3, max_norm=0.5)
        before = model.weight.detach().clone()
        bnn = Bayesian(model, propagate=propagate, posterior=Normal(1.0))
        rows = torch.stack([bnn(torch.tensor([[0, 1, 1], [5, 2, 0]])) for _ in range(20)])
        assert (rows.norm(dim=-1) <= 0.5 + 1e-6).all()
        assert torch.equal(rows[:, 0, 1], rows[:, 0, 2])
        assert rows.var(0).min() > 0
        assert torch.equal(model.weight, before)


@every_propagation
class TestGradients:
    @pytest.mark.parametrize("part", [False, True])
    def test_expected_gradient_of_a_squared_loss(self, propagate, part):
        """E Σ (y − t)² = Σ (xμ + b − t)² + Σ x²σ² + σ_b²: its gradients by μ and ρ, against the mean over draws."""
        model = nn.Linear(3, 2).double()
        x, target = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
        scores = {name: torch.rand(p.shape) for name, p in model.named_parameters()}
        subspace = top_k(scores, k=4) if part else None
        bnn = Bayesian(model, propagate=propagate, posterior=Normal(0.5), subspace=subspace)
        parameters = dict(bnn.named_parameters())
        with torch.no_grad():
            for name, parameter in parameters.items():
                if name.endswith("rho"):
                    parameter += 0.5 * torch.randn_like(parameter)  # scales that differ

        def expected_loss() -> Tensor:
            loss = (model(x) - target).square().sum()
            for name, weight in bnn.weights().items():
                loads = x.square().sum(0).expand(2, 3) if name == "weight" else torch.full((2,), 4.0).double()
                chosen = loads if weight.index is None else loads.flatten()[weight.index]
                loss = loss + (chosen * weight.spread.square()).sum()
            return loss

        exact = torch.autograd.grad(expected_loss(), list(parameters.values()))
        generator = torch.Generator().manual_seed(0)
        runs: list[tuple[Tensor, ...]] = []
        for _ in range(700):
            loss = (bnn(x, generator=generator) - target).square().sum()
            runs.append(torch.autograd.grad(loss, list(parameters.values())))
        for gradients, expected in zip(zip(*runs, strict=True), exact, strict=True):
            assert expected.any()
            mean_within_standard_errors(torch.stack(gradients), expected)

    def test_gradients_reach_inputs_means_and_scales_of_every_operation(self, propagate):
        for case in CASES:
            made = setting(case, "both")
            spread = made.weight.spread.clone().requires_grad_()
            weight = RandomWeight("w", made.weight.mean.clone().requires_grad_(), None, spread, Normal())
            x = made.x if not isinstance(made.x, Tensor) or not made.x.is_floating_point() else made.x.requires_grad_()
            case.run(x, stand_in(propagate, weight), None).square().sum().backward()
            for tensor in (weight.mean, spread, x):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    assert torch.isfinite(tensor.grad).all(), case
                    assert tensor.grad.any(), case


@pytest.mark.parametrize("propagate", ["local", "flipout"])
def test_gradients_have_less_noise_over_a_batch_than_under_one_shared_draw(propagate):
    """What the two are for: with many examples the gradient of σ varies less."""
    model = nn.Linear(3, 1, bias=False).double()
    x = torch.randn(64, 3, dtype=torch.float64)
    spread = {}
    for kind in ("sample", propagate):
        bnn = Bayesian(model, propagate=kind, posterior=Normal(0.5))
        rho = next(parts.rho for _, parts in bnn.parts())
        generator = torch.Generator().manual_seed(0)
        runs = [torch.autograd.grad(bnn(x, generator=generator).square().sum(), rho)[0] for _ in range(150)]
        spread[kind] = torch.stack(runs).var(0).mean().item()
    assert spread[propagate] < 0.7 * spread["sample"]


class TestAxes:
    @pytest.mark.parametrize("case", [c for c in CASES if c.operation in LINEAR_OPS], ids=str)
    def test_the_channel_axis_is_where_the_bias_goes(self, case: Case):
        made = setting(case, "both")
        mean = made.mean()
        bias = made.bias.mean
        by_hand = case.run(made.x, made.weight.mean, None) + along_channels(case.operation, bias, mean)
        torch.testing.assert_close(by_hand, mean, rtol=1e-12, atol=1e-12)
        assert mean.shape[channel_axis(case.operation, mean)] == case.bias
        groups = case.options.get("groups", 1)
        transposed = "transpose" in case.name
        channels = case.weight[0] if transposed else case.weight[1] * groups
        assert made.x.shape[channel_axis(case.operation, made.x)] == channels

    def test_signs_differ_by_example_and_feature_only(self):
        tensor = torch.zeros(50, 40, 3, 2)
        signs = signs_like(tensor, 1, torch.Generator().manual_seed(0))
        assert signs.shape == (50, 40, 1, 1)
        assert set(signs.unique().tolist()) == {-1.0, 1.0}
        assert abs(signs.mean().item()) < 5 / math.sqrt(signs.numel())
        assert len(signs.flatten(1).unique(dim=0)) == 50
        assert len(signs.flatten(1).T.unique(dim=0)) == 40

    def test_signs_without_a_batch(self):
        assert signs_like(torch.zeros(40), 0, None).shape == (40,)
        assert signs_like(torch.zeros(40, 5), 0, None).shape == (40, 1)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_signs_have_the_dtype_and_come_from_the_generator(self, dtype):
        first, again = (
            signs_like(torch.zeros(20, 3, dtype=dtype), 1, torch.Generator().manual_seed(1)) for _ in range(2)
        )
        assert first.dtype == dtype
        assert torch.equal(first, again)


@every_propagation
class TestReproducibility:
    def test_a_generator_decides_and_the_global_state_is_left_alone(self, propagate):
        model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(9, 2), nn.LayerNorm(2))
        bnn = Bayesian(model, propagate=propagate)
        x = torch.randn(3, 2, 4)
        before = torch.get_rng_state()
        first, again, other = (bnn(x, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert torch.equal(before, torch.get_rng_state())
        torch.manual_seed(5)
        first = bnn(x)
        torch.manual_seed(5)
        assert torch.equal(first, bnn(x))
        assert not torch.equal(first, bnn(x))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_dtypes_are_kept(self, propagate, dtype):
        model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(9, 2)).to(dtype)
        assert Bayesian(model, propagate=propagate)(torch.randn(3, 2, 4, dtype=dtype)).dtype == dtype
