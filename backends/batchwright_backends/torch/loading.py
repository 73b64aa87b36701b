"""Load a model and its tokenizer with transformers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from batchwright.errors import BackendError
from batchwright_backends.torch import dummy, probe
from batchwright_backends.torch.attention import ATTENTION
from batchwright_backends.torch.group import ALONE, Group
from batchwright_backends.torch.models import ModelSource
from batchwright_backends.torch.passes.linears import packed_bytes
from batchwright_backends.torch.tokenizer import HFTokenizer
from batchwright_backends.torch.torch_errors import is_out_of_memory

logger = logging.getLogger(__name__)

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tokenizer_config.json")
# RoPE variants whose frequencies depend on the longest request in the batch, once that is past the original length.
_LENGTH_DEPENDENT = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device, ready to run with our attention function.

    Attributes:
        model: a causal language model of transformers, in eval mode.
        tokenizer: None where the model has none.
        eos_token_ids: from the generation config, else from the config.
        max_positions: tokens of one request that the model is made for; None: the config does not say.
        steady_positions: up to here a token's position encoding does not depend on other requests of the batch;
            None: it never does.
    """

    model: Any
    tokenizer: HFTokenizer | None
    eos_token_ids: tuple[int, ...]
    max_positions: int | None
    steady_positions: int | None


def load(
    source: ModelSource,
    dtype: torch.dtype,
    device: torch.device,
    *,
    load_format: str = "auto",
    seed: int = 0,
    group: Group = ALONE,
) -> LoadedModel:
    """Load from safetensors or GGUF; no code of a model repository is run.

    Args:
        source: of the config, the weights and the tokenizer.
        dtype: of the weights.
        device: of the weights.
        load_format: ``auto``, or ``dummy`` for random weights: then ``source`` needs nothing but ``config.json``.
        seed: of random weights.
        group: of ranks that share the model; this one loads its shard.

    Raises:
        BackendError: transformers cannot load it, or its architecture cannot be run here.
    """
    options = _options(source)
    with _quiet():
        config = _load_config(source)
        model: Any
        with _model_errors(source, config):
            if load_format == "dummy":
                model = dummy.make_model(config, dtype, device, seed, group)
                model.generation_config = _generation_config(source) or model.generation_config
            else:
                model = AutoModelForCausalLM.from_pretrained(
                    source.path,
                    dtype=dtype,
                    attn_implementation=ATTENTION,
                    use_safetensors=True,
                    **options,
                    **group.load_options(),
                )
        tokenizer = _load_tokenizer(source, options)
    model.eval().requires_grad_(False)
    if group.size == 1:  # a shard is where it belongs
        model.to(device)
    text = config.get_text_config()
    max_positions = getattr(text, "max_position_embeddings", None)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=_eos_token_ids(model),
        max_positions=max_positions,
        steady_positions=_steady_positions(text, max_positions),
    )


def outline(source: ModelSource) -> tuple[Any, Any]:
    """The model without weights, and its config: what can be asked before anything is loaded.

    Raises:
        BackendError: as of :func:`load`.
    """
    with _quiet():
        config = _load_config(source)
        with _model_errors(source, config):
            return dummy.make_outline(config), config


def weight_bytes(model: Any) -> int:
    """Bytes of a model's weights and buffers in this process, shared ones once, packed ones included."""
    tensors = (*model.parameters(), *model.buffers())
    plain: int = sum((t.to_local() if hasattr(t, "to_local") else t).nbytes for t in tensors)
    return plain + packed_bytes(model)


def _options(source: ModelSource) -> dict[str, Any]:
    # trust_remote_code is left at False: where a repository brings its own code, transformers refuses.
    options: dict[str, Any] = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    if source.is_local:
        options["local_files_only"] = True
    return options


def _load_config(source: ModelSource) -> Any:
    """The config of a model that this backend may be able to run."""
    try:
        config = AutoConfig.from_pretrained(source.path, **_options(source))
    except Exception as error:  # transformers and what it calls raise many kinds, here and below
        raise _cannot_load(source, error) from error
    probe.refuse_other_states(config, f"model {name_of(source)} ({config.model_type})")
    return config


@contextmanager
def _model_errors(source: ModelSource, config: Any) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        if error.args[:1] != (ATTENTION,):
            raise _cannot_load(source, error) from error
        raise BackendError(
            f"model {name_of(source)} ({config.model_type}) cannot be run with paged attention: its modeling code "
            "picks from attention classes of its own and does not take a function from transformers' attention "
            "interface. Choose a model whose modeling code uses ALL_ATTENTION_FUNCTIONS (Llama, Qwen, Mistral, "
            "Gemma, GPT-2 and most others do)"
        ) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise _cannot_load(source, error) from error


def _generation_config(source: ModelSource) -> GenerationConfig | None:
    """That of the folder or hub name, where it has one: it may know more ends of sequence than the config."""
    if source.gguf_file:
        return None
    try:
        return GenerationConfig.from_pretrained(source.path, local_files_only=source.is_local)
    except OSError:
        return None


def _cannot_load(source: ModelSource, error: Exception) -> BackendError:
    cause = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
    if source.is_local:
        way = (
            "a model folder has config.json and *.safetensors (of config.json alone, backend_options.load_format: "
            "dummy makes a model with random weights); a GGUF file needs gguf and accelerate installed"
        )
    else:
        way = "check the name, and that the hub can be reached, or give a folder (hf download fetches one)"
    return BackendError(f"model {name_of(source)} cannot be loaded ({cause}); {way}")


def _load_tokenizer(source: ModelSource, options: dict[str, Any]) -> HFTokenizer | None:
    """The tokenizer that belongs to the model, or None where it brings none.

    Raises:
        BackendError: it brings one that cannot be loaded.
    """
    if source.is_local and not source.gguf_file:
        folder = Path(source.path)
        if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
            return None
    try:
        return HFTokenizer(AutoTokenizer.from_pretrained(source.path, **options))
    except Exception as error:
        if source.is_local and not source.gguf_file:
            raise BackendError(
                f"the tokenizer of {source.path} cannot be loaded ({type(error).__name__}: {error}); repair its files, "
                "or remove them to run on token ids alone"
            ) from error
        logger.warning("model %s has no usable tokenizer (%s): only token ids are taken", name_of(source), error)
        return None


def _eos_token_ids(model: Any) -> tuple[int, ...]:
    for config in (model.generation_config, model.config.get_text_config(), model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)
    return ()


def _steady_positions(text: Any, max_positions: int | None) -> int | None:
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    # One set of parameters, or one for each kind of layer.
    sets = [rope] if "rope_type" in rope or "type" in rope else [r for r in rope.values() if isinstance(r, dict)]
    lengths = []
    for parameters in sets:
        if (parameters.get("rope_type") or parameters.get("type")) in _LENGTH_DEPENDENT:
            original = parameters.get("original_max_position_embeddings")
            lengths.append(original or getattr(text, "original_max_position_embeddings", None) or max_positions)
    return min((n for n in lengths if n), default=None)


def name_of(source: ModelSource) -> str:
    """A model as messages call it."""
    return f"{source.path}/{source.gguf_file}" if source.gguf_file else source.path


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of transformers: the caller has its own."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
