"""Engines with overlap for tests: what is called when, and requests that stop where one wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchwright import Engine, Request, RequestOutput, StepResult, hookimpl
from batchwright.batch import Batch
from fake_backend import FakeBackend, HandClock, expected_tokens
from toolbox import Tape, check_whole, make_engine, make_request


class Logged(FakeBackend):
    """Writes down what is asked of it, and by whom besides."""

    def __init__(self, log: list[str], **settings: Any) -> None:
        super().__init__(clock=HandClock(), **settings)
        self._log = log

    def submit(self, batch: Batch) -> StepResult:
        self._log.append(f"submit {batch.step_index}: {' '.join(batch.request_ids)}")
        return super().submit(batch)

    def collect(self, handle: StepResult) -> StepResult:
        self._log.append("collect")
        return super().collect(handle)


class Hooks:
    """Writes down which hooks are called."""

    name = "hooks"

    def __init__(self, log: list[str]) -> None:
        self._log = log

    @hookimpl
    def step_started(self, step: Any) -> None:
        self._log.append(f"start {step.index}")

    @hookimpl
    def request_finished(self, request: Request, reason: str) -> None:
        self._log.append(f"{request.request_id}: {reason}")

    @hookimpl
    def step_finished(self, step: Any) -> None:
        self._log.append(f"finish {step.index}")


def overlapped(log: list[str] | None = None, **settings: Any) -> tuple[Engine, Tape]:
    """An engine with overlap."""
    log = log if log is not None else []
    config = {n: settings.pop(n) for n in ("on_backend_error", "prefix_cache", "on_policy_error", "T") if n in settings}
    policy, plugins = settings.pop("policy", "prefill_first"), settings.pop("plugins", ())
    backend = Logged(log, **settings)
    return make_engine(policy, backend=backend, plugins=[Hooks(log), *plugins], overlap=True, **config)


def run_all(engine: Engine) -> dict[str, list[RequestOutput]]:
    streams: dict[str, list[RequestOutput]] = {}
    for _ in range(500):
        if not engine.has_unfinished():
            return streams
        for output in engine.step():
            streams.setdefault(output.request_id, []).append(output)
        check_whole(engine.scheduler)
    raise AssertionError("it does not end")


def stopping(request_id: str, prompt: int | Sequence[int], after: int, max_tokens: int = 9, **fields: Any) -> Request:
    """A request that stops with its output token number ``after``."""
    plain = make_request(request_id, prompt, max_tokens)
    tokens = expected_tokens(plain.prompt_token_ids[:], plain.sampling_params.seed or 0, max_tokens)
    assert tokens[after - 1] not in tokens[: after - 1]
    return make_request(request_id, prompt, max_tokens, stop_token_ids=[tokens[after - 1]], **fields)
