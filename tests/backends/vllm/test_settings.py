"""What stands in vLLM's ``additional_config``; vLLM is not needed for it."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError
from batchwright_backends.vllm.settings import read_settings


def test_what_is_left_out_has_its_default() -> None:
    own, values = read_settings({"other": 1})
    assert not own.trust_requests and values == {}


def test_settings_of_an_engine_go_through() -> None:
    own, values = read_settings({"batchwright": {"policy": "vtc", "seed": 3, "trust_requests": True}})
    assert own.trust_requests
    assert EngineConfig.parse(dict(values)).seed == 3


def test_every_setting_of_an_engine_is_heard_or_refused() -> None:
    """What would change nothing is not taken in silence; a new setting has to be put on one side."""
    heard = {
        *("policy", "predict", "plugins", "no_plugins", "prefix_cache", "max_num_residents", "detectors", "seed"),
        *("strict", "on_policy_error", "fallback_policy"),
    }
    for name, field in EngineConfig.model_fields.items():
        section = {"batchwright": {name: {} if name == "prefix_cache" else field.default}}
        if name in heard:
            assert name in read_settings(section)[1]
        else:
            with pytest.raises(ConfigError, match=f"batchwright.{name}"):
                read_settings(section)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("policy", "must hold a mapping under 'batchwright'"),
        ({"batchwright": "vtc"}, "must hold a mapping under 'batchwright'"),
        ({"batchwright": {"polcy": "vtc"}}, "batchwright.polcy is no setting; did you mean 'policy'?"),
        ({"batchwright": {"block_size": 16}}, "batchwright.block_size: vLLM gives it; use vLLM's own option"),
        (
            {"batchwright": {"overlap": True}},
            "batchwright.overlap says nothing inside vLLM: whether a step",
        ),
        (
            {"batchwright": {"replicas": 4}},
            "batchwright.replicas says nothing inside vLLM: run a server",
        ),
        (
            {"batchwright": {"prefix_cache": {"enabled": True}}},
            "prefix_cache.enabled: vLLM gives it; use --enable",
        ),
        ({"batchwright": {"trust_requests": "perhaps"}}, "batchwright.trust_requests: "),
    ],
)
def test_what_is_wrong_is_named(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(given)
    assert said in str(caught.value)
