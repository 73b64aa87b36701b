"""Arms: from what the command line says to one config each."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchwright.cli.options import ARM_FORMS, EngineOptions
from batchwright.config import EngineConfig
from batchwright.config_sources import ConfigSources
from batchwright.effective import Effective, effective_settings
from batchwright.errors import ConfigError, did_you_mean
from batchwright.lab.endpoint.address import Address, is_endpoint
from batchwright.lab.endpoint.options import parse_headers
from batchwright.plugins import Plugins, load_plugins
from batchwright.resolve import parse_arm, resolve_policy, resolve_predictor, resolve_router

if TYPE_CHECKING:
    from batchwright.active_policy import ActivePolicy

SUFFIXES = (".yaml", ".yml", ".toml")
_LABELLED = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True)
class Arm:
    """One arm.

    Attributes:
        letter: A for the first, and so on.
        label: its name in tables.
        config: all sources together.
        origins: dotted name to the source of its value.
    """

    letter: str
    label: str
    config: EngineConfig
    origins: dict[str, str]

    @property
    def is_endpoint(self) -> bool:
        """Whether a server elsewhere runs it."""
        return is_endpoint(self.config.backend)

    @property
    def has_own_engine(self) -> bool:
        """Whether its backend brings an engine of its own, such as vLLM's."""
        return not self.is_endpoint and self.plugins.backend(self.config.backend.partition(":")[0]).run_arm is not None

    @cached_property
    def plugins(self) -> Plugins:
        """What is installed, without what the config leaves out."""
        return load_plugins(self.config.no_plugins)

    def policy(self) -> ActivePolicy:
        """A fresh policy.

        Raises:
            ConfigError, PluginError: there is none of that name, or a parameter is wrong.
        """
        return resolve_policy(self.config.policy, self.plugins)

    def check(self) -> Effective:
        """Whether all that it names exists, before anything runs; the settings as far as they are known.

        Raises:
            ConfigError, PluginError: what is wrong with it.
        """
        if self.is_endpoint:
            raise ConfigError(
                f"{self.config.backend} is an endpoint: its settings are its server's, and not known here"
            )
        predictor = resolve_predictor(self.config.predict, self.plugins)
        has_router = self.config.replicas > 1 or self.config.router is not None
        router = resolve_router(self.config.router, self.plugins) if has_router else None
        effective = effective_settings(self.config, self.policy(), self.origins, predictor, router)
        for name in self.config.plugins:
            self.plugins.active(name)
        self.plugins.backend(self.config.backend.partition(":")[0])
        if has_router:
            from batchwright.fleet.fleet import check_virtual

            check_virtual(self.config, self.plugins)
        return effective


def make_arms(texts: Sequence[str], options: EngineOptions) -> list[Arm]:
    """The arms of a command line.

    Sources, the later wins: the file of ``--config``, the environment, ``--set`` (and ``--backend``, ``--seed``,
    ``--no-plugin``), the arm's own file or parameters, ``--arm-set``, ``--noise``.

    Args:
        texts: the arms as written; an empty text is an arm without a policy of its own.
        options: of every arm.

    Raises:
        ConfigError, PluginError: an arm, a setting, a policy or a parameter does not exist.
    """
    if len(texts) > len(string.ascii_uppercase):
        raise ConfigError(f"there are {len(texts)} arms, and {len(string.ascii_uppercase)} are the most")
    if len(texts) > 1 and not all(texts):
        raise ConfigError(f"arm {string.ascii_uppercase[texts.index('')]} is empty; an arm is {ARM_FORMS}")
    letters = string.ascii_uppercase[: len(texts)]
    split = [_split_label(text) for text in texts]
    labels = _labels(letters, split)
    shared = _shared(options)
    arm_sets = _arm_sets(options.arm_set or (), letters, labels)
    arms = []
    for letter, label, (_, text) in zip(letters, labels, split, strict=True):
        sources = shared.copy()
        _add_arm(sources, text)
        sources.add_set(arm_sets[letter], f"--arm-set {letter}")
        if is_endpoint(str(sources.values.get("backend", ""))):
            arms.append(_endpoint(letter, label, text, shared, arm_sets[letter], options.header or ()))
            continue
        _check_shared_policy(shared, sources, letter)
        if options.noise is not None:
            noise = {"noise": options.noise, "noise_seed": letters.index(letter)}
            sources.add_mapping({"backend_options": noise}, "--noise")
        arm = Arm(letter, label, sources.build(), sources.origins)
        arm.check()
        arms.append(arm)
    if options.header and not any(arm.is_endpoint for arm in arms):
        raise ConfigError(
            "--header is sent to endpoints, and no arm is one; an endpoint is written http://HOST:PORT/v1"
        )
    return arms


def _add_arm(sources: ConfigSources, text: str) -> None:
    """What an arm says itself."""
    if _is_file(text):
        sources.add_file(text)
    elif is_endpoint(text):
        sources.add_mapping({"backend": text}, f"arm {text}")
    elif text:
        sources.add_mapping({"policy": parse_arm(text)}, f"arm {text}")


