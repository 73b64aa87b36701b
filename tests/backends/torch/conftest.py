from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is first imported

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytest.importorskip("transformers", reason="the extra 'torch' is not installed")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported

VOCABULARY = 199


@pytest.fixture(autouse=True)
def _one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models gain nothing from a second thread, and lose much where other work has the cores."""
    before = torch.get_num_threads()
    if "smollm2_folder" not in request.fixturenames:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Tiny models with random weights. The large initializer_range keeps the two best logits apart, so that greedy tokens do
# not hang on rounding; windows, caps and sinks are such that they matter at these lengths.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": 9},
    "gemma": {"head_dim": 8},
    "gemma2": {
        "head_dim": 8,
        "query_pre_attn_scalar": 24,
        "sliding_window": 9,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 20.0,
    },
    "gemma3_text": {
        "head_dim": 8,
        "query_pre_attn_scalar": 24,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "phi3": {"sliding_window": 9},
    "gpt2": {"n_inner": 64, "n_positions": 256},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "gpt_neox": {},
    "mixtral": {"sliding_window": 9, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "cohere": {},
    "cohere2": {
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "olmo2": {},
    "granite": {"attention_multiplier": 0.4, "residual_multiplier": 0.9, "logits_scaling": 2.0},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "gpt_oss": {
        "head_dim": 8,
        "sliding_window": 9,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "topk_group": 1,
    },
    "falcon": {"new_decoder_architecture": False, "multi_query": True, "ffn_hidden_size": 64},
    "bloom": {"n_head": 4},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
}
REFUSED = ("falcon", "bloom", "lfm2")
ARCHITECTURES = tuple(name for name in CONFIGS if name not in REFUSED)
# One of each kind, where a test has more to vary than the model: plain, a window, windows by layer with caps, sinks,
# K and V of different width, positions that are learned.
FEW = ("llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "gpt2")


def config_of(name: str, **changes: Any) -> Any:
    from transformers import AutoConfig

    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return AutoConfig.for_model(name, **{**common, **CONFIGS[name], **changes})


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model, by architecture; made when first asked for."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            from transformers import AutoModelForCausalLM

            torch.manual_seed(7)
            model = AutoModelForCausalLM.from_config(config_of(name))
            made[name] = tmp_path_factory.mktemp(name)
            model.save_pretrained(made[name])
        return made[name]

    return folder


@pytest.fixture
def make_backend(folders: Callable[[str], Path]) -> Callable[..., Any]:
    """Makes a ``cpu`` backend of a tiny model: ``make_backend("llama", num_blocks=40, dtype="bfloat16")``."""

    def make(name: str, **settings: Any) -> Any:
        from batchwright.backend import BackendSettings
        from batchwright_backends.torch.backend import TorchBackend

        known = {"block_size": 4, "num_blocks": 128}
        sizes = ("block_size", "num_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
        known.update({k: settings.pop(k) for k in sizes if k in settings})
        target = name if "/" in name else str(folders(name))
        return TorchBackend.create("cpu", BackendSettings(target, options=settings, **known))

    return make


@pytest.fixture
def make_plain(make_backend: Callable[..., Any]) -> Callable[..., Any]:
    """Like ``make_backend``, with nothing done for the CPU: for tests that put another kernel or device in place."""

    def make(name: str, **settings: Any) -> Any:
        return make_backend(name, **{"attention": "sdpa", "passes": [], **settings})

    return make


@pytest.fixture(scope="session")
def load_reference(folders: Callable[[str], Path]) -> Callable[[str], Any]:
    """The same model as transformers runs it by itself, float32; loaded once a session."""
    loaded: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in loaded:
            from transformers import AutoModelForCausalLM

            # Eager is the only attention of transformers that knows every architecture's windows and caps.
            model = AutoModelForCausalLM.from_pretrained(
                name if "/" in name else folders(name), dtype=torch.float32, attn_implementation="eager"
            )
            loaded[name] = model.eval()
        return loaded[name]

    return load


@pytest.fixture(scope="session")
def smollm2_folder() -> str:
    """The real model; fetched where it is not there."""
    from batchwright.errors import BackendError, ConfigError
    from batchwright_backends.torch import models

    try:
        return str(models.ensure_model("smollm2-135m"))
    except (BackendError, ConfigError) as error:
        pytest.skip(f"SmolLM2-135M cannot be had: {error}")


@pytest.fixture
def make_kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes attention kernels over stand-ins, as steps that become graphs need them."""
    from backends.torch.graphing import kernel_maker

    return kernel_maker(monkeypatch)
