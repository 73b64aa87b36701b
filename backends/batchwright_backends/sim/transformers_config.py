"""Reads a model's shape from a transformers ``config.json``, without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchwright.errors import ConfigError
from batchwright_backends.sim.checked import check
from batchwright_backends.sim.shape import ModelShape

# What a configuration leaves unsaid is its class's default; these are the classes whose default is not the usual one.
_TIED = {"gpt2", "gemma", "gemma2", "gemma3", "gemma3_text", "opt", "bloom", "falcon", "gpt_bigcode", "starcoder2"}
_UNGATED = {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "gpt_bigcode", "starcoder2"}
_QKV_BIAS = {"gpt2", "opt", "bloom", "phi", "gpt_bigcode", "starcoder2", "qwen2", "qwen2_moe"}
_QK_NORM = {"qwen3", "qwen3_moe", "gemma3", "gemma3_text"}

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_REQUIRED = "config.json of a decoder-only transformer"


def read_shape(path: Path) -> ModelShape:
    """The shape of the model that a configuration describes.

    Args:
        path: a ``config.json``, or a folder that holds one.

    Raises:
        ConfigError: no such file, no JSON, or an architecture whose cost is not modelled here.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = f"the folder {str(path)!r} holds no config.json" if path.is_dir() else f"there is no file {str(file)!r}"
        raise ConfigError(f"{hint}; give the path of a {_REQUIRED}, or a model's name") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{str(file)!r} cannot be read as a {_REQUIRED}: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{str(file)!r} holds no JSON object; a {_REQUIRED} is one")
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return shape_of(config, name, str(file))


def shape_of(config: Mapping[str, Any], name: str, where: str) -> ModelShape:
    """The shape that a configuration's values give; ``where`` names them in messages."""
    if isinstance(config.get("text_config"), dict):  # the language model inside a multimodal one
        config = {**config, **config["text_config"]}
    _refuse_unmodelled(config, where)
    kind = str(config.get("model_type", ""))

    def first(*keys: str, default: Any = None) -> Any:
        return next((config[k] for k in keys if config.get(k) is not None), default)

    def need(*keys: str) -> int:
        value = first(*keys)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{where}: {keys[0]} should be a whole number and is {value!r}; is it a {_REQUIRED}?")
        return value

    hidden, heads = need("hidden_size", "n_embd", "d_model"), need("num_attention_heads", "n_head")
    layers = need("num_hidden_layers", "n_layer", "num_layers")
    if kind == "falcon" and config.get("multi_query"):
        kv_heads = first("num_kv_heads") if config.get("new_decoder_architecture") else 1
    else:
        kv_heads = first("num_key_value_heads", default=heads)
    inner = first("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=4 * hidden)
    experts = first("num_local_experts", "num_experts", "n_routed_experts", default=0)
    expert_inner = first("moe_intermediate_size", default=inner)
    window, num_sliding = _sliding(config, kind, layers)
    eos = config.get("eos_token_id")
    values = {
        "name": name,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": first("head_dim", default=hidden // heads),
        "intermediate_size": inner,
        "vocab_size": need("vocab_size"),
        "max_position_embeddings": first("max_position_embeddings", "n_positions", "max_seq_len", default=2048),
        "tie_word_embeddings": first("tie_word_embeddings", default=kind in _TIED),
        "gated_mlp": kind not in _UNGATED,
        "attention_bias": bool(first("attention_bias", "qkv_bias", default=kind in _QKV_BIAS)),
        "qk_norm": kind in _QK_NORM,
        "num_experts": experts,
        "num_experts_per_tok": first("num_experts_per_tok", default=0) if experts else 0,
        "moe_intermediate_size": expert_inner if experts else 0,
        "shared_expert_intermediate_size": _shared(config, expert_inner) if experts else 0,
        "num_dense_layers": _dense(config, layers) if experts else 0,
        "sliding_window": window,
        "num_sliding_layers": num_sliding,
        "dtype_bytes": _dtype_bytes(first("dtype", "torch_dtype", default="bfloat16"), where),
        "eos_token_ids": [] if eos is None else eos if isinstance(eos, list) else [eos],
        "source": where,
    }
    return check(ModelShape, values, where)


def _refuse_unmodelled(config: Mapping[str, Any], where: str) -> None:
    reason = None
    if config.get("is_encoder_decoder"):
        reason = "it has an encoder"
    elif config.get("kv_lora_rank"):
        reason = "its attention is multi-head latent attention (kv_lora_rank)"
    elif config.get("quantization_config"):
        reason = "its weights are quantised (quantization_config); give the unquantised model's config.json"
    elif "ssm_cfg" in config or "mamba_d_state" in config or "linear_num_value_heads" in config:
        reason = "some of its layers keep a state instead of K and V"
    if reason:
        raise ConfigError(f"{where}: the cost model does not cover this model: {reason}")


def _dtype_bytes(dtype: Any, where: str) -> int:
    size = _DTYPE_BYTES.get(str(dtype).removeprefix("torch."))
    if size is None:
        raise ConfigError(f"{where}: dtype {dtype!r} is not modelled; choices: {', '.join(sorted(_DTYPE_BYTES))}")
    return size


def _sliding(config: Mapping[str, Any], kind: str, layers: int) -> tuple[int | None, int]:
    """Window, and how many layers have it."""
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return None, 0
    if isinstance(config.get("layer_types"), list):
        return window, sum(t == "sliding_attention" for t in config["layer_types"])
    if kind == "gemma2":
        return window, (layers + 1) // 2
    if pattern := config.get("sliding_window_pattern"):
        return window, layers - layers // pattern
    if "max_window_layers" in config:  # Qwen2: the layers from this one on
        return window, max(0, layers - config["max_window_layers"])
    return window, layers


def _shared(config: Mapping[str, Any], expert_inner: int) -> int:
    if config.get("shared_expert_intermediate_size"):
        return int(config["shared_expert_intermediate_size"])
    return int(config.get("n_shared_experts") or 0) * expert_inner


def _dense(config: Mapping[str, Any], layers: int) -> int:
    """Layers of a mixture-of-experts model that have no experts."""
    if config.get("first_k_dense_replace"):
        return int(config["first_k_dense_replace"])
    step = int(config.get("decoder_sparse_step") or 1)
    dense = set(config.get("mlp_only_layers") or ())
    return sum(i in dense or (i + 1) % step != 0 for i in range(layers))
