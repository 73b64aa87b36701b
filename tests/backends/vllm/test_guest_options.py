"""A guest and the options of vLLM: asynchronous scheduling, bounds of its own, and what it would decide itself."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # pyright: ignore[reportMissingImports]

from backends.vllm.guests import POLICIES, Ahead, GuestOfVllm, guest, run_ahead
from backends.vllm.runs import Run, check_answers, load, offer
from batchwright.errors import ConfigError
from batchwright_backends.vllm.guest import GuestMixin


@pytest.mark.parametrize("num_blocks", [14, 200])
@pytest.mark.parametrize("policy", POLICIES)
def test_asynchronous_scheduling(policy: str, num_blocks: int) -> None:
    """The base is vLLM's asynchronous scheduler where the configuration asks for it, and everybody gets his tokens."""
    made = type("AheadGuest", (Ahead,), {"additional_config": {"batchwright": {"policy": policy}}})
    run = Run(made(num_blocks, 16, 6, 48))
    assert isinstance(run.core, GuestMixin) and isinstance(run.core, AsyncScheduler)
    rows = load(1)
    run_ahead(run, rows)
    check_answers(run, rows)
    core: Any = run.core
    assert not core._shadow.guests and core.num_faults == 0 and "raised" not in core.num_fallbacks


def with_options(policy: str, options: dict[str, Any], num_blocks: int = 60, seats: int = 5) -> Run:
    """A guest where vLLM's scheduler has further options."""
    section = {"batchwright": {"policy": policy}}
    made = type("AsGuest", (GuestOfVllm,), {"additional_config": section, "options": options})
    return Run(made(num_blocks, 16, seats, 48))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "priority"}, "vLLM's own priorities: leave --scheduling-policy out"),
        ({"long_prefill_token_threshold": 8}, "vLLM's own cap on long prompts: leave --long-prefill-token-threshold"),
    ],
)
def test_what_vllm_would_decide_itself_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_options("vllm_v1", options)


@pytest.mark.parametrize("options", [{"watermark": 0.3}, {"max_num_active_seqs": 2}])
@pytest.mark.parametrize("policy", POLICIES)
def test_bounds_of_vllms_own_are_kept_to(policy: str, options: dict[str, Any]) -> None:
    """Plans know them, so that vLLM never does something else than was planned."""
    run = with_options(policy, options)
    rows = load(1)
    most = 0
    for row in rows:
        offer(run, row)
        run.step()
        most = max(most, len(run.core.running))
    run.finish()
    check_answers(run, rows)
    assert "otherwise" not in run.core.num_fallbacks
    assert most <= options.get("max_num_active_seqs", 5)


def test_what_vllm_does_otherwise_is_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A bound of vLLM's own that no plan knows of, such as that on adapters."""
    run = guest("vllm_v1", 200, 5, 400)
    run.core.max_num_active_reqs = 1
    rows = load(2)[:4]
    for row in rows:
        offer(run, row)
    with caplog.at_level("WARNING", "vllm.batchwright"):
        run.step()
    assert run.core.num_fallbacks == {"otherwise": 1}
    assert "r1 runs 0 tokens, not " in caplog.text
    run.finish()
    check_answers(run, rows)
