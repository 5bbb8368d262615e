"""Settings that workers apply to runs: `explorer.sandbox` and `explorer.stages`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class LocalLimits:
    """Limits of every process of a local sandbox; `None`: no limit."""

    #: Seconds of processor time of one process.
    cpu_time: float | None = None
    #: Address space of one process.
    memory_bytes: int | None = None
    #: Size of a file that a process writes.
    file_bytes: int | None = 4 * 2**30
    #: Processes and threads of the user, in all sandboxes together. Not enforced for root.
    processes: int | None = None
    #: Open file descriptors of one process.
    open_files: int | None = None


@dataclass(frozen=True)
class SandboxSettings:
    """Bounds of the sandboxes of a job on one machine."""

    #: Folder of the leases; `None`: one of the user, below the folder for temporary files.
    folder: str | None = None
    #: Seconds from the start of a sandbox to its forced end.
    lease: float = 3600.0
    #: Maximum number of sandboxes; further ones wait.
    max_sandboxes: int = 256
    #: Maximum starts per second; further ones wait.
    starts_per_second: float = 20.0
    #: Seconds for a start, including both waits.
    start_timeout: float = 120.0
    #: Seconds for the end of a sandbox; then the reaper ends it.
    close_timeout: float = 30.0
    #: Seconds between two checks of the leases.
    check_interval: float = 1.0
    #: Bytes that are kept of each output stream of a command.
    max_output_bytes: int = 2**20
    #: Maximum size of a file that is read or written.
    max_file_bytes: int = 64 * 2**20
    local: LocalLimits = field(default_factory=LocalLimits)


#: Folder of the leases in that of a job.
LEASES = "sandboxes"

#: Stages that have a deadline in the configuration.
STAGES = ("setup", "agent", "reward", "teardown")

#: Ends of an agent after which the reward stage may run; it always does after `finished`.
REWARD_AFTER = ("timeout", "budget", "failed")


@dataclass(frozen=True)
class StageSettings:
    """Deadlines of the stages of a run, in seconds; `None`: only the attempt has one."""

    setup_timeout: float | None = None
    agent_timeout: float | None = None
    reward_timeout: float | None = None
    teardown_timeout: float | None = 60.0
    #: Ends of the agent after which the reward stage runs nevertheless.
    reward_after: tuple[str, ...] = ("timeout", "budget")

    def timeout(self, stage: str) -> float | None:
        """Returns the configured deadline of a stage."""
        return getattr(self, f"{stage}_timeout") if stage in STAGES else None


@dataclass(frozen=True)
class RunSettings:
    """Settings that a worker applies to its runs."""

    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    stages: StageSettings = field(default_factory=StageSettings)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RunSettings:
        """Reads the sections `sandbox` and `stages`, as dictionaries; both may be missing."""
        sandbox = _known(SandboxSettings, values.get("sandbox") or {})
        sandbox["local"] = LocalLimits(**_known(LocalLimits, sandbox.get("local") or {}))
        stages = _known(StageSettings, values.get("stages") or {})
        if "reward_after" in stages:
            stages["reward_after"] = tuple(stages["reward_after"])
        return cls(SandboxSettings(**sandbox), StageSettings(**stages))

    @classmethod
    def of_config(cls, config: Any) -> RunSettings:
        """Reads the settings of a configuration."""
        explorer = getattr(config, "explorer", None)
        return cls.of({name: _plain(getattr(explorer, name, None)) for name in _SECTIONS})


_SECTIONS = ("sandbox", "stages")


def _plain(section: Any) -> Any:
    return section.to_dict() if hasattr(section, "to_dict") else section


def settings_of(config: Any, job_dir: str | None = None) -> dict[str, Any]:
    """Returns the settings of a configuration as plain data, for workers.

    `job_dir`: folder of the job, which contains the leases unless the configuration names another.
    """
    values = {name: _plain(getattr(config.explorer, name)) for name in _SECTIONS}
    if job_dir is not None and values["sandbox"]["folder"] is None:
        values["sandbox"] = {**values["sandbox"], "folder": os.path.join(job_dir, LEASES)}
    return values


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the fields of a type: an engine may have further keys."""
    return {one.name: values[one.name] for one in fields(kind) if one.name in values}
