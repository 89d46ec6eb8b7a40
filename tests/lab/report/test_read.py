import json

import numpy as np
import pytest
import torch

from leanbayes._files import write_tensors
from leanbayes.errors import FileError, ForeignFile, LeanBayesError, NewerFile, TruncatedFile
from leanbayes.lab.report import write_report
from leanbayes.lab.report.read import Arrays, read_comparison
from tests.lab.report.fixtures import regression_task, save

GOOD = {"format": 1, "task": {"name": "t"}, "methods": [{"name": "a", "runs": [{"seed": 0}]}]}


def broken(tmp_path, text):
    save(tmp_path, GOOD, {})
    (tmp_path / "results.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path


def test_a_missing_folder_and_missing_files_are_named(tmp_path):
    with pytest.raises(FileError, match="no folder"):
        write_report(tmp_path / "nothing")
    with pytest.raises(FileError, match=r"no file .*results\.json"):
        write_report(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps(GOOD))
    with pytest.raises(FileError, match=r"no folder .*arrays"):
        write_report(tmp_path)


def test_without_a_run_there_need_be_no_arrays(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(GOOD | {"methods": [{"name": "a", "error": "no memory"}]}))
    assert "no memory" in write_report(tmp_path).read_text()


@pytest.mark.parametrize("text", ["", '{"format": 1, "meth', "not json"])
def test_broken_json_is_said_to_be_damaged(tmp_path, text):
    with pytest.raises(TruncatedFile, match="cut short"):
        write_report(broken(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe\x00", "[]", "3", "{}", '{"format": "1"}', '{"format": true}', '{"format": 0}', "[" * 200_000,
        '{"format": 1}', '{"format": 1, "methods": [], "task": 3}', '{"format": 1, "methods": {}, "task": {}}',
        '{"format": 1, "methods": [{"name": 3}], "task": {}}', '{"format": 1, "methods": [3], "task": {}}',
        '{"format": 1, "task": {}, "methods": [{"name": "a", "runs": [{"metrics": {"nll": "low"}}]}]}',
        '{"format": 1, "task": {}, "methods": [{"name": "a", "layers": [{"name": "l", "random": 1.5}]}]}',
        '{"format": 1, "task": {}, "methods": [{"name": "a"}, {"name": "a"}]}',
        '{"format": 1, "task": {}, "methods": [], "tests": {"anova": {"nll": 3}}}',
        '{"format": 1, "task": {}, "methods": [{"name": "a", "error": ["x"]}]}',
    ],
)  # fmt: skip
def test_foreign_json_is_refused_with_a_reason(tmp_path, text):
    folder = broken(tmp_path, text)
    with pytest.raises(ForeignFile, match=r"results\.json"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_a_newer_format_is_not_guessed_at(tmp_path):
    with pytest.raises(NewerFile, match="format 2"):
        write_report(broken(tmp_path, '{"format": 2, "methods": "all new"}'))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", TruncatedFile),
        (b"PK\x03\x04 a zip of something else", ForeignFile),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00{", TruncatedFile),
    ],
)
def test_a_broken_array_file_is_refused(tmp_path, content, error):
    save(tmp_path, GOOD, {})
    (tmp_path / "arrays" / "all.safetensors").write_bytes(content)
    with pytest.raises(error, match=r"all\.safetensors"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("header", "error"), [({"kind": "model", "format": 1}, ForeignFile), ({"kind": "arrays", "format": 2}, NewerFile)]
)
def test_an_array_file_of_another_kind_or_format_is_refused(tmp_path, header, error):
    save(tmp_path, GOOD, {})
    write_tensors(tmp_path / "arrays" / "all.safetensors", {}, header)
    with pytest.raises(error, match=r"all\.safetensors"):
        write_report(tmp_path)


def test_a_cut_array_file_is_refused(tmp_path):
    path = regression_task(tmp_path) / "arrays" / "all.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TruncatedFile, match="cut short"):
        write_report(tmp_path)


def test_every_kind_of_number_is_read(tmp_path):
    save(tmp_path, GOOD, {})
    kinds = (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)
    tensors = {str(kind): torch.tensor([0, 1]).to(kind) for kind in kinds}
    write_tensors(tmp_path / "arrays" / "all.safetensors", tensors, {"kind": "arrays", "format": 1})
    _, arrays = read_comparison(tmp_path)
    assert all(array.dtype == np.float64 and array.tolist() == [0, 1] for array in arrays.by_key.values())
    assert len(arrays.by_key) == len(kinds)


def test_arrays_are_taken_together_or_not_at_all(tmp_path):
    arrays = Arrays(tmp_path, {"a/x": np.zeros(3), "a/y": np.zeros((3, 2)), "a/z": np.zeros(4), "a/none": np.zeros(0)})
    assert [array.shape for array in arrays.take("a", x=(1,), y=(1, 2))] == [(3,), (3, 2)]
    assert arrays.take("a", x=(1,), missing=(1,)) is None
    assert arrays.take("a", none=(1,)) is None
    assert arrays.take("b", x=(1,)) is None
    with pytest.raises(FileError, match="a/y has shape"):
        arrays.take("a", y=(1,))
    with pytest.raises(FileError, match="one length"):
        arrays.take("a", x=(1,), z=(1,))


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path):
    folder = save(tmp_path / "run", GOOD, {})
    with pytest.raises(FileError, match="cannot save"):
        write_report(folder, tmp_path / "no" / "such" / "report.html")
    target = tmp_path / "taken"
    target.mkdir()
    (target / "file").touch()
    with pytest.raises(LeanBayesError, match="cannot save"):
        write_report(folder, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "taken"]  # no part is left behind


def test_each_method_may_have_a_file_of_its_own(tmp_path):
    save(tmp_path, GOOD, {"a/x": np.zeros(2)})
    write_tensors(tmp_path / "arrays" / "b.safetensors", {"b/x": torch.ones(3)}, {"kind": "arrays", "format": 1})
    _, arrays = read_comparison(tmp_path)
    assert {key: len(array) for key, array in arrays.by_key.items()} == {"a/x": 2, "b/x": 3}


def test_the_single_file_of_earlier_versions_is_read(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(GOOD))
    write_tensors(tmp_path / "arrays.safetensors", {"a/x": torch.ones(3)}, {"kind": "arrays", "format": 1})
    assert list(read_comparison(tmp_path)[1].by_key) == ["a/x"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("recommendation", "Take a."),
        ("recommendation", {"sentences": [1]}),
        ("ensemble_equivalent", [1]),
        ("ensemble_equivalent", {"reason": 3}),
        ("ensemble_equivalent", {"nll": [1.0], "methods": {"a": {"value": None, "text": ">7"}}}),
        ("ensemble_equivalent", {"nll": [1.0], "methods": {"a": {"value": 1.0}}}),
        ("ensemble_equivalent", {"nll": 3, "methods": {}}),
    ],
)
def test_a_recommendation_that_no_comparison_wrote_is_refused(tmp_path, field, value):
    with pytest.raises(ForeignFile, match=field):
        write_report(broken(tmp_path, json.dumps(GOOD | {field: value})))
