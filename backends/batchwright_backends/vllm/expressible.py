"""What of a policy vLLM's own scheduler can be made to do. The rest is refused at start, and nothing in silence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from batchwright.errors import ConfigError
from batchwright.limits import Limits

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]

    from batchwright.decisions import Decisions

_WAY_ON = "Batchwright's own scheduler carries it: batchwright_backends.vllm.host.HostScheduler"


def check_config(config: VllmConfig) -> None:
    """Whether this configuration of vLLM is carried.

    Raises:
        ConfigError: it is not; all that stands in the way is named.
    """
    scheduler = config.scheduler_config
    capped = scheduler.long_prefill_token_threshold > 0
    wrong = {
        "speculative decoding: leave --speculative-config out": config.speculative_config is not None,
        "a KV connector: leave --kv-transfer-config out": config.kv_transfer_config is not None,
        "an encoder connector: leave --ec-transfer-config out": config.ec_transfer_config is not None,
        "pooling models": config.model_config.runner_type != "generate",
        "diffusion models": config.model_config.is_diffusion,
        "vLLM's own priorities: leave --scheduling-policy out, the policy here orders requests": str(scheduler.policy)
        != "fcfs",
        "vLLM's own cap on long prompts: leave --long-prefill-token-threshold out, the policy cuts prompts": capped,
    }
    found = [what for what, is_so in wrong.items() if is_so]
    if found:
        raise ConfigError(f"Batchwright's guest in vLLM's scheduler does not carry: {'; '.join(found)}")


def check_policy(decisions: Decisions, limits: Limits, config: VllmConfig) -> list[str]:
    """Whether this policy can be expressed; what comes out only nearly, in sentences.

    Args:
        decisions: its hooks.
        limits: of vLLM.
        config: of the whole of vLLM.

    Raises:
        ConfigError: it cannot; all that stands in the way is named.
    """
    policy = decisions.policy
    wrong: list[str] = []
    if policy.uses_predict:
        wrong.append("predict_s (vLLM has no estimate of a step's time)")
    if decisions.arrival is not None:
        wrong.append("arrival (vLLM has taken a request before the policy hears of it)")
    longest = limits.max_model_len
    if not policy.chunks and (longest is None or longest > limits.max_num_batched_tokens):
        wrong.append(
            f"prompts that are never cut (vLLM cuts those above {limits.max_num_batched_tokens} tokens: raise "
            "--max-num-batched-tokens to the model's length)"
        )
    reserved = _reserved(decisions)
    if reserved is None or reserved > _LENGTH:
        wrong.append("reservation beyond the present length (vLLM takes blocks chunk by chunk)")
    if policy.chunks and not config.scheduler_config.enable_chunked_prefill:
        wrong.append("prompts that are cut (leave --no-enable-chunked-prefill out)")
    if wrong:
        raise ConfigError(
            f"policy {policy.name!r} cannot be expressed in vLLM's own scheduler: {'; '.join(wrong)}. {_WAY_ON}"
        )
    notes: list[str] = []
    if reserved:
        notes.append(
            "reservation: a newcomer must find its whole prompt free, but takes its blocks chunk by chunk, as vLLM does"
        )
    if not policy.budget_counts_decodes:
        notes.append("budget: decodes count in vLLM")
    return notes


_LENGTH, _MAX_TOKENS = 10, 100


def _reserved(decisions: Decisions) -> int | None:
    """Blocks for how many tokens the policy wants for a request of ``_LENGTH``; None: it cannot be told."""
    if decisions.reservation is None:
        return _LENGTH
    request = SimpleNamespace(
        num_tokens=_LENGTH, num_prompt_tokens=_LENGTH, max_tokens=_MAX_TOKENS, num_output_tokens=0, num_computed=0
    )
    try:
        answer = decisions.reservation(SimpleNamespace(), request)
    except Exception:
        return None
    return answer if isinstance(answer, int) else _LENGTH
