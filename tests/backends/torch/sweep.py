"""Every architecture of a causal language model that transformers has: does it run, and with the tokens of generate()?

``make test-architectures`` runs it (some minutes; ARGS='llama gemma4' for some). For each model type a tiny model with
random weights is saved, loaded by the torch backend, and served in chunks, mixed batches, with a prefix hit and a
recompute, in float32. A model that is taken and gives other tokens than ``generate()`` is an error; one that is refused
is listed with the reason.
"""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers import logging as transformers_logging
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from backends.torch.driver import Driver, reference
from backends.torch.test_equality import prompts
from batchwright.backend import BackendSettings
from batchwright.errors import BatchwrightError
from batchwright_backends.torch.backend import TorchBackend

LIMIT_S = 120
MAX_PARAMETERS = 60_000_000
LENGTHS = (5, 23, 1, 60, 12)
NUM_TOKENS = 10

# What makes a model small, by the names that configs give it; those that a config does not have are left out.
SIZES = {
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "n_embed", "embedding_size", "word_embed_proj_dim", "dim"), 32
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "attention_head_dim", "kv_channels", "v_head_dim"), 8),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "decoder_ffn_dim", "d_ff"), 64),
    **dict.fromkeys(("intermediate_size_mlp", "mlp_intermediate_size", "shared_intermediate_size"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim", "rotary_emb_dim"), 4),
    **dict.fromkeys(("qk_nope_head_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "num_shared_experts", "n_shared_experts"), 1),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 199),
    "sliding_window": 9,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "num_kv_shared_layers": 1,
    "attn_logit_softcapping": 3.0,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
}
# Where a config says None by itself, these stay None.
OPTIONAL = ("sliding_window", "attn_logit_softcapping", "q_lora_rank", "rotary_dim", "max_window_layers")
# Left out one after another until the config takes what is left.
DOUBTFUL = ((), ("head_dim",), ("layer_types",), ("layer_types", "head_dim"), ("num_experts_per_tok",))


@dataclass(frozen=True)
class Finding:
    """What became of one model type: ``equal``, ``DIFFERENT``, ``refused``, ``FAILED`` or ``not made``."""

    word: str
    reason: str = ""


def tiny_config(config_type: Any, sizes: Mapping[str, Any] = SIZES) -> Any:
    """A small config of that type, its sub-configs too."""
    base = config_type()
    changes: dict[str, Any] = {}
    for name, value in sizes.items():
        with contextlib.suppress(Exception):  # some configs refuse to be read where layers differ
            now = getattr(base, name)
            if now is not None or name not in OPTIONAL:
                changes[name] = value
    if "kv_lora_rank" in changes:  # K and V of all heads come from one latent vector
        changes["num_key_value_heads"] = changes.get("num_attention_heads", 4)
        changes.pop("head_dim", None)
    if types := getattr(base, "layer_types", None):
        kinds = list(dict.fromkeys(types))
        changes["layer_types"] = [kinds[i % len(kinds)] for i in range(3)] + [types[-1]]
    for name, sub in getattr(config_type, "sub_configs", {}).items():
        if getattr(base, name, None) is not None and isinstance(sub, type):
            changes[name] = tiny_config(type(getattr(base, name)), VISION if "vision" in name else sizes).to_dict()
    for doubtful in DOUBTFUL:
        with contextlib.suppress(Exception):
            return config_type(**{name: value for name, value in changes.items() if name not in doubtful})
    return config_type(**changes)


def tiny_model(config: Any) -> Any:
    """A model in which everything matters: what is constant before training is random here."""
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"it has {size / 1e6:.0f} million parameters: its config has sizes by other names")
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() <= 1:
            parameter.data += 0.1 * torch.randn(parameter.shape)
        elif float(parameter.detach().std()) < 0.05:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    return model


def try_type(model_type: str) -> Finding:
    """Make, load and run one."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            tiny_model(tiny_config(CONFIG_MAPPING[model_type])).save_pretrained(folder)
        except Exception as error:
            return Finding("not made", _line(error))
        try:
            backend = TorchBackend.create("cpu", BackendSettings(folder, block_size=4, num_blocks=128))
        except BatchwrightError as error:
            return Finding("refused", str(error).replace(f"model {folder} ", ""))
        try:
            driver = Driver(backend)
            requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts(LENGTHS))]
            driver.run(requests[:4], NUM_TOKENS // 2, 7, stagger=2)
            driver.evict(requests[1])
            twin = driver.request("twin", requests[3].prompt_token_ids)
            driver.share(requests[3], twin)
            driver.run([twin, *requests], NUM_TOKENS, 8)
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            ).eval()
            wrong = [
                r.request_id
                for r in [*requests, twin]
                if r.output_token_ids != reference(model, r.prompt_token_ids, NUM_TOKENS)
            ]
        except Exception as error:
            return Finding("FAILED", _line(error))
        return Finding("DIFFERENT", f"requests {', '.join(wrong)}") if wrong else Finding("equal")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"it took more than {LIMIT_S} s")


def main(model_types: list[str]) -> int:
    """Try the types named, or all; returns the exit code."""
    warnings.simplefilter("ignore")
    quiet: Any = transformers_logging
    quiet.set_verbosity(logging.CRITICAL)
    quiet.disable_progress_bar()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    counts: dict[str, int] = {}
    for model_type in model_types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        signal.alarm(LIMIT_S)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                finding = try_type(model_type)
        except Exception as error:
            finding = Finding("FAILED", _line(error))
        finally:
            signal.alarm(0)
        counts[finding.word] = counts.get(finding.word, 0) + 1
        print(f"{model_type:24} {finding.word:10} {finding.reason[:200]}".rstrip(), flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return int(bool({"DIFFERENT", "FAILED"} & set(counts)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
