"""What is refused, and how: models that cannot be run here, settings out of range, results that must not be used."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.torch.conftest import VOCABULARY, config_of
from backends.torch.driver import Driver
from backends.torch.test_equality import NUM_TOKENS, prompts
from batchwright.backend import BackendSettings
from batchwright.errors import BackendError, ConfigError
from batchwright.sampling_params import SamplingParams
from batchwright_backends.torch import memory, plugin, probe
from batchwright_backends.torch.attention import ATTENTION
from batchwright_backends.torch.backend import TorchBackend
from batchwright_backends.torch.dtypes import choose_dtype

Make = Callable[..., Any]


def create(target: str, device: str = "cpu", options: dict[str, Any] | None = None, **settings: Any) -> TorchBackend:
    return TorchBackend.create(device, BackendSettings(target, options=options or {}, **settings))


# Models -------------------------------------------------------------------------------------------------------


# Version 4 of transformers warns that BLOOM knows no position_ids, and is refused all the same.
@pytest.mark.filterwarnings("ignore:`position_ids` have no functionality in BLOOM")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("falcon", ["falcon", "does not take a function from transformers' attention interface"]),
        ("bloom", ["BloomForCausalLM", "0 of its 3 layers called"]),
        ("lfm2", ["lfm2", "'conv': layers 0, 2"]),
    ],
)
def test_models_that_cannot_be_paged_are_refused(name: str, words: list[str], make_backend: Make) -> None:
    with pytest.raises(BackendError) as caught:
        make_backend(name)
    for word in words:
        assert word in str(caught.value)


def test_arguments_that_no_kernel_knows_are_refused() -> None:
    q = torch.zeros(1, 2, 3, 4)
    for name, words in (("position_bias", "a position bias"), ("alibi", "ALiBi"), ("head_mask", "a mask of heads")):
        with pytest.raises(BackendError, match=rf"layer 0 wants {words}.* \({name}\), which no attention kernel here"):
            probe.Probe().attend(torch.nn.Identity(), q, q, q, **{name: torch.ones(1)})
    with pytest.raises(BackendError, match="layer 0 is not causal"):
        probe.Probe().attend(torch.nn.Identity(), q, q, q, is_causal=False)


def test_an_encoder_decoder_is_refused() -> None:
    from transformers import T5Config

    with pytest.raises(BackendError, match="encoder-decoder"):
        probe.refuse_other_states(T5Config(), "it")


def test_a_window_that_is_not_passed_on_is_refused(make_plain: Make) -> None:
    backend = make_plain("llama")
    backend.model.config.sliding_window = 64
    with pytest.raises(BackendError, match="layer 0 attends to a window of 64 tokens, but it does not tell"):
        probe.run(backend.model, 4)


def test_a_model_that_does_more_than_its_attention_call_is_refused(
    make_backend: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison of logits at load: a layer here adds something that only its own attention sees."""
    from transformers.models.llama import modeling_llama

    eager = modeling_llama.eager_attention_forward

    def biased(module: Any, query: Any, key: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        bias = -0.3 * torch.arange(key.shape[2]).flip(0).float()
        return eager(module, query, key, value, mask + bias, *args, **kwargs)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", biased)
    for dtype in ("float32", "bfloat16", "float16"):
        with pytest.raises(BackendError, match="computes other logits with paged attention"):
            make_backend("llama", dtype=dtype)
    assert make_backend("llama", check_logits=False).model.config._attn_implementation == ATTENTION


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_half_precision_runs(name: str, dtype: str, make_backend: Make) -> None:
    driver = Driver(make_backend(name, dtype=dtype))
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, 5, chunk=7)
    assert driver.backend.runner.cache.keys[0].dtype == getattr(torch, dtype)
    assert not driver.failed


def test_a_model_called_by_somebody_else(make_backend: Make) -> None:
    with pytest.raises(BackendError, match="called outside a step"):
        make_backend("llama").model(torch.tensor([[1, 2]]))


