"""Running one arm that is an endpoint: a workload sent to a running server at its own pace."""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab.drive import PROGRESS_S, Progress
from batchwright.lab.endpoint.address import Address
from batchwright.lab.endpoint.asks import Asks, forms_of
from batchwright.lab.endpoint.client import Client
from batchwright.lab.endpoint.dialect import Dialect, learn
from batchwright.lab.endpoint.drive import Drive
from batchwright.lab.endpoint.notes import notes_of
from batchwright.lab.endpoint.options import EndpointOptions
from batchwright.lab.endpoint.prometheus import describe, others_there, read_counters
from batchwright.lab.endpoint.server import VOCAB_SIZE, Server, find_server
from batchwright.lab.interrupts import Interrupts
from batchwright.lab.materialize import MODEL, row_place
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.lab.runner import RunOptions, about_workload, checked
from batchwright.lab.step_records import StepRecords
from batchwright.lab.workload import Workload

T = TypeVar("T")

_OF_ENGINES = ("max_steps", "backend", "policy", "plugins", "on_engine", "decisions")
"""Options that say something of an engine, and nothing of a server elsewhere."""


def check_config(config: EngineConfig) -> tuple[Address, EndpointOptions]:
    """Address and options of an endpoint.

    Raises:
        ConfigError: an option is wrong, or a setting is not an endpoint's.
    """
    address = Address.parse(config.backend)
    of_engines = sorted(config.model_fields_set - {"backend", "backend_options", "seed"})
    if of_engines:
        raise ConfigError(
            f"{', '.join(of_engines)}: {address} is an endpoint, whose server has its own; give it backend, "
            "backend_options and seed alone"
        )
    return address, EndpointOptions.parse(config.backend_options)


def probe(config: EngineConfig) -> Server:
    """Whether the server is there, and what it says of itself.

    Raises:
        ConfigError: see ``check_config``; or aiohttp is not installed.
        BackendError: nobody answers, it is no OpenAI-compatible server, or it has not that model.
    """
    address, options = check_config(config)

    async def ask() -> Server:
        async with Client(address, options) as client:
            return await find_server(client, address, options)

    return run_async(ask())


def run_endpoint(config: EngineConfig, workload: Workload, **options: Unpack[RunOptions]) -> RunRecord:
    """Send a workload to a running server, and record what comes back.

    The server is asked who it is, and one small request is sent, before the clock starts. Requests are sent at their
    times, however many are under way; times in records are this process's. Steps are not seen, so the record has none.
    Where the server stops answering, the requests under way and those to come fail, and the run ends.

    Args:
        config: its ``backend`` is the address, its ``backend_options`` are an :class:`EndpointOptions`.
        workload: what to send.
        **options: see :class:`~batchwright.lab.RunOptions`; those of an engine are refused.

    Raises:
        WorkloadError: the workload is empty, an argument is out of its range, or a prompt cannot be sent.
        ConfigError: an option is wrong, or is one of engines.
        BackendError: nobody answers, or the server takes no request.
    """
    address, own = check_config(config)
    for name in _OF_ENGINES:
        if options.get(name):
            raise ConfigError(f"{name} cannot be had of {address}: it is an endpoint, whose engine is elsewhere")
    rule = checked(workload, options.get("declared", MODEL), None, options.get("max_seconds"))
    run = _Run(config, address, own, workload, options)
    stopped: str | None = None
    with Interrupts() as interrupts:
        try:
            stopped = run_async(run.go(interrupts))
        except KeyboardInterrupt:
            if run.drive is None:  # nothing was sent yet
                raise
            stopped = "interrupted"
    return run.record(rule, stopped)


class _Run:
    """One run, from the first question to its record."""

    def __init__(
        self, config: EngineConfig, address: Address, own: EndpointOptions, workload: Workload, options: RunOptions
    ) -> None:
        self._config = config
        self._address = address
        self._own = own
        self._workload = workload
        self._options = options
        self._arm = options.get("arm") or address.label
        self._dialect: Dialect | None = None
        self._vocab_size = VOCAB_SIZE
        self._counted: str | None = None
        self._others = False
        self._notes: tuple[str, ...] = ()
        self.drive: Drive | None = None

    async def go(self, interrupts: Interrupts) -> str | None:
        """All that is said to the server; why it stopped."""
        own, workload, options = self._own, self._workload, self._options
        async with Client(self._address, own) as client:
            server = await find_server(client, self._address, own)
            self._vocab_size = own.vocab_size or options.get("vocab_size") or server.vocab_size or VOCAB_SIZE
            salt = secrets.token_hex(16)
            forms = forms_of(workload)
            self._dialect = dialect = await learn(client, server, own, forms, self._vocab_size, salt)
            asks = Asks(
                workload,
                dialect,
                self._vocab_size,
                options.get("declared", MODEL),
                seed=options.get("seed", 0),
                respect_eos=options.get("respect_eos", False),
            )
            self._notes = asks.arrivals.notes
            url = f"{self._address.root}/metrics"
            before = await read_counters(client, url) if own.read_metrics else {}
            self._others = others_there(before)
            tell = _Tell(options.get("progress"), self._arm, len(workload))
            self.drive = drive = Drive(client, asks, options.get("max_seconds"), tell)
            try:
                stopped = await drive.run(interrupts)
            finally:
                tell.at_last(drive.num_ended)
            if before:
                self._counted = describe(before, await read_counters(client, url), url)
            return stopped

    def record(self, rule: str, stopped: str | None) -> RunRecord:
        """What became of it."""
        drive, dialect, workload = self.drive, self._dialect, self._workload
        assert drive is not None and dialect is not None
        drive.offer_rest()
        if drive.waits:  # in the order of the rows, which is that of other arms
            drive.offered.sort(key=lambda record: row_place(record.request_id))
            drive.records.sort(key=lambda record: row_place(record.request_id))
        server = dialect.server
        exact = any(row.num_output_tokens is not None for row in workload.rows)
        notes = [*workload.notes, *self._notes, *notes_of(self._arm, dialect, drive, exact=exact)]
        if self._others:
            notes.append(f"{self._arm} was at work for somebody else when the run began: its latencies are of both")
        if self._counted is not None:
            notes.append(f"{self._arm}, {self._counted}")
        return RunRecord(
            arm=self._arm,
            policy=server.name or "the server's own",
            backend=str(server.address),
            settings={
                "endpoint": {
                    "server": server.name,
                    "requests": dialect.level,
                    "made_up_prompts": dialect.made_up,
                    "vocab_size": self._vocab_size,
                    **{n: v for n, v in self._own.shown().items() if n not in ("vocab_size", "max_model_len")},
                },
                "seed": self._config.seed,
            },
            limits=RunLimits(0, 0, None, server.max_model_len, 0, 0),
            workload=about_workload(workload),
            declared_max_tokens=rule,
            virtual_time=False,
            offered=drive.offered,
            requests=drive.records,
            steps=StepRecords(),
            batches=array("Q"),
            notes=notes,
            duration_ns=drive.duration_ns,
            stopped=stopped,
            seed=self._options.get("seed", 0),
        )


@dataclass
class _Tell:
    """Tells of progress, about ten times a second."""

    progress: Progress | None
    arm: str
    total: int
    _told: float = 0.0

    def __call__(self, num_ended: int) -> None:
        now = time.perf_counter()
        if self.progress is not None and now - self._told > PROGRESS_S:
            self._told = now
            self.progress(self.arm, num_ended, self.total)

    def at_last(self, num_ended: int) -> None:
        """The run is over."""
        if self.progress is not None:
            self.progress(self.arm, num_ended, self.total)


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
