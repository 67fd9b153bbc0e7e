"""Serves ``/v1/audio/transcriptions``: a text for whatever bytes are sent.

The length of a recording is guessed from its bytes, 16 kHz of 16 bits. As Whisper does, clips of
30 s are transcribed each by itself; in the engine each costs its audio tokens and its text.
"""

import uuid
from functools import partial
from math import ceil
from typing import Literal

from pydantic import BaseModel

from loadgen.engine.audio_style import AudioStyle
from loadgen.engine.bodies import Asked, Sampling
from loadgen.engine.exchange import Exchange
from loadgen.engine.multipart import read_form
from loadgen.engine.refusals import bad_request, parse
from loadgen.engine.service import Routes, Service, wall_s
from loadgen.engine.wire_format import Reply

__all__ = ["AudioSurface"]

BYTES_PER_S = 32_000
CLIP_S = 30
AUDIO_TOKENS_PER_S = 50
MAX_TEXT_TOKENS = 448
MAX_FILE_BYTES = 25 * 1024 * 1024  # vLLM's VLLM_MAX_AUDIO_CLIP_FILESIZE_MB
AUDIO_TOKEN = 0
FORMATS = ("text", "json", "verbose_json", "diarized_json")


class _Form(BaseModel):
    file: bytes
    model: str | None = None
    prompt: str = ""
    language: str | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"
    temperature: float = 0.0
    stream: bool | None = False
    stream_include_usage: bool | None = False
    max_completion_tokens: int | None = None
    seed: int | None = None


class AudioSurface:
    """Speech to text of one engine; priorities have no effect here, as in vLLM."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> Routes:
        """The paths served here."""
        return {"/v1/audio/transcriptions": ("POST", self._transcriptions)}

    async def _transcriptions(self, exchange: Exchange) -> None:
        service = self._service
        raw = await exchange.body()
        parts = read_form(exchange.headers.get("content-type", ""), raw)
        form = parse(_Form, {**parts.fields, **parts.files})
        service.check_model(form.model)
        service.note(exchange, {**parts.fields, **dict.fromkeys(parts.files, "")}, 0)
        _check(form)
        service.check_running()
        asked = await service.threaded(self._asked, form)
        name = exchange.headers.get("x-request-id") or uuid.uuid4().hex
        model = form.model or service.model
        reply = Reply(False, f"transcribe-{name}", int(wall_s()), model, service.mark)
        style = partial(AudioStyle, duration_s=len(form.file) / BYTES_PER_S)
        with service.load.entered():
            await service.generator.serve(exchange, asked, reply, style)

    def _asked(self, form: _Form) -> Asked:
        """One prompt per clip: its audio, then the text that guides it."""
        duration_s = len(form.file) / BYTES_PER_S
        guide = self._service.text.text_ids(form.prompt)
        ends_s = [min(CLIP_S, duration_s - at) for at in range(0, ceil(duration_s) or 1, CLIP_S)]
        clips = [[AUDIO_TOKEN] * max(1, ceil(s * AUDIO_TOKENS_PER_S)) + guide for s in ends_s]
        asked_tokens = form.max_completion_tokens
        return Asked(
            model=form.model,
            chat_body=None,
            prompts=tuple(clips),
            sampling=Sampling(
                max_tokens=min(asked_tokens or MAX_TEXT_TOKENS, MAX_TEXT_TOKENS),
                min_tokens=0,
                ignore_eos=False,
                seed=form.seed,
                n=1,
                limit_name="max_completion_tokens",
            ),
            priority=0,
            stream=bool(form.stream),
            include_usage=bool(form.stream_include_usage),
            continuous_usage=False,
            return_token_ids=False,
        )


def _check(form: _Form) -> None:
    if len(form.file) > MAX_FILE_BYTES:
        size_mb = len(form.file) / 1024 / 1024
        raise bad_request(
            f"Maximum file size exceeded (parameter=audio_filesize_mb, value={size_mb})"
        )
    if form.response_format not in FORMATS:
        raise bad_request(
            "Currently only support response_format: "
            "`text`, `json`, `verbose_json` or `diarized_json`"
        )
    if form.response_format not in ("text", "json"):
        raise bad_request(
            f"Currently do not support {form.response_format} for the simulated engine"
        )