def test_frequencies_that_depend_on_the_batch(tmp_path: Path, make_backend: Make) -> None:
    """Under dynamic RoPE one long request changes the others' positions: length is limited to where it does not."""
    from transformers import AutoModelForCausalLM

    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    AutoModelForCausalLM.from_config(config_of("llama", rope_parameters=rope)).save_pretrained(tmp_path)
    assert make_backend(str(tmp_path)).capacity().max_model_len == 64
    assert make_backend(str(tmp_path), max_model_len=50).capacity().max_model_len == 50
    with pytest.raises(ConfigError, match="depends on the longest request of the batch: give at most 64"):
        make_backend(str(tmp_path), max_model_len=65)


def test_end_of_sequence_comes_from_the_generation_config(tmp_path: Path, folders: Make, make_backend: Make) -> None:
    shutil.copytree(folders("llama"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 9]}))
    assert make_backend(str(tmp_path)).capacity().eos_token_ids == (5, 9)
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": 7}))
    assert make_backend(str(tmp_path)).capacity().eos_token_ids == (7,)


# Names and folders --------------------------------------------------------------------------------------------


def test_targets_that_are_no_model(tmp_path: Path, folders: Make) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("x")
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "m.gguf").write_bytes(b"GGUF")
    shutil.copytree(folders("llama"), tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    for target, error, words in (
        ("smolm2-135m", ConfigError, "did you mean 'smollm2-135m'?"),
        ("", ConfigError, "no model is named"),
        (str(tmp_path / "nothing"), ConfigError, "there is no such file or folder"),
        ("./nothing", ConfigError, "there is no such file or folder"),
        (str(tmp_path / "empty"), ConfigError, "has no config.json (it is empty)"),
        (str(tmp_path / "notes"), ConfigError, "it holds a.txt"),
        (str(tmp_path / "notes" / "a.txt"), ConfigError, "is a file, and not a .gguf"),
        (str(tmp_path / "gguf"), ConfigError, f"such as {tmp_path / 'gguf' / 'm.gguf'}"),
        (str(tmp_path / "gguf" / "m.gguf"), BackendError, "cannot be loaded"),
        (str(tmp_path / "bare"), BackendError, "cannot be loaded"),
        ("nobody/such-model", BackendError, "check the name, and that the hub can be reached"),
    ):
        with pytest.raises(error) as caught:
            create(target)
        assert words in str(caught.value), target


def test_a_repository_with_code_of_its_own_is_not_run(tmp_path: Path, folders: Make) -> None:
    shutil.copytree(folders("llama"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('its code ran')")
    with pytest.raises(BackendError, match="cannot be loaded"):
        create(str(tmp_path))


# Settings -----------------------------------------------------------------------------------------------------


def test_settings_out_of_range(folders: Make) -> None:
    target = str(folders("llama"))
    for options, settings, error, words in (
        ({"dtyp": "float32"}, {}, ConfigError, "dtyp is no option of the torch backend; did you mean 'dtype'?"),
        ({"dtype": "float8"}, {}, ConfigError, "dtype is 'float8': input should be 'float32', 'bfloat16' or 'float16'"),
        ({"memory_fraction": 1.5}, {}, ConfigError, "memory_fraction is 1.5: input should be less than or equal to 1"),
        ({"kv_cache_gib": 0}, {}, ConfigError, "kv_cache_gib is 0: input should be greater than 0"),
        ({"num_threads": 0}, {}, ConfigError, "num_threads is 0"),
        ({"attention": "flash"}, {}, ConfigError, "attention is 'flash'"),
        ({"attention": "flash_attn"}, {}, BackendError, "(Ampere) or newer. Use attention: native or sdpa, or auto"),
        ({"kv_cache_gib": 1e-7}, {}, ConfigError, "kv_cache_gib is 1e-07, and a block of 16 tokens takes 6.0 KiB"),
        ({"kv_cache_gib": 1.0}, {"num_blocks": 5}, ConfigError, "give one"),
        ({"kv_cache_gib": 1e6}, {}, ConfigError, "are free; lower it (at most"),
        ({}, {"num_blocks": 10**12}, ConfigError, "num_blocks is 1000000000000: that takes"),
        ({}, {"num_blocks": 0}, ConfigError, "num_blocks must be at least 1, or left out, not 0"),
        ({}, {"block_size": 0}, ConfigError, "block_size must be at least 1"),
        ({}, {"max_model_len": 257}, ConfigError, "made for at most 256 tokens"),
        ({}, {"max_model_len": 0}, ConfigError, "max_model_len must be at least 1"),
    ):
        with pytest.raises(error) as caught:
            create(target, options=options, **settings)
        assert words in str(caught.value), str(caught.value)


def test_the_pool_is_sized_by_memory(make_backend: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    block = 3 * 4 * (2 * 8) * 2 * 4  # layers, block size, KV heads * width, K and V, float32
    backend = make_backend("llama", num_blocks=None, kv_cache_gib=100 * block / memory.GIB)
    assert backend.capacity().num_blocks == 100
    assert backend.runner.cache.keys[0].shape == (101, 4, 2, 8)
    monkeypatch.setattr(memory, "DEFAULT_CPU_BYTES", 1000 * block)
    assert make_backend("llama", num_blocks=None).capacity().num_blocks == 1000
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 600 * block)
    assert make_backend("llama", num_blocks=None, memory_fraction=0.5).capacity().num_blocks == 300
    with pytest.raises(ConfigError, match="at most 599 blocks fit"):
        make_backend("llama", num_blocks=600)
    monkeypatch.setattr(memory, "free_host_bytes", lambda: block)
    with pytest.raises(BackendError, match="no memory is left on cpu for a KV cache"):
        make_backend("llama", num_blocks=None, memory_fraction=0.5)
    monkeypatch.setattr(memory, "free_host_bytes", lambda: None)  # a system that does not say
    assert make_backend("llama", num_blocks=None).capacity().num_blocks == 1000


@pytest.mark.parametrize("settings", [{"block_size": 1}, {"block_size": 16}, {"max_model_len": 1}])
def test_the_smallest_pools_are_taken(settings: dict[str, int], folders: Make) -> None:
    capacity = create(str(folders("gemma2")), num_blocks=1, **settings).capacity()
    assert capacity.num_blocks == 1 and capacity.max_model_len == settings.get("max_model_len", 256)


def test_close_gives_the_memory_back(make_backend: Make) -> None:
    backend = make_backend("llama")
    refs = [weakref.ref(backend.model), weakref.ref(backend.runner.cache.keys[0])]
    backend.close()
    backend.close()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_free_memory_is_a_plausible_number() -> None:
    free = memory.free_host_bytes()
    assert free is None or 1 << 20 < free < 1 << 50


@pytest.mark.parametrize(
    ("device", "capability", "dtypes"),
    [
        ("cpu", None, {None: torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}),
        ("cuda", (9, 0), {None: torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}),
        ("cuda", (7, 5), {None: torch.float16, "float16": torch.float16, "float32": torch.float32}),
    ],
)
def test_dtypes_of_devices(device: str, capability: Any, dtypes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert {wanted: choose_dtype(wanted, torch.device(device)) for wanted in dtypes} == dtypes
    if capability == (7, 5):
        with pytest.raises(BackendError, match=r"Tesla T4 \(compute capability 7.5\) .* Use float16 or float32"):
            choose_dtype("bfloat16", torch.device(device))


# Steps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_with_nan_fails_alone(temperature: float, make_backend: Make) -> None:
    """Also when others take its blocks afterwards: what it left there spoils nobody."""
    params = SamplingParams(temperature=temperature)
    healthy = prompts((9, 20, 5, 14))

    def serve(bad_token: int | None) -> tuple[Driver, list[list[int]]]:
        backend = make_backend("llama", num_blocks=40, check_logits=False)
        driver = Driver(backend)
        good = [driver.request(f"good{i}", p, params, seed=i) for i, p in enumerate(healthy)]
        first = good[:2]
        if bad_token is not None:
            backend.model.get_input_embeddings().weight.data[bad_token] = torch.nan
            first.append(driver.request("bad", [3, bad_token, 4, 5, 6, 7], params))
        driver.run(first, 3, chunk=4, stagger=0)
        driver.evict(first[-1])
        driver.run(good, NUM_TOKENS, stagger=0)
        return driver, [r.output_token_ids[:] for r in good]

    _, expected = serve(None)
    used = {t for tokens in healthy + expected for t in tokens}
    driver, tokens = serve(max(set(range(VOCABULARY)) - used))
    assert set(driver.failed) == {"bad"}
    assert "NaN or infinite" in driver.failed["bad"]
    assert tokens == expected


def test_draws_do_not_depend_on_the_batch(make_backend: Make) -> None:
    """Seeded requests give the same tokens alone, together, in chunks, and after an eviction."""
    options = [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.3, "top_k": 20}]

    def requests(driver: Driver) -> list[Any]:
        return [
            driver.request(f"r{i}", p, SamplingParams(**options[i % 3]), seed=100 + i) for i, p in enumerate(prompts())
        ]

    together = Driver(make_backend("qwen3"))
    first = requests(together)
    together.run(first, NUM_TOKENS, stagger=0)

    alone = Driver(make_backend("qwen3"))
    second = requests(alone)
    for request in second:
        alone.run([request], 5, chunk=6)
        alone.evict(request)
        alone.run([request], NUM_TOKENS, chunk=3)
        alone.evict(request)
    assert [r.output_token_ids for r in first] == [r.output_token_ids for r in second]
    other = together.request("other", prompts()[0], SamplingParams(**options[0]), seed=999)
    together.run([other], NUM_TOKENS)
    assert other.output_token_ids != first[0].output_token_ids


def test_only_rows_that_sample_get_logits(make_backend: Make) -> None:
    driver = Driver(make_backend("llama"))
    a, b = driver.request("a", prompts()[1]), driver.request("b", prompts()[0])
    assert driver.step([(a, 10), (b, 2)]) == []
    assert driver._captured == []
    assert driver.step([(a, a.num_pending), (b, 1)]) == ["a"]
    assert len(driver._captured) == 1


def test_a_token_outside_the_vocabulary_is_an_error_of_the_step(make_backend: Make) -> None:
    driver = Driver(make_backend("llama"))
    with pytest.raises(BackendError, match="step 0 of 3 tokens in 1 requests failed in torch"):
        driver.step([(driver.request("a", [1, 5000, 2]), 3)])


# The entry point ----------------------------------------------------------------------------------------------


def test_the_entry_point_imports_no_torch() -> None:
    code = (
        "import sys; from batchwright_backends.torch.plugin import register_backends as r; from batchwright_backends."
        "torch import models; entries = r(); [e.available() for e in entries.values()]; "
        "print(sorted(entries), [m for m in ('torch', 'transformers', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['cpu', 'cuda'] []"


def test_cuda_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = plugin.register_backends()["cuda"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert entry.available() == "torch finds no CUDA device: use cpu:MODEL instead"
    with pytest.raises(BackendError, match=r"^cuda:smollm2-135m cannot run here: torch finds no CUDA device"):
        entry.create(BackendSettings("smollm2-135m"))
    with pytest.raises(BackendError, match=r"use cpu:smollm2-135m$"):
        create("smollm2-135m", device="cuda")
    # Where torch is not loaded yet, the build and the devices are looked at.
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(plugin, "version", lambda name: "2.9.0+cpu")
    assert "torch 2.9.0+cpu is a build without CUDA" in (entry.available() or "")
    monkeypatch.setattr(plugin, "version", lambda name: "2.9.0")
    monkeypatch.setattr(plugin, "_GPU_NODES", ("/nowhere/gpu",))
    assert "no GPU device node (/nowhere/gpu)" in (entry.available() or "")
    monkeypatch.setattr(plugin, "_GPU_NODES", (sys.executable,))
    assert entry.available() is None


def test_without_torch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    for name, entry in plugin.register_backends().items():
        assert entry.available() == "torch not installed: pip install 'batchwright[torch]'"
        with pytest.raises(BackendError, match=rf"^{name}:x cannot run here: torch not installed: pip install"):
            entry.create(BackendSettings("x"))
