"""The review page in a real browser: keys, sliders, order, a phone, and names that are markup."""

import re

import pytest

from leanbayes.lab.report import review as module
from tests.lab.report.reviews import CLASSES, MARKUP, photographs_page, volumes_page

PHONE = {"width": 390, "height": 844}
ORDER = ["P1_0.nii.gz", "P4_0.nii.gz", MARKUP, "P0_0.nii.gz", "P3_0.nii.gz"]


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    return volumes_page(tmp_path_factory.mktemp("volumes"))


def name(page):
    return page.locator("#name").inner_text()


def slice_shown(page):
    return page.locator("#number").inner_text()


def place_of(page, layer="image"):
    return page.locator(f"#{layer}").evaluate("e => e.style.backgroundPosition")


def test_every_case_comes_in_order_of_doubt_by_key_and_by_button(visit, volumes):
    page = visit(volumes)
    assert page.locator("#list button > span").all_inner_texts() == ORDER
    seen = [name(page)]
    for _ in range(5):
        page.keyboard.press("ArrowRight")
        seen.append(name(page))
    assert seen == [*ORDER, ORDER[-1]]  # the last case stays
    assert page.locator("#next").is_disabled()
    page.keyboard.press("ArrowLeft")
    page.click("#previous")
    assert name(page) == ORDER[2]
    assert page.locator("#place").inner_text() == "3 of 5"
    page.locator("#list button").nth(1).click()
    assert name(page) == ORDER[1]
    assert page.locator("#list button[aria-current]").count() == 1


def test_another_order_keeps_the_case(visit, volumes):
    page = visit(volumes)
    page.select_option("#order", "")
    names = page.locator("#list button > span").all_inner_texts()
    assert [text for text in names if text != MARKUP] == [f"P{n}_0.nii.gz" for n in (0, 1, 3, 4)]
    assert name(page) == ORDER[0]
    page.keyboard.press("ArrowRight")
    assert name(page) == names[names.index(ORDER[0]) + 1]


def test_slices_move_by_key_and_by_slider(visit, volumes):
    page = visit(volumes)
    assert slice_shown(page) == "7 of 10"
    path = page.locator("#outlines path").first.get_attribute("d")
    assert path
    page.keyboard.press("ArrowUp")
    assert slice_shown(page) == "8 of 10"
    assert page.locator("#outlines path").first.get_attribute("d") != path
    for _ in range(20):
        page.keyboard.press("ArrowDown")
    assert slice_shown(page) == "1 of 10"
    assert place_of(page) == "0% 0%"
    assert page.locator("#outlines path").first.get_attribute("d") == ""
    page.locator("#slice").fill("9")
    assert slice_shown(page) == "10 of 10"
    assert place_of(page) == place_of(page, "map")
    assert place_of(page).split()[1] == "100%"
    page.locator("#slice").focus()
    page.keyboard.press("ArrowLeft")  # a slider that has the focus keeps its own keys
    assert slice_shown(page) == "9 of 10"
    assert name(page) == ORDER[0]


def test_the_slider_of_opacity_and_the_keys_of_map_and_outlines(visit, volumes):
    page = visit(volumes)
    opacity = "e => [e.hidden, getComputedStyle(e).opacity]"
    assert page.locator("#map").evaluate(opacity) == [False, "0.6"]
    page.locator("#opacity").fill("25")
    assert page.locator("#map").evaluate(opacity) == [False, "0.25"]
    page.keyboard.press("+")
    assert page.locator("#strength").inner_text() == "35 %"
    total = page.locator("#map").evaluate("e => e.style.backgroundImage")
    page.keyboard.press("m")
    assert page.locator("#map").evaluate("e => e.style.backgroundImage") != total
    assert page.locator("input[value=epistemic]").is_checked()
    assert page.locator("#ramp b:visible").count() == 1
    page.keyboard.press("m")
    assert page.locator("#map").is_hidden()
    page.keyboard.press("m")
    assert page.locator("#map").evaluate("e => e.style.backgroundImage") == total
    page.keyboard.press("o")
    paths = page.locator("#outlines path").evaluate_all("all => all.map(e => e.getAttribute('d'))")
    assert paths == ["", ""]
    page.keyboard.press("ArrowRight")  # outlines stay off in the next case
    assert not any(page.locator("#outlines path").evaluate_all("all => all.map(e => e.getAttribute('d'))"))
    page.keyboard.press("o")
    assert all(page.locator("#outlines path").evaluate_all("all => all.map(e => e.getAttribute('d'))"))


def test_outlines_lie_on_what_they_outline(visit, volumes):
    """The lesion is bright in the picture that the browser shows; its outline must lie around the bright area."""
    page = visit(volumes)
    corners = "e => { const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }"
    box, stage = (page.locator(f"#{part}").evaluate(corners) for part in ("outlines", "stage"))
    assert box == stage
    assert page.locator("#outlines").get_attribute("viewBox") == "0 0 24 20"
    assert stage[3] / stage[2] == pytest.approx(20 * 2 / 24, rel=0.02)  # voxels are twice as long to the front
    strokes = re.findall(r"M(\d+) (\d+)h(\d+)", page.locator("#outlines path").first.get_attribute("d"))
    left, right = min(int(x) for x, _, _ in strokes), max(int(x) + int(n) for x, _, n in strokes)
    # right runs from 11 to 21 in the scan, which is seen from the feet: column 24 - 1 - x
    assert (left, right) == (3, 12)


def test_names_that_are_markup_are_text(visit, volumes):
    page = visit(volumes)
    page.locator("#list button").nth(2).click()
    assert name(page) == MARKUP
    assert page.locator("#legend label span:last-child").all_inner_texts() == list(CLASSES[1:])
    assert MARKUP in page.locator("footer").inner_text()
    assert page.locator("main img, main b:not([data-kind]), footer b").count() == 0


@pytest.mark.parametrize("make", [volumes_page, photographs_page])
def test_a_phone_scrolls_down_only(visit, make, tmp_path):
    page = visit(make(tmp_path), PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    right = page.evaluate(
        "Math.max(...[...document.querySelectorAll('body *')].map(e => e.getBoundingClientRect().right))"
    )
    assert right <= 390
    stage = page.locator("#stage").bounding_box()
    assert stage["width"] > 200
    for control in ("#next", "#opacity"):
        page.locator(control).scroll_into_view_if_needed()
        assert page.locator(control).bounding_box()["height"] >= 26  # for a finger
    page.set_viewport_size({"width": 844, "height": 390})
    assert page.evaluate("document.documentElement.scrollWidth") <= 844


def test_pictures_beside_the_page_are_shown_without_a_network(visit, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_IN_PAGE", 1000)
    page = visit(volumes_page(tmp_path))
    loaded = page.evaluate(
        "Promise.all(['image', 'map'].map(id => new Promise(done => { const i = new Image(); i.onload = () =>"
        " done(i.naturalWidth); i.onerror = () => done(0);"
        " i.src = document.getElementById(id).style.backgroundImage.slice(5, -2) })))"
    )
    assert loaded == [96, 96]


def test_a_picture_has_no_slider_of_slices(visit, tmp_path):
    page = visit(photographs_page(tmp_path))
    assert page.locator("#slices").is_hidden()
    page.keyboard.press("ArrowUp")
    assert slice_shown(page) == "1 of 1"
