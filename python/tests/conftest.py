"""Shared fixtures; finds the programs that tests start, so that plain `pytest` works."""

import asyncio
import inspect
import signal

import programs
import pytest

programs.set_defaults()

# The process that started the tests may ignore SIGINT, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Seconds after which a coroutine test fails.
COROUTINE_TIMEOUT = 120


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs coroutine tests, each in its own event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), COROUTINE_TIMEOUT))
    return True


@pytest.fixture
def config(tmp_path):
    """A configuration with few runners, short grace periods and its own job folder."""
    # Imported here: the comparison with NumPy needs no built package.
    import rollway as rw

    config = rw.Config()
    config.name = "rft"
    config.checkpoint_root_dir = str(tmp_path / "jobs")
    config.explorer.runner_per_model = 2
    config.explorer.max_timeout = 20
    config.explorer.max_retry_times = 0
    config.explorer.over_rollout.wait_after_min = 0
    config.explorer.supervision.cancel_grace = 0.3
    config.explorer.supervision.restart_backoff = 0.01
    return config
