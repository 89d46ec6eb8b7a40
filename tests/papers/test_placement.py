"""Where random weights lie: shares by part, counted by hand."""

import pytest
import torch

from leanbayes.bayesian import Bayesian
from leanbayes.lab.models import unet
from leanbayes.subspace import everything, layers, top_k
from leanbayes_papers import Job, Results
from leanbayes_papers.placement import by_depth, random_by_part


def test_random_weights_are_counted_by_part_from_the_input_on() -> None:
    net = unet(1, 2, width=2, depth=1)  # down.0, down.1, up.0, head
    shares = random_by_part(Bayesian(net, subspace=layers("down.0.*", "head")), 1, 2)
    count = {name: sum(p.numel() for p in getattr(net, name).parameters()) for name in ("down", "up", "head")}
    assert [shares[f"random@part {number}"] for number in (1, 2, 3, 4)] == [1, 0, 0, 1]
    assert (shares["random@input"], shares["random@middle"]) == (1, 0)
    assert shares["random@output"] == pytest.approx(count["head"] / (count["up"] + count["head"]))
    assert random_by_part(Bayesian(net, subspace=everything()), 1, 2) == {}
    assert random_by_part(net, 1, 2) == {}
    scores = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    scores["up.0.0.weight"].view(-1)[:7] = 1
    few = random_by_part(Bayesian(net, subspace=top_k(scores, k=7)), 1, 2)
    assert few["random@part 3"] == pytest.approx(7 / count["up"])
    drawn = by_depth(Results([(Job("a", "vi", "x", 0), {"metrics": few | {"nll": 1.0}})]))
    assert drawn == {"a": {1.0: [1.0], 2.0: [1.0], 3.0: [1 - 7 / count["up"]], 4.0: [1.0]}}