def _endpoint(
    letter: str, label: str, text: str, shared: ConfigSources, arm_set: Sequence[str], headers: Sequence[str]
) -> Arm:
    """An arm that a server elsewhere runs: what is shared by all arms says something of engines, and nothing of it."""
    from batchwright.lab.endpoint.run import check_config

    sources = ConfigSources()
    if "seed" in shared.values:
        sources.add_mapping({"seed": shared.values["seed"]}, shared.origins["seed"])
    if is_endpoint(str(shared.values.get("backend", ""))):
        given = shared.values
        own: dict[str, Any] = {n: given[n] for n in ("backend", "backend_options") if n in given}
        sources.add_mapping(own, shared.origins["backend"])
    if headers:
        sources.add_mapping({"backend_options": {"headers": parse_headers(headers)}}, "--header")
    _add_arm(sources, text)
    sources.add_set(arm_set, f"--arm-set {letter}")
    config = sources.build()
    check_config(config)
    return Arm(letter, label, config, sources.origins)


def check_one_backend(arms: Sequence[Arm]) -> None:
    """Arms that are compared run on one backend, or are endpoints.

    Raises:
        ConfigError: their files or ``--arm-set`` name several.
    """
    engines = [arm for arm in arms if not arm.is_endpoint]
    first = engines[0] if engines else arms[0]
    for arm in engines[1:]:
        if arm.config.backend != first.config.backend:
            raise ConfigError(
                f"arm {first.letter} runs on {first.config.backend} and arm {arm.letter} on {arm.config.backend}: "
                "arms are compared on one backend; name it with --backend, and call once for each"
            )


def _is_file(text: str) -> bool:
    return not is_endpoint(text) and text.lower().endswith(SUFFIXES)


def _split_label(text: str) -> tuple[str | None, str]:
    match = _LABELLED.fullmatch(text)
    return (match[1], match[2].strip()) if match else (None, text.strip())


def _labels(letters: str, split: Sequence[tuple[str | None, str]]) -> list[str]:
    given = [label for label, _ in split if label is not None]
    for label, count in Counter(given).items():
        if count > 1:
            raise ConfigError(f"two arms are called {label!r}; give each a label of its own, as in base=prefill_first")
    for letter, (named, _) in zip(letters, split, strict=True):
        if named is not None and named in letters and named != letter:
            raise ConfigError(
                f"arm {letter} is labelled {named!r}, which is another arm's letter; choose another label"
            )
    short = Counter(_short(text) for _, text in split)
    found = [
        label if label is not None else _short(text) if short[_short(text)] == 1 else _own_label(text)
        for label, text in split
    ]
    counts = Counter(found)
    return [
        name if label is not None or counts[name] == 1 else f"{name} ({letter})"
        for letter, name, (label, _) in zip(letters, found, split, strict=True)
    ]


def _short(text: str) -> str:
    """The policy's name without its parameters, or the file's without its folder."""
    if is_endpoint(text):
        return Address.parse(text).label
    label = _own_label(text)
    head, _, rest = label.partition(":")
    return f"{head}:{rest.partition(':')[0]}" if head.endswith(".py") else head


def _own_label(text: str) -> str:
    if is_endpoint(text):
        return str(Address.parse(text))
    if _is_file(text):
        return Path(text).stem
    return Path(text).name if ".py:" in text else text


def _shared(options: EngineOptions) -> ConfigSources:
    sources = ConfigSources()
    if options.config is not None:
        sources.add_file(options.config)
    sources.add_environment()
    sources.add_set(options.set_ or ())
    for name in ("backend", "seed"):
        value = getattr(options, name)
        if value is not None:
            sources.add_mapping({name: value}, f"--{name}")
    if options.no_plugin:
        before = sources.values.get("no_plugins")
        listed = [*(before if isinstance(before, list) else ()), *options.no_plugin]
        sources.add_mapping({"no_plugins": listed}, "--no-plugin")
    return sources


def _check_shared_policy(shared: ConfigSources, sources: ConfigSources, letter: str) -> None:
    """What ``--set`` says of the policy must not be lost in silence behind an arm's own."""
    origin = shared.origins.get("policy", "")
    if origin.startswith("--set") and sources.origins["policy"] != origin:
        name = origin.removeprefix("--set ")
        raise ConfigError(
            f"{origin}: arm {letter} names a policy of its own, which wins over it; write parameters into the arm, as "
            f"in NAME:param=value, or use --arm-set {letter}.{name}=..."
        )


def _arm_sets(texts: Iterable[str], letters: str, labels: Sequence[str]) -> dict[str, list[str]]:
    """Assignments by the letter of their arm."""
    names = {**dict(zip(filter(None, labels), letters, strict=False)), **{letter: letter for letter in letters}}
    found: dict[str, list[str]] = {letter: [] for letter in letters}
    for text in texts:
        # Labels may hold dots and equals signs, so they are not found by splitting; the longest is meant.
        for name in sorted(names, key=len, reverse=True):
            if text.startswith(f"{name}."):
                found[names[name]].append(text[len(name) + 1 :])
                break
        else:
            arm = text.partition("=")[0].partition(".")[0]
            if arm in EngineConfig.model_fields or "." not in text.partition("=")[0]:
                raise ConfigError(f"--arm-set {text}: write it as ARM.field=value, as in --arm-set A.max_num_seqs=64")
            raise ConfigError(f"--arm-set {text}: there is no arm {arm!r}; {did_you_mean(arm, names)}")
    return found
