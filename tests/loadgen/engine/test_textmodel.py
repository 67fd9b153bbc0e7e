"""The text the engine sees: template semantics, content parts, tools, and errors."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.engine.textmodel import TextError, TextModel, default_tokenizer_path

BOS = "<｜begin▁of▁sentence｜>"
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "<é>"}'}}


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def with_template(tmp_path: Path, template: str) -> TextModel:
    path = tmp_path / "template.jinja"
    path.write_text(template, encoding="utf-8")
    return TextModel(chat_template_path=path)


def test_a_conversation_is_rendered_with_its_roles_and_the_generation_prompt(
    text: TextModel,
) -> None:
    body = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]}
    start = f"{BOS}<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n"
    assert text.render(body) == f"{start}<|assistant|>\n"
    assert text.render({**body, "add_generation_prompt": False}) == start


def test_text_parts_are_joined_by_a_newline(text: TextModel) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]
    assert text.render(user(parts)) == text.render(user("a\nb\nc"))


def test_tools_are_written_with_their_defaults_and_arguments_as_objects(text: TextModel) -> None:
    body = {
        "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "surprise": 1}}],
    }
    rendered = text.render(body)
    tool = (
        '{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}'
    )
    assert tool in rendered
    assert '<|call|>f {"a": "<é>"}<|end|>' in rendered


@pytest.mark.parametrize("arguments", [None, "", "{broken", "[1]"])
def test_unreadable_arguments_become_an_empty_object(text: TextModel, arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    body = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
    assert "<|call|>f {}<|end|>" in text.render(body)


def test_chat_text_gets_no_second_start_token_and_a_count_is_the_number_of_ids(
    text: TextModel,
) -> None:
    ids = text.chat_ids(user("Hello"))
    assert ids.count(0) == 1
    assert ids[0] == 0
    assert text.count_chat(user("Hello")) == len(ids)
    assert text.count_text("Hello world") == len(text.text_ids("Hello world")) == 2


def test_words_are_single_tokens_that_decode_to_their_text(text: TextModel) -> None:
    words = text.words(50)
    assert len(words) == 50
    for word in words:
        assert text.text_ids(word.text) == [word.token_id]
        assert text.decode([word.token_id]) == word.text


def test_templates_run_with_the_functions_and_whitespace_rules_of_transformers(
    tmp_path: Path,
) -> None:
    model = with_template(
        tmp_path,
        "  {% for message in messages %}\n{{ message | tojson }}\n  {% break %}\n{% endfor %}\n"
        "{{ strftime_now('%Y') | length }}{{ extra }}{{ bos_token }}",
    )
    rendered = model.render({**user("<é>"), "chat_template_kwargs": {"extra": "!"}})
    assert rendered == '{"role": "user", "content": "<é>"}\n4!' + BOS


def test_a_template_can_refuse_and_cannot_reach_outside(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="no thanks"):
        with_template(tmp_path, "{{ raise_exception('no thanks') }}").render(user(""))
    with pytest.raises(TextError, match="unsafe"):
        with_template(tmp_path, "{{ messages.__class__.__mro__ }}").render(user(""))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (user([{"type": "image_url", "image_url": {}}]), "image_url"),
        (user(5), "content"),
        ({"messages": ["hello"]}, "role"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": ["x"]}]}, "tool_calls"),
        ({**user("x"), "tools": [{"type": "function"}]}, "tool"),
        ({**user("x"), "tools": [{"function": {}}]}, "name"),
        ({**user("x"), "continue_final_message": True}, "continue_final_message"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_by_name(
    text: TextModel, body: dict[str, Any], named: str
) -> None:
    with pytest.raises(TextError, match=named):
        text.render(body)


def test_a_tokenizer_may_be_named_by_its_folder_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    folder = default_tokenizer_path().parent
    assert TextModel(folder).tokenizer_path == folder / "tokenizer.json"
    with pytest.raises(FileNotFoundError, match="nothing"):
        TextModel(tmp_path / "nothing")
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with pytest.raises(ValueError, match="not a tokenizer"):
        TextModel(broken)
