"""What the tests share."""

import asyncio
import inspect
import signal

import pytest

# Whoever started the tests may have them ignore Ctrl-C, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs coroutine tests, each in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 120))
    return True


@pytest.fixture
def config(tmp_path):
    """A configuration for few runners that notices trouble soon and has a folder of its own."""
    # Not above: the comparison with NumPy needs no built package.
    import rollway as rw

    config = rw.Config()
    config.checkpoint_root_dir = str(tmp_path / "jobs")
    config.explorer.runner_per_model = 2
    config.explorer.max_timeout = 20
    config.explorer.max_retry_times = 0
    config.explorer.over_rollout.wait_after_min = 0
    config.explorer.supervision.cancel_grace = 0.3
    config.explorer.supervision.restart_backoff = 0.01
    return config
