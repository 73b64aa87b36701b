"""Running one arm in this process, which does nothing else: see :mod:`batchwright_backends.vllm.lab.process`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from batchwright.backend import Backend, RealClock
from batchwright.config import EngineConfig
from batchwright.effective import Effective, effective_settings
from batchwright.errors import ConfigError
from batchwright.hookspecs import hookimpl
from batchwright.lab.arrivals import Arrivals
from batchwright.lab.fitting import fitted
from batchwright.lab.materialize import MODEL, Offers, row_place, with_token_ids
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.lab.runner import about_workload, checked
from batchwright.lab.workload import Workload
from batchwright.plugins import load_plugins
from batchwright.predictor import describe_predictions
from batchwright.resolve import resolve_policy, resolve_predictor
from batchwright.step import Step
from batchwright_backends.torch.tokenizer import HFTokenizer
from batchwright_backends.vllm.attaching import attach
from batchwright_backends.vllm.lab.drive import Drive, Tell
from batchwright_backends.vllm.lab.engine import Started, describe, start
from batchwright_backends.vllm.lab.ledger import RunLedger
from batchwright_backends.vllm.lab.options import check_config


def run_here(config: EngineConfig, workload: Workload, options: Mapping[str, Any], tell: Tell) -> RunRecord:
    """Start vLLM, offer it a workload, and record what becomes of it.

    Args:
        config: of the arm.
        workload: what to offer.
        options: of :func:`~batchwright.lab.run_arm`: those that are no objects of another process.
        tell: told how many requests have ended; says whether the run is to end.

    Raises:
        WorkloadError, ConfigError, PluginError, BackendError, PolicyError: as ``run_arm``.
    """
    own = check_config(config)
    declared = options.get("declared", MODEL)
    rule = checked(workload, declared, options.get("max_steps"), options.get("max_seconds"))
    plugins = load_plugins(config.no_plugins)
    active = resolve_policy(config.policy, plugins)
    predictor = resolve_predictor(config.predict, plugins)
    effective = effective_settings(config, active, options.get("origins"), predictor)
    with ExitStack() as stack:
        warnings = stack.enter_context(_warnings())
        vllm = start(config, own, effective.limits)
        stack.callback(vllm.engine.engine_core.shutdown)
        events = Events()
        core = getattr(vllm.scheduler, "core", None) if vllm.adapter == "host" else None
        if core is not None:
            core.register(events, "lab-events")
        if options.get("decisions") is not None:
            stack.enter_context(_decisions(options, vllm, core))
        asked, notes = fitted(with_token_ids(workload, _Model(config.backend, vllm)), _longest(vllm))
        offers = Offers(
            asked,
            min(vllm.vocab_size, options.get("vocab_size") or vllm.vocab_size),
            _longest(vllm),
            declared,
            seed=options.get("seed", 0),
            respect_eos=options.get("respect_eos", False),
        )
        arrivals = Arrivals(asked, offers, notes)
        clock = RealClock()
        start_ns = clock.now_ns()
        ledger = RunLedger(start_ns, vllm.num_blocks)
        attach(vllm.scheduler, ledger, clock.now_ns)
        arrivals.start(start_ns)
        max_seconds = options.get("max_seconds")
        until_ns = None if max_seconds is None else start_ns + round(max_seconds * 1e9)
        stopped = Drive(vllm.engine, ledger, arrivals, clock, tell).run(options.get("max_steps"), until_ns)
        now_ns = clock.now_ns()
        ledger.finish()
        for offer in arrivals.rest(now_ns):  # what never arrived was asked for, and is unfinished
            ledger.offer(offer)
        tell(ledger.num_ended)
        if arrivals.waits:  # in the order of the rows, which is that of other arms
            ledger.records.sort(key=lambda record: row_place(record.request_id))
            ledger.offered.sort(key=lambda record: row_place(record.request_id))
        named = (str(effective.values["predict"]["use"]), predictor[1]) if predictor is not None else None
        num_given = sum(row.predicted_output_tokens is not None for row in workload.rows)
        sizes = _sizes(vllm, effective)
        return RunRecord(
            arm=options.get("arm") or active.name,
            policy=active.name,
            backend=config.backend,
            settings=_settings(vllm, effective, sizes, describe(vllm, own)),
            limits=sizes,
            workload=about_workload(workload),
            declared_max_tokens=rule,
            predictions=describe_predictions(named, num_given, len(workload)),
            virtual_time=False,
            offered=ledger.offered,
            requests=ledger.records,
            steps=ledger.steps,
            batches=ledger.batches,
            events=[*events.taken(), *(core.take_events() if core is not None else ())],
            notes=[*workload.notes, *arrivals.notes, *_notes(vllm, active.name, workload, warnings)],
            duration_ns=now_ns - start_ns,
            stopped=stopped,
            seed=options.get("seed", 0),
        )


class Events:
    """What detectors report within steps."""

    name = "lab-events"

    def __init__(self) -> None:
        self._lists: list[list[dict[str, Any]]] = []
        self._last: list[dict[str, Any]] = []

    @hookimpl
    def step_finished(self, step: Step) -> None:
        """More may come to a step's until the next one."""
        if self._last:
            self._lists.append(self._last)
        self._last = step.events

    def taken(self) -> Iterator[dict[str, Any]]:
        """All of them."""
        for events in (*self._lists, self._last):
            yield from events


