import pytest
import torch
import torch.nn.functional as F

from leanbayes.propagate.flipout import RULES as FLIPOUT
from leanbayes.propagate.local import RULES as LOCAL
from leanbayes.propagate.registry import Registry, Rule


def test_every_spelling_in_one_decorator():
    rules = Registry("example")

    @rules.rule(torch.add, torch.Tensor.add, exact=False, assumes="small numbers")
    def add(operation, *args):
        return operation, args

    assert rules.find(torch.add) == rules.find(torch.Tensor.add) == Rule(add, False, "small numbers")
    assert rules.find(torch.mul) is None
    assert add(1, 2) == (1, (2,))


def test_a_second_rule_raises_and_the_first_stays():
    rules = Registry("example")

    @rules.rule(torch.add, exact=True)
    def first(operation):
        return 1

    with pytest.raises(ValueError, match=r"example already has a rule for add \(first\); change that one"):

        @rules.rule(torch.mul, torch.add, exact=True)
        def second(operation):
            return 2

    assert rules.find(torch.add).function is first


def test_one_decorator_may_not_name_an_operation_twice():
    with pytest.raises(ValueError, match="already"):
        Registry("example").rule(torch.add, torch.add, exact=True)(lambda operation: None)


def test_registries_do_not_share():
    one, two = Registry("one"), Registry("two")
    one.rule(torch.add, exact=True)(lambda operation: None)
    assert two.find(torch.add) is None


@pytest.mark.parametrize("rules", [LOCAL, FLIPOUT], ids=lambda rules: rules.name)
def test_the_rules_of_the_library(rules):
    with pytest.raises(ValueError, match=f"{rules.name} already has a rule for linear"):
        rules.rule(F.linear, exact=True)(lambda operation: None)
    for rule in rules.rules.values():
        assert rule.exact
        assert rule.assumes
        assert rule.function.__doc__
    for spelling in (torch.nn.functional.linear, torch.conv2d, torch.conv_transpose1d, torch.bilinear):
        assert rules.find(spelling) is not None
