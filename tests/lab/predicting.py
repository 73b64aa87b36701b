"""Engines that predict, and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchwright import Policy, Refusal, Request, hookimpl
from toolbox import make_engine, make_request


def an_engine(predict: Any, policy: Any = "prefill_first", **config: Any) -> Any:
    return make_engine(policy, predict=predict, **config)


def said(predict: Any, lengths: Mapping[str, int], **fields: Any) -> dict[str, int | None]:
    """What is predicted of requests that really run so long."""
    engine, tape = an_engine(predict)
    for name, length in lengths.items():
        engine.add_request(make_request(name, 4, 900, **fields), num_output_tokens=length)
    return {name: request.predicted_output_tokens for name, request in tape.requests.items()}


class Guesser(Policy):
    """A policy that predicts, and refuses what it expects to be long."""

    @hookimpl
    def predict_output(self, request: Request) -> int | None:
        return request.max_tokens

    @hookimpl
    def arrival(self, request: Request) -> Any:
        return True if (request.predicted_output_tokens or 0) < 50 else Refusal("it will be long")
