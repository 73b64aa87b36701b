"""The engine: what callers get step by step, faults of backends and tokenizers, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright import (
    ConfigError,
    Engine,
    EngineConfig,
    InvalidRequestError,
    PluginError,
    Request,
    RequestOutput,
    SamplingParams,
    StepResult,
    hookimpl,
)
from batchwright.batch import Batch
from fake_backend import FakeBackend, FakeDecoder, FakeTokenizer, HandClock, say
from toolbox import BASIC, check_empty, check_whole, drain, expected_of, make_engine, make_request, play


def _stream(engine: Engine) -> dict[str, list[RequestOutput]]:
    """All outputs of a run, by request."""
    streams: dict[str, list[RequestOutput]] = {}
    for _ in range(500):
        if not engine.has_unfinished():
            return streams
        for output in engine.step():
            streams.setdefault(output.request_id, []).append(output)
        check_whole(engine.scheduler)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("policy", BASIC)
def test_streams_give_each_token_once(policy: str) -> None:
    engine, tape = make_engine(policy, P=16, T=16)
    for i in range(4):
        engine.add_request(make_request(str(i), 8, 24))
    streams = _stream(engine)
    assert tape.preemptions()
    for request_id, outputs in streams.items():
        request = tape.requests[request_id]
        assert [t for o in outputs for t in o.new_token_ids] == expected_of(request)
        for number, output in enumerate(outputs, 1):
            assert output.outputs[0].token_ids == expected_of(request)[:number]
            assert output.prompt_token_ids == request.prompt_token_ids
            assert (output.finished, output.outputs[0].finish_reason) == (
                (True, "length") if number == 24 else (False, None)
            )
            assert output.outputs[0].text == output.new_text == "" and output.error is None
    assert engine.step() == []


def test_outputs_come_in_batch_order() -> None:
    engine, tape = make_engine(settings={"poison": ["b"]})
    for i in "abc":
        engine.add_request(make_request(i, 5, 3))
    outputs = engine.step()
    assert [o.request_id for o in outputs] == ["a", "b", "c"]
    by_id = {o.request_id: o for o in outputs}
    assert by_id["b"].error == "logits are not finite" and by_id["b"].outputs[0].finish_reason == "error"
    assert by_id["b"].new_token_ids == [] and by_id["a"].error is None
    drain(engine)
    assert tape.reasons == {"a": "length", "b": "error", "c": "length"}


def _text_engine(script: dict[str, str], **settings: Any) -> Engine:
    engine, _ = make_engine(
        settings={"tokenizer": FakeTokenizer(), "script": {i: say(t) for i, t in script.items()}, **settings}
    )
    return engine


def test_text_streams() -> None:
    engine = _text_engine({"a": "hello"})
    engine.add_request(make_request("a", FakeTokenizer().encode("say"), 5), prompt="say")
    outputs = _stream(engine)["a"]
    assert [o.new_text for o in outputs] == list("hello")
    assert [o.outputs[0].text for o in outputs] == ["h", "he", "hel", "hell", "hello"]
    assert {o.prompt for o in outputs} == {"say"}


def test_a_stop_string_split_across_tokens_ends_the_request_and_is_no_output() -> None:
    engine = _text_engine({"a": "one ENVY two END three", "b": "no end of it"})
    engine.add_request(make_request("a", 4, 40, stop=["END"]))
    engine.add_request(make_request("b", 4, 12, stop="END"))
    streams = _stream(engine)
    last = streams["a"][-1]
    assert last.outputs[0].text == "one ENVY two " and last.outputs[0].finish_reason == "stop"
    assert last.outputs[0].token_ids == list(say("one ENVY two END").values())
    # "EN" is held back until "V" shows that it is no beginning of "END".
    assert [o.new_text for o in streams["a"][:8]] == ["o", "n", "e", " ", "", "", "ENV", "Y"]
    assert "".join(o.new_text for o in streams["a"]) == last.outputs[0].text
    assert streams["b"][-1].outputs[0].text == "no end of it"


def test_what_is_held_back_comes_when_the_request_ends() -> None:
    engine = _text_engine({"a": "xEN"})
    engine.add_request(make_request("a", 4, 3, stop=["END"]))
    outputs = _stream(engine)["a"]
    assert [o.new_text for o in outputs] == ["x", "", "EN"]
    assert outputs[-1].outputs[0].finish_reason == "length"
    engine.add_request(make_request("b", 4, 9, stop=["END"]))
    engine.step()
    assert engine.abort("b").outputs[0].finish_reason == "abort"


def test_the_earliest_of_several_stop_strings_counts() -> None:
    engine = _text_engine({"a": "abcdef"}, eos_token_ids=(1,))
    engine.add_request(make_request("a", 4, 9, stop=["cd", "bcd", "f"]))
    last = _stream(engine)["a"][-1]
    assert (last.outputs[0].text, last.outputs[0].finish_reason) == ("a", "stop")


@pytest.mark.parametrize("stop", [None, ["never"]])
def test_the_text_of_a_stop_token_is_no_output(stop: Any) -> None:
    engine = _text_engine({"a": "abX", "b": "ab\0"}, eos_token_ids=(0,))
    engine.add_request(make_request("a", 4, 9, stop_token_ids=[ord("X")], stop=stop))
    engine.add_request(make_request("b", 4, 9, ignore_eos=False, stop=stop))
    for outputs in _stream(engine).values():
        assert outputs[-1].outputs[0].text == "ab"
        assert len(outputs[-1].outputs[0].token_ids) == 3
        assert outputs[-1].outputs[0].finish_reason == "stop"


def test_preemption_changes_no_text() -> None:
    texts = []
    for num_blocks in (100, 16):
        backend = FakeBackend(num_blocks=num_blocks, tokenizer=FakeTokenizer(), vocab_size=120)
        engine, tape = make_engine(backend=backend)
        for i in range(4):
            engine.add_request(make_request(str(i), [1 + i] * 8, 24, stop=["\x05\x07"]))
        texts.append({i: "".join(o.new_text for o in outputs) for i, outputs in _stream(engine).items()})
        assert bool(tape.preemptions()) == (num_blocks == 16)
    assert texts[0] == texts[1]


def test_stop_strings_need_a_tokenizer() -> None:
    engine, _ = make_engine()
    with pytest.raises(
        InvalidRequestError, match="stop strings need text, and fake has no tokenizer; use stop_token_ids"
    ):
        engine.add_request(make_request("a", 4, 4, stop=["END"]))
    assert not engine.has_unfinished()


def test_a_request_offered_again_keeps_its_stop_strings() -> None:
    engine = _text_engine({"a": "xyENDzzz"})
    request = make_request("a", 4, 8, stop=["END"])
    engine.add_request(request)
    with pytest.raises(InvalidRequestError, match="'a' was added before"):
        engine.add_request(request)
    last = _stream(engine)["a"][-1]
    assert (last.outputs[0].text, last.outputs[0].finish_reason) == ("xy", "stop")


class BadTokenizer(FakeTokenizer):
    """Cannot decode "!"."""

    def decoder(self) -> FakeDecoder:
        class Bad(FakeDecoder):
            def push(self, token_ids: Any) -> str:
                if ord("!") in token_ids:
                    raise UnicodeError("no such character")
                return super().push(token_ids)

        return Bad("")


@pytest.mark.parametrize("stop", [None, ["END"]])
def test_a_tokenizer_that_fails_fails_that_request_alone(stop: Any) -> None:
    engine = _text_engine({"bad": "ab!cdef", "good": "hello"}, tokenizer=BadTokenizer())
    engine.add_request(make_request("bad", 4, 7, stop=stop))
    engine.add_request(make_request("good", 4, 5, stop=stop))
    streams = _stream(engine)
    assert streams["good"][-1].outputs[0].text == "hello"
    last = streams["bad"][-1]
    assert last.finished and last.outputs[0].finish_reason == "error"
    assert "UnicodeError: no such character" in (last.error or "")
    check_empty(engine.scheduler)


class WrongTokens(FakeBackend):
    """Changes what its second and fourth execution give."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self._change = change

    def submit(self, batch: Batch) -> StepResult:
        result = super().submit(batch)
        if self.num_executed in (2, 4):
            result.token_ids = self._change(list(result.token_ids))
        return result


