"""Shapes from a transformers config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchwright.errors import ConfigError
from batchwright_backends.sim.models import find_model
from batchwright_backends.sim.target import parse_target

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": [0, 2],
}


def write(folder: Path, config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("as_file", [True, False])
def test_a_folder_or_its_file_gives_what_the_catalogue_has(tmp_path: Path, as_file: bool) -> None:
    folder = write(tmp_path, LLAMA)
    shape = find_model(str(folder / "config.json" if as_file else folder))
    known = find_model("smollm2-135m")
    assert shape.model_dump(exclude={"name", "source"}) == known.model_dump(exclude={"name", "source"})
    assert shape.name == tmp_path.name


def test_a_path_is_a_model_in_a_target(tmp_path: Path) -> None:
    machine = parse_target(f"{write(tmp_path, LLAMA)}/config.json@h100x3")
    assert machine.shape.num_hidden_layers == 30
    assert machine.tensor_parallel == 3


def test_gpt2_has_its_own_key_names(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024}
    shape = find_model(str(write(tmp_path, {**config, "vocab_size": 50257, "eos_token_id": 50256})))
    assert (shape.num_key_value_heads, shape.head_dim, shape.intermediate_size) == (12, 64, 3072)
    assert (shape.max_position_embeddings, shape.eos_token_ids) == (1024, (50256,))
    assert shape.tie_word_embeddings
    assert not shape.gated_mlp
    # 124.4 million as published, with learned positions (0.8) and biases (0.1) that are not counted here
    assert shape.num_parameters == pytest.approx(123.5e6, rel=0.005)


def test_experts(tmp_path: Path) -> None:
    config = {
        **LLAMA,
        "model_type": "qwen2_moe",
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "mlp_only_layers": [0, 1],
        "attention_bias": False,
    }
    shape = find_model(str(write(tmp_path, config)))
    assert (shape.num_experts, shape.num_experts_per_tok, shape.moe_intermediate_size) == (60, 4, 1408)
    assert shape.shared_expert_intermediate_size == 5632
    assert shape.num_moe_layers == 28


@pytest.mark.parametrize(
    ("extra", "window", "num_sliding"),
    [
        ({"sliding_window": 4096}, 4096, 30),
        ({"sliding_window": None}, None, 0),
        ({"sliding_window": 4096, "use_sliding_window": False}, None, 0),
        ({"sliding_window": 4096, "layer_types": ["sliding_attention", "full_attention"] * 15}, 4096, 15),
        ({"sliding_window": 512, "model_type": "gemma2"}, 512, 15),
        ({"sliding_window": 512, "sliding_window_pattern": 6}, 512, 25),
        ({"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 20}, 512, 10),
    ],
)
def test_sliding_windows(tmp_path: Path, extra: dict[str, Any], window: int | None, num_sliding: int) -> None:
    shape = find_model(str(write(tmp_path, {**LLAMA, **extra})))
    assert (shape.sliding_window, shape.num_sliding_layers) == (window, num_sliding)


def test_a_multimodal_model_gives_its_language_model(tmp_path: Path) -> None:
    shape = find_model(str(write(tmp_path, {"model_type": "llava", "text_config": LLAMA})))
    assert shape.num_hidden_layers == 30


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA, "is_encoder_decoder": True}, "it has an encoder"),
        ({**LLAMA, "kv_lora_rank": 512}, "multi-head latent attention"),
        ({**LLAMA, "quantization_config": {"bits": 4}}, "its weights are quantised"),
        ({**LLAMA, "linear_num_value_heads": 32}, "keep a state instead of K and V"),
        ({**LLAMA, "torch_dtype": "int8"}, "dtype 'int8' is not modelled; choices: bfloat16, float16, float32"),
        ({**LLAMA, "num_key_value_heads": 2}, "must be a multiple of num_key_value_heads (2)"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "hidden_size should be a whole number and is None"),
        (["llama"], "holds no JSON object"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_model(str(write(tmp_path, config)))
    assert message in str(refused.value)
    assert "config.json" in str(refused.value)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config.json; give the path"):
        find_model(str(tmp_path))


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as a config"):
        find_model(str(tmp_path))
