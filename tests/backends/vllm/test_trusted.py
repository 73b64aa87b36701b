"""Whose a request is, from those who may say it; vLLM is not needed for it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from batchwright.errors import ConfigError
from batchwright_backends.vllm.middleware import TrustedFields
from batchwright_backends.vllm.settings import read_settings
from batchwright_backends.vllm.stamps import HOLDS_S, Stamps
from batchwright_backends.vllm.trusted import SECRET, STAMP, fields_of

KEY = b"nobody knows it, really"
HASH = f"sha256:{hashlib.sha256(b'sk-alice').hexdigest()}"
TRUSTED = {
    "headers": {
        "client_id": "X-Client",
        "weight": "X-Weight",
        "priority": "X-Urgency",
        "program_id": "X-Program",
        "predicted_output_tokens": "X-Length",
    },
    "api_keys": {HASH: {"client_id": "alice", "slo_class": "gold"}},
    "clients": {"alice": {"weight": 2.0, "slo_class": "silver"}, "bob": {"priority": 5}},
}
Pairs = list[tuple[str, str]]


class Asked:
    """What a request has become behind the middleware."""

    def __init__(self, headers: Sequence[tuple[str, bytes]], body: bytes, path: str, section: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self.body: Any = None  # what came through; None: nothing did
        self.scope: Any = None
        self.after: str | None = None
        state = SimpleNamespace(vllm_config=SimpleNamespace(additional_config={"batchwright": section}))
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(name.lower().encode(), value) for name, value in headers],
            "app": SimpleNamespace(state=state),
        }
        half = len(body) // 2
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": body[:half], "more_body": True},
            {"type": "http.request", "body": body[half:], "more_body": False},
            {"type": "http.disconnect"},
        ]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            self.sent.append(message)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            self.scope, self.body = scope, b""
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    self.after = message["type"]
                    return
                self.body += message["body"]

        asyncio.run(TrustedFields(app)(scope, receive, send))

    @property
    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    def header(self, name: str) -> str | None:
        return next((value.decode() for key, value in self.scope["headers"] if key == name.encode()), None)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, KEY.decode())


def ask(
    headers: Sequence[tuple[str, str]] = (),
    body: Any = None,
    path: str = "/v1/completions",
    latin: Sequence[tuple[str, str]] = (),
    **section: Any,
) -> Asked:
    raw = body if isinstance(body, bytes) else json.dumps({"prompt": "hello", **(body or {})}).encode()
    sent = [(name, value.encode()) for name, value in headers] + [(n, v.encode("latin-1")) for n, v in latin]
    return Asked(sent, raw, path, {"trusted": TRUSTED, **section})


def believed(asked: Asked, key: bytes | None = KEY) -> dict[str, Any]:
    """What the scheduler takes of it."""
    return fields_of(asked.data.get("vllm_xargs") or {}, None if key is None else Stamps(key), trusted=False)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([], {}),
        ([("X-Client", "bob")], {"client_id": "bob", "priority": 5}),
        ([("X-Client", "carol"), ("X-Weight", "0.5")], {"client_id": "carol", "weight": 0.5}),
        ([("Authorization", "Bearer sk-alice")], {"client_id": "alice", "slo_class": "gold", "weight": 2.0}),
        ([("x-api-key", "sk-alice"), ("X-Weight", "7")], {"client_id": "alice", "slo_class": "gold", "weight": 7.0}),
        ([("Authorization", "Bearer sk-mallory")], {}),
        ([("X-Program", "agent-7"), ("X-Length", "90")], {"program_id": "agent-7", "predicted_output_tokens": 90}),
    ],
)
def test_headers_win_over_keys_and_keys_over_clients(headers: Pairs, said: dict[str, Any]) -> None:
    asked = ask(headers)
    assert believed(asked) == said
    assert asked.after == "http.disconnect"  # that a client leaves gets through
    assert asked.header("content-length") == str(len(asked.body))


def test_what_a_body_says_is_taken_out() -> None:
    body = {
        "vllm_xargs": {"batchwright_client_id": "bob", "batchwright_weight": 9, "own": 1, STAMP: "x"},
        "priority": -9,
    }
    asked = ask([("X-Vllm-Priority", "-3")], body)
    assert asked.data == {"prompt": "hello", "vllm_xargs": {"own": 1}}
    assert asked.header("x-vllm-priority") is None
    asked = ask([("X-Urgency", "4"), ("X-Vllm-Priority", "-3")], body)
    assert believed(asked) == {"priority": 4} and asked.data["priority"] == 4
    assert asked.header("x-vllm-priority") is None


def test_it_stays_where_requests_are_trusted_but_for_what_others_say() -> None:
    asked = ask(
        [("X-Client", "bob")],
        {"vllm_xargs": {"batchwright_client_id": "me", "batchwright_weight": 9}},
        trust_requests=True,
    )
    xargs = asked.data["vllm_xargs"]
    assert fields_of(xargs, Stamps(KEY), trusted=True) == {"client_id": "bob", "weight": 9, "priority": 5}


def test_only_who_knows_the_secret_is_believed() -> None:
    xargs = ask([("X-Client", "bob")]).data["vllm_xargs"]
    stamps = Stamps(KEY, lambda: time.time() + HOLDS_S / 2)
    assert fields_of(xargs, stamps, trusted=False)
    for other in (None, Stamps(b"another secret, just as long")):
        assert fields_of(xargs, other, trusted=False) == {}
    made = xargs[STAMP].partition(":")[0]
    later = xargs[STAMP].replace(made, str(int(made) + 9))
    wrong: list[Any] = ["0" * 64, f"{made}:{'0' * 64}", later, "", "x:y", f"{made}:\u00e9", 3, ["a"]]
    for changed in ({"batchwright_client_id": "alice"}, {"batchwright_weight": 3}, *({STAMP: one} for one in wrong)):
        assert fields_of({**xargs, **changed}, stamps, trusted=False) == {}
    assert fields_of({"batchwright_weight": ["a"], STAMP: f"{made}:0"}, stamps, trusted=False) == {}
    stamps = Stamps(KEY, lambda: 7.0)
    assert stamps.make({"weight": 2}) == stamps.make({"weight": 2.0}) != stamps.make({"weight": "2.0 "})


@pytest.mark.parametrize("late", [-2, 2])
def test_a_stamp_holds_for_a_while(late: int) -> None:
    """Who reads one in a log cannot use it for ever."""
    xargs = ask([("X-Client", "bob")]).data["vllm_xargs"]
    assert fields_of(xargs, Stamps(KEY, lambda: time.time() + late * HOLDS_S), trusted=False) == {}


def test_stamps_that_do_not_hold_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    xargs = ask([("X-Client", "bob")]).data["vllm_xargs"]
    stamps = Stamps(b"another secret, just as long")
    with caplog.at_level(logging.WARNING, "vllm.batchwright"):
        for _ in range(3):
            assert fields_of(xargs, stamps, trusted=False) == {}
    (record,) = caplog.records
    assert SECRET in record.getMessage()


@pytest.mark.parametrize("ever", [False, True])
def test_a_middleware_that_was_forgotten_is_said_once(ever: bool, caplog: pytest.LogCaptureFixture) -> None:
    stamps = Stamps(KEY)
    with caplog.at_level(logging.WARNING, "vllm.batchwright"):
        if ever:
            assert fields_of(ask([("X-Client", "bob")]).data["vllm_xargs"], stamps, trusted=False)
        for _ in range(300):
            assert fields_of({"batchwright_weight": 9}, stamps, trusted=False) == {}
    assert sum("--middleware" in record.getMessage() for record in caplog.records) == (not ever)


def test_a_trusted_header_comes_once_and_others_hold_what_they_like() -> None:
    """A gateway that adds its own to a user's would let the user choose."""
    asked = ask([("X-Client", "alice"), ("X-Client", "bob")])
    assert asked.body is None and asked.sent[0]["status"] == 400
    assert "x-client comes twice" in json.loads(asked.sent[1]["body"])["error"]["message"]
    asked = ask([("X-Client", "bob"), ("User-Agent", "a"), ("User-Agent", "b")], latin=[("X-Own", "caf\u00e9")])
    assert believed(asked)["client_id"] == "bob"
    asked = ask(latin=[("X-Client", "caf\u00e9")])
    assert asked.body is None and asked.sent[0]["status"] == 400


