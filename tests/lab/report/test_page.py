import json
import re
from html.parser import HTMLParser

import pytest
import torch

from leanbayes._files import write_tensors
from leanbayes.lab.report import write_report
from leanbayes.metrics import METRICS, Metric
from tests.lab.report.fixtures import FAILED, METHODS, TASKS, classes_task, save

VOID = {"meta", "link", "img", "br"}
FIGURES = {
    "classes": ["cost", "reliability", "risk", "errors", "shifted", "layers", "sigma", "examples"],
    "pixels": ["showcase", "cost", "reliability", "risk", "errors", "layers", "overlays"],
    "regression": ["cost", "intervals", "layers"],
}


class Page(HTMLParser):
    """Which elements there are, that they nest, and what they say."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open and "script" not in self.open:
            self.text.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def edited(tmp_path, change):
    """The page of a small comparison after ``change(results)``."""
    record = {
        "format": 1,
        "task": {"name": "t"},
        "methods": [{"name": name, "runs": [{"seed": 0, "metrics": {"nll": v}}]} for name, v in (("a", 1), ("b", 2))],
    }
    change(record)
    return write_report(save(tmp_path, record, {})).read_text()


@pytest.mark.parametrize("kind", TASKS)
def test_every_figure_that_the_data_allow_is_there(pages, kind):
    page = Page(pages[kind].read_text())
    sections = [attributes["id"] for attributes in page.of("section")]
    assert [name for name in sections if name not in ("about", "table", "detail", "prices")] == FIGURES[kind]
    assert len(page.of("figcaption")) == len(FIGURES[kind])
    assert [link["href"] for link in page.of("a")] == [f"#{name}" for name in sections]
    for svg in page.of("svg"):
        assert svg["role"] == "img"
        assert svg["aria-label"]
    assert all(image["alt"] for image in page.of("img"))


@pytest.mark.parametrize("kind", TASKS)
def test_the_page_is_small_whole_and_fetches_nothing(pages, kind):
    text = pages[kind].read_text()
    assert len(text.encode()) < 3e6
    page = Page(text)
    for tag, attributes in page.elements:
        for key in ("src", "href", "xlink:href"):
            assert attributes.get(key, "#").startswith(("#", "data:")), (tag, attributes)
    assert not re.findall(r"@import|url\((?!#)", text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not list(pages[kind].parent.glob(".*"))


def test_the_same_folder_gives_the_same_bytes(pages, tmp_path):
    again = write_report(pages["regression"].parent, tmp_path / "again.html")
    assert again.read_bytes() == pages["regression"].read_bytes()


def test_what_was_compared_is_said(pages):
    words = " ".join(Page(pages["classes"].read_text()).text)
    message = [
        *METHODS,
        FAILED,
        "digits",
        "1,200 for training",
        "0, 1, 2",
        "leanbayes compare classes",
        "4f1c2ab",
        "2 cores",
    ]
    message += ["2025-03-14", "letters (500)", "learning_rate = 0.001", "deterministic vs ensemble", "0.038"]
    assert [part for part in message if part not in words] == []


def test_each_array_can_be_missing(tmp_path):
    folder = classes_task(tmp_path)
    save(folder, json.loads((folder / "results.json").read_text()), {})
    page = Page(write_report(folder).read_text())
    assert [figure["id"] for figure in page.of("section")][-2:] == ["cost", "layers"]


def test_almost_nothing_is_still_a_page(tmp_path):
    page = Page(edited(tmp_path, lambda record: record.update(methods=[])))
    assert "0 methods compared on t" in page.text
    page = Page(edited(tmp_path, lambda record: record.update(methods=[{"name": "a", "error": "no memory"}], task={})))
    assert [section["id"] for section in page.of("section")] == ["about", "table"]
    assert ": no memory" in page.text


def test_columns_with_a_direction_come_first_and_levels_are_details(tmp_path):
    def change(record):
        record["better"] = {"nll": "low", "entropy": None, "set_size@0.9": None, "ood/s/auroc": "high"}
        for method in record["methods"]:
            method["runs"][0].update(metrics={"entropy": 1, "nll": 2, "set_size@0.9": 1, "ood/s/auroc": 1})

    buttons = [attributes["aria-label"] for attributes in Page(edited(tmp_path, change)).of("button")]
    main, detail = ["NLL, lower is better", "Entropy"], ["AUROC, s, higher is better", "Share sure at 0.9"]
    assert buttons == ["Method", *main, "Method", *detail]


def test_half_a_surrogate_pair_does_not_stop_the_page(tmp_path):
    def change(record):
        record["methods"][0].update(name="\ud800", layers=[{"name": "\udfff", "random": 1, "size": 2}])

    assert "<h3>?</h3>" in edited(tmp_path, change)


def test_markup_in_names_is_text(tmp_path):
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"

    def change(record):
        method = record["methods"][0]
        method.update(
            name=evil, error=evil, summary=evil, recipe={evil: evil}, layers=[{"name": evil, "random": 1, "size": 2}]
        )
        method["runs"][0].update(metrics={evil: 1.0, f"ood/{evil}/x": 1.0}, cost={evil: 1.0}, seed=evil)
        record.update(command=evil, commit=evil, date=evil, machine={evil: evil}, better={evil: evil})
        record.update(task={"name": evil, "kind": evil, "classes": [evil], "shifted": {evil: evil}})
        record["tests"] = {"anova": {evil: {"p": 0.5}, "x": {}}, "paired": {"nll": {evil: {"p": 0.5}}}}

    page = Page(edited(tmp_path, change))
    assert len(page.of("script")) == 1
    assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)
    assert not page.of("img")
    assert sum(evil in text for text in page.text) >= 15


def test_a_metric_from_outside_is_on_the_page_with_its_words(tmp_path):
    surprise = Metric("surprise", "low", "Surprise & Co", "How <b>surprised</b> the truth would be.")
    with METRICS.replacing(surprise):
        text = edited(
            tmp_path, lambda record: [m["runs"][0]["metrics"].update(surprise=1.5) for m in record["methods"]]
        )
    page = Page(text)
    assert "Surprise & Co, lower is better" in [button["aria-label"] for button in page.of("button")]
    assert "How <b>surprised</b> the truth would be." in [button.get("title") for button in page.of("button")]
    assert ": How <b>surprised</b> the truth would be. Lower is better." in page.text


def test_the_best_and_the_fastest_are_said_first(pages):
    words = " ".join(" ".join(Page(pages["classes"].read_text()).text).split())
    assert "ensemble has the best NLL on average over seeds: 0.1" in words
    assert "deterministic is the fastest to train: 6." in words
    assert METRICS["nll"].meaning + " Lower is better." in words


def test_the_summary_of_a_method_is_shown(tmp_path):
    text = edited(tmp_path, lambda record: record["methods"][0].update(summary="One plain network."))
    assert "One plain network." in Page(text).text


def test_markup_in_class_names_and_names_of_sets_is_text_in_figures(tmp_path):
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    folder = classes_task(tmp_path)
    record = json.loads((folder / "results.json").read_text())
    record["task"]["classes"] = [evil] * 10
    record["task"]["shifted"] = {evil: 5}
    record["methods"] = record["methods"][:1]
    name = record["methods"][0]["name"]
    (folder / "results.json").write_text(json.dumps(record))
    more = {f"{name}/shifted/{evil}/entropy": torch.ones(5)}
    write_tensors(folder / "arrays" / "more.safetensors", more, {"kind": "arrays", "format": 1})
    page = Page(write_report(folder).read_text())
    assert len(page.of("script")) == 1
    assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)
    assert all(image["src"].startswith("data:image/") for image in page.of("img"))
    assert sum(evil in image["alt"] for image in page.of("img")) == 12
    assert sum(evil in text for text in page.text) >= 13  # the legend, and an answer below each picture


def test_the_page_begins_with_the_recommendation(tmp_path):
    sentences = ["Take <b>: it is better.", "To train, it costs 2.0 times.", "The interval is over 3 seeds."]
    text = edited(tmp_path, lambda record: record.update(recommendation={"sentences": sentences}))
    header = text[text.index("<header>") : text.index("<nav")]
    said = " ".join("".join(Page(header).text).split())
    assert said.startswith(f"2 methods compared on t {' '.join(sentences)}")
    assert "<strong>Take &lt;b&gt;: it is better.</strong>" in header
    assert "has the best" not in header
    for nothing in (None, {"sentences": []}):
        old = edited(tmp_path / str(nothing)[:4], lambda record, value=nothing: record.update(recommendation=value))
        assert "has the best" in old  # the record of an older version


def test_how_many_networks_a_method_is_worth_or_why_that_is_not_known(tmp_path):
    equivalents = {
        "ensemble": "a",
        "nll": [3.0, 2.0, 1.0],
        "methods": {"a": {"value": 3.0, "text": "3.0"}, "b": {"value": None, "text": "<1"}},
        "reason": None,
    }
    text = edited(tmp_path / "with", lambda record: record.update(ensemble_equivalent=equivalents))
    assert "Worth (networks), higher is better" in text
    assert re.search(r'<td data-value="3.0" class="best"><b>3.0</b></td>', text)
    assert re.search(r'<td data-value="0.0"><b>&lt;1</b></td>', text)
    text = edited(tmp_path / "none", lambda record: record.update(ensemble_equivalent={"reason": "No ensemble."}))
    assert "How many plain networks each method is worth is not known. No ensemble." in text
    assert "Worth (networks)" not in text
