"""Which adapter carries a configuration of vLLM, what of the policy is honoured, and what to do; nothing is started."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from batchwright.config import EngineConfig
from batchwright.decisions import Decisions
from batchwright.effective import effective_settings
from batchwright.errors import BatchwrightError, ConfigError
from batchwright.hookspecs import DECISIONS, OBSERVERS
from batchwright.neutral import Neutral
from batchwright.plugin_checks import hook_methods
from batchwright.plugins import load_plugins
from batchwright.resolve import default_policy, resolve_policy
from batchwright_backends.vllm import carried, expressible
from batchwright_backends.vllm.guest_settings import read_guest_settings, seated
from batchwright_backends.vllm.honoured import CLASSES, HONOURED, of_ranks
from batchwright_backends.vllm.lacking import missing
from batchwright_backends.vllm.settings import SECTION, is_off, read_settings
from batchwright_backends.vllm.stamps import MIDDLEWARE
from batchwright_backends.vllm.surfaces import ADAPTERS, GUEST, HOST
from batchwright_backends.vllm.versions import ANY_VERSION, is_tested, tested_range, vllm_version

if TYPE_CHECKING:
    from batchwright.active_policy import ActivePolicy

_NOT_SEEN = "the groups of KV blocks that the model needs are seen only when the server starts"


@dataclass
class Finding:
    """What is to be said of one adapter.

    Attributes:
        scheduler_cls: what ``--scheduler-cls`` names for it.
        refused: why it does not carry this; nothing: it does.
        notes: what comes out only nearly, or is not seen from here.
        hooks: of those that the policy has, what becomes of each.
    """

    scheduler_cls: str
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hooks: dict[str, str] = field(default_factory=dict)

    @property
    def carries(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.refused


@dataclass
class Findings:
    """What is to be said of a configuration.

    Attributes:
        version: of vLLM; None: it does not say.
        tested: whether the adapters were run with it.
        policy: the policy that it asks for.
        named: adapter that ``--scheduler-cls`` names; None: neither of ours.
        given: what it names; None: nothing.
        adapters: by name.
        warnings: of the whole.
        advice: what to do.
    """

    version: str | None
    tested: bool
    policy: str
    named: str | None
    given: str | None
    adapters: dict[str, Finding]
    warnings: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        """Whether the server would start with what is asked for, or, where no scheduler is named, could."""
        usable = (self.tested or _any_version()) and not is_off()
        if self.named is not None:
            return usable and self.adapters[self.named].carries
        return usable and self.given is None and any(one.carries for one in self.adapters.values())

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "fine": self.fine}


def examine(config: Any, middleware: Collection[str] = ()) -> Findings:
    """Look at a configuration of vLLM.

    Args:
        config: a ``VllmConfig``, as vLLM builds it of its own arguments.
        middleware: what the server is to have, by its names.

    Raises:
        ConfigError: what stands under ``batchwright`` in its ``additional_config`` cannot be read at all.
    """
    version = vllm_version()
    settings, section = read_settings(config.additional_config)
    plugins = load_plugins(tuple(section.get("no_plugins", ())))
    active = resolve_policy(EngineConfig.parse(_limits(config, section), _WHERE).policy, plugins)
    decisions = Decisions(active, Neutral(lambda: default_policy(plugins)))
    given = _name_of(config.scheduler_config.scheduler_cls)
    named = next((adapter for adapter, name in CLASSES.items() if name == given), None)
    lacks = missing()
    adapters = {}
    for adapter in ADAPTERS:
        finding = adapters[adapter] = Finding(CLASSES[adapter], hooks=dict(_hooks(active, adapter)))
        finding.refused += [f"this vLLM has no {one.what}" for one in lacks if adapter in one.adapters]
        for check in _CHECKS[adapter]:
            try:
                finding.notes += check(config, decisions, section) or []
            except BatchwrightError as error:
                finding.refused.append(str(error))
    found = Findings(version, is_tested(version), active.name, named, given, adapters)
    found.warnings += _warnings(config, active)
    if settings.trusted is not None and MIDDLEWARE not in middleware:
        found.warnings.append("trusted is set, and no middleware says whose requests are: all would be nobody's")
        found.advice.append(f"add --middleware {MIDDLEWARE}")
    found.advice += _advice(found)
    return found


_WHERE = f"additional_config.{SECTION}"


def _limits(config: Any, section: Mapping[str, Any]) -> dict[str, Any]:
    scheduler = config.scheduler_config
    return {
        **section,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens,
        "max_model_len": config.model_config.max_model_len,
    }


def _host_config(config: Any, decisions: Decisions, section: Mapping[str, Any]) -> list[str]:
    """The model's groups of KV blocks are not known yet; one of full attention stands in for them."""
    group = SimpleNamespace(kv_cache_spec=FullAttentionSpec())
    kv_cache = SimpleNamespace(kv_cache_groups=[group], needs_kv_cache_zeroing=False)
    carried.check_config(config, kv_cache, 16, 16)
    return [f"{_NOT_SEEN}: other than one group of full attention is refused then"]


