"""What a model may not do beside its attention calls, in every dtype: half precision would pass for rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.torch.conftest import ARCHITECTURES, config_of
from batchwright.errors import BackendError
from batchwright_backends.torch import loading, structure
from batchwright_backends.torch.models import ModelSource

Make = Callable[..., Any]
DTYPES = ("float32", "bfloat16", "float16")


def save(folder: Path, config: Any) -> str:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def load(folder: str, dtype: torch.dtype) -> Any:
    return loading.load(ModelSource(folder), dtype, torch.device("cpu")).model


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A decoder whose forward takes no position_ids: it counts by itself."""
    from transformers import BartConfig

    config = BartConfig(
        vocab_size=199,
        d_model=32,
        decoder_layers=2,
        encoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        init_std=0.3,
    )
    return save(tmp_path_factory.mktemp("bart"), config)


@pytest.fixture(scope="module")
def doge(tmp_path_factory: pytest.TempPathFactory) -> str:
    """It hides keys by a mask that it computes from V."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(
        "doge", vocab_size=199, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    return save(tmp_path_factory.mktemp("doge"), config)


@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_of_its_own(dtype: str, bart: str, make_backend: Make) -> None:
    with pytest.raises(BackendError, match="counts positions by itself instead of taking position_ids"):
        make_backend(bart, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mask_of_its_own(dtype: str, doge: str, make_backend: Make) -> None:
    with pytest.raises(BackendError, match=r"layer 0 wants a mask of its own \(attention_mask\)"):
        make_backend(doge, dtype=dtype, check_logits=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbours_mixed(dtype: str, make_backend: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shift, however faint: one hundredth of the token before."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    forward = LlamaMLP.forward

    def shifted(self: Any, x: torch.Tensor) -> torch.Tensor:
        return forward(self, x + 0.01 * torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])

    make_backend("llama", dtype=dtype)
    monkeypatch.setattr(LlamaMLP, "forward", shifted)
    with pytest.raises(BackendError, match="it mixes neighbouring tokens"):
        make_backend("llama", dtype=dtype)
    assert make_backend("llama", dtype=dtype, check_logits=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_by_place_instead_of_position(dtype: str, make_backend: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    forward = LlamaRotaryEmbedding.forward

    def by_place(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return forward(self, x, torch.arange(x.shape[1])[None])

    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", by_place)
    with pytest.raises(BackendError, match="counts positions by itself"):
        make_backend("llama", dtype=dtype)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_models_that_do_nothing_of_the_kind(name: str, folders: Make) -> None:
    """Not even by rounding: tokens that see themselves alone have the same logits wherever they stand."""
    for dtype in (torch.bfloat16, torch.float16):
        model = load(str(folders(name)), dtype)
        structure.check_tokens_are_apart(model, 256)
        structure.check_tokens_are_apart(model, 3)


def test_a_random_weight_model_is_looked_at_as_closely(tmp_path: Path, make_backend: Make) -> None:
    """Weights before training are small; what is wrong shows all the same."""
    config = config_of("opt", initializer_range=0.02)
    make_backend(save(tmp_path, config), dtype="bfloat16")
    from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding

    forward = OPTLearnedPositionalEmbedding.forward
    with pytest.MonkeyPatch.context() as patch:

        def by_place(self: Any, mask: Any, past: int = 0, position_ids: Any = None) -> Any:
            return forward(self, mask, past, torch.arange(position_ids.shape[-1])[None])

        patch.setattr(OPTLearnedPositionalEmbedding, "forward", by_place)
        with pytest.raises(BackendError, match="counts positions by itself"):
            make_backend(str(tmp_path), dtype="bfloat16")
