"""The config tree: what it takes, and what it says of what it does not take."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright import ConfigError, EngineConfig
from batchwright.config import field_names


def test_defaults() -> None:
    config = EngineConfig.parse({})
    assert config == EngineConfig()
    assert (config.policy, config.max_num_seqs, config.max_num_batched_tokens) == ("prefill_first", 256, 8192)
    assert (config.max_num_residents, config.num_blocks, config.seed) == (None, None, 0)
    assert config.prefix_cache.enabled and config.detectors.starvation_passes == 1000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_num_seq": 4}, "unknown key 'max_num_seq'; did you mean 'max_num_seqs'"),
        ({"prefix_cache": {"visable": "x"}}, "unknown key 'prefix_cache.visable'; did you mean 'prefix_cache.visible'"),
        ({"detectors": {"starvation": 1}}, "unknown key 'detectors.starvation'; did you mean"),
        ({"colour": "red"}, "unknown key 'colour'; choices: backend, backend_options"),
        ({1: 2}, "1 is 1: Keys should be strings"),
    ],
)
def test_unknown_keys_get_the_nearest_valid_name(values: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.parse(values, "config file x.yaml")
    assert str(caught.value).startswith("config file x.yaml: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0: Input should be greater than or equal to 1"),
        ({"max_num_seqs": "many"}, "max_num_seqs is 'many': Input should be a valid integer"),
        ({"max_num_seqs": 4.5}, "max_num_seqs is 4.5"),
        ({"max_num_seqs": None}, "max_num_seqs is None"),
        ({"max_model_len": 1}, "max_model_len is 1: Input should be greater than or equal to 2"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"prefix_cache": {"visible": "x"}}, "prefix_cache.visible is 'x': Input should be 'computed' or 'scheduled'"),
        ({"prefix_cache": 5}, "prefix_cache is 5"),
        ({"on_policy_error": "ignore"}, "on_policy_error is 'ignore': Input should be 'raise' or 'fallback'"),
        ({"on_backend_error": "ignore"}, "Input should be 'fail' or 'retry'"),
        ({"detectors": {"thrash_share": 2}}, "detectors.thrash_share is 2"),
        ({"plugins": "tracer"}, "plugins is 'tracer': Input should be a valid list"),
        ({"policy": ""}, "policy is '': Value error, it is empty: name a policy"),
        ({"policy": {}}, "policy is {}"),
    ],
)
def test_values_out_of_their_range_are_named_with_what_is_allowed(values: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.parse(values)
    assert message in str(caught.value)


def test_a_policy_that_is_neither_a_name_nor_a_mapping() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.parse({"policy": ["a"]})
    assert "policy is ['a']" in str(caught.value) and "policy.str" not in str(caught.value)


def test_several_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.parse({"max_num_seqs": 0, "sed": 3, "prefix_cache": {"reuse": "never"}})
    for part in ("max_num_seqs is 0", "unknown key 'sed'; did you mean 'seed'", "prefix_cache.reuse is 'never'"):
        assert part in str(caught.value)


def test_a_config_never_changes() -> None:
    with pytest.raises(Exception, match="frozen"):
        EngineConfig().max_num_seqs = 3  # type: ignore[misc]


def test_every_field_is_described() -> None:
    schema = EngineConfig.model_json_schema()
    trees = [schema, *schema["$defs"].values()]
    assert [n for t in trees for n, f in t["properties"].items() if not f.get("description")] == []
    names = field_names(EngineConfig)
    assert len(names) == len(set(names)) and {"policy", "prefix_cache.visible", "detectors.thrash_steps"} <= set(names)