class FullAttentionSpec:
    """Stands in for vLLM's of that name."""


def _host_policy(config: Any, decisions: Decisions, section: Mapping[str, Any]) -> list[str]:
    if decisions.policy.uses_predict:
        raise ConfigError(
            f"policy {decisions.policy.name!r} needs predict_s, and vLLM has no estimate of a step's time"
        )
    return []


def _guest_config(config: Any, decisions: Decisions, section: Mapping[str, Any]) -> list[str]:
    read_guest_settings(config.additional_config)
    expressible.check_config(config)
    return [f"{_NOT_SEEN}: with several, vLLM's own order may prevail where blocks are short"]


def _guest_policy(config: Any, decisions: Decisions, section: Mapping[str, Any]) -> list[str]:
    parsed = EngineConfig.parse(_limits(config, section), _WHERE)
    limits = seated(effective_settings(parsed, decisions.policy).limits, config.scheduler_config.max_num_seqs)
    return expressible.check_policy(decisions, limits, config)


_CHECKS = {HOST: (_host_config, _host_policy), GUEST: (_guest_config, _guest_policy)}


def _hooks(policy: ActivePolicy, adapter: str) -> Iterator[tuple[str, str]]:
    """Of the hooks that the policy has, what becomes of each."""
    has = {hook for part in policy.parts.values() for hook, _ in hook_methods(part.policy)}
    for hook, words in HONOURED.items():
        if hook in has or (hook not in DECISIONS and has & set(OBSERVERS)):
            yield hook, words[adapter]


def _warnings(config: Any, policy: ActivePolicy) -> Iterator[str]:
    yield from of_ranks(config, policy)
    if is_off():
        yield "BATCHWRIGHT_VLLM=off is set: vLLM's own scheduler would run, and the policy not at all"


def _advice(found: Findings) -> Iterator[str]:
    if is_off():
        yield "take BATCHWRIGHT_VLLM=off out of the environment"
    if not found.tested and not _any_version():
        yield f"install vllm{tested_range()}, or set {ANY_VERSION}=1 to try with this one"
    able = [one.scheduler_cls for one in found.adapters.values() if one.carries]
    if found.named is not None and found.adapters[found.named].carries:
        return
    if found.named is None and found.given is not None:
        yield f"--scheduler-cls {found.given} is none of Batchwright's, so the policy would not run"
    if not able:
        yield "change what is refused above, or choose another policy: neither adapter carries this"
    elif found.named is not None:
        yield f"use --scheduler-cls {able[0]}, which carries this, or change what is refused above"
    else:
        yield "add --scheduler-cls " + ", or ".join(able)


def _any_version() -> bool:
    return os.environ.get(ANY_VERSION, "") not in ("", "0")


def _name_of(scheduler_cls: Any) -> str | None:
    if scheduler_cls is None or isinstance(scheduler_cls, str):
        return scheduler_cls
    return f"{scheduler_cls.__module__}.{scheduler_cls.__qualname__}"
