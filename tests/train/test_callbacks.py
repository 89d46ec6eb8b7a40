"""Callbacks see every step, can stop or pause a training, and write to trackers; checkpoints hold all of that."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import leanbayes as lb
from leanbayes.errors import InputError
from leanbayes.train import EachStep, Step, Stop, Tracking
from tests.integrations.matrix import shows

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def trained(callbacks: Any = (), epochs: int = 4, **options: Any) -> tuple[lb.train.History, dict[str, Tensor]]:
    torch.manual_seed(0)
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Linear(6, 2)))
    options.setdefault("train", DataLoader(TensorDataset(X, Y), 16, shuffle=True))
    train = options.pop("train")
    history = lb.fit(bnn, train, likelihood=lb.Categorical(), epochs=epochs, callbacks=callbacks, **options)
    return history, bnn.state_dict()


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def stop_at(step: int, **options: Any) -> EachStep:
    return EachStep(lambda row: Stop("enough", **options) if row.step == step else None)


def test_steps_are_shown_with_their_numbers() -> None:
    rows: list[Step] = []
    every_third: list[int] = []
    history, _ = trained([EachStep(rows.append), EachStep(lambda row: every_third.append(row.step), every=3)])
    assert [row.step for row in rows] == list(range(1, 17))
    assert [row.epoch for row in rows] == [step // 4 for step in range(16)]
    assert every_third == [3, 6, 9, 12, 15]
    for epoch in range(4):
        part = rows[4 * epoch : 4 * epoch + 4]
        assert sum(row.loss for row in part) / 4 == pytest.approx(history.epochs[epoch].loss, rel=1e-12)
        assert sum(row.kl or 0 for row in part) / 4 == pytest.approx(history.epochs[epoch].kl, rel=1e-12)
    assert rows[0].loss == pytest.approx(rows[0].nll + (rows[0].kl or 0) / 64)
    assert (rows[0].kl_weight, rows[0].lr) == (1.0, 1e-3)


def test_an_optimizer_that_owns_the_scales_computes_no_kl_in_a_step() -> None:
    rows: list[Step] = []
    trained([EachStep(rows.append)], epochs=1, optimizer="ivon")
    assert rows[0].kl is None
    assert rows[0].loss == rows[0].nll


@shows("PyTorch", "A callback sees every step, and can stop the training.")
def test_a_stop_ends_the_training_with_a_report() -> None:
    epochs: list[lb.train.Epoch] = []
    history, weights = trained([stop_at(6), epochs.append], validate=[(X, Y)])
    assert (history.stopped, len(history.epochs), history.scales is not None) == ("enough", 2, True)
    assert epochs == history.epochs
    assert all(row.validation is not None for row in history.epochs)
    # The same steps, as two epochs of three steps each in a stream of batches without shuffling.
    fixed = DataLoader(TensorDataset(X, Y), 16)
    _, first = trained([stop_at(3)], train=fixed)
    _, second = trained(train=fixed, steps_per_epoch=3, epochs=1)
    assert same(first, second)
    assert not same(first, weights)


def test_a_stop_after_an_epoch() -> None:
    history, weights = trained([lambda row: Stop("done") if row.epoch == 1 else None])
    assert (history.stopped, len(history.epochs)) == ("done", 2)
    assert not same(weights, trained()[1])


def test_other_answers_of_callbacks_mean_nothing() -> None:
    history, _ = trained([lambda row: True, EachStep(lambda row: 1)])
    assert (history.stopped, len(history.epochs)) == (None, 4)


@pytest.mark.parametrize("every", [None, 1])
def test_a_final_stop_gives_the_same_result_again(tmp_path: Path, every: int | None) -> None:
    options: dict[str, Any] = {"checkpoint": lb.Checkpointing(tmp_path, every=every), "validate": [(X, Y)]}
    first = trained([stop_at(6)], **options)
    again = trained([stop_at(6)], **options)
    without = trained([stop_at(6)], validate=[(X, Y)])
    assert same(first[1], again[1])
    assert same(first[1], without[1])
    assert first[0] == again[0]


@pytest.mark.parametrize("where", ["step", "epoch"])
@pytest.mark.parametrize("mode", ["passes", "steps_per_epoch"])
def test_a_pause_goes_on_bit_for_bit(tmp_path: Path, where: str, mode: str) -> None:
    options: dict[str, Any] = {} if mode == "passes" else {"steps_per_epoch": 3}
    whole = trained(validate=[(X, Y)], **options)
    pause: Any = stop_at(6, final=False)
    if where == "epoch":
        pause = lambda row: Stop("night", final=False) if row.epoch == 1 else None  # noqa: E731
    options |= {"checkpoint": tmp_path, "validate": [(X, Y)]}
    paused = trained([pause], **options)
    assert paused[0].stopped in ("enough", "night")
    assert len(paused[0].epochs) == (2 if where == "epoch" else 1)
    assert not same(whole[1], paused[1])
    ended = trained(**options)
    assert same(whole[1], ended[1])
    assert [row.loss for row in whole[0].epochs] == [row.loss for row in ended[0].epochs]
    assert ended[0].stopped is None


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Examples without a length."""

    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


