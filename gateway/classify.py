"""Decides the size class of a prompt from its exact token count.

Classes are ordered by bound; the first that holds the prompt is its class, and only the count
decides, never characters. Several prompts of one request are classed by their sum, because that
is the work they bring, while each of them must fit the model's context. Pure: no I/O, no clock.
"""

from collections.abc import Sequence

from gateway.domain import Outcome, Refused

__all__ = ["classify"]


def classify(
    prompt_tokens: int,
    largest_prompt_tokens: int,
    bounds: Sequence[tuple[str, int]],
    max_model_len: int,
) -> str:
    """The name of the class that holds ``prompt_tokens``.

    ``bounds`` are (name, largest count in the class), ascending. The context must leave room
    for one output token beside the largest prompt, as the engine demands.

    Raises:
        Refused: ``prompt_too_long`` where the context or the largest class is exceeded.
    """
    if largest_prompt_tokens >= max_model_len:
        raise Refused(
            Outcome.PROMPT_TOO_LONG,
            f"This model's maximum context length is {max_model_len} tokens. The prompt has "
            f"at least {largest_prompt_tokens} tokens, and one is needed for output.",
            param="messages",
        )
    for name, bound in bounds:
        if prompt_tokens <= bound:
            return name
    raise Refused(
        Outcome.PROMPT_TOO_LONG,
        f"The prompt has at least {prompt_tokens} tokens; at most {bounds[-1][1]} are served.",
        param="messages",
    )
