"""Recording what a scheduler decides."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from batchwright.active_policy import ActivePolicy
from batchwright.errors import BatchwrightError
from batchwright.hookspecs import hookimpl
from batchwright.policy import Policy
from batchwright.replay.batchwright_format import FORMAT, dumps, write_config, write_request
from batchwright.replay.settings import Settings
from batchwright.request import Request


class DecisionRecorder:
    """An observer that writes a ``batchwright-1`` recording of one run, for any policy and backend.

    Made on a scheduler that has not begun, it registers itself there; ``close`` writes the file, one line. The
    recording is exact: ``replay`` decides the same in every step, or the policy has changed (or depends on something
    that is no part of a scheduler, such as the time of day). Decisions of plugins other than the policy are in force
    while it is recorded, and not known to a replay.

    It keeps the run in memory, some ten bytes a request a step, and notes the queues after each step: meant for
    regression traces of thousands of steps.

    Raises:
        BatchwrightError: the scheduler has begun already.
        OSError: the file cannot be written.
    """

    name = "decision_recorder"

    def __init__(self, path: str | Path | None, scheduler: Any, *, case: str = "run") -> None:
        """Begins to record.

        Args:
            path: written at ``close``; gzipped if its name ends in ``.gz``. None: nothing is written, see ``to_json``.
            scheduler: a fresh one, such as ``engine.scheduler``.
            case: name of the run in the file.
        """
        if scheduler.has_unfinished() or scheduler._num_steps or scheduler.num_arrivals:
            raise BatchwrightError("a recording begins with a fresh scheduler, and this one has requests or steps")
        self.path = Path(path) if path is not None else None
        if self.path is not None:
            self.path.write_bytes(b"")  # fails now rather than after the run
        self._case = case
        self._scheduler = scheduler
        self._settings = Settings.of(scheduler)
        self._policy = scheduler.policy
        self._first_policy = describe_policy(scheduler.policy)
        self._requests: dict[str, Request] = {}
        self._names: dict[Request, str] = {}
        self._stopped_at: dict[Request, int] = {}
        self._asked: Request | None = None  # the last one that a policy was asked about
        self._events: list[str] = []
        self._clock: list[tuple[int, int]] = []
        self._steps: list[str] = []
        self._step: Any = None  # the one under way
        self._is_retried = False
        self._predictions: list[float | None] | None = None
        self._is_closed = False
        self._watch_predictions()
        scheduler.register(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write the file. What happens afterwards is not recorded."""
        if self._is_closed or self.path is None:
            return
        self._is_closed = True
        line = self.to_json().encode() + b"\n"
        if self.path.suffix == ".gz":
            buffer = io.BytesIO()
            with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:  # no time stamp: equal runs, equal files
                file.write(line)
            line = buffer.getvalue()
        self.path.write_bytes(line)

    def to_json(self) -> str:
        """The recording so far: one line of a file of cases."""
        if self._step is not None and getattr(self._scheduler, "_batch", None) is None:
            self._raised()  # and the run ended with it; a step whose results never came is left out
        requests = [
            dumps({**write_request(r, _hidden_length(r), self._stopped_at.get(r)), "id": name})
            for name, r in self._requests.items()
        ]
        head = {"format": FORMAT, "id": self._case, "config": write_config(self._settings)}
        head |= {"policy": self._first_policy}
        predictions = f',"predictions":{dumps(self._predictions)}' if self._predictions is not None else ""
        return (
            f'{dumps(head)[:-1]},"requests":[{",".join(requests)}],"events":[{",".join(self._events)}],'
            f'"clock":{dumps(self._clock)}{predictions},"steps":[{",".join(self._steps)}]}}'
        )

    # What happens from outside ------------------------------------------------------------------------------

    def _notice_swap(self) -> None:
        if self._scheduler.policy is not self._policy:
            self._policy = self._scheduler.policy
            self._happened("swap", describe_policy(self._policy))

    def _happened(self, kind: str, value: Any) -> None:
        self._notice_swap()
        when = "before" if self._step is None else "during"
        self._events.append(dumps([len(self._steps), when, kind, value]))

    @hookimpl(tryfirst=True)
    def arrival(self, request: Request) -> None:
        """Somebody asks for room: refused, unless ``request_arrived`` comes next."""
        self._happened("refuse", self._know(request))
        self._asked = request

    @hookimpl(tryfirst=True)
    def request_arrived(self, request: Request) -> None:
        """A request was taken."""
        if request is self._asked:  # it was never refused; nothing came between
            self._events.pop()
            self._happened("add", self._names[request])
        else:
            self._happened("add", self._know(request))
        self._asked = None

    @hookimpl(tryfirst=True)
    def request_finished(self, request: Request, reason: str) -> None:
        """A request ended."""
        of_step = self._step is not None and request in self._step.finished
        if reason in ("abort", "error") and not of_step:
            self._happened(reason, self._names[request])
        elif reason == "stop" and request.output_token_ids[-1] not in request._stop_ids:
            self._stopped_at[request] = request.num_output_tokens

    def _know(self, request: Request) -> str:
        name = request.request_id
        number = 1
        while name in self._requests:  # ids may come again once they are finished
            number += 1
            name = f"{request.request_id}~{number}"
        self._requests[name] = request
        self._names[request] = name
        return name

    def _watch_predictions(self) -> None:
        state = getattr(self._scheduler, "_state", None)
        predict_s = getattr(state, "predict_s", None)
        if state is None or predict_s is None:
            return
        noted = self._predictions = []

        def predict_and_note(batch: Any) -> float | None:
            seconds: float | None = predict_s(batch)
            noted.append(seconds)
            return seconds

        state.predict_s = predict_and_note

    # Steps --------------------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def step_started(self, step: Any) -> None:
        """A step begins; what other observers did when they heard of it comes before it."""
        if self._step is not None:
            self._raised()
        if not self._scheduler.has_unfinished():
            return  # they aborted the last one, and there is no step
        self._notice_swap()
        self._step = step
        self._is_retried = False

    @hookimpl
    def request_preempted(self, request: Request | None) -> None:
        """Somebody was evicted."""
        self._is_retried = self._is_retried or request is None

    @hookimpl(tryfirst=True)
    def step_finished(self, step: Any, result: Any) -> None:
        """A step was executed: note what it did."""
        names = self._names
        errors = {names[r]: r.error for r in step.finished if r.finish_reason == "error"}
        if result.failed:
            self._happened("failed", errors)
        elif errors:
            self._happened("fail", next(iter(errors.values())))
        elif self._is_retried:
            self._happened("retry", None)
        running = self._scheduler.running
        fields: dict[str, Any] = {"step": step.index, "now": step.now}
        if not self._is_retried:
            fields["scheduled"] = [[names[r], r.num_scheduled, _computed_before(r)] for r in step.batch]
        fields |= {
            "preempted": [names[r] for r in step.preempted],
            "finished": [names[r] for r in step.finished],
            "free_blocks": self._scheduler.blocks.num_free,
            "waiting": [names[r] for r in self._scheduler.waiting],
            "prefilling": [names[r] for r in running if r.is_prefilling],
            "decodes": [names[r] for r in running if r.is_decode],
        }
        self._steps.append(dumps(fields))
        self._clock.append((step.now, step.end))
        self._step = None

    def _raised(self) -> None:
        """The policy broke a rule in the step under way, and nothing of it was executed."""
        step, self._step = self._step, None
        victims = [self._names[r] for r in step.preempted]
        self._steps.append(dumps({"step": step.index, "now": step.now, "raised": True, "preempted": victims}))
        self._clock.append((step.now, step.now))


def describe_policy(policy: Policy | ActivePolicy) -> dict[str, Any]:
    """Name and parameters of a policy, as a config would say them."""
    return (ActivePolicy.of(policy) if isinstance(policy, Policy) else policy).describe()


def _hidden_length(request: Request) -> int | None:
    length = request._end - request.num_prompt_tokens
    return length if 0 < length < request.max_tokens else None


def _computed_before(request: Request) -> int:
    """Tokens that were computed before this step; a row that was aborted or failed computed nothing in it."""
    executed = request.finish_reason not in ("abort", "error")
    return request.num_computed - (request.num_scheduled if executed else 0)
