"""Where the simulated server is known to differ from vLLM's, and why. Everything else is equal.

A place is a path into an answer's shape; all below it belongs to it. "" is the whole answer.
"""

from dataclasses import dataclass

__all__ = ["ANSWERS", "METRICS", "Differs"]


@dataclass(frozen=True, slots=True)
class Differs:
    """The request's name in ``server_requests``, the places that differ, and the reason."""

    request: str
    places: tuple[str, ...]
    reason: str


LOGPROBS = "there is no distribution to tell of: logprobs are null"
ECHO = "the prompt is not said again"
PARTS = "vLLM quotes its validator's faults, one for each kind of part"
ANSWERS = (
    Differs("chat, logprobs", (".choices[].logprobs",), LOGPROBS),
    Differs(
        "chat, logprobs, streamed",
        ("choice 0, event 1.choices[].logprobs", "choice 0, event 2.choices[].logprobs"),
        LOGPROBS,
    ),
    Differs("plain, logprobs", (".choices[].logprobs",), LOGPROBS),
    Differs(
        "plain, logprobs, streamed",
        ("choice 0, event 0.choices[].logprobs", "choice 0, event 1.choices[].logprobs"),
        LOGPROBS,
    ),
    Differs("chat, echo", (".prompt_logprobs",), f"{ECHO}, nor are its logprobs told"),
    Differs("plain, echo, streamed", ("choice 0, event",), ECHO),
    Differs("plain, echo of the prompt alone", ("",), ECHO),
    Differs("chat, no role", (".error.message",), "vLLM says it once for each kind of message"),
    Differs("chat, texts as parts", (".error.message",), PARTS),
    Differs("chat, a part of responses", (".error.message",), PARTS),
    Differs("chat, an image", (".error.message",), "it says what it can read, not what it is"),
    Differs(
        "chat, priority is huge",
        (".error.message",),
        "a whole number beyond 64 bits is read as a fraction",
    ),
)

# The beginning of a sample's name -> why only vLLM has it.
HTTP = "of the web framework's instrumentation, not of the engine"
NONE = "there is no such thing in a simulated engine"
METRICS = {
    "http_request_duration_highr_seconds": HTTP,
    "http_request_duration_seconds": HTTP,
    "http_request_size_bytes": HTTP,
    "http_requests": HTTP,
    "http_response_size_bytes": HTTP,
    "vllm:cache_config_info": "a label for each field of the configuration; here for those it has",
    "vllm:engine_sleep_state": NONE,
    "vllm:estimated_flops_per_gpu": NONE,
    "vllm:estimated_read_bytes_per_gpu": NONE,
    "vllm:estimated_write_bytes_per_gpu": NONE,
    "vllm:external_prefix_cache_hits": NONE,
    "vllm:external_prefix_cache_queries": NONE,
    "vllm:mm_cache_hits": NONE,
    "vllm:mm_cache_queries": NONE,
    "vllm:prompt_tokens_cached_by_source": "its one cache is in vllm:prompt_tokens_by_source",
    "vllm:tool_call_parser_invocations": "its answers never call a tool",
}
