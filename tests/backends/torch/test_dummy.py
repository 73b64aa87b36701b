"""Random weights in the shapes of a config, where there is nothing but ``config.json``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from backends.torch.conftest import config_of
from backends.torch.driver import Driver
from backends.torch.test_equality import prompts
from batchwright.cli.app import app
from batchwright.errors import BackendError, ConfigError
from batchwright_backends.torch import dummy

Make = Callable[..., Any]


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., str]:
    """Writes a folder that holds ``config.json`` alone."""

    def write(name: str, **changes: Any) -> str:
        config_of(name, **changes).save_pretrained(tmp_path / name)
        assert [p.name for p in (tmp_path / name).iterdir()] == ["config.json"]
        return str(tmp_path / name)

    return write


def weights(backend: Any) -> dict[str, torch.Tensor]:
    return dict(backend.model.state_dict())


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "gpt2", "mixtral"])
def test_a_config_is_enough(name: str, write_config: Make, make_backend: Make) -> None:
    """The comparison of logits at load runs too: the model is as good as one with weights."""
    backend = make_backend(write_config(name), load_format="dummy")
    assert backend.tokenizer is None
    assert backend.capacity().eos_token_ids == (2,)
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, 5, chunk=7)
    assert not driver.failed


def test_weights_follow_from_the_seed(write_config: Make) -> None:
    from batchwright.backend import BackendSettings
    from batchwright_backends.torch.backend import TorchBackend

    folder = write_config("llama")

    def load(seed: int) -> dict[str, torch.Tensor]:
        settings = BackendSettings(folder, num_blocks=20, seed=seed, options={"load_format": "dummy", "passes": []})
        return weights(TorchBackend.create("cpu", settings))

    torch.manual_seed(11)
    state = torch.get_rng_state()
    first, again, other, last = load(3), load(3), load(4), load((1 << 64) - 1)
    assert torch.equal(torch.get_rng_state(), state), "a load has moved the process' own random state"
    assert all(torch.equal(first[name], again[name]) for name in first)
    matrices = [name for name in first if first[name].dim() == 2]
    for one, two in ((first, other), (other, last)):
        assert not any(torch.equal(one[name], two[name]) for name in matrices)
    assert not torch.equal(first["model.layers.0.mlp.up_proj.weight"], first["model.layers.1.mlp.up_proj.weight"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_deep_model_has_finite_logits(dtype: str, write_config: Make, make_backend: Make) -> None:
    folder = write_config("qwen3", num_hidden_layers=80, initializer_range=0.02)
    driver = Driver(make_backend(folder, load_format="dummy", dtype=dtype))
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, 2)
    assert not driver.failed
    logits = torch.cat([torch.stack(rows) for rows in driver.logits.values()])
    assert logits.isfinite().all() and logits.std() > 1e-3
    assert len({tuple(r.output_token_ids) for r in requests}) > 1, "what it is told is lost on the way"


class Sizes(TorchDispatchMode):
    """Notes the largest floating tensor of each dtype and device that any operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: dict[tuple[torch.dtype, str], int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_floating_point():
            kind = (out.dtype, out.device.type)
            self.largest[kind] = max(self.largest.get(kind, 0), out.numel())
        return out


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_weights_are_made_where_and_as_they_stay(device: str) -> None:
    """On the device, in the dtype: no float32 copy on the host, which a large model has no room for."""
    config = config_of("llama", head_dim=8)
    with Sizes() as sizes:
        model = dummy.make_model(config, torch.bfloat16, torch.device(device), seed=0)
    largest = max(p.numel() for p in model.parameters())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert sizes.largest[torch.bfloat16, device] == largest
    others = {kind: size for kind, size in sizes.largest.items() if kind != (torch.bfloat16, device)}
    assert all(size <= 8 for size in others.values()), others  # the frequencies of the position encoding


def test_end_of_sequence_comes_from_the_generation_config(write_config: Make, make_backend: Make) -> None:
    folder = write_config("llama")
    (Path(folder) / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 9]}))
    assert make_backend(folder, load_format="dummy").capacity().eos_token_ids == (5, 9)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A hub name of which the cache holds ``config.json`` alone."""
    from huggingface_hub import constants

    cache, commit = tmp_path / "hub", "0123456789abcdef0123456789abcdef01234567"
    folder = cache / "models--somebody--tiny"
    config_of("llama").save_pretrained(folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return "somebody/tiny"


def test_a_hub_name_whose_config_is_in_the_cache(hub: str) -> None:
    from batchwright.backend import BackendSettings
    from batchwright_backends.torch.backend import TorchBackend

    backend = TorchBackend.create("cpu", BackendSettings(hub, num_blocks=20, options={"load_format": "dummy"}))
    assert backend.capacity().vocab_size == 199
    assert backend.tokenizer is None
    with pytest.raises(BackendError, match="cannot be loaded"):
        TorchBackend.create("cpu", BackendSettings(hub, num_blocks=20))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_hub_name_whose_weights_are_in_the_cache(dtype: str, hub: str, folders: Make, tmp_path: Path) -> None:
    from batchwright.backend import BackendSettings
    from batchwright_backends.torch.backend import TorchBackend

    (snapshot,) = (tmp_path / "hub" / "models--somebody--tiny" / "snapshots").iterdir()
    shutil.copy(folders("llama") / "model.safetensors", snapshot)
    backend = TorchBackend.create("cpu", BackendSettings(hub, num_blocks=20, options={"dtype": dtype, "passes": []}))
    here = TorchBackend.create(
        "cpu", BackendSettings(str(folders("llama")), num_blocks=20, options={"dtype": dtype, "passes": []})
    )
    one, two = weights(backend), weights(here)
    assert all(torch.equal(one[name], two[name]) and one[name].dtype == getattr(torch, dtype) for name in two)


def test_without_weights_the_way_on_is_named(write_config: Make, make_backend: Make) -> None:
    folder = write_config("llama")
    with pytest.raises(BackendError, match="load_format: dummy makes a model with random weights"):
        make_backend(folder)
    with pytest.raises(ConfigError, match="load_format is 'random': input should be 'auto' or 'dummy'"):
        make_backend(folder, load_format="random")


@pytest.mark.parametrize(
    ("name", "words"), [("falcon", "attention interface"), ("bloom", "0 of its 3 layers"), ("lfm2", "'conv'")]
)
@pytest.mark.filterwarnings("ignore:`position_ids` have no functionality in BLOOM")
def test_what_cannot_be_paged_is_refused_all_the_same(
    name: str, words: str, write_config: Make, make_backend: Make
) -> None:
    with pytest.raises(BackendError, match=words):
        make_backend(write_config(name), load_format="dummy")


def test_from_the_command_line(write_config: Make) -> None:
    folder = write_config("llama")

    def run(load_format: str) -> Any:
        words = ["run", "--backend", f"cpu:{folder}", "--set", f"backend_options.load_format={load_format}", "-q"]
        words += ["--set", "num_blocks=64", "--workload", "synthetic:rate=inf,n=4,prompt=9,output=5"]
        return CliRunner().invoke(app, words, prog_name="batchwright")

    assert run("dummy").exit_code == 0
    refused = run("auto")
    assert refused.exit_code == 2 and "load_format: dummy" in refused.stderr
