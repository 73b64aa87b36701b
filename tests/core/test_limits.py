from __future__ import annotations

from typing import Any

import pytest

from batchwright import ConfigError, Limits


def test_defaults() -> None:
    assert Limits() == Limits(256, 8192, None, None)
    Limits(1, 1, 1, 1)


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_num_residents", "max_model_len"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True])
def test_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a whole number of at least 1, not {value!r}"):
        Limits(**{name: value})


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
def test_a_step_is_always_bounded(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: None})