class TestStreams:
    @shows("PyTorch", "Streams without a length train, with steps_per_epoch=.")
    @pytest.mark.parametrize(("per_epoch", "epochs"), [(8, 1), (2, 4), (1, 8), (3, 3)])
    def test_an_epoch_begins_where_the_last_one_ended(self, per_epoch: int, epochs: int) -> None:
        """The stream has four batches, and each of them comes as often as the others, whatever an epoch is."""
        read: list[int] = []

        def noted(batch: Any) -> Any:
            read.append(next(i for i in range(4) if torch.equal(batch[0], X[16 * i : 16 * i + 16])))
            return batch

        trained(train=DataLoader(Stream(), 16), steps_per_epoch=per_epoch, n_data=64, epochs=epochs, batch=noted)
        assert read == [step % 4 for step in range(per_epoch * epochs)]

    def test_a_generator_is_read_once(self) -> None:
        count = []

        def endless() -> Any:
            while True:
                count.append(1)
                yield X[:16], Y[:16]

        history, _ = trained(train=endless(), steps_per_epoch=3, n_data=64, epochs=2)
        assert (len(history.epochs), len(count)) == (2, 6)

    @pytest.mark.parametrize(
        ("train", "options", "words"),
        [
            (DataLoader(Stream(), 16), {"n_data": 64}, "steps_per_epoch="),
            (DataLoader(Stream(), 16), {"steps_per_epoch": 3}, "n_data="),
            (iter([(X, Y)]), {"steps_per_epoch": 3}, "n_data="),
            (iter([(X, Y)]), {"steps_per_epoch": 3, "n_data": 64}, "no batch in pass 1.*used up"),
            ([(X, Y)], {"steps_per_epoch": 0}, "steps_per_epoch must be a whole number"),
        ],
    )
    def test_what_is_missing_is_named(self, train: Any, options: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            trained(train=train, **options)

    def test_a_stream_cannot_promise_the_same_weights(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"train": DataLoader(Stream(), 16), "steps_per_epoch": 3, "n_data": 64}
        with pytest.raises(InputError, match=r"a stream .*exact=False"):
            trained(checkpoint=tmp_path, **options)
        paused = trained([stop_at(5, final=False)], checkpoint=lb.Checkpointing(tmp_path, exact=False), **options)
        options["train"] = DataLoader(Stream(), 16)
        ended = trained(checkpoint=lb.Checkpointing(tmp_path, exact=False), **options)
        assert (len(paused[0].epochs), len(ended[0].epochs)) == (1, 4)

    def test_generators_of_samplers_are_put_back(self) -> None:
        generator = torch.Generator()
        loader = DataLoader(TensorDataset(X, Y), 16, shuffle=True, generator=generator)
        trained(train=loader, steps_per_epoch=3)
        assert loader.generator is generator
        assert loader.sampler.generator is generator  # type: ignore[attr-defined]


class TestTracking:
    accelerate = pytest.importorskip("accelerate.tracking")

    def fake(self) -> Any:
        class Fake(self.accelerate.GeneralTracker):  # type: ignore[name-defined, misc]
            """A tracker as accelerate wants it, which remembers what it gets."""

            name, requires_logging_directory = "fake", False
            made: list[Any] = []  # noqa: RUF012

            def __init__(self, project: str, **options: Any) -> None:
                super().__init__()
                self.project, self.options, self.rows, self.state = project, options, [], []
                type(self).made.append(self)

            @property
            def tracker(self) -> Any:
                return self.rows

            def start(self) -> None:
                self.state.append("started")

            def store_init_configuration(self, values: dict[str, Any]) -> None:
                self.config = values

            def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
                self.rows.append((step, values))

            def finish(self) -> None:
                self.state.append("finished")

        return Fake

    def test_a_tracker_by_name_is_started_and_finished(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = self.fake()
        monkeypatch.setitem(self.accelerate.LOGGER_TYPE_TO_CLASS, "fake", kind)
        tracking = Tracking("fake", project="p", every=3, config={"lr": 0.1}, options={"fake": {"tags": ["t"]}})
        history, weights = trained([tracking], epochs=2, validate=[(X, Y)])
        (made,) = kind.made
        assert (made.project, made.options, made.state) == ("p", {"tags": ["t"]}, ["started", "finished"])
        assert (made.config["lr"], made.config["epochs"], made.config["n_data"]) == (0.1, 2, 64)
        assert [step for step, _ in made.rows] == [3, 4, 6, 8]
        assert set(made.rows[0][1]) == {"step/loss", "step/nll", "step/kl", "step/kl_weight", "step/lr"}
        assert made.rows[1][1]["epoch/loss"] == history.epochs[0].loss
        assert made.rows[3][1]["epoch/validation"] == history.epochs[1].validation
        assert same(weights, trained(epochs=2, validate=[(X, Y)])[1])
        with pytest.raises(ZeroDivisionError):
            trained([tracking, lambda row: 1 / 0])
        assert kind.made[1].state == ["started", "finished"]

    def test_a_tracker_may_write_messages_when_it_starts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """That of Weights & Biases does; accelerate's messages need a state, which nothing had made before."""
        logging = pytest.importorskip("accelerate.logging")
        kind = self.fake()
        kind.start = lambda tracker: logging.get_logger("tracker").debug("started")
        monkeypatch.setitem(self.accelerate.LOGGER_TYPE_TO_CLASS, "fake", kind)
        trained([Tracking("fake")], epochs=1)
        assert kind.made[0].rows

    def test_a_started_tracker_is_only_written_to(self) -> None:
        one = self.fake()("mine")
        trained([Tracking([one])], epochs=1)
        assert (one.state, [step for step, _ in one.rows]) == ([], [4])

    @shows("TensorBoard", "A training writes its losses to event files.")
    def test_tensorboard_gets_the_numbers(self, tmp_path: Path) -> None:
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        history, _ = trained([Tracking("tensorboard", project="run", folder=tmp_path, every=2)], epochs=2)
        events = EventAccumulator(str(tmp_path / "run")).Reload()
        steps = events.Scalars("step/loss")
        assert [event.step for event in steps] == [2, 4, 6, 8]
        losses = [event.value for event in events.Scalars("epoch/loss")]
        assert losses == pytest.approx(history.losses, rel=1e-6)

    @shows("Weights & Biases", "A training writes its losses and settings to a run, also offline.")
    def test_weights_and_biases_gets_the_numbers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wandb = pytest.importorskip("wandb", reason="it is too heavy for the usual environment; see matrix.py")
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_SILENT", "true")
        options = {"wandb": {"dir": str(tmp_path), "tags": ["first"]}}
        history, _ = trained([Tracking("wandb", "first", every=2, config={"lr": 0.1}, options=options)], epochs=2)
        assert wandb.run is None
        wanted = ["step/loss", "step/kl", "epoch/loss", "n_data", *map(json.dumps, history.losses)]
        (file,) = tmp_path.rglob("*.wandb")
        end = time.monotonic() + 60
        while (
            missing := [word for word in wanted if word.encode() not in file.read_bytes()]
        ) and time.monotonic() < end:
            time.sleep(0.1)  # a process of the tracker writes the file
        assert missing == []

    @shows("MLflow", "A training writes its losses and settings to a run in a folder.")
    def test_mlflow_gets_the_numbers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mlflow = pytest.importorskip("mlflow", reason="it is too heavy for the usual environment; see matrix.py")
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        folder = (tmp_path / "runs").as_uri()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", folder)
        tracking = Tracking("mlflow", "first", folder=tmp_path, every=2, config={"lr": 0.1})
        history, _ = trained([tracking], epochs=2)
        client = mlflow.MlflowClient(folder)
        (run,) = client.search_runs([client.get_experiment_by_name("first").experiment_id])
        assert (run.data.params["lr"], run.info.status) == ("0.1", "FINISHED")
        assert [row.step for row in client.get_metric_history(run.info.run_id, "step/loss")] == [2, 4, 6, 8]
        losses = [row.value for row in client.get_metric_history(run.info.run_id, "epoch/loss")]
        assert losses == pytest.approx(history.losses)

    def test_nothing_of_accelerate_stays_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        state = pytest.importorskip("accelerate.state")
        kinds = (state.PartialState, state.AcceleratorState, state.GradientState)
        before = [dict(kind._shared_state) for kind in kinds]
        monkeypatch.setitem(self.accelerate.LOGGER_TYPE_TO_CLASS, "fake", self.fake())
        trained([Tracking("fake")], epochs=1)
        assert before == [dict(kind._shared_state) for kind in kinds]

    @pytest.mark.parametrize(
        ("tracking", "words"),
        [
            (Tracking("tensorbord"), "unknown tracker 'tensorbord'.*did you mean 'tensorboard'"),
            (Tracking("tensorboard"), "writes files; say where"),
            (Tracking("clearml"), "'clearml' is not installed: pip install clearml"),
        ],
    )
    def test_bad_trackers_are_named_before_the_first_step(self, tracking: Tracking, words: str) -> None:
        steps: list[Step] = []
        with pytest.raises(InputError, match=words):
            trained([tracking, EachStep(steps.append)])
        assert not steps

    def test_without_accelerate_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "accelerate.tracking", None)
        with pytest.raises(lb.errors.MissingPackage, match=r"leanbayes\[distributed\]"):
            trained([Tracking("tensorboard", folder="x")])


def test_bad_callbacks_are_named() -> None:
    with pytest.raises(InputError, match="function must be a function of a Step"):
        EachStep(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="every must be a whole number"):
        EachStep(print, every=0)
    with pytest.raises(InputError, match="there is no tracker"):
        Tracking([])
    with pytest.raises(InputError, match="callbacks must be a list of functions"):
        trained([3])
