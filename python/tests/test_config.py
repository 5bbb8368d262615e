"""Configurations: attributes, files, and what is said about mistakes."""

import pickle
import subprocess
import sys

import pytest

import rollway as rw


def test_every_key_has_a_default_and_is_an_attribute():
    config = rw.Config()
    assert config.explorer.runner_per_model == 8
    assert config.explorer.max_timeout == 1800
    config.explorer.max_timeout = 5
    config.explorer.over_rollout.ratio = 0.1
    config.explorer.env_vars["A"] = "1"
    assert rw.Config.from_dict(config.to_dict()) == config
    assert pickle.loads(pickle.dumps(config)) == config
    config.explorer.over_rollout = {"ratio": 0.2}
    assert config.explorer.over_rollout.ratio == 0.2
    assert config.explorer.over_rollout.wait_after_min == 30


def test_unknown_keys_are_errors_with_a_suggestion():
    config = rw.Config()
    with pytest.raises(AttributeError, match="explorer.max_timeut.*did you mean `max_timeout`"):
        config.explorer.max_timeut = 5
    with pytest.raises(AttributeError, match="no key `nothing`"):
        _ = config.nothing
    with pytest.raises(rw.ConfigError, match="max_timeout") as caught:
        rw.Config.from_dict({"explorer": {"max_timeut": 5}})
    assert caught.value.code == "config" and len(caught.value.problems) == 1


def test_files_are_read_with_lines(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("explorer:\n  runner_per_model: 4\n")
    assert rw.Config.load(path).explorer.runner_per_model == 4
    path.write_text("explorer:\n  runner_per_model: four\n  max_timeut: 1\n")
    with pytest.raises(ValueError) as caught:
        rw.Config.load(path)
    assert len(caught.value.problems) == 2
    assert "config.yaml" in str(caught.value) and "runner_per_model: four" in str(caught.value)


def test_a_wrong_value_is_noticed_before_anything_starts(config):
    config.explorer.max_timeout = "soon"
    with pytest.raises(rw.ConfigError, match="max_timeout"):
        rw.Scheduler(config, [rw.models.Echo()]).start().result()
    with pytest.raises(rw.ConfigError):
        config.check()
    config.explorer.max_timeout = object()
    with pytest.raises(rw.ConfigError, match="must be plain data"):
        config.check()


def test_jobs_without_a_name_do_not_share_a_folder(tmp_path):
    script = "import rollway as rw; print(rw.Config().name, rw.Config.from_dict({}).name)"
    (tmp_path / "my script.py").write_text(script)
    run = [sys.executable, "my script.py"]
    names = [subprocess.check_output(run, cwd=tmp_path, text=True).split() for _ in range(2)]
    (first, also_first), (second, _) = names
    assert first == also_first and first.startswith("my_script-")
    assert first != second
    (tmp_path / "tuning.yaml").write_text("buffer: {batch_size: 2}")
    assert rw.Config.load(tmp_path / "tuning.yaml").name == "tuning"
    (tmp_path / "named.yaml").write_text("name: mine")
    assert rw.Config.load(tmp_path / "named.yaml").name == "mine"
