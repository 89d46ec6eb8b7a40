from pathlib import Path

import pytest
import torch

from leanbayes.errors import InputError
from leanbayes.lab.data import Raters, load_data, read
from leanbayes.lab.data.sets.volumes import main, volumes, write_volumes


def test_raters_disagree_where_the_edge_is() -> None:
    source = volumes(patients=12, size=16)
    assert isinstance(source.test.targets, Raters)
    raters = source.train.targets.by_rater()
    sizes = raters.flatten(2).sum(2).float().mean(1)
    assert (sizes.diff() < 0).all()
    x = source.train.inputs[:, 0].float()
    votes = raters.float().mean(0)
    assert x[votes == 1].mean() > x[(votes > 0) & (votes < 1)].mean() > x[votes == 0].mean()
    assert torch.equal(volumes(patients=12, size=16).train.inputs, source.train.inputs)
    assert load_data("volumes").usual_model == "monai:UNet"
    with pytest.raises(InputError, match="size at least 8"):
        volumes(size=4)


def test_the_files_hold_the_same_scans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, *raters = write_volumes(tmp_path / "a", patients=8, size=8)
    source = read(images, raters=raters, groups="(P[0-9]+)_")
    drawn = volumes(patients=8, size=8)
    assert source.preparation.spacing == drawn.preparation.spacing
    everything = torch.cat([drawn.train.inputs, drawn.validation.inputs, drawn.test.inputs])
    assert any(torch.equal(source.test.inputs[0], one) for one in everything)
    assert len(source.train) + len(source.validation) + len(source.test) == 16
    assert main(["--help"]) == 2
    assert "usage" in capsys.readouterr().err
