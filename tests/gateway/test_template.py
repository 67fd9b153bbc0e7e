from datetime import UTC, datetime
from typing import Any

import jinja2
import pytest

from gateway.template import Bounds, ChatTemplate, TemplateError

NOW = datetime(2026, 7, 28, 9, 30, tzinfo=UTC)
USER = [{"role": "user", "content": "hi"}]


def template(source: str, **options: object) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, lambda: NOW, **options)  # type: ignore[arg-type]


def render(source: str, messages: list[dict[str, Any]] | None = None, **given: object) -> str:
    return template(source).render(messages or USER, given)


def test_special_tokens_and_variables_reach_the_template() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ mood }}{{ nothing }}"
    assert render(source, mood="!") == "<s>hi!"


def test_blocks_are_trimmed_as_transformers_trims_them() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_tojson_escapes_neither_html_nor_unicode_and_keeps_order() -> None:
    assert render("{{ v | tojson }}", v={"b": "<é&'>", "a": [1, None]}) == (
        """{"b": "<é&'>", "a": [1, null]}"""
    )
    assert render("{{ v | tojson(indent=1) }}", v={"a": 1}) == '{\n "a": 1\n}'


def test_text_is_not_escaped() -> None:
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "<b>&"}]) == "<b>&"


def test_loop_controls_and_the_injected_clock_work() -> None:
    assert render("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
    assert render("{{ strftime_now('%d %b %Y') }}") == "28 Jul 2026"


def test_generation_blocks_render_as_their_content() -> None:
    assert render("a {%- generation -%} b {%- endgeneration %} c") == "ab c"


def test_a_callers_text_is_never_a_template() -> None:
    messages = [{"role": "user", "content": "{{ bos_token }}{% raw %}"}]
    assert render("{{ messages[0].content }}", messages) == "{{ bos_token }}{% raw %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system role') }}",
        "{{ messages[5].content.x }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].content + 1 }}",
        "{% for i in range(10000000) %}x{% endfor %}",
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_a_source_that_is_no_template_is_refused_at_the_start() -> None:
    with pytest.raises(TemplateError, match="not a Jinja template"):
        template("{% if %}")


def test_the_rendered_size_is_bounded() -> None:
    bounded = template("{% for i in range(1000) %}0123456789{% endfor %}", bounds=Bounds(chars=500))
    with pytest.raises(TemplateError, match="more than 500"):
        bounded.render(USER, {})


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}", True),
        (
            "{% for m in messages %}{% set c = m['content'] | list %}"
            "{% for p in c %}{% endfor %}{% endfor %}",
            True,
        ),
        ("{% for c in m.tool_calls %}{{ c.content }}{% endfor %}", False),
    ],
)
def test_a_loop_over_content_means_that_the_template_takes_parts(source: str, parts: bool) -> None:
    assert template(source).takes_parts is parts
    assert template(source, content_format="string").takes_parts is False
    assert template(source, content_format="openai").takes_parts is True


CONTINUE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
STRIPPED = CONTINUE.replace("m.content", "m.content | trim")


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        (CONTINUE, "so far ", "[assistant]so far "),
        (STRIPPED, "so far ", "[assistant]so far"),
        (CONTINUE, "", "[assistant]"),
    ],
)
def test_a_continued_message_ends_the_prompt(source: str, content: str, text: str) -> None:
    messages = [{"role": "assistant", "content": content}]
    got = template(source).render(messages, {}, continue_final_message=True)
    assert got == text
    assert messages[0]["content"] == content


def test_a_continued_message_in_parts_ends_the_prompt() -> None:
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}!{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "assistant", "content": parts}]
    assert template(source).render(messages, {}, continue_final_message=True) == "ab"


def test_a_template_that_drops_the_continued_message_is_refused() -> None:
    with pytest.raises(TemplateError, match="drops the message"):
        template("x").render(USER, {}, continue_final_message=True)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}",
        "{% macro m(x) %}{{ x }}{% endmacro %}"
        "{% for a in messages %}{% for b in messages %}{% set y = m(1) %}{% endfor %}{% endfor %}",
        "{% for a in messages %}{% set ns = namespace(n=0) %}"
        "{% for b in messages if b.role == 'none' %}x{% else %}"
        "{% for c in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{% endfor %}{% endfor %}",
    ],
)
def test_a_rendering_whose_loops_turn_too_often_is_ended(source: str) -> None:
    template = ChatTemplate(source, {}, lambda: NOW, bounds=Bounds(turns=10_000))
    assert template.render([{"role": "user", "content": "a"}] * 10, {}) is not None
    with pytest.raises(TemplateError, match="turn too often"):
        template.render([{"role": "user", "content": "a"}] * 200, {})


def test_turns_are_counted_for_each_rendering_by_itself() -> None:
    template = ChatTemplate(
        "{% for m in messages %}x{% endfor %}", {}, lambda: NOW, bounds=Bounds(turns=5)
    )
    for _ in range(10):
        assert template.render([{"role": "user", "content": "a"}] * 5, {}) == "xxxxx"


def test_a_rendering_that_grows_too_long_is_ended() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    template = ChatTemplate(source, {}, lambda: NOW, bounds=Bounds(chars=1000))
    with pytest.raises(TemplateError, match="more than 1000 characters"):
        template.render([{"role": "user", "content": "a" * 100}] * 11, {})


def test_counting_turns_changes_no_text() -> None:
    source = (
        "{%- macro m(x) -%}\n  [{{ x }}]\n{%- endmacro -%}\n"
        "{% for m_ in messages %}\n  {{ m(m_.content) }}\n{% if loop.last %}end{% endif %}\n"
        "{% endfor %}\n{% set block %}  {% for x in [1] %} {{ x }} {% endfor %}{% endset %}"
        "{{ block }}"
    )
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    plain = environment.from_string(source).render(messages=messages)
    assert ChatTemplate(source, {}, lambda: NOW).render(messages, {}) == plain
