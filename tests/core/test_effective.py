"""Settings in force: the config's, else the policy's, else the defaults; each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from batchwright import ConfigError, Engine, EngineConfig, Limits, PluginError, Policy, PrefixCache
from batchwright.active_policy import ActivePolicy
from batchwright.effective import Effective, effective_settings
from batchwright.plugins import load_plugins
from batchwright.resolve import resolve_policy
from fake_plugins import fake_entry
from toolbox import make_engine


def _effective(values: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> Effective:
    config = EngineConfig.parse(values)
    return effective_settings(config, resolve_policy(config.policy), origins)


def test_a_policy_fills_what_the_config_leaves_unset() -> None:
    effective = _effective({"policy": "vllm_v1", "max_num_seqs": 12})
    assert effective.limits == Limits(12, 8192, 12, None)
    assert effective.prefix_cache == PrefixCache(True, "scheduled", "uncached_first", "oldest")
    assert effective.values["max_num_residents"] == 12
    assert effective.origins["max_num_residents"] == "policy vllm_v1"
    assert effective.origins["prefix_cache.visible"] == "policy vllm_v1"
    assert effective.origins["max_num_seqs"] == "config"
    assert effective.origins["max_num_batched_tokens"] == effective.origins["prefix_cache.enabled"] == "default"


def test_the_config_wins_over_the_policy() -> None:
    origins = {"prefix_cache.visible": "file x", "max_num_residents": "--set max_num_residents"}
    effective = _effective(
        {"policy": "vllm_v1", "max_num_residents": 40, "prefix_cache": {"visible": "computed"}}, origins
    )
    assert effective.limits.max_num_residents == 40
    assert effective.prefix_cache == PrefixCache(True, "computed", "uncached_first", "oldest")
    assert effective.origins["prefix_cache.visible"] == "file x"
    assert effective.origins["max_num_residents"] == "--set max_num_residents"


def test_an_explicit_null_is_a_value() -> None:
    effective = _effective({"policy": "vllm_v1", "max_num_residents": None})
    assert effective.limits.max_num_residents is None
    assert effective.origins["max_num_residents"] == "config"


def test_every_setting_is_there_with_a_source_and_the_policy_with_all_parameters() -> None:
    effective = _effective({"policy": "stall_free"})
    assert set(effective.values) == set(effective.origins)
    assert effective.values["policy"] == {"use": "stall_free", "chunk_size": 512}
    composite = _effective({"policy": {"admission": "vllm_v1", "chunking": {"use": "stall_free", "chunk_size": 9}}})
    assert composite.values["policy"] == {
        "admission": {"use": "vllm_v1", "scheduling_policy": "fcfs", "long_prefill_token_threshold": None},
        "chunking": {"use": "stall_free", "chunk_size": 9},
    }


class Wants(Policy):
    """Declares defaults."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        super().__init__()
        self._defaults = defaults

    def defaults(self, limits: Limits) -> Mapping[str, Any]:
        return self._defaults


def test_policies_that_want_different_things_leave_the_choice_to_the_config() -> None:
    parts = {"admission": ("one", Wants({"max_num_seqs": 3})), "chunking": ("two", Wants({"max_num_seqs": 4}))}
    with pytest.raises(PluginError) as caught:
        effective_settings(EngineConfig(), ActivePolicy(parts))
    assert "policies 'one' and 'two' want different defaults for max_num_seqs (3, 4)" in str(caught.value)
    assert "set max_num_seqs in the config" in str(caught.value)


def test_and_once_it_chooses_they_do_not_quarrel() -> None:
    parts = {"admission": ("one", Wants({"max_num_seqs": 3})), "chunking": ("two", Wants({"max_num_seqs": 4}))}
    assert effective_settings(EngineConfig(max_num_seqs=5), ActivePolicy(parts)).limits.max_num_seqs == 5


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"max_num_seq": 4}, "policy 'wants' declares a default for 'max_num_seq'.*did you mean 'max_num_seqs'"),
        ({"seed": 5}, "declares a default for 'seed': policies have a say in limits and in the prefix cache only"),
        ({"block_size": 32}, "declares a default for 'block_size'"),
        ({"policy": "vllm_v1"}, "declares a default for 'policy'"),
        ({"max_num_residents": 0}, "a default of policy 'wants' cannot be: max_num_residents must be a whole number"),
        ({"prefix_cache.visible": "x"}, "a default of policy 'wants' cannot be: prefix_cache.visible must be one of"),
    ],
)
def test_defaults_that_cannot_be(defaults: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_engine(Wants(defaults))


def test_the_backend_is_made_for_the_limits_in_force() -> None:
    installed, made = load_plugins(), []
    installed.backends["fake"] = fake_entry(made)
    config = EngineConfig(backend="fake:x", seed=4, num_blocks=20, block_size=8, backend_options={"a": 1})
    engine = Engine(config, policy=Wants({"max_num_seqs": 3, "max_num_batched_tokens": 77}), installed=installed)
    asked = vars(made[0])["settings"]
    assert (asked.target, asked.seed, asked.num_blocks, asked.block_size) == ("x", 4, 20, 8)
    assert (asked.max_num_seqs, asked.max_num_batched_tokens, asked.options) == (3, 77, {"a": 1})
    assert engine.limits.max_num_seqs == 3
