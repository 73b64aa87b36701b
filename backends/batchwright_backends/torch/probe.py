"""What the layers of a loaded model are, found by running one step and listening.

A model whose code computes attention itself runs all the same, and generates nonsense over a KV cache that it never
reads: some architectures do so in silence. So every layer must have called the attention function, with arguments
that the kernels understand, before a model is taken.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from batchwright.errors import BackendError
from batchwright_backends.torch.attention import AttentionLayer, attending
from batchwright_backends.torch.torch_errors import is_out_of_memory

# Arguments of attention calls that change the result and that no kernel here computes.
UNSUPPORTED = {
    "attention_mask": "a mask of its own",
    "position_bias": "a position bias on the scores",
    "alibi": "ALiBi",
    "head_mask": "a mask of heads",
}
ATTENTION_TYPES = ("full_attention", "sliding_attention", "attention")


class Probe:
    """An attention session that notes what each layer asks for.

    It answers with causal attention among the tokens of the call, so the step runs to its end without a KV cache.
    """

    def __init__(self) -> None:
        self.layers: dict[torch.nn.Module, AttentionLayer] = {}

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        """See :class:`~batchwright_backends.torch.attention.AttentionSession`."""
        index = len(self.layers)
        if module in self.layers:
            raise BackendError(f"layer {self.layers[module].index} calls the attention function twice in a step")
        for name, what in UNSUPPORTED.items():
            if kwargs.get(name) is not None:
                raise BackendError(f"layer {index} wants {what} ({name}), which no attention kernel here computes")
        if not (getattr(module, "is_causal", True) and kwargs.get("is_causal") in (None, True)):
            raise BackendError(f"layer {index} is not causal: it attends to tokens that are not there yet")
        scaling = kwargs.get("scaling")
        self.layers[module] = layer = AttentionLayer(
            index=index,
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            key_width=key.shape[3],
            value_width=value.shape[3],
            scaling=float(query.shape[3] ** -0.5 if scaling is None else scaling),
            window=kwargs.get("sliding_window") or None,
            softcap=kwargs.get("softcap") or None,
            sinks=None if kwargs.get("s_aux") is None else kwargs["s_aux"].detach().float().contiguous(),
        )
        out = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=layer.scaling, enable_gqa=layer.num_heads != layer.num_kv_heads
        )
        return out.transpose(1, 2)


def run(model: Any, num_tokens: int, max_model_len: int | None = None) -> dict[torch.nn.Module, AttentionLayer]:
    """Run ``num_tokens`` tokens through the model without a KV cache, and give its attention layers.

    Args:
        model: a causal language model of transformers, loaded with our attention function.
        num_tokens: of the step.
        max_model_len: positions stay below it; None: below ``num_tokens``.

    Raises:
        BackendError: the model cannot be run with paged attention; the message says which architecture, and why.
    """
    name = f"{type(model).__name__} (model_type {model.config.model_type!r})"
    refuse_other_states(model.config, name)
    probe = Probe()
    tokens = torch.arange(num_tokens, device=model.device)[None]
    positions = tokens % (max_model_len or num_tokens)
    try:
        with torch.inference_mode(), attending(probe):
            model(
                input_ids=tokens % model.config.get_text_config().vocab_size,
                position_ids=positions,
                use_cache=False,
                **({"logits_to_keep": 1} if keeps_logits(model) else {}),
            )
    except BackendError as error:
        raise BackendError(f"{name} cannot be run with paged attention: {error}") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise BackendError(
            f"{name} cannot be run with paged attention: a step of {num_tokens} tokens failed in its modeling code, "
            f"{type(error).__name__}: {error}"
        ) from error
    check_layers(model.config, probe.layers, name)
    return probe.layers


def keeps_logits(model: Any) -> bool:
    """Whether the model's forward takes ``logits_to_keep``, and so computes logits only where they are wanted."""
    import inspect

    return "logits_to_keep" in inspect.signature(model.forward).parameters


def layer_types(config: Any) -> list[str] | None:
    """The kind of each layer, as far as the config tells."""
    text = config.get_text_config()
    types = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    return None if types is None else list(types)


def refuse_other_states(config: Any, name: str) -> None:
    """Refuse what keeps another state than K and V of each token.

    Raises:
        BackendError: an encoder-decoder, or a model with layers that are not causal attention, full or windowed.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise BackendError(f"{name} is an encoder-decoder; this backend runs decoder-only models")
    others: dict[str, list[int]] = {}
    for index, kind in enumerate(layer_types(config) or []):
        if kind not in ATTENTION_TYPES:
            others.setdefault(kind, []).append(index)
    if others:
        found = "; ".join(f"{kind!r}: {_few(indexes)}" for kind, indexes in others.items())
        raise BackendError(
            f"{name} has layers that are not causal attention over all tokens or a window of the last ({found}): KV "
            "blocks are not the state that they keep, so they cannot be run here; choose a model of such layers only"
        )


def check_layers(config: Any, layers: dict[torch.nn.Module, AttentionLayer], name: str) -> None:
    """Every layer called, and each that has a window said so.

    Raises:
        BackendError: a layer did not call the attention function, or did not pass on its window.
    """
    text = config.get_text_config()
    wanted = int(text.num_hidden_layers)
    if len(layers) != wanted:
        raise BackendError(
            f"{name} cannot be run with paged attention: {len(layers)} of its {wanted} layers called the attention "
            "function that transformers' attention interface gave them; its modeling code computes attention itself "
            "and would ignore the KV cache in silence. Choose a model whose modeling code in transformers uses "
            "ALL_ATTENTION_FUNCTIONS (Llama, Qwen, Mistral, Gemma, GPT-2 and most others do)"
        )
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    types = layer_types(config)
    for layer in layers.values():
        windowed = window is not None if types is None else types[layer.index] == "sliding_attention"
        if windowed and layer.window is None:
            raise BackendError(
                f"{name} cannot be run with paged attention: by its config layer {layer.index} attends to a window of "
                f"{window} tokens, but it does not tell the attention function, and would attend to everything"
            )


def _few(indexes: list[int]) -> str:
    shown = ", ".join(map(str, indexes[:4]))
    return f"layers {shown}{', …' if len(indexes) > 4 else ''}" if len(indexes) > 1 else f"layer {shown}"
