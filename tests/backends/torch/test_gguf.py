"""GGUF files: the tokens of the same model in transformers' format, in every type of weights that a writer can make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.torch.conftest import VOCABULARY, config_of
from backends.torch.driver import Driver
from backends.torch.test_equality import NUM_TOKENS, check, prompts
from batchwright.errors import BackendError

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate", reason="transformers loads GGUF files with it")

Make = Callable[..., Any]
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTER = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}


def in_gguf(name: str) -> str:
    if name in OUTER:
        return f"{OUTER[name]}.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def interleaved(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Rows of Q or K as GGUF orders them: the halves of each head's rotation beside each other."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """Writes a tiny Llama with weights of that type; gives the GGUF file, and the same model as a folder."""
    from transformers import AutoModelForCausalLM

    def write_file(kind: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp(kind)
        config = config_of("llama", tie_word_embeddings=False)
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config)
        writer: Any = gguf.GGUFWriter(folder / "tiny.gguf", "llama")
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
        writer.add_vocab_size(VOCABULARY)
        type_ = gguf.GGMLQuantizationType[kind]
        state = model.state_dict()
        for name, tensor in state.items():
            weight = tensor.numpy()
            if weight.ndim == 1:  # norms stay as they are in every file
                writer.add_tensor(in_gguf(name), weight)
                continue
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
            count = heads.get(name.split(".")[-2])
            stored = gguf.quants.quantize(weight if count is None else interleaved(weight, count), type_)
            writer.add_tensor(in_gguf(name), stored, raw_dtype=type_)
            state[name] = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight, type_), type_))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        model.load_state_dict(state)
        model.save_pretrained(folder / "same")
        return folder / "tiny.gguf", str(folder / "same")

    return write_file


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_tokens_of_the_same_model(kind: str, write: Make, make_backend: Make, load_reference: Make) -> None:
    file, same = write(kind)
    driver = Driver(make_backend(str(file), dtype="float32"))
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, NUM_TOKENS, chunk=7, stagger=2)
    check(driver, load_reference(same), requests)


def test_in_half_precision(write: Make, make_backend: Make) -> None:
    file, _ = write("Q8_0")
    for dtype in ("bfloat16", "float16"):
        backend = make_backend(str(file), dtype=dtype)
        assert {p.dtype for p in backend.model.parameters()} == {getattr(torch, dtype)}
        driver = Driver(backend)
        driver.run([driver.request("a", prompts()[1])], 3, chunk=5)
        assert not driver.failed


def test_what_is_no_gguf(tmp_path: Path, make_backend: Make) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 60)
    with pytest.raises(BackendError, match=r"model .*broken.gguf cannot be loaded \(.*gguf and accelerate installed"):
        make_backend(str(tmp_path / "broken.gguf"))
