"""Where settings come from: a file, the environment, ``--set``; the later wins, and each value knows its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchwright import ConfigError
from batchwright.config_sources import ConfigSources

YAML = """\
policy: stall_free
max_num_seqs: 8
max_num_batched_tokens: 100
max_num_residents: null
prefix_cache:
  visible: scheduled
  reuse: uncached_first
"""
TOML = """\
policy = "stall_free"
max_num_seqs = 8
max_num_batched_tokens = 100

[prefix_cache]
visible = "scheduled"
reuse = "uncached_first"
"""


def _file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a.toml", TOML)])
def test_file_then_environment_then_set(tmp_path: Path, name: str, text: str) -> None:
    sources = ConfigSources()
    path = _file(tmp_path, name, text)
    sources.add_file(path)
    sources.add_environment(
        {
            "BATCHWRIGHT_SET_MAX_NUM_SEQS": "9",
            "BATCHWRIGHT_SET_PREFIX_CACHE__VISIBLE": "computed",
            "BATCHWRIGHT_SET_SEED": "3",
            "UNRELATED": "x",
        }
    )
    sources.add_set(["max_num_seqs=10", "detectors.starvation_s=1.5", "backend_options.gpu_memory_utilization=0.5"])
    config = sources.build()
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.seed) == (10, 100, 3)
    assert (config.prefix_cache.visible, config.prefix_cache.reuse) == ("computed", "uncached_first")
    assert config.detectors.starvation_s == 1.5
    assert config.backend_options == {"gpu_memory_utilization": 0.5}
    expected = {
        "policy": f"file {path}",
        "max_num_seqs": "--set max_num_seqs",
        "max_num_batched_tokens": f"file {path}",
        "prefix_cache.visible": "environment BATCHWRIGHT_SET_PREFIX_CACHE__VISIBLE",
        "prefix_cache.reuse": f"file {path}",
        "seed": "environment BATCHWRIGHT_SET_SEED",
        "detectors.starvation_s": "--set detectors.starvation_s",
        "backend_options.gpu_memory_utilization": "--set backend_options.gpu_memory_utilization",
    }
    if name != "a.toml":
        expected["max_num_residents"] = f"file {path}"
    assert sources.origins == expected


def test_values_are_yaml() -> None:
    sources = ConfigSources()
    sources.add_set(["plugins=[a, b]", "max_num_residents=null", "prefix_cache={enabled: false}", "policy=x:y=1,z=2"])
    config = sources.build()
    assert config.plugins == ["a", "b"] and config.max_num_residents is None and not config.prefix_cache.enabled
    assert config.policy == "x:y=1,z=2"
    assert "max_num_residents" in config.model_fields_set


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ({}, ["policy.decode_interleave=4"], {"use": "prefill_first", "decode_interleave": 4}),
        ({"policy": "stall_free"}, ["policy.chunk_size=8"], {"use": "stall_free", "chunk_size": 8}),
        ({"policy": "stall_free:chunk_size=4"}, ["policy.chunk_size=8"], {"use": "stall_free", "chunk_size": 8}),
        ({"policy": {"use": "stall_free", "chunk_size": 4}}, ["policy=vllm_v1"], "vllm_v1"),
        (
            {"policy": {"chunking": "stall_free"}},
            ["policy.admission=vllm_v1"],
            {"chunking": "stall_free", "admission": "vllm_v1"},
        ),
    ],
)
def test_parameters_of_a_policy_one_by_one(first: Any, then: list[str], expected: Any) -> None:
    sources = ConfigSources()
    sources.add_mapping(first, "file")
    sources.add_set(then)
    assert sources.build().policy == expected


@pytest.mark.parametrize("then", [{"use": "vllm_v1"}, {"admission": "vllm_v1"}])
def test_another_policy_brings_its_own_parameters(then: Any) -> None:
    for given in ({"use": "stall_free", "chunk_size": 4}, {"chunking": "stall_free"}):
        sources = ConfigSources()
        sources.add_mapping({"policy": given}, "file")
        sources.add_set([f"policy={then}"])
        assert sources.build().policy == then


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["max_num_seq=4"], "--set max_num_seq: unknown setting 'max_num_seq'; did you mean 'max_num_seqs'"),
        (["max_num_seqs"], "--set max_num_seqs: write it as field=value, as in --set max_num_seqs=64"),
        (["=4"], "unknown setting ''"),
        (["prefix_cache.visible.x=4"], "unknown setting 'prefix_cache.visible.x'; did you mean 'prefix_cache.visible'"),
    ],
)
def test_set_names_what_is_wrong(given: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ConfigSources().add_set(given)
    assert message in str(caught.value)


def test_an_environment_variable_of_no_setting() -> None:
    with pytest.raises(ConfigError) as caught:
        ConfigSources().add_environment({"BATCHWRIGHT_SET_MAX_SEQS": "4"})
    message = str(caught.value)
    assert "environment BATCHWRIGHT_SET_MAX_SEQS: unknown setting 'max_seqs'; did you mean 'max_num_seqs'" in message


def test_a_bad_value_names_its_source() -> None:
    sources = ConfigSources()
    sources.add_environment({"BATCHWRIGHT_SET_SEED": "-3"})
    sources.add_set(["max_num_seqs=none at all", "num_blocks=[1"], "--arm-set")
    with pytest.raises(ConfigError) as caught:
        sources.build()
    message = str(caught.value)
    assert "max_num_seqs is 'none at all'" in message and "seed is -3" in message and "num_blocks is '[1'" in message
    assert message.endswith("(--arm-set max_num_seqs, --arm-set num_blocks, environment BATCHWRIGHT_SET_SEED)")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "max_num_seqs: [1", "cannot be read"),
        ("a.toml", "max_num_seqs = ", "cannot be read"),
        ("a.toml", YAML, "cannot be read"),
        ("a.yaml", "- a\n- b\n", "must hold a mapping of settings, not list"),
        ("a.yaml", "just text", "must hold a mapping of settings, not str"),
        ("a.yaml", "max_num_seq: 3", "unknown key 'max_num_seq'; did you mean 'max_num_seqs'"),
        ("a.yaml", "seed: -1", "seed is -1"),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = _file(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        ConfigSources().add_file(path)
    assert str(caught.value).startswith(f"config file {path}") and message in str(caught.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        ConfigSources().add_file(tmp_path / "none.yaml")
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        ConfigSources().add_file(tmp_path / "a.yaml")


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    sources = ConfigSources()
    sources.add_file(_file(tmp_path, "a.yaml", "# nothing\n"))
    assert sources.values == {} and sources.origins == {}


def test_a_copy_is_its_own(tmp_path: Path) -> None:
    sources = ConfigSources()
    sources.add_file(_file(tmp_path, "a.yaml", YAML))
    arm = sources.copy()
    arm.add_set(["prefix_cache.visible=computed", "policy=vllm_v1"])
    assert sources.build().prefix_cache.visible == "scheduled" and sources.build().policy == "stall_free"
    assert arm.build().prefix_cache.visible == "computed" and arm.build().policy == "vllm_v1"
    assert sources.origins["policy"] != arm.origins["policy"]
