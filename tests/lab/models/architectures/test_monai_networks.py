import pytest
import torch

from leanbayes.errors import InputError
from leanbayes.lab.models import MODELS, model_named

NAMES = sorted(name for name in MODELS if name.startswith("monai:"))


@pytest.mark.parametrize("name", NAMES)
def test_networks_of_monai_segment_images(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_named(name, in_channels=2, classes=3, size=(64, 64), in_features=8192).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 2, 64, 64)).shape == (1, 3, 64, 64)


@pytest.mark.parametrize("name", ["monai:UNet", "monai:DynUNet", "monai:SwinUNETR"])
def test_and_volumes(name: str) -> None:
    with torch.random.fork_rng():
        model = model_named(name, in_channels=1, classes=2, size=(32, 32, 32), in_features=1)
    assert any(parameter.dim() == 5 for parameter in model.parameters())


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(InputError, match="monai has no 'UNot'"):
        model_named("monai:UNot", in_channels=1, classes=2, size=(32, 32), in_features=1)
