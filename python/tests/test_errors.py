"""Errors: one base, built-ins beside it, data as attributes."""

import copy
import pickle

import pytest

import rollway as rw
from rollway import errors

BUILT_IN = {
    rw.AlreadyActive: ValueError,
    rw.NotRegistered: KeyError,
    rw.WrongBatchType: ValueError,
    rw.TimedOut: TimeoutError,
    rw.WaitAllTimedOut: TimeoutError,
    rw.NotStarted: RuntimeError,
    rw.NoPipeline: RuntimeError,
    rw.ConfigError: ValueError,
    rw.ModelUnavailable: ConnectionError,
    rw.MissingPackage: ImportError,
}


@pytest.mark.parametrize("kind", BUILT_IN)
def test_errors_have_the_expected_base_classes(kind):
    error = kind("batch 7 is odd", batch_id=7)
    assert isinstance(error, rw.Error) and isinstance(error, BUILT_IN[kind])
    assert str(error) == "batch 7 is odd"
    assert error.batch_id == 7


def test_every_code_is_of_one_error():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = [kind.code for kind in kinds if issubclass(kind, rw.Error)]
    assert len(codes) == len(set(codes)) > 20
    made = errors.make("not_registered", "batch 1 is not registered", {"batch_id": 1})
    assert type(made) is rw.NotRegistered and made.batch_id == 1
    unknown = errors.make("new_in_the_engine", "words", {})
    assert type(unknown) is rw.Error and unknown.code == "new_in_the_engine"


def test_every_error_is_exported():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    names = {kind.__name__ for kind in kinds if issubclass(kind, rw.Error)}
    assert names <= set(rw.__all__)


def test_message_of_the_data_stands_beside_the_text():
    error = rw.BatchFailed("batch 1 failed: boom", batch_id=1, kind="exception", message="boom")
    for other in (error, pickle.loads(pickle.dumps(error))):
        assert (str(other), other.message) == ("batch 1 failed: boom", "boom")


def test_errors_travel_between_processes():
    error = rw.TimedOut("timeout waiting for batch 1", batch_id=1, finished=2)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is rw.TimedOut
        assert (str(other), other.batch_id, other.finished) == (str(error), 1, 2)


def test_calls_without_an_engine_are_refused_with_a_reason(config):
    scheduler = rw.Scheduler(config, [rw.models.Echo()])
    with pytest.raises(RuntimeError, match="must be called first"):
        scheduler.get_statuses(1).result()
    with pytest.raises(rw.NotStarted):
        scheduler.runner(0)
    assert scheduler.has_step(1) is False
    assert scheduler.running_tasks() == scheduler.completed_results(1) == scheduler.tasks(1) == []
    assert scheduler.get_all_state() == {}
    assert scheduler.stop().result() == {}
    coordinator = rw.RolloutCoordinator(config, [rw.models.Echo()])
    with pytest.raises(RuntimeError, match="not initialized"):
        coordinator.process_experiences([]).result()
    with pytest.raises(rw.NotStarted):
        coordinator.abort_batch(1, reason="why not").result()


def test_a_pending_result_without_waiter_is_reported(config):
    scheduler = rw.Scheduler(config, [rw.models.Echo()])
    with pytest.warns(RuntimeWarning, match="start\\(\\) was never awaited"):
        scheduler.start()


def test_there_must_be_a_model(config):
    with pytest.raises(ValueError, match="rollout model"):
        rw.Scheduler(config, [])
