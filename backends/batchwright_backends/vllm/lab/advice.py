"""What helps where vLLM did not start, by why it did not."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from batchwright_backends.vllm.versions import tested_range

_LOG = "VLLM_LOGGING_LEVEL=INFO in the environment shows its log"
_ABOUT = (
    (("out of memory", "kv cache", "not enough memory", "free memory", "no available memory"), "memory"),
    (("dtype", "bfloat16", "float16", "float8"), "dtype"),
    (("block size", "block_size"), "block size"),
    (("max_model_len", "max_num_batched_tokens", "max_num_seqs"), "limits"),
    (("hub", "huggingface", "config.json", "repo"), "model"),
)
"""Words of vLLM's errors, to what they are about."""

_SETTINGS = {
    "memory": "memory is num_blocks and max_model_len, backend_options.kv_cache_gib on a CPU, and on a GPU "
    "backend_options.engine_args.gpu_memory_utilization",
    "dtype": "dtype is backend_options.dtype",
    "block size": "block size is block_size",
    "limits": "these are settings of the arm, under the same names",
    "model": "behind vllm: stands a folder with a model, or its name on the hub",
}


def advice(error: BaseException) -> str:
    """What to do about an error of vLLM's start: by its kind and words, and those of what caused it; and its log."""
    return "; ".join([*dict.fromkeys(_advised(error)), _LOG])


def _advised(error: BaseException) -> Iterator[str]:
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, ImportError):
            yield _missing(cause)
            return  # what is not there says nothing of settings
    for cause in causes:
        words = f"{type(cause).__name__} {cause}".lower().replace("outofmemory", "out of memory")
        if isinstance(cause, MemoryError):
            yield _SETTINGS["memory"]
        for said, about in _ABOUT:
            if any(word in words for word in said):
                yield _SETTINGS[about]


def _missing(error: ImportError) -> str:
    module = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not module:
        return "its packages do not go together: install vLLM anew in this environment, with the torch that it asks for"
    if error.name == "vllm":
        return "install it in this environment: pip install 'batchwright[vllm]', or a build of vLLM for this machine"
    if module == "vllm":
        return (
            f"run it with vllm{tested_range()}: this release lacks something (python -m "
            "batchwright_backends.vllm.lacking says what)"
        )
    return f"install {module} in the environment of vLLM: it is missing, and no setting mends that"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        yield found
        seen.append(found)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def ended_by_itself(exitcode: int | None) -> str:
    """What is known of a process that said nothing more, and what to do."""
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}; {_LOG}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    if name == "SIGKILL":
        return f"killed by {name}, as Linux does for want of memory: {_SETTINGS['memory']}; {_LOG}"
    return f"ended by {name}; {_LOG}"
