"""Transcriptions over real sockets."""

import httpx
import pytest

from loadgen.engine.launch import EngineProcess
from tests.loadgen.engine.surfaces.conftest import WAIT_S, events_of

PATH = "/v1/audio/transcriptions"
SECOND = b"\0" * 32_000


def transcribe(engine: EngineProcess, audio: bytes, **fields: str) -> httpx.Response:
    files = {"file": ("a.wav", audio, "audio/wav")}
    return httpx.post(engine.url + PATH, data=fields, files=files, timeout=WAIT_S)


def test_any_bytes_have_a_text_and_the_seconds_they_last(shared: EngineProcess) -> None:
    answer = transcribe(shared, SECOND * 2 + b"\0", model="simulated", max_completion_tokens="5")
    assert answer.status_code == 200
    assert answer.json()["text"]
    assert answer.json()["usage"] == {"type": "duration", "seconds": 3}


def test_a_stream_says_the_same_clip_by_clip_and_counts_the_audio(shared: EngineProcess) -> None:
    fields = {"max_completion_tokens": "4", "stream": "true", "stream_include_usage": "true"}
    events = events_of(transcribe(shared, SECOND * 40, **fields).text)
    assert events[-1] == "[DONE]"
    chunks = [event["choices"][0] for event in events[:-2]]
    assert [chunk.get("finish_reason") for chunk in chunks] == [None, None, None, "length"] * 2
    assert events[-2]["usage"]["completion_tokens"] == 8
    assert events[-2]["usage"]["prompt_tokens"] == 40 * 50
    whole = transcribe(shared, SECOND * 40, max_completion_tokens="4").json()["text"]
    assert "".join(chunk["delta"]["content"] for chunk in chunks).split() == whole.split()


def test_the_guiding_text_is_part_of_the_prompt(shared: EngineProcess) -> None:
    fields = {"max_completion_tokens": "1", "stream": "true", "stream_include_usage": "true"}
    events = events_of(transcribe(shared, SECOND, prompt="Names: Ada, Grace", **fields).text)
    assert events[-2]["usage"]["prompt_tokens"] > 50


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "other"}, 404, "does not exist"),
        ({"response_format": "srt"}, 400, "Currently only support"),
        ({"response_format": "verbose_json"}, 400, "do not support verbose_json"),
        ({"response_format": "loud"}, 400, "body.response_format"),
    ],
)
def test_what_cannot_be_transcribed_is_refused(
    shared: EngineProcess, fields: dict[str, str], status: int, words: str
) -> None:
    answer = transcribe(shared, SECOND, **fields)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_a_form_without_a_file_is_refused(shared: EngineProcess) -> None:
    answer = httpx.post(shared.url + PATH, data={"model": "simulated"}, timeout=WAIT_S)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body.file"


def test_the_state_page_names_the_fields_without_the_audio(shared: EngineProcess) -> None:
    transcribe(shared, SECOND, max_completion_tokens="1", language="en")
    seen = httpx.get(f"{shared.url}/sim/state").json()["requests"][-1]
    assert seen["body_keys"] == ["file", "language", "max_completion_tokens"]
