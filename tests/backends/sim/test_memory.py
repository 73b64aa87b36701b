"""KV pool sizes against figures computed by hand, and models that do not fit."""

from __future__ import annotations

import pytest

from batchwright.backend import BackendSettings
from batchwright.errors import ConfigError
from batchwright_backends.sim.backend import SimBackend
from batchwright_backends.sim.models import find_model


def num_blocks(target: str, **settings: object) -> int:
    return SimBackend(BackendSettings(target, **settings)).capacity().num_blocks  # type: ignore[arg-type]


def test_llama_8b_on_an_h100_by_hand() -> None:
    usable = int(81089 * 2**20 * 0.9)
    weights = 8_030_261_248 * 2
    # a token: 4 rows of 4096 and 3 of 14336, 2 bytes each; a request: 128256 logits, 12 bytes each
    reserve = 512 * 2**20 + 8192 * 2 * (4 * 4096 + 3 * 14336) + 256 * 128256 * 12
    block = 16 * 2 * 32 * 8 * 128 * 2  # 2 MiB
    assert block == 2 * 2**20
    assert num_blocks("llama-3.1-8b@h100") == (usable - weights - reserve) // block == 27923


def test_a_real_run_had_as_many_blocks() -> None:
    # vLLM 0.19.0 on an RTX 4090, as LLMServingSim recorded it: 2588 blocks
    assert num_blocks("llama-3.1-8b@rtx4090", max_num_batched_tokens=2048) == pytest.approx(2588, rel=0.02)


def test_tensor_parallel_splits_weights_and_kv() -> None:
    shape = find_model("llama-3.1-70b")
    assert shape.kv_bytes_per_token(4) * 4 == shape.kv_bytes_per_token(1)
    assert shape.kv_bytes_per_token(16) == shape.kv_bytes_per_token(8)  # a KV head held twice
    usable = int(81089 * 2**20 * 0.9)
    reserve = 512 * 2**20 + 8192 * 2 * (4 * 8192 + 3 * 28672 // 4) + 256 * 128256 * 12
    block = 16 * 2 * 80 * 2 * 128 * 2
    assert num_blocks("llama-3.1-70b@h100x4") == (usable - 70_553_706_496 * 2 // 4 - reserve) // block


def test_options_and_settings_go_before_what_memory_says() -> None:
    assert num_blocks("llama-3.1-8b@h100", num_blocks=100) == 100
    less = num_blocks("llama-3.1-8b@h100", options={"gpu_memory_utilization": 0.5})
    assert 0 < less < num_blocks("llama-3.1-8b@h100")
    coarse = SimBackend(BackendSettings("llama-3.1-8b@h100", block_size=256)).capacity()
    assert coarse.block_size == 256
    assert coarse.num_blocks == 27923 // 16


def test_a_model_that_fits_no_memory_is_refused_with_numbers_and_a_remedy() -> None:
    with pytest.raises(ConfigError) as refused:
        num_blocks("llama-3.1-70b@rtx4090")
    message = str(refused.value)
    assert "weights take 131.4 GiB" in message
    assert "21.2 GiB usable (23.5 GiB at gpu_memory_utilization 0.9)" in message
    assert "try rtx4090x8 or a GPU with more memory" in message
    assert num_blocks("llama-3.1-70b@rtx4090x8") > 0


def test_a_model_that_no_number_of_gpus_would_hold_is_not_told_to_try_one() -> None:
    with pytest.raises(ConfigError, match="try a GPU with more memory or a lower max_num_batched_tokens") as refused:
        num_blocks("smollm2-135m@t4", max_num_batched_tokens=2_000_000)
    assert "t4x" not in str(refused.value)


def test_a_longer_model_len_than_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_model_len 9000 is beyond what smollm2-135m was made for; at most 8192"):
        num_blocks("smollm2-135m@h100", max_model_len=9000)
    backend = SimBackend(BackendSettings("smollm2-135m@h100", max_model_len=4096))
    assert backend.capacity().max_model_len == 4096
    assert SimBackend(BackendSettings("smollm2-135m@h100")).capacity().max_model_len == 8192


def test_capacity_has_vocabulary_and_ends() -> None:
    capacity = SimBackend(BackendSettings("llama-3.1-8b@h100")).capacity()
    assert capacity.vocab_size == 128256
    assert capacity.eos_token_ids == (128001, 128008, 128009)
