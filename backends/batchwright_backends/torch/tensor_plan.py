"""Whether a model can be split into so many equal parts, by transformers' own plan for it."""

from __future__ import annotations

import math
from typing import Any

from batchwright.errors import BackendError

# Projections whose columns are the heads of Q, K or V.
_HEADS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "q_b_proj", "kv_b_proj", "c_attn", "Wqkv")


def check_plan(outline: Any, config: Any, size: int, name: str) -> None:
    """Refuse a model that has no plan, or whose heads or experts do not come out even.

    Args:
        outline: the model, without weights.
        config: of it.
        size: number of parts.
        name: for messages.

    Raises:
        BackendError: it cannot be split like that; the message says why and names the choices.
    """
    asked = f"backend_options.tensor_parallel_size is {size}, and"
    plan = dict(getattr(outline, "tp_plan", None) or {})
    if not any(".layers." in f".{key}" or ".*." in key for key in plan):
        raise BackendError(f"{asked} transformers has no tensor-parallel plan for {name}: use 1, or another model")
    heads = [key for key, style in plan.items() if style == "colwise" and key.rsplit(".", 1)[-1] in _HEADS]
    if not heads:
        return
    text = config.get_text_config()
    num_heads = int(text.num_attention_heads)
    num_kv_heads = int(getattr(text, "num_key_value_heads", None) or num_heads)
    if num_heads % size or num_kv_heads % size:
        both = math.gcd(num_heads, num_kv_heads)
        fits = [str(n) for n in range(1, both + 1) if both % n == 0]
        raise BackendError(
            f"{asked} the {num_heads} attention heads and {num_kv_heads} KV heads of {name} cannot be split into so "
            f"many equal parts: use {' or '.join(fits)}"
        )
