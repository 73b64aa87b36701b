"""The text of a request as it grows, against searching the whole text each time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.outputs import OutputText
from fake_backend import FakeTokenizer

TOKENS = [ord("a"), ord("b"), ord("c"), 0, 900, 901]
"""One character each, a special one without text, and "aa" and "bb"."""


@settings(max_examples=400)
@given(
    tokens=st.lists(st.sampled_from(TOKENS), max_size=14),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    held=st.sampled_from(["", "b"]),
)
def test_against_searching_the_whole_text(tokens: list[int], stop: list[str], held: str) -> None:
    text, decoder = OutputText(FakeTokenizer(held).decoder(), tuple(stop)), FakeTokenizer(held).decoder()
    whole = told = ""
    for token in tokens:
        stopped = text.push(token)
        whole += decoder.push([token])
        told += text.new()
        places = [whole.find(s) for s in stop if s in whole]
        assert stopped == text.stopped == bool(places)
        assert told == text.text
        if stopped:
            assert text.text == whole[: min(places)]
            break
        # Held back is exactly what could still become a stop string.
        ends = [n for n in range(len(whole) + 1) if any(s.startswith(whole[n:]) for s in stop) or n == len(whole)]
        assert text.text == whole[: min(ends)]
    else:
        whole += decoder.finish()
        places = [whole.find(s) for s in stop if s in whole]
        text.finish()
        assert text.text == (whole[: min(places)] if places else whole)
        told += text.new()
    text.finish()
    assert text.text == told + text.new()
