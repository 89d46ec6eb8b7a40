import pytest
import torch

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.data.shifts import CORRUPTIONS, SEVERITIES, Corruption, corrupt, registry

from .pictures import pictures

NAMES = sorted(CORRUPTIONS)


X = pictures(7).float()


SIZES = ((1, 28, 28), (3, 32, 32), (1, 128, 128), (3, 20, 33), (1, 3, 5))


def test_there_are_nineteen_in_four_families() -> None:
    assert (
        sorted(
            [
                "gaussian_noise",
                "shot_noise",
                "impulse_noise",
                "speckle_noise",
                "gaussian_blur",
                "glass_blur",
                "defocus_blur",
                "motion_blur",
                "zoom_blur",
                "snow",
                "frost",
                "fog",
                "brightness",
                "contrast",
                "saturate",
                "jpeg_compression",
                "pixelate",
                "elastic_transform",
                "spatter",
            ]
        )
        == NAMES
    )
    assert {c.family for c in CORRUPTIONS.values()} == {"noise", "blur", "weather", "digital"}


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_the_same_in_any_batch(name: str) -> None:
    for severity in (2, 3, 5):
        whole = corrupt(X, name, severity, seed=11, first=100)
        parts = [corrupt(X[a:b], name, severity, seed=11, first=100 + a) for a, b in ((0, 1), (1, 4), (4, 7))]
        assert torch.equal(whole, torch.cat(parts))
        other = torch.cat([X[:2], X[3:4], X[2:3]])
        assert torch.equal(corrupt(other, name, severity, seed=11, first=100)[:2], whole[:2])


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_random_depends_on_seed_and_number(name: str) -> None:
    one = X[:1].repeat(3, 1, 1, 1)
    out = corrupt(one, name, 4, seed=1)
    assert torch.equal(out, corrupt(one, name, 4, seed=1))
    same = not CORRUPTIONS[name].random
    assert torch.equal(out, corrupt(one, name, 4, seed=2)) == same
    assert torch.equal(out[0], out[1]) == same
    if same:
        order = torch.tensor([3, 0, 6, 2, 1, 5, 4])
        assert torch.equal(corrupt(X[order], name, 4), corrupt(X, name, 4)[order])


def test_long_sets_are_worked_on_in_parts_that_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = corrupt(X, "gaussian_noise", 3)
    monkeypatch.setattr(registry, "_VALUES_AT_A_TIME", 2 * X[0].numel() + 1)
    assert torch.equal(corrupt(X, "gaussian_noise", 3), whole)


@pytest.mark.parametrize("name", NAMES)
def test_any_size_dtype_and_layout_gives_images_again(name: str) -> None:
    for shape in SIZES:
        x = torch.rand(2, *shape, dtype=torch.float64)
        for severity in SEVERITIES if shape[1] < 128 else (5,):
            out = corrupt(x, name, severity)
            assert out.shape == x.shape
            assert out.dtype == x.dtype
            assert 0 <= out.min() <= out.max() <= 1
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        out = corrupt(X[:2].to(dtype), name, 3)
        assert out.dtype == dtype
        assert 0 <= out.min() <= out.max() <= 1
    turned = X.transpose(2, 3)
    assert torch.equal(corrupt(turned, name, 3), corrupt(turned.contiguous(), name, 3))
    last = X.contiguous(memory_format=torch.channels_last)
    assert torch.equal(corrupt(last, name, 3), corrupt(X, name, 3))


@pytest.mark.parametrize("name", NAMES)
def test_precision_does_not_matter_and_the_input_stays(name: str) -> None:
    x = X.double()
    before = x.clone()
    wide, narrow = corrupt(x.requires_grad_(), name, 2), corrupt(X, name, 2)
    assert not wide.requires_grad
    assert torch.equal(x, before)
    # A threshold, a rounding to bytes or to a pixel may fall to the other side, for a value in a thousand.
    assert ((wide - narrow).abs() > 1e-4).double().mean() < 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_black_and_white_images_pass(name: str) -> None:
    for value in (0.0, 1.0):
        for channels in (1, 3):
            out = corrupt(torch.full((2, channels, 16, 16), value), name, 5)
            assert torch.isfinite(out).all()


# Not listed: glass_blur, saturate, spatter and frost change in kind, and elastic_transform's larger part shrinks.
GROWING = [
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "speckle_noise",
    "gaussian_blur",
    "defocus_blur",
    "zoom_blur",
    "snow",
    "fog",
    "brightness",
    "contrast",
    "jpeg_compression",
    "pixelate",
]


@pytest.mark.parametrize("name", GROWING)
def test_severity_grows(name: str) -> None:
    x = pictures(40, seed=5)
    errors = [float((corrupt(x, name, severity) - x).square().mean()) for severity in SEVERITIES]
    assert errors == sorted(set(errors))
    assert errors[0] > 0


def test_motion_blur_grows_with_its_width() -> None:
    x = pictures(40, seed=5)
    errors = [float((corrupt(x, "motion_blur", severity) - x).square().mean()) for severity in (1, 2, 3, 5)]
    assert errors == sorted(set(errors))


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5, True, "3", None])
def test_bad_severities_are_refused(severity: object) -> None:
    with pytest.raises(InputError, match="1 to 5"):
        corrupt(X, "fog", severity)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"seed": -1}, {"seed": 1.5}, {"first": -1}, {"first": 2**63}, {"seed": True}])
def test_bad_seeds_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InputError, match="whole number"):
        corrupt(X, "fog", 1, **options)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="gaussian_noise"):
        corrupt(X, "gausian_noise", 1)
    with pytest.raises(UnknownName, match="weather"):
        Corruption("new", "climate", torch.abs, ((1,),) * 5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="five"):
        Corruption("new", "noise", torch.abs, ((1,),))


def test_constants_that_no_other_test_sees_are_the_published_ones() -> None:
    published = {
        "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "snow": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "spatter": (
            (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
            (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
            (0.65, 0.3, 1, 0.69, 0.5, "water"),
            (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
            (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
        ),
        "elastic_transform": (
            (0, 0, 0.08),
            (0.05, 0.2, 0.07),
            (0.08, 0.06, 0.06),
            (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        ),
    }
    assert {name: CORRUPTIONS[name].constants for name in published} == published
