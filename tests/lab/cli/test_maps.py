"""Names of maps: no two images share one."""

from leanbayes.lab.cli.maps import map_names


def test_usual_names_have_no_suffix() -> None:
    assert map_names(["a.png", "b/c.png"]) == {"a.png": "a", "b/c.png": "b_c"}


def test_no_two_images_share_a_name() -> None:
    images = ["x.png", "x.bmp", "X.PNG", "a/b.png", "a_b.png", "a/b.bmp", "a_b.png.png", "x.png.png", "x.png-2.png"]
    names = map_names(images)
    assert list(names) == images
    assert len({name.casefold() for name in names.values()}) == len(images)
