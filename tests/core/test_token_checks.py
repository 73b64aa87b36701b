"""What looks at each token of a request: it may end it, and what it raises ends it with an error."""

from __future__ import annotations

import pytest

from batchwright import Request, Scheduler
from batchwright.errors import BackendError
from core.test_given_results import Loop
from fake_backend import expected_tokens
from toolbox import make_request


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("at", [1, 3, 6])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (BackendError("its grammar does not go on with 7"), "its grammar does not go on with 7"),
        (ValueError("no such token"), "looking for stop strings failed: ValueError: no such token"),
    ],
)
def test_what_it_raises_ends_its_request_alone(fault: Exception, said: str, at: int, ahead: bool) -> None:
    """With its last token too; and each token is shown once, in its turn."""
    loop = Loop(Scheduler("prefill_first", num_blocks=20, block_size=4, overlap=ahead), ahead=ahead)
    seen: dict[str, list[int]] = {"bad": [], "good": []}

    def add(name: str, most: int) -> Request:
        request = make_request(name, 5, most)
        loop.expected[name] = expected_tokens(request.prompt_token_ids[:], 0, most)

        def check(token: int) -> bool:
            seen[name].append(token)
            if name == "bad" and len(seen[name]) == at:
                raise fault
            return False

        loop.scheduler.add(request, stop_check=check)
        return request

    bad, good = add("bad", 6), add("good", 9)
    loop.finish()
    assert (bad.finish_reason, bad.error) == ("error", said)
    assert (good.finish_reason, good.error) == ("length", None)
    assert seen == {"bad": loop.expected["bad"][:at], "good": loop.expected["good"]}
    assert bad.output_token_ids[:] == seen["bad"]
