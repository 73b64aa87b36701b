"""What the doctor says of a configuration of vLLM; vLLM is not needed for it, but where its own parser is asked."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchwright.cli.app import app
from batchwright.errors import ConfigError
from batchwright_backends.vllm import doctor
from batchwright_backends.vllm.arguments import read_arguments
from batchwright_backends.vllm.doctor import Findings, examine
from batchwright_backends.vllm.honoured import CLASSES
from batchwright_backends.vllm.lacking import Missing
from batchwright_backends.vllm.stamps import MIDDLEWARE
from batchwright_backends.vllm.surfaces import GUEST, HOST
from batchwright_backends.vllm.trusted import SECRET

HAS_VLLM = importlib.util.find_spec("vllm") is not None


def config_of(policy: Any = "vtc", **changes: Any) -> Any:
    """Stands in for a ``VllmConfig``; ``changes`` are dotted names with ``__``."""
    config = SimpleNamespace(
        additional_config={"batchwright": {"policy": policy}},
        scheduler_config=SimpleNamespace(
            scheduler_cls=None,
            async_scheduling=False,
            enable_chunked_prefill=True,
            policy="fcfs",
            long_prefill_token_threshold=0,
            max_num_seqs=16,
            max_num_batched_tokens=128,
            max_num_scheduled_tokens=None,
        ),
        model_config=SimpleNamespace(
            max_model_len=512,
            runner_type="generate",
            is_encoder_decoder=False,
            is_moe=False,
            is_diffusion=False,
            return_sampling_mask=False,
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            data_parallel_size=1,
            data_parallel_index=0,
        ),
        speculative_config=None,
        lora_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        kv_events_config=None,
    )
    for name, value in changes.items():
        *path, last = name.split("__")
        holder = config
        for part in path:
            holder = getattr(holder, part)
        setattr(holder, last, value)
    return config


@pytest.fixture(autouse=True)
def tested_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a vLLM that lacks nothing."""
    monkeypatch.setattr(doctor, "missing", list)
    monkeypatch.setattr(doctor, "vllm_version", lambda: "0.32.0")
    monkeypatch.delenv("BATCHWRIGHT_VLLM", raising=False)
    monkeypatch.delenv("BATCHWRIGHT_VLLM_ANY_VERSION", raising=False)


def carried_by(found: Findings) -> list[str]:
    return [name for name, one in found.adapters.items() if one.carries]


@pytest.mark.parametrize(
    ("policy", "changes", "carried", "words"),
    [
        ("vtc", {}, [HOST, GUEST], None),
        ("no_evict", {}, [HOST], "reservation beyond the present length"),
        ("slo_chunk", {}, [], "predict_s"),
        ("orca", {}, [HOST], "prompts that are never cut"),
        ("vtc", {"speculative_config": 1}, [], "speculative decoding"),
        ("vtc", {"lora_config": 1}, [GUEST], "LoRA"),
        ("vtc", {"scheduler_config__policy": "priority"}, [HOST], "vLLM's own priorities"),
        ("vtc", {"scheduler_config__long_prefill_token_threshold": 9}, [HOST], "cap on long prompts"),
        ("vtc", {"scheduler_config__enable_chunked_prefill": False}, [], "prompts that are cut"),
        ("vtc", {"kv_transfer_config": 1}, [], "a KV connector"),
    ],
)
def test_which_adapter_carries_it(policy: str, changes: dict[str, Any], carried: list[str], words: str | None) -> None:
    found = examine(config_of(policy, **changes))
    assert carried_by(found) == carried
    refusals = [text for one in found.adapters.values() for text in one.refused]
    assert any(words in text for text in refusals) if words else not refusals
    assert found.fine == bool(carried)
    for name in (HOST, GUEST):
        asked = examine(config_of(policy, scheduler_config__scheduler_cls=CLASSES[name], **changes))
        assert asked.named == name and asked.fine == (name in carried)


def test_hooks_are_those_that_the_policy_has() -> None:
    found = examine(config_of({"admission": "vtc", "chunking": "stall_free"}))
    assert list(found.adapters[GUEST].hooks) == ["admission", "chunking", "reservation", "preemption", "observers"]
    assert "only the last prompt" in found.adapters[GUEST].hooks["chunking"]
    assert found.adapters[HOST].hooks["chunking"] == "yes"
    assert "arrival" not in found.adapters[HOST].hooks


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "add --scheduler-cls batchwright_backends.vllm.host.HostScheduler, or batchwright_backends.vllm.scheduler",
        ),
        ({"lora_config": 1}, "add --scheduler-cls batchwright_backends.vllm.scheduler"),
        (
            {"lora_config": 1, "scheduler_config__scheduler_cls": CLASSES[HOST]},
            "use --scheduler-cls batchwright_backends.vllm.scheduler, which carries this",
        ),
        ({"scheduler_config__scheduler_cls": "mine.Scheduler"}, "mine.Scheduler is none of Batchwright's"),
        ({"scheduler_config__scheduler_cls": SimpleNamespace}, "types.SimpleNamespace is none of Batchwright's"),
        ({"speculative_config": 1}, "neither adapter carries this"),
    ],
)
def test_what_to_do(changes: dict[str, Any], words: str) -> None:
    assert words in " ".join(examine(config_of(**changes)).advice)


