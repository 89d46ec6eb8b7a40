import torch

from leanbayes._ops.positions import folded, fraction_of, neighbour_products, pooled, position_axes, without_copies


def test_axes_along_which_a_fraction_has_length_1_are_positions() -> None:
    value, fraction = torch.randn(2, 3, 4, 5), torch.rand(2, 3, 1, 1)
    assert position_axes(value, fraction) == (2, 3)
    torch.testing.assert_close(pooled(value, fraction), value.mean((2, 3), keepdim=True))
    assert pooled(value, value) is value


def test_many_rows_are_sampled_evenly() -> None:
    value = torch.arange(64.0).view(1, 1, 64, 1).expand(1, 1, 64, 2)
    assert pooled(value, torch.ones(1, 1, 1, 1)).item() == torch.arange(0.0, 64, 8).mean()


def test_neighbours_are_multiplied_along_each_axis() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 1, 2, 2)
    along_rows, along_columns = (1 * 3 + 2 * 4) / 2, (1 * 2 + 3 * 4) / 2
    assert neighbour_products(x, (2, 3)).item() == (along_rows + along_columns) / 2


def test_a_filter_is_summed_over_its_offsets() -> None:
    weight, shares = torch.randn(4, 3, 2, 2), torch.tensor([1.0, 0.5, 0.5, 0.25])
    torch.testing.assert_close(folded(weight), weight.sum((2, 3), keepdim=True))
    torch.testing.assert_close(folded(weight, shares), (weight * shares.view(2, 2)).sum((2, 3), keepdim=True))


def test_no_variance_has_no_fraction() -> None:
    assert fraction_of(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0])).tolist() == [0, 0.5]


def test_copies_are_left_out() -> None:
    assert without_copies(torch.randn(2, 1, 3).expand(2, 5, 3)).shape == (2, 1, 3)