WRONG = {
    "one too many": lambda tokens: [*tokens, 1],
    "none": lambda tokens: [],
    "a float": lambda tokens: [2.5, *tokens[1:]],
    "None": lambda tokens: [None, *tokens[1:]],
    "beyond the vocabulary": lambda tokens: [1000, *tokens[1:]],
    "negative": lambda tokens: [-1, *tokens[1:]],
}


@pytest.mark.parametrize("change", WRONG)
@pytest.mark.parametrize("mode", ["fail", "retry"])
def test_wrong_tokens_are_a_failure_of_the_backend(change: str, mode: str) -> None:
    engine, tape = make_engine(backend=WrongTokens(WRONG[change]), on_backend_error=mode)
    play(engine, {0: [make_request(str(i), 4, 5) for i in range(2)], 6: [make_request("later", 4, 1)]})
    assert len(tape.events("backend_fault")) == (1 if mode == "fail" else 2)
    assert all("BackendError: the backend gave" in e["error"] for e in tape.events("backend_fault"))
    assert tape.reasons["later"] == "length"
    assert tape.reasons["0"] == tape.reasons["1"] == ("error" if mode == "fail" else "length")
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


def test_an_interrupted_backend_leaves_the_batch_to_be_computed_again() -> None:
    def before(batch: Batch) -> None:
        if backend.num_executed == 3:
            raise KeyboardInterrupt

    backend = FakeBackend(before=before)
    engine, tape = make_engine(backend=backend)
    for i in range(3):
        engine.add_request(make_request(str(i), 6, 6))
    engine.step()
    engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    check_whole(engine.scheduler)
    assert sorted(backend.released) == ["0", "1", "2"]
    drain(engine)
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request) and len(request.output_token_ids) == 6


