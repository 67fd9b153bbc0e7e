"""A job that replays nothing by itself, for tests that change what matters to them."""

from dataclasses import replace

from loadgen.job import Job

PLAIN = Job(
    run_id="r",
    url="http://127.0.0.1:1",
    model="m",
    keys={"short": "key-1"},
    trace_path="",
    trace_sha256="",
    corpus_path="",
    corpus_sha256="",
    config_sha256="k",
    out_path="",
    ramp_s=0.05,
    window_s=0.3,
    drain_s=20.0,
    timeout_s=5.0,
)


def job(**changes):
    """The plain job with changes."""
    return replace(PLAIN, **changes)
