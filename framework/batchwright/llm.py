"""Offline generation in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from batchwright.config import EngineConfig
from batchwright.engine import Engine
from batchwright.errors import InvalidRequestError
from batchwright.outputs import RequestOutput
from batchwright.plugins import Plugins, load_plugins
from batchwright.prompts import Message, Prompt, as_conversations, as_prompts, tokenized
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams


class LLM:
    """A model that answers lists of prompts, under any policy.

        llm = LLM("smollm2-135m", policy="stall_free")
        for output in llm.generate(["Hello", "Once upon a time"], SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)

    Attributes:
        engine: what runs it.
    """

    def __init__(self, model: str, *, config: EngineConfig | None = None, **settings: Any) -> None:
        """Loads a model.

        Args:
            model: a backend in full (``cpu:smollm2-135m``, ``sim:llama-3.1-8b@h100``), or the model alone, which runs
                on a CUDA GPU where there is one, else on the CPU.
            config: settings; ``settings`` win over it.
            settings: fields of :class:`EngineConfig`: ``policy``, ``max_num_seqs``, ``num_blocks``, …

        Raises:
            ConfigError, PluginError, BackendError: something of it cannot be had; the message says what to do.
        """
        base = config.model_dump(exclude_unset=True) if config is not None else {}
        chosen = EngineConfig.parse({**base, **settings})
        installed = load_plugins(chosen.no_plugins)
        chosen = EngineConfig.parse({**base, **settings, "backend": choose_backend(model, installed)})
        self.engine = Engine(chosen, installed=installed)
        self._num_requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts; outputs come in the order of the prompts.

        Args:
            prompts: one or many. Each is text, token ids, or a mapping: ``{"prompt": text}``, ``{"prompt_token_ids":
                ids}`` or ``{"messages": [...]}``, a conversation with options as in :meth:`chat`.
            sampling_params: one for all, or one for each prompt.
            use_tqdm: show a progress bar on the terminal (named as in vLLM's API).

        Raises:
            RequestError: a prompt cannot be taken; none of them was run.
        """
        many = as_prompts(prompts)
        if isinstance(sampling_params, Sequence):
            params: list[SamplingParams | None] = list(sampling_params)
            if len(params) != len(many):
                raise InvalidRequestError(
                    f"{len(params)} sampling_params for {len(many)} prompts: give one, or one each"
                )
        else:
            params = [sampling_params] * len(many)
        ids: list[str] = []
        try:
            for prompt, param in zip(many, params, strict=True):
                request, text = as_request(self.engine, f"llm-{self._num_requests}", prompt, param)
                request.arrival_ns = self.engine.clock.now_ns()
                self.engine.add_request(request, prompt=text)
                self._num_requests += 1
                ids.append(request.request_id)
            return self._run(ids, use_tqdm)
        except BaseException:
            for request_id in ids:
                if self.engine.scheduler.get(request_id) is not None:
                    self.engine.abort(request_id)
            raise

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer conversations; outputs come in their order.

            (output,) = llm.chat([{"role": "user", "content": "Name a river."}], SamplingParams(max_tokens=32))

        The model's chat template writes the prompt, special tokens included: none are added to it.

        Args:
            messages: one conversation or many. A message has a ``role`` and a ``content``: text, or a list of parts
                ``{"type": "text", "text": ...}``.
            sampling_params: one for all, or one for each conversation.
            add_generation_prompt: end with what opens the assistant's turn; None: unless ``continue_final_message``.
            continue_final_message: leave the last message open, so that the model goes on with it.
            chat_template: a template (Jinja) in place of the model's own.
            chat_template_kwargs: further variables that the template reads, such as ``enable_thinking``.
            tools: that the model may call, as JSON schemas, where the template knows of them.
            use_tqdm: show a progress bar on the terminal.

        Raises:
            RequestError: a conversation cannot be taken, or the model has no chat template; none of them was run.
        """
        options = {
            "add_generation_prompt": not continue_final_message
            if add_generation_prompt is None
            else add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template": chat_template,
            "chat_template_kwargs": chat_template_kwargs or {},
            "tools": tools,
        }
        prompts = [{"messages": conversation, **options} for conversation in as_conversations(messages)]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def _run(self, ids: list[str], use_tqdm: bool) -> list[RequestOutput]:
        done: dict[str, RequestOutput] = {}
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=not (use_tqdm and console.is_terminal)) as progress:
            task = progress.add_task("Requests", total=len(ids))
            self.engine.on_abort = lambda output: done.update({output.request_id: output})
            while self.engine.has_unfinished():
                for output in self.engine.step():
                    if output.finished:
                        done[output.request_id] = output
                        progress.advance(task)
        self.engine.on_abort = None
        return [done[i] for i in ids]

    def close(self) -> None:
        """Give back the model's memory."""
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def choose_backend(model: str, plugins: Plugins) -> str:
    """A backend's full name for a model: as given, or ``cuda:`` where that can run here, else ``cpu:``."""
    if model.partition(":")[0] in plugins.backends and ":" in model:
        return model
    cuda = plugins.backends.get("cuda")
    return f"cuda:{model}" if cuda is not None and cuda.available() is None else f"cpu:{model}"


def as_request(
    engine: Engine, request_id: str, prompt: Prompt, params: SamplingParams | None, **fields: Any
) -> tuple[Request, str | None]:
    """A request for a prompt in any form, and its text.

    Raises:
        InvalidRequestError: see :func:`~batchwright.prompts.tokenized`.
    """
    token_ids, text = tokenized(engine.backend, prompt)
    return Request(request_id, token_ids, params, **fields), text
