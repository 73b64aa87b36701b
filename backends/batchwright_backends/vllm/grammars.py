"""Requests whose output a grammar constrains: JSON of a schema, a choice, a regular expression, a grammar.

vLLM compiles each grammar in a thread of its own, masks with it what a step may sample, and moves it on with each
token. Until it is compiled its request cannot run, and stands outside the scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.output import GrammarOutput  # pyright: ignore[reportMissingImports]

from batchwright.errors import BackendError, InvalidRequestError

if TYPE_CHECKING:
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

    from batchwright.request import Request
    from batchwright_backends.vllm.seats import Seats


class Grammars:
    """Those of one scheduler.

    Args:
        manager: vLLM's ``StructuredOutputManager``.
        seats: of the scheduler.
    """

    def __init__(self, manager: Any, seats: Seats) -> None:
        self._manager = manager
        self._seats = seats
        self._compiling: dict[Request, VllmRequest] = {}
        self._done: deque[Request] = deque()  # threads that compile put them here

    # Until they are compiled ----------------------------------------------------------------------------------

    @property
    def num_compiling(self) -> int:
        """Requests that wait for their grammar."""
        return len(self._compiling)

    @property
    def any_done(self) -> bool:
        """Whether there is something to take."""
        return bool(self._done)

    def wait_for(self, request: Request, theirs: VllmRequest) -> bool:
        """Whether a request has to wait for its grammar; it is taken later then."""
        constraint = theirs.structured_output_request
        if constraint is None or not isinstance(constraint._grammar, Future) or constraint._grammar.done():
            return False
        self._compiling[request] = theirs
        constraint._grammar.add_done_callback(lambda _: self._done.append(request))
        return True

    def take_done(self) -> list[tuple[Request, VllmRequest]]:
        """Those whose grammar was compiled since, or cannot be, in the order in which they came; with vLLM's."""
        done = [self._done.popleft() for _ in range(len(self._done))]
        taken = [(r, self._compiling.pop(r)) for r in done if r in self._compiling]
        return sorted(taken, key=lambda pair: pair[0].arrival_ns)

    def give_up(self, request: Request) -> None:
        """A request left; a grammar that nobody has begun with need not be compiled."""
        theirs = self._compiling.pop(request, None)
        if theirs is not None:
            constraint = theirs.structured_output_request
            constraint._grammar.cancel()

    # While they run -------------------------------------------------------------------------------------------

    def checking(self, theirs: VllmRequest, check: Callable[[int], bool] | None) -> Callable[[int], bool] | None:
        """What is to be called with each token of a request.

        Args:
            theirs: vLLM's request.
            check: what is called with it anyhow, and says whether the request ends.

        Raises:
            InvalidRequestError: its grammar could not be compiled.
        """
        constraint, manager = theirs.structured_output_request, self._manager
        if constraint is None:
            return check
        grammar = constraint.grammar
        if grammar is None or isinstance(grammar, Exception):
            why = "nobody compiled it" if grammar is None else f"{type(grammar).__name__}: {grammar}"
            raise InvalidRequestError(f"request {theirs.request_id!r} has a grammar that cannot be used: {why}")

        def take(token: int) -> bool:
            theirs.append_output_token_ids(token)  # parsers of reasoning read them
            if not manager.accept_tokens(theirs, [token]):
                raise BackendError(
                    f"the grammar does not go on with token {token}, which its mask should have excluded"
                )
            return check is not None and check(token)

        return take

    def among(self, rows: Sequence[Request]) -> Sequence[Request]:
        """Those of a step's rows that are constrained."""
        seats = self._seats
        return [r for r in rows if (seat := seats.get(r.request_id)) is not None and seat.is_constrained]

    def mask(self, requests: Iterable[Request]) -> GrammarOutput | None:
        """What each may sample next, by all tokens that it has; None: nobody of them is left.

        Args:
            requests: constrained ones.
        """
        left = {}
        for request in requests:
            seat = self._seats.get(request.request_id)
            if seat is not None and seat.request is request:
                left[request.request_id] = seat.theirs
        if not left:
            return None
        names = list(left)
        masks = self._manager.grammar_bitmask(left, names, {})
        return GrammarOutput(structured_output_request_ids=names, grammar_bitmask=masks)
