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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("policy", "must hold a mapping under 'batchwright'"),
        ({"batchwright": "vtc"}, "must hold a mapping under 'batchwright'"),
        ({"batchwright": {"polcy": "vtc"}}, "batchwright.polcy is no setting; did you mean 'policy'?"),
        ({"batchwright": {"block_size": 16}}, "batchwright.block_size: vLLM gives it; use vLLM's own option"),
        ({"batchwright": {"trust_requests": "perhaps"}}, "batchwright.trust_requests: "),
    ],
)
def test_what_is_wrong_is_named(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(given)
    assert said in str(caught.value)
