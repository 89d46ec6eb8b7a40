"""The page in a real browser: nothing is fetched, nothing fails, everything can be seen and used."""

import json

import pytest

from leanbayes.lab.report import write_report
from tests.lab.report.fixtures import METHODS, TASKS, save

PHONE = {"width": 360, "height": 740}
SIZES = "elements => elements.map(e => { const b = e.getBoundingClientRect(); return [b.width, b.height] })"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", TASKS)
def test_every_figure_can_be_seen(visit, pages, kind, scheme):
    page = visit(pages[kind], scheme=scheme)
    figures = page.locator("figure").count()
    assert figures == page.locator("figcaption:visible").count() > 2
    for shown in ("figure svg", "figure img", ".panel"):
        sizes = page.locator(shown).evaluate_all(SIZES)
        assert all(min(size) > 20 for size in sizes), shown
    assert page.locator("figure svg").count() > 5
    decoded = page.locator("img").evaluate_all("images => images.map(i => i.complete && i.naturalWidth > 0)")
    assert all(decoded)
    plots = page.locator("figure svg:not(.portrait)")  # outlines of cases are few paths
    drawn = plots.evaluate_all("all => all.map(s => s.querySelectorAll('path, use').length)")
    assert min(drawn) > 3


@pytest.mark.parametrize("kind", TASKS)
def test_a_phone_scrolls_down_only(visit, pages, kind):
    page = visit(pages[kind], PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    right = page.evaluate(
        "Math.max(...[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, svg, details'))"
        ".map(e => e.getBoundingClientRect().right))"
    )
    assert right <= 360
    assert page.evaluate("[...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)")


def test_text_in_figures_is_large_enough_on_a_phone(visit, pages):
    page = visit(pages["classes"], PHONE)
    sizes = page.locator("figure svg text").evaluate_all(
        "all => all.map(e => { const m = e.getScreenCTM();"
        " return parseFloat(getComputedStyle(e).fontSize) * Math.hypot(m.a, m.b) })"
    )
    assert min(sizes) > 9
    assert len(sizes) > 100


def test_dark_mode_changes_ground_and_ink(visit, pages):
    def colours(scheme):
        page = visit(pages["classes"], scheme=scheme)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        ink = page.locator("figure svg text").first.evaluate("e => getComputedStyle(e).fill")
        return [sum(map(int, colour[4:-1].split(","))) / 765 for colour in (ground, ink)]

    (light, dark_ink), (dark, light_ink) = colours("light"), colours("dark")
    assert light > 0.9 > 0.3 > dark_ink
    assert dark < 0.15 < 0.7 < light_ink


def order(page):
    return page.locator("#table .sortable tbody th").all_inner_texts()


def column(page, name):
    texts = page.locator("#table .sortable thead th").all_inner_texts()
    place = next(i for i, text in enumerate(texts) if text.startswith(name))
    cells = page.locator(f"#table .sortable tbody tr > :nth-child({place + 1})")
    return page.locator("#table .sortable thead th").nth(place), [float(v) for v in cells.evaluate_all(
        "all => all.map(e => e.dataset.value)")]  # fmt: skip


@pytest.mark.parametrize(("name", "better"), [("Accuracy", "descending"), ("NLL", "ascending")])
def test_the_table_sorts_both_ways_by_click_and_by_key(visit, pages, name, better):
    page = visit(pages["classes"])
    assert order(page) == list(METHODS)
    head, before = column(page, name)
    assert head.get_attribute("aria-sort") == "none"
    for turn, key in enumerate((None, None, "Enter", "Enter", "Space", "Space")):
        button = head.get_by_role("button")
        button.click() if key is None else button.press(key)
        descending = (better == "descending") == (turn % 2 == 0)
        head, values = column(page, name)
        assert values == sorted(before, reverse=descending) != before
        assert head.get_attribute("aria-sort") == ("descending" if descending else "ascending")
        assert page.locator("#table th[aria-sort]:not([aria-sort=none])").count() == 1


def test_the_first_column_sorts_by_name_and_the_keyboard_reaches_it(visit, pages):
    page = visit(pages["classes"])
    page.locator("#table .scroll").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert order(page) == sorted(METHODS)
    page.keyboard.press("Enter")
    assert order(page) == sorted(METHODS, reverse=True)


def test_missing_values_stay_at_the_end(visit, tmp_path):
    values = {"a": 2.0, "b": None, "c": float("nan"), "d": 10.0, "e": -1.0}
    methods = [{"name": name, "runs": [{"seed": 0, "metrics": {"m": v, "n": 1}}]} for name, v in values.items()]
    folder = save(tmp_path, {"format": 1, "task": {"name": "t"}, "methods": methods}, {})
    page = visit(write_report(folder))
    button = page.locator("#table thead button").nth(1)
    button.click()
    assert order(page) == ["e", "a", "d", "b", "c"]
    button.click()
    assert order(page) == ["d", "a", "e", "b", "c"]


def test_hostile_names_stay_text(visit, tmp_path):
    evil = "</script><svg onload=alert(1)><img src=http://127.0.0.1:9/x onerror=alert(2)>'\"$x$"
    folder = TASKS["classes"](tmp_path)
    record = json.loads((folder / "results.json").read_text())
    record["methods"] = [method for method in record["methods"] if method["name"] in ("vi", "partial", "laplace")]
    record["task"].update(name=evil, classes=[evil] * 10)
    record["command"] = record["methods"][-1]["error"] = record["methods"][-1]["name"] = evil
    record["methods"][0]["layers"][0]["name"] = evil[:20]
    (folder / "results.json").write_text(json.dumps(record))
    page = visit(write_report(folder), PHONE)
    assert page.title().endswith(evil)
    assert page.locator("h1").inner_text().endswith(evil)
    assert page.locator(".failed li").inner_text() == f"{evil}: {evil}"
    assert page.locator(f'figure svg text:text-is("{evil[:20]}")').count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("#table thead button").nth(1).click()
    assert page.locator("#table th[aria-sort=descending]").count() == 1


def test_cases_come_first_and_side_by_side(visit, pages):
    """Every method shows the same cases, with the outlines on the image, before any table."""
    page = visit(pages["pixels"])
    assert page.locator("main > section").first.get_attribute("id") == "showcase"
    panels = page.locator("#showcase .panel")
    assert panels.count() == 4
    for number in range(4):
        assert panels.nth(number).locator("h4").all_inner_texts() == list(METHODS)
    titles = page.locator("#showcase h3").all_inner_texts()
    assert titles[0] == "Worst case: scan0.nii.gz"
    assert titles[3].startswith("Surprising case: ")
    assert titles[3].endswith("<b>scan3</b>")  # text, not markup
    shapes = page.locator("#showcase svg.portrait").evaluate_all(SIZES)
    assert all(height / width == pytest.approx(40 * 1.5 / 30, rel=0.02) for width, height in shapes)
    maps = page.locator("#showcase .maps img").evaluate_all(SIZES)
    assert all(height / width == pytest.approx(40 * 1.5 / 30, rel=0.05) for width, height in maps)
    assert page.locator("#showcase .legend .ramp").count() == 2
