"""What helps where vLLM did not start: advice that fits the cause."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from batchwright import BackendError
from batchwright_backends.vllm.lab.advice import advice, ended_by_itself
from batchwright_backends.vllm.lab.process import load_run

LOG = "VLLM_LOGGING_LEVEL=INFO in the environment shows its log"
MEMORY = "memory is num_blocks"


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said", "unsaid"),
    [
        (ModuleNotFoundError("No module named 'flashinfer'", name="flashinfer"), "install flashinfer", "memory"),
        (ModuleNotFoundError("No module named 'vllm.v1.x'", name="vllm.v1.x"), "vllm>=0.32,<0.33", "pip install"),
        (ModuleNotFoundError("No module named 'vllm'", name="vllm"), "pip install 'batchwright[vllm]'", "memory"),
        (ImportError("libtorch.so: undefined symbol", name="vllm._C"), "install vLLM anew", "dtype is"),
        (caused(RuntimeError("out of memory"), ImportError("libx.so")), "install vLLM anew", "memory is"),
        (MemoryError(), MEMORY, "install"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), MEMORY, "dtype is"),
        (type("OutOfMemoryError", (RuntimeError,), {})("tried to allocate"), MEMORY, "dtype is"),
        (
            caused(RuntimeError("Engine core failed"), ValueError("No available memory for the KV cache")),
            MEMORY,
            "dtype",
        ),
        (ValueError("bfloat16 is not supported"), "dtype is backend_options.dtype", "memory"),
        (ValueError("block size must be a multiple of 32"), "block size is block_size", "memory"),
        (OSError("x is not a valid model identifier on 'https://huggingface.co'"), "its name on the hub", "memory"),
    ],
    ids=lambda value: f"{type(value).__name__} {value}"[:40] if isinstance(value, Exception) else "",
)
def test_advice_fits_the_cause(error: Exception, said: str, unsaid: str) -> None:
    found = advice(error)
    assert said in found and unsaid not in found and found.endswith(LOG)


def test_of_another_cause_only_the_log_is_named() -> None:
    assert advice(RuntimeError("something else")) == LOG


def test_an_error_that_causes_itself_has_an_end() -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert advice(one) == LOG


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, f"exit code 1; {LOG}"),
        (-11, f"ended by SIGSEGV; {LOG}"),
        (-9, f"killed by SIGKILL, as Linux does for want of memory: {MEMORY}"),
        (-1000, f"ended by signal 1000; {LOG}"),
        (None, f"exit code None; {LOG}"),
    ],
)
def test_what_is_known_of_a_process_that_ended_by_itself(code: int | None, said: str) -> None:
    assert ended_by_itself(code).startswith(said)


def test_a_vllm_that_cannot_be_imported_is_an_error_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under whichever Python: where vLLM is not installed, one without its parts stands in."""
    if "vllm" not in sys.modules:
        monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.output", None)
    for name in ("lab.run", "lab.engine", "seats"):
        monkeypatch.delitem(sys.modules, f"batchwright_backends.vllm.{name}", raising=False)
    with pytest.raises(BackendError) as caught:
        load_run("vllm:some")
    assert str(caught.value).startswith("vllm:some: vLLM cannot be imported: ModuleNotFoundError: ")
    assert "run it with vllm>=0.32,<0.33" in str(caught.value) and "memory" not in str(caught.value)