class _Model(Backend):
    """Says what the tokenizer of the model makes of texts; it executes nothing."""

    def __init__(self, name: str, vllm: Started) -> None:
        self.name = name
        inner = None if vllm.engine.model_config.skip_tokenizer_init else vllm.engine.get_tokenizer()
        self.tokenizer = None if inner is None else HFTokenizer(inner)

    def capacity(self) -> Any:
        """Nobody asks."""
        raise NotImplementedError

    def submit(self, batch: Any) -> Any:
        """Nobody asks."""
        raise NotImplementedError

    def collect(self, handle: Any) -> Any:
        """Nobody asks."""
        raise NotImplementedError


def _longest(vllm: Started) -> int:
    """Tokens that one request may have: by the model, and by the KV pool."""
    return min(vllm.max_model_len, vllm.num_blocks * vllm.block_size + 1)


def _sizes(vllm: Started, effective: Effective) -> RunLimits:
    limits = effective.limits
    seats = limits.max_num_residents
    if vllm.adapter != "host":  # vLLM keeps as many residents as it runs
        seats = limits.max_num_seqs if seats is None or vllm.adapter == "stock" else min(seats, limits.max_num_seqs)
    return RunLimits(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_residents=seats,
        max_model_len=vllm.max_model_len,
        num_blocks=vllm.num_blocks,
        block_size=vllm.block_size,
    )


def _settings(vllm: Started, effective: Effective, sizes: RunLimits, more: Mapping[str, Any]) -> dict[str, Any]:
    values = {**effective.values, "backend_options": {}, **more}
    for name in ("max_model_len", "num_blocks", "block_size", "max_num_residents"):
        values[name] = getattr(sizes, name)
    if vllm.adapter == "stock":
        values["policy"] = {"use": "observe"}
    return dict(json.loads(json.dumps(values, default=str)))  # parameters may hold anything


def _decisions(options: Mapping[str, Any], vllm: Started, core: Any) -> Any:
    from batchwright.replay import DecisionRecorder

    path = options["decisions"]
    if core is None:
        who = "policy observe" if vllm.adapter == "stock" else "a guest"
        raise ConfigError(
            f"decisions cannot be recorded in {path}: with {who} they are vLLM's own; use another policy and "
            "backend_options.adapter=host"
        )
    return DecisionRecorder(path, core, case=options.get("arm") or "run")


def _notes(vllm: Started, policy: str, workload: Workload, warnings: list[str]) -> list[str]:
    how = {
        "host": "Batchwright's scheduler in the place of vLLM's",
        "guest": "a guest in vLLM's own scheduler",
        "stock": "vLLM's own scheduler",
    }[vllm.adapter]
    notes = [f"{policy} on vLLM {vllm.version}: {how}"]
    if any(row.slo is not None for row in workload.rows):
        notes.append("requests of vLLM have no place for objectives: they count in the metrics, and policies see none")
    fallbacks = getattr(vllm.scheduler, "num_fallbacks", {}) if vllm.adapter == "guest" else {}
    if fallbacks:
        causes = ", ".join(f"{num} {cause}" for cause, num in sorted(fallbacks.items()))
        notes.append(f"{policy}: of {vllm.scheduler.num_steps} steps, these were vLLM's and not the policy's: {causes}")
    return [*notes, *warnings]


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the adapters say of a policy that cannot be carried quite, in a run's notes."""
    found: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "not quite" in record.getMessage():
                found.append(record.getMessage())

    logger, keeper = logging.getLogger("vllm.batchwright"), Keeper()
    logger.setLevel(logging.WARNING)  # whatever vLLM logs
    logger.propagate = False
    logger.addHandler(keeper)
    try:
        yield found
    finally:
        logger.removeHandler(keeper)
