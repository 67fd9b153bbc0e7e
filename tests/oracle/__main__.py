"""Compares, body by body, what the gateway renders with what vLLM's own converters come to.

Run, with vLLM (0.32) installed and no model needed: python -m tests.oracle [--bodies 400]

Bodies are made from a seed. Each is read twice: by ``gateway.inputs``, and by vLLM's request
models, converters, chat parser and rules for template variables, then rendered by transformers.
The templates write down all they are given, so that a difference in any field shows. A body that
the gateway refuses is counted apart: it never comes to an engine. Exits 1 on a difference.
"""

import argparse
import random
import sys
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from gateway.domain import Refused, Surface
from gateway.inputs import ModelFacts, countable
from gateway.template import ChatTemplate
from tests.oracle.bodies import BODIES

ALL = (
    "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{{ tools | tojson if tools is defined }}"
    "{{ documents | tojson if documents is defined }}|{{ enable_thinking }}|{{ reasoning_effort }}"
    "|{{ thinking }}|{{ add_generation_prompt }}"
)
# The same, taking parts; refusing a second system message; knowing the developer.
TEMPLATES = {
    "strings": ALL,
    "parts": ALL + "{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}",
    "system first": ALL + "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('late') }}{% endif %}{% endfor %}",
    "developer": ALL + "{# 'developer' #}",
    "no thinking": "{% if enable_thinking is defined and not enable_thinking %}quiet{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}",
}
ALLOWED = ("enable_thinking", "thinking")


def now() -> datetime:
    return datetime(2026, 7, 1, tzinfo=UTC)


def ours(surface: Surface, body: dict[str, Any], template: ChatTemplate) -> str:
    (text,) = countable(surface, body, ModelFacts(template)).texts
    return text


class Engine:
    """vLLM's side."""

    def __init__(self, name: str, template: ChatTemplate) -> None:
        from vllm.entrypoints.anthropic.serving import AnthropicServingMessages  # noqa: PLC0415

        self.source, self.facts = TEMPLATES[name], template
        self.merges = AnthropicServingMessages._detect_merge_inline_system(self.source)

    def text(self, surface: Surface, body: dict[str, Any]) -> str:
        messages, tools, params = getattr(self, f"_{surface.value}")(body)
        return self._rendered(messages, tools, params)

    def _chat(self, body: dict[str, Any]) -> tuple[Any, Any, Any]:
        from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: PLC0415
            ChatCompletionRequest,
        )

        return self._parts_of(ChatCompletionRequest.model_validate(body))

    def _messages(self, body: dict[str, Any]) -> tuple[Any, Any, Any]:
        from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest  # noqa: PLC0415
        from vllm.entrypoints.anthropic.serving import AnthropicServingMessages  # noqa: PLC0415

        request = AnthropicServingMessages.to_chat_completion_request(
            AnthropicMessagesRequest.model_validate(body),
            merge_inline_system=self.merges,
            disabled_thinking_effort=self._disabled_effort(),
        )
        return self._parts_of(request)

    def _disabled_effort(self) -> str:
        """As ``_probe_disabled_thinking_effort`` does, over our way to render its probe."""
        texts = {}
        for effort in ("none", "low", "medium", "high", "xhigh", "max"):
            probe = {"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": effort}
            try:
                texts[effort] = self._rendered(*self._chat(probe))
            except Exception:  # the engine takes any failure as an answer here
                texts[effort] = ""
        off = texts.pop("none")
        return "low" if not off or off in texts.values() else "none"

    @staticmethod
    def _parts_of(request: Any) -> tuple[Any, Any, Any]:
        tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
        return request.messages, tools, request.build_chat_params(None, "auto")

    @staticmethod
    def _responses(body: dict[str, Any]) -> tuple[Any, Any, Any]:
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # noqa: PLC0415
        from vllm.entrypoints.openai.responses.utils import (  # noqa: PLC0415
            construct_input_messages,
            construct_tool_dicts,
        )

        request = ResponsesRequest.model_validate(body)
        messages = construct_input_messages(
            request_instructions=request.instructions, request_input=request.input
        )
        tools = construct_tool_dicts(request.tools, request.tool_choice)
        return messages, tools, request.build_chat_params(None, "auto")

    def _rendered(self, messages: Any, tools: Any, params: Any) -> str:
        from transformers.utils.chat_template_utils import (  # noqa: PLC0415
            render_jinja_template,
        )
        from vllm.renderers import hf  # noqa: PLC0415
        from vllm.renderers.chat_utils import parse_chat_messages  # noqa: PLC0415

        model = SimpleNamespace(
            enable_prompt_embeds=False,
            multimodal_config=None,
            hf_config=SimpleNamespace(),
        )
        form = "openai" if self.facts.takes_parts else "string"
        conversation, _, _ = parse_chat_messages(list(messages), model, form)
        developers = any(message["role"] == "developer" for message in conversation)
        if developers and not hf._detect_developer_role_support(self.source):
            conversation = hf._consolidate_system_messages(
                hf._convert_developer_to_system(conversation)
            )
        given = dict(params.chat_template_kwargs)
        rendered, _ = render_jinja_template(
            conversations=[conversation],
            tools=tools,
            documents=given.pop("documents", None),
            chat_template=self.source,
            add_generation_prompt=given.pop("add_generation_prompt", False),
            continue_final_message=given.pop("continue_final_message", False),
            **given,
        )
        return str(rendered[0])


def compare(surface: Surface, body: dict[str, Any], template: ChatTemplate, engine: Engine) -> str:
    """``same``, ``refused`` by the gateway, or how they differ."""
    try:
        mine = ours(surface, body, template)
    except Refused:
        return "refused"
    try:
        theirs = engine.text(surface, body)
    except Exception as error:  # whatever it is, the engine answers an error
        return f"the engine refuses: {type(error).__name__} {str(error)[:160]}"
    return "same" if mine == theirs else f"differs\n  ours   {mine!r}\n  theirs {theirs!r}"


def main() -> int:
    """Compare and print; 1 where something differs, 0 else, also where vLLM is not installed."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle")
    parser.add_argument("--bodies", type=int, default=400, help="for each surface and template")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    options = parser.parse_args()
    try:
        import vllm  # noqa: PLC0415
    except ImportError:
        print("vLLM is not installed: nothing compared")
        return 0
    bad = 0
    for name, source in TEMPLATES.items():
        template = ChatTemplate(source, {}, now, allowed_kwargs=ALLOWED)
        engine = Engine(name, template)
        for surface, make in BODIES.items():
            chance, seen = random.Random(options.seed), Counter[str]()
            for _ in range(options.bodies):
                body = make(chance)
                found = compare(surface, body, template, engine)
                word = found.partition(":")[0].partition("\n")[0]
                seen[word] += 1
                if word == "differs" or (word == "the engine refuses" and options.show > 9):
                    bad += word == "differs"
                    if seen[word] <= options.show:
                        print(f"{surface}, {name}: {body}\n  {found}")
            print(f"{surface:<10} {name:<13} {dict(seen)}", flush=True)
    print(f"vLLM {vllm.__version__}: {bad} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
