"""Renders a model's chat template as transformers does, with bounds on what it may produce.

Compiled once, in Jinja's immutable sandbox: trimmed blocks, loop controls, ``tojson`` without
HTML escapes, ``raise_exception``, ``strftime_now`` from an injected clock. Only the operator's
template runs; a caller's values are data to it. Pure: no I/O, no clock.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatTemplate", "TemplateError"]

_CONTINUE_MARK = "\ue000continue\ue001 "
# transformers marks assistant text with this block for training; rendering ignores it.
_GENERATION = re.compile(r"{%(-?)\s*(end)?generation\s*(-?)%}")


class TemplateError(Exception):
    """The template refused the messages, failed on them, or produced too much."""


class ChatTemplate:
    """One model's template.

    Args:
        source: the Jinja text.
        special_tokens: texts by name, such as ``bos_token``.
        now: the clock of ``strftime_now``.
        content_format: whether templates take message content as ``string`` or as ``openai``
            parts; ``auto`` looks for a loop over content, as the engine does.
        allowed_kwargs: the keys of ``chat_template_kwargs`` that callers may send.
        max_chars: the largest text rendered.

    Raises:
        TemplateError: the source is no template.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime],
        *,
        content_format: str = "auto",
        allowed_kwargs: Sequence[str] = (),
        max_chars: int = 32 << 20,
    ) -> None:
        environment = _environment(now)
        source = _GENERATION.sub(_as_plain_block, source)
        try:
            self._template = environment.from_string(source)
            # Copied for every rendering, and a plain dictionary copies several times as fast.
            self._template.globals = dict(self._template.globals)
            loops = _loops_over_content(environment.parse(source))
        except jinja2.TemplateError as error:
            raise TemplateError(f"not a Jinja template: {error}") from error
        self._special_tokens = dict(special_tokens)
        self._max_chars = max_chars
        self.takes_parts = loops if content_format == "auto" else content_format == "openai"
        self.allowed_kwargs = frozenset(allowed_kwargs)

    def render(
        self,
        messages: list[dict[str, Any]],
        variables: Mapping[str, Any],
        *,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt text; ``continue_final_message`` ends it within the last message.

        Raises:
            TemplateError: the template refuses the messages or produces too much text.
        """
        if continue_final_message:
            messages = _marked(messages)
        given = {**self._special_tokens, **variables, "messages": messages}
        try:
            text = self._bounded(given)
        # A template's mistakes surface as whatever its expressions raise on the caller's data.
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise TemplateError(str(error)) from error
        except RecursionError as error:
            raise TemplateError("too deeply nested") from error
        return _until_mark(text) if continue_final_message else text

    def _bounded(self, given: Mapping[str, Any]) -> str:
        pieces, chars = [], 0
        for piece in self._template.generate(given):
            pieces.append(piece)
            chars += len(piece)
            if chars > self._max_chars:
                raise TemplateError(f"more than {self._max_chars} characters")
        return "".join(pieces)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    # Prompts are text for a tokenizer, not HTML: escaping would change them.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _as_plain_block(tag: re.Match[str]) -> str:
    return f"{{%{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}%}}"


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether a loop walks a message's content, directly or by a name set to it."""
    names = {
        node.target.name
        for node in tree.find_all(nodes.Assign)
        if isinstance(node.target, nodes.Name) and _is_content(node.node)
    }
    return any(
        _is_content(loop.iter) or (isinstance(loop.iter, nodes.Name) and loop.iter.name in names)
        for loop in tree.find_all(nodes.For)
    )


def _is_content(node: nodes.Node | None) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return (
        isinstance(node, nodes.Getitem)
        and isinstance(node.arg, nodes.Const)
        and node.arg.value == "content"
    )


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last = dict(messages[-1])
    content = last["content"]
    if isinstance(content, str):
        last["content"] = content + _CONTINUE_MARK
    elif content:
        *before, part = content
        last["content"] = [*before, {**part, "text": part["text"] + _CONTINUE_MARK}]
    return [*messages[:-1], last]


def _until_mark(text: str) -> str:
    at = text.rfind(_CONTINUE_MARK.rstrip())
    if at < 0:
        raise TemplateError("the template drops the message that was to be continued")
    kept = text[:at]
    # A template that strips content has removed the mark's last space: it would have stripped
    # the message as well.
    return kept if text.startswith(_CONTINUE_MARK, at) else kept.rstrip()
