"""Writing why each request ran or did not, step by step, while an engine runs."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from batchwright.errors import BatchwrightError, RequestError
from batchwright.hookspecs import hookimpl
from batchwright.request import Request
from batchwright.scheduler import Scheduler
from batchwright.step import Step
from batchwright.trace.account import Account
from batchwright.trace.reason import Reason
from batchwright.trace.witness import Witness

FORMAT = "batchwright-reasons-1"


class ReasonRecorder:
    """Writes a ``batchwright-reasons-1`` file of one run: JSON lines, described in ``docs/see.md``.

    Made on a scheduler that has not begun. A line is written for each step and each request that comes or goes; what is
    the same as in the step before is left out, so a step of the same decodes takes one short line. A step costs what it
    decides one by one, and nothing for those who wait without being offered room.

    Raises:
        BatchwrightError: the scheduler has begun already, or its steps overlap: a row may then be taken out of a batch
            after it was decided.
        OSError: the file cannot be written.
    """

    name = "reason_recorder"

    def __init__(self, path: str | Path, scheduler: Scheduler, *, arm: str = "", backend: str = "") -> None:
        """Begins to write.

        Args:
            path: gzipped if its name ends in ``.gz``.
            scheduler: a fresh one, such as ``engine.scheduler``.
            arm: name of the run, for whoever reads the file.
            backend: what executes.
        """
        if scheduler.has_unfinished() or scheduler._num_steps or scheduler.num_arrivals:
            raise BatchwrightError("reasons are written from the start, and this scheduler has requests or steps")
        if scheduler._step_class is not Step:
            raise BatchwrightError("reasons are written of steps that are decided one after another: leave overlap off")
        self._scheduler = scheduler
        self._file = _open(Path(path))
        self._account: Account | None = None
        self._policy = scheduler.policy.name
        self._decodes: tuple[Request, ...] = ()
        self._shared: dict[str, Reason] = {}  # as last written
        head = {
            "format": FORMAT,
            "arm": arm or self._policy,
            "policy": scheduler.policy.describe(),
            "backend": backend,
            "num_blocks": scheduler.blocks.num_blocks,
            "block_size": scheduler.blocks.block_size,
            "limits": asdict(scheduler.limits),
        }
        self._write(head)
        self._add = scheduler.add
        scheduler.add = self._add_and_note  # type: ignore[method-assign]  # no observer is told of refusals
        Witness.listen(scheduler, self)
        scheduler.register(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish the file. What happens afterwards is not written."""
        if self._file.closed:
            return
        self._undone()
        Witness.leave(self._scheduler, self)
        vars(self._scheduler).pop("add", None)
        self._file.close()

    # Who comes and goes -------------------------------------------------------------------------------------

    def _add_and_note(self, request: Request, **options: Any) -> None:
        try:
            self._add(request, **options)
        except RequestError as error:
            self._write({"refused": request.request_id, "before_step": self._next_step, "why": str(error)})
            raise

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """A request was taken."""
        line: dict[str, Any] = {"arrived": request.request_id, "before_step": self._next_step}
        line |= {"ns": request.arrival_ns, "num_prompt_tokens": request.num_prompt_tokens}
        self._write({**line, "max_tokens": request.max_tokens})

    @hookimpl
    def request_finished(self, request: Request, reason: str) -> None:
        """A request ended; one that ends with a step stands in its line."""
        step = self._scheduler.step
        if request not in step.finished:
            self._write({"ended": request.request_id, "before_step": self._next_step, "reason": reason})

    @property
    def _next_step(self) -> int:
        return self._scheduler._num_steps

    # Steps --------------------------------------------------------------------------------------------------

    def built(self, account: Account) -> None:
        """A batch is complete, or undone."""
        if self._account is not account:
            self._undone()
        self._account = account

    @hookimpl
    def step_finished(self, step: Step) -> None:
        """The step was executed."""
        account, self._account = self._account, None
        if account is None or account.step is not step:
            return
        line = self._line(account)
        if step.finished:
            line["finished"] = {r.request_id: r.finish_reason for r in step.finished}
        self._write(line)

    def _undone(self) -> None:
        """The step under way was given up."""
        account, self._account = self._account, None
        if account is not None and account.is_undone:
            self._write(self._line(account))

    def _line(self, account: Account) -> dict[str, Any]:
        step = account.step
        line: dict[str, Any] = {"step": step.index, "now": step.now, "end": step.end}
        if account.policy != self._policy:
            line["policy"] = self._policy = account.policy
        if account.error:
            line["error"] = account.error
        if account.how == "fallback":
            line["how"] = account.how
        decodes = account.decodes
        if decodes != self._decodes:
            before, after = dict.fromkeys(self._decodes), dict.fromkeys(decodes)
            line["joined"] = [r.request_id for r in after if r not in before]
            line["left"] = [r.request_id for r in before if r not in after]
            self._decodes = decodes
        if account.singled_out:
            line["requests"] = {r.request_id: reason.to_json() for r, reason in account.singled_out.items()}
        self._share(line, "others", account.of_the_rest)
        if decodes:
            self._share(line, "decodes", account.of_decodes)
        return line

    def _share(self, line: dict[str, Any], name: str, reason: Reason) -> None:
        if self._shared.get(name) != reason:
            self._shared[name] = reason
            line[name] = reason.to_json()

    def _write(self, line: dict[str, Any]) -> None:
        if not self._file.closed:
            self._file.write(json.dumps(line, separators=(",", ":"), default=str) + "\n")


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        path.write_bytes(b"")  # fails now, with the file's name
        return gzip.open(path, "wt", encoding="utf-8")
    return path.open("w", encoding="utf-8")