@pytest.mark.parametrize("body", [b"no json", b"[1, 2]", b'{"vllm_xargs": 3}', b""])
def test_what_is_wrong_with_a_body_is_for_vllm_to_say(body: bytes) -> None:
    assert ask([("X-Client", "bob")], body).body == body


def test_other_paths_and_other_configurations_go_through_untouched() -> None:
    raw = b'{"prompt": "hello",   "priority": 1}'
    assert ask([("X-Client", "bob")], raw, path="/v1/embeddings").body == raw
    assert ask([("X-Client", "bob")], raw, trusted=None).body == raw


def test_a_header_that_cannot_be_is_an_answer() -> None:
    asked = ask([("X-Weight", "heavy")])
    assert asked.body is None and asked.sent[0]["status"] == 400
    said = json.loads(asked.sent[1]["body"])["error"]["message"]
    assert said.startswith("a trusted header cannot be: weight: ")


@pytest.mark.parametrize(
    ("trusted", "said"),
    [
        ({"headers": {"klient": "X"}}, "'klient' is no field; there are client_id, slo_class"),
        ({"api_keys": {"sk-alice": {}}}, "keys stand here as sha256:HEX"),
        ({"clients": {"a": {"weight": 0}}}, "batchwright.trusted.clients.a.weight: "),
        ({"keys": {}}, "batchwright.trusted.keys: "),
    ],
)
def test_wrong_settings_are_named_and_keys_are_not(trusted: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings({"batchwright": {"trusted": trusted}})
    assert said in str(caught.value) and "sk-alice" not in str(caught.value)


def test_without_a_secret_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "short")
    with pytest.raises(ConfigError, match=f"set {SECRET} in vLLM's environment"):
        read_settings({"batchwright": {"trusted": TRUSTED}})
    assert read_settings({"batchwright": {}})[0].stamps is None