def test_nothing_is_to_be_done_where_all_is_well() -> None:
    found = examine(config_of(scheduler_config__scheduler_cls=CLASSES[GUEST]))
    assert found.fine and found.advice == [] and found.warnings == []


@pytest.mark.parametrize(("policy", "warned"), [("vtc", True), ("dlpm", True), ("sjf", False)])
def test_fairness_is_per_rank(policy: str, warned: bool) -> None:
    """The rank of a model without experts knows only its place, and is told that it is the only one."""
    for change in ("data_parallel_size", "data_parallel_index"):
        found = examine(config_of(policy, **{f"parallel_config__{change}": 2}))
        assert any("fair within each data-parallel rank" in text for text in found.warnings) == warned
    assert not examine(config_of(policy)).warnings


def test_ranks_of_their_own_are_carried_and_those_that_step_together_are_not() -> None:
    ranks = {"parallel_config__data_parallel_size": 2}
    assert carried_by(examine(config_of(**ranks))) == [HOST, GUEST]
    found = examine(config_of(**ranks, model_config__is_moe=True))
    assert carried_by(found) == [GUEST]
    assert "whose ranks take steps together" in found.adapters[HOST].refused[0]


def test_policies_that_are_switched_off_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHWRIGHT_VLLM", "off")
    found = examine(config_of())
    assert "the policy not at all" in found.warnings[0] and not found.fine
    assert "BATCHWRIGHT_VLLM=off out of the environment" in found.advice[0]


def test_a_middleware_that_was_forgotten_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would have a client, in silence."""
    monkeypatch.setenv(SECRET, "nobody knows it, really")
    config = config_of()
    config.additional_config["batchwright"]["trusted"] = {"headers": {"client_id": "X-Client"}}
    assert f"add --middleware {MIDDLEWARE}" in examine(config).advice
    assert not any("--middleware" in one for one in examine(config, [MIDDLEWARE]).advice)


def test_a_version_that_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "vllm_version", lambda: "0.31.0")
    found = examine(config_of())
    assert not found.tested and not found.fine
    assert "install vllm>=0.32,<0.33, or set BATCHWRIGHT_VLLM_ANY_VERSION=1" in found.advice[0]
    monkeypatch.setenv("BATCHWRIGHT_VLLM_ANY_VERSION", "1")
    assert examine(config_of()).fine


def test_what_a_vllm_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "missing", lambda: [Missing((GUEST,), (), "vllm.x.Y.z")])
    found = examine(config_of())
    assert carried_by(found) == [HOST]
    assert found.adapters[GUEST].refused == ["this vLLM has no vllm.x.Y.z"]


def test_a_setting_that_is_none() -> None:
    with pytest.raises(ConfigError, match="polcy"):
        examine(config_of(additional_config={"batchwright": {"polcy": "vtc"}}))


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        app(["vllm", "doctor", *words], prog_name="batchwright")
    return int(caught.value.code or 0)


@pytest.mark.parametrize(("policy", "code"), [("vtc", 0), ("slo_chunk", 1)])
def test_the_command(
    policy: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("batchwright_backends.vllm.arguments.read_arguments", lambda _: (config_of(policy), ()))
    assert run("--json", str(tmp_path / "found.json"), "--", "MODEL") == code
    said = capsys.readouterr().out
    assert f"vLLM 0.32.0, tested; policy {policy}" in said
    assert "to do: " in said and ("guest refuses: " in said) == bool(code)
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["fine"] == (not code) and set(written["adapters"]) == {HOST, GUEST}


def test_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "give the arguments of vllm serve after --" in capsys.readouterr().err


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed here")
def test_no_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--", "MODEL") == 2
    assert "vLLM is not installed in this environment" in capsys.readouterr().err


@pytest.mark.skipif(not HAS_VLLM, reason="needs vLLM, which is not installed: make check-vllm")
@pytest.mark.parametrize("before", [[], ["serve"], ["vllm", "serve"]])
def test_vllms_own_parser(before: list[str]) -> None:
    from peers_vllm import _model_folder

    given = ["--max-model-len", "512", "--skip-tokenizer-init", "--max-num-seqs", "7"]
    section = ["--additional-config", json.dumps({"batchwright": {"policy": "vtc"}})]
    chosen = ["--scheduler-cls", CLASSES[GUEST]]
    found, middleware = read_arguments(
        [*before, _model_folder(), *given, *section, *chosen, "--middleware", MIDDLEWARE]
    )
    assert middleware == (MIDDLEWARE,)
    assert found.scheduler_config.max_num_seqs == 7
    said = examine(found)
    assert (said.named, said.policy, said.fine) == (GUEST, "vtc", True)


@pytest.mark.skipif(not HAS_VLLM, reason="needs vLLM, which is not installed: make check-vllm")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--no-such-thing"], "does not take these arguments: unrecognized arguments: --no-such-thing"),
        (["/nowhere/at/all"], "vLLM makes no configuration of these arguments"),
    ],
)
def test_what_vllm_refuses(given: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_arguments(given)