def test_failures_in_a_row_are_counted_anew_after_a_success() -> None:
    failures = [0, 1, 2, 4, 5, 6, 8, 9, 10]
    engine, tape = make_engine(settings={"fail_at": failures}, on_backend_error="retry")
    play(engine, [make_request("a", 4, 6)])
    assert tape.reasons == {"a": "length"}
    assert len(tape.events("backend_fault")) == len(failures)


def test_a_backend_is_told_whom_to_forget() -> None:
    engine, tape = make_engine(P=16)
    for i in range(4):
        engine.add_request(make_request(str(i), 8, 24))
    engine.add_request(make_request("x", 4, 9))
    engine.abort("x")
    drain(engine)
    backend: Any = engine.backend
    assert backend.released == ["x", "3", "2", "0", "1", "2", "3"]
    assert [i for _, i in tape.preemptions()] == ["3", "2"]


def test_a_backend_forgets_victims_of_a_step_that_a_policy_broke() -> None:
    from faulty import Broken, PrefillFirst

    class Breaks(PrefillFirst):
        @hookimpl
        def admission(self, step: Any) -> Any:
            yield from super().admission(step)
            if step.preempted:
                raise Broken("after an eviction")

    engine, tape = make_engine(Breaks(), P=16)
    for i in range(4):
        engine.add_request(make_request(str(i), 8, 24))
    for _ in range(60):
        try:
            engine.step()
        except Exception as error:
            assert "after an eviction" in str(error)
            assert engine.backend.released[-1] == engine.scheduler.waiting[0].request_id  # type: ignore[attr-defined]
    assert len(tape.reasons) == 4


def test_close_ends_everything() -> None:
    engine, tape = make_engine()
    with engine:
        engine.add_request(make_request("a", 4, 9))
        engine.add_request(make_request("b", 4, 9))
        engine.step()
        engine.add_request(make_request("c", 4, 9))
    assert tape.reasons == {"a": "abort", "b": "abort", "c": "abort"}
    assert engine.backend.num_closed == 1  # type: ignore[attr-defined]
    check_empty(engine.scheduler)


def test_limits_meet_the_backend() -> None:
    with pytest.raises(ConfigError, match="max_model_len is 5000 and the model of fake takes 4096 tokens at most"):
        make_engine(max_model_len=5000)
    engine, _ = make_engine(max_model_len=100)
    assert engine.limits.max_model_len == 100
    engine, _ = make_engine()
    assert engine.limits.max_model_len == 4096
    assert engine.effective.origins["max_model_len"] == "backend fake"
    assert (engine.effective.values["num_blocks"], engine.effective.values["block_size"]) == (256, 4)


def test_a_backend_is_closed_when_the_engine_cannot_be_made() -> None:
    for config, kwargs in [({"max_model_len": 5000}, {}), ({}, {"num_blocks": 0})]:
        backend = FakeBackend(**kwargs)
        with pytest.raises(ConfigError):
            Engine(EngineConfig.parse(config), backend=backend)
        assert backend.num_closed == 1


def test_names_and_clock() -> None:
    engine, _ = make_engine("stall_free:chunk_size=64")
    assert engine.policy_name == "stall_free" and engine.clock is engine.backend.clock
    assert engine.scheduler.policy.describe() == {"use": "stall_free", "chunk_size": 64}


def test_default_seeds_come_from_the_engine_and_the_request() -> None:
    def outputs(seed: int, request_id: str) -> list[int]:
        engine, _ = make_engine(seed=seed)
        request = Request(request_id, [1, 2, 3], SamplingParams(max_tokens=6))
        play(engine, [request])
        return request.output_token_ids[:]

    assert outputs(1, "a") == outputs(1, "a")
    assert outputs(1, "a") != outputs(2, "a")
    assert outputs(1, "a") != outputs(1, "b")


def test_plugins_with_one_name() -> None:
    class Named:
        name = "tape"

        @hookimpl
        def step_started(self) -> None: ...

    with pytest.raises(PluginError, match="plugin 'tape' is registered twice; give one of the two another name"):
        make_engine(plugins=[Named()])


@pytest.mark.parametrize("overlap", [False, True])
def test_a_driver_without_outputs_leaves_no_text_behind(overlap: bool) -> None:
    """Texts are kept for outputs; who ended, was aborted within a step or failed has none to come."""

    class Aborts:
        name = "aborts"

        @hookimpl
        def step_finished(self, step: Any) -> None:
            if step.index == 2:
                engine.abort("c")

    backend = FakeBackend(tokenizer=FakeTokenizer(), clock=HandClock(), script={"b": say("ab")}, poison=["d"])
    engine, _ = make_engine(backend=backend, plugins=[Aborts()], overlap=overlap)
    for name in "abcd":
        engine.add_request(make_request(name, 5, 6, **({"stop": ["b"]} if name == "b" else {})), prompt="text")
    while engine.has_unfinished():
        engine.advance()
    answers = engine._answers
    assert not answers._texts and not answers._prompts and not answers._aborted and not answers._untold
