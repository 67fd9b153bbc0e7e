"""Renders a model's chat template as transformers does, with bounds on what it may produce.

Compiled once, in Jinja's immutable sandbox: trimmed blocks, loop controls, ``tojson`` without
HTML escapes, ``raise_exception``, ``strftime_now`` from an injected clock. Only the operator's
template runs; a caller's values are data to it, but they decide how often its loops turn. So the
turns of all loops and macros are counted, by a name that is written into each of them and renders
as nothing. Pure: no I/O, no clock.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["Bounds", "ChatTemplate", "TemplateError"]

# A template's mistakes surface as whatever its expressions raise on the caller's data.
_MISTAKES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_TURN = "_turn"
_CONTINUE_MARK = "\ue000continue\ue001 "
# transformers marks assistant text with this block for training; rendering ignores it.
_OF_A_DICT = frozenset(dir({}))
_GENERATION = re.compile(r"{%(-?)\s*(end)?generation\s*(-?)%}")


class TemplateError(Exception):
    """The template refused the messages, failed on them, or produced too much."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest text one rendering may make, and how often its loops and macros may turn."""

    chars: int = 8 << 20
    turns: int = 500_000


_BOUNDS = Bounds()


class _Turns:
    """Renders as nothing, a limited number of times."""

    __slots__ = ("_left",)

    def __init__(self, limit: int) -> None:
        self._left = limit

    def __str__(self) -> str:
        self._left -= 1
        if self._left < 0:
            raise TemplateError("its loops turn too often")
        return ""


class ChatTemplate:
    """One model's template.

    Args:
        source: the Jinja text.
        special_tokens: texts by name, such as ``bos_token``.
        now: the clock of ``strftime_now``.
        content_format: whether templates take message content as ``string`` or as ``openai``
            parts; ``auto`` looks for a loop over content, as the engine does.
        allowed_kwargs: the keys of ``chat_template_kwargs`` that callers may send.
        bounds: how much one rendering may do.

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
        bounds: Bounds = _BOUNDS,
    ) -> None:
        environment = _environment(now)
        original = source
        source = _GENERATION.sub(_as_plain_block, source)
        try:
            tree = environment.parse(source)
            loops = _loops_over_content(tree)
            _count_turns(tree)
            self._template = environment.from_string(tree)
        except jinja2.TemplateError as error:
            raise TemplateError(f"not a Jinja template: {error}") from error
        self._source = original
        self.takes_developer = any(name in original for name in ("'developer'", '"developer"'))
        # What every rendering begins with, as ``Template.new_context`` would put it together.
        self._given = {**self._template.globals, **special_tokens}
        self._bounds = bounds
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
        given = {**self._given, **variables, "messages": messages}
        given[_TURN] = _Turns(self._bounds.turns)
        try:
            text = self._bounded(given)
        except (jinja2.TemplateError, *_MISTAKES) as error:
            raise TemplateError(str(error)) from error
        except RecursionError as error:
            raise TemplateError("too deeply nested") from error
        return _until_mark(text) if continue_final_message else text

    @cached_property
    def wants_system_first(self) -> bool:
        """Whether the engine takes the template to refuse system messages after the first.

        Found as vLLM finds it, by rendering such a chat without its own filters and functions.
        """
        bare = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        chat = [{"role": role, "content": "t"} for role in ("system", "user") * 2]
        try:
            bare.from_string(self._source).render(messages=chat, add_generation_prompt=False)
        except (jinja2.TemplateError, *_MISTAKES):
            return True
        return False

    @cached_property
    def disabled_effort(self) -> str:
        """The reasoning effort that the engine takes for thinking that is switched off.

        Found as vLLM finds it: ``none``, unless the template refuses or ignores that.
        """
        off = self._with_effort("none")
        ignored = off is None or any(self._with_effort(effort) == off for effort in _EFFORTS)
        return "low" if ignored else "none"

    def _with_effort(self, effort: str) -> str | None:
        hi = [{"type": "text", "text": "Hi"}] if self.takes_parts else "Hi"
        chosen = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        variables = {"tools": None, "documents": None, "add_generation_prompt": True, **chosen}
        try:
            return self.render([{"role": "user", "content": hi}], variables)
        except TemplateError:
            return None

    def _bounded(self, given: dict[str, Any]) -> str:
        # As ``Template.generate``, without a copy of the variables and without its rewriting of
        # tracebacks, which nobody sees: half the time of a short prompt.
        template = self._template
        context = Context(template.environment, given, template.name, template.blocks)
        pieces, left, most = [], self._bounds.chars, self._bounds.chars
        for piece in self._template.root_render_func(context):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                raise TemplateError(f"more than {most} characters")
        return "".join(pieces)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    # Prompts are text for a tokenizer, not HTML: escaping would change them.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    environment.getattr = _reader(environment)  # type: ignore[assignment,method-assign]
    return environment


def _reader(sandbox: ImmutableSandboxedEnvironment) -> Callable[[Any, str], Any]:
    """As the sandbox's own, which raises and catches an error for every item of a dict."""
    careful, undefined = sandbox.getattr, sandbox.undefined

    def read(obj: Any, attribute: str) -> Any:
        if type(obj) is not dict or attribute in _OF_A_DICT:
            return careful(obj, attribute)
        found = obj.get(attribute, obj)  # no object of JSON holds itself
        return undefined(obj=obj, name=attribute) if found is obj else found

    return read


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


def _count_turns(tree: nodes.Template) -> None:
    """Write the counting name at the start of every loop and macro."""
    blocks: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
        *tree.find_all(nodes.For),
        *tree.find_all(nodes.Macro),
        *tree.find_all(nodes.CallBlock),
    ]
    for block in blocks:
        count = nodes.Output([nodes.Name(_TURN, "load")], lineno=block.lineno)
        block.body.insert(0, count)


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
        if "text" not in part:
            raise TemplateError("only a text can be continued")
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
