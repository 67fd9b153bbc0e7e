"""Has vLLM's own code read an export: run it with an interpreter that has vLLM.

    sluicegate bench export DIR --format vllm --out OUT
    PYTHONPATH=. VLLM_PYTHON tests/loadgen/read_by_vllm.py OUT

Checks with vLLM's own functions: the keys of its result type, the metrics its benchmark would have
computed of the same requests, the timeline plot's segments, the sweep's Pareto preparation.
"""

import json
import math
import sys
from pathlib import Path


def outputs_of(result, request_func):
    made = []
    for n, success in enumerate(result["successes"]):
        made.append(
            request_func.RequestFuncOutput(
                success=success,
                prompt_len=result["input_lens"][n],
                output_tokens=result["output_lens"][n],
                ttft=result["ttfts"][n] or 0.0,
                itl=result["itls"][n],
                latency=result["latencies"][n] or 0.0,
                start_time=result["start_times"][n] or 0.0,
                error=result["errors"][n],
            )
        )
    return made


def compared(result, serve, request_func):
    outputs = outputs_of(result, request_func)
    metrics, lengths = serve.calculate_metrics(
        [None] * len(outputs), outputs, result["duration"], None, [50, 90, 95, 99], {}
    )
    assert lengths == result["output_lens"]
    pairs = {
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input,
        "total_output_tokens": metrics.total_output,
        "request_throughput": metrics.request_throughput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
        "max_concurrent_requests": metrics.max_concurrent_requests,
    }
    for name in ("ttft", "tpot", "itl", "e2el"):
        for kind in ("mean", "median", "std"):
            pairs[f"{kind}_{name}_ms"] = getattr(metrics, f"{kind}_{name}_ms")
        for percent, value in getattr(metrics, f"percentiles_{name}_ms"):
            pairs[f"p{int(percent)}_{name}_ms"] = value
    wrong = {
        key: (result[key], theirs)
        for key, theirs in pairs.items()
        if not math.isclose(result[key], theirs, rel_tol=1e-6, abs_tol=1e-6)
    }
    assert not wrong, wrong
    return len(pairs)


def segments(result, plot):
    fields = ("start_times", "ttfts", "itls", "latencies", "input_lens", "output_lens")
    names = ("start_time", "ttft", "itl", "latency", "prompt_len", "output_tokens")
    rows = zip(*(result[f] for f in fields), strict=True)
    return plot.construct_timeline_data(
        [dict(zip(names, row, strict=True)) for row in rows], [0.025, 0.05], ["a", "b", "c"]
    )


def main(folder):
    from vllm.benchmarks import plot, serve  # noqa: PLC0415 - only vLLM's interpreter has it
    from vllm.benchmarks.lib import endpoint_request_func as request_func  # noqa: PLC0415
    from vllm.benchmarks.sweep import plot as sweep_plot  # noqa: PLC0415
    from vllm.benchmarks.sweep import plot_pareto  # noqa: PLC0415

    paths = sorted(p for p in Path(folder).glob("*.json") if p.name != "summary.json")
    for path in paths:
        result = json.loads(path.read_bytes())
        count = compared(result, serve, request_func)
        done = sum(result["successes"])
        made = segments(result, plot)
        assert len({row["request_id"] for row in made}) == done, path
    rows = sweep_plot._json_load_bytes(Path(folder) / "summary.json")
    prepared, skipped = plot_pareto._prepare_records(rows, user_count_var=None, gpu_count_var=None)
    assert skipped == 0
    assert len(prepared) == len(paths)
    plot_pareto.plot_pareto(Path(folder), None, None, ["cell_id"], dry_run="--plot" not in sys.argv)
    print(
        f"{len(paths)} results, {count} metrics each equal to vLLM's own; {len(rows)} in the sweep"
    )


if __name__ == "__main__":
    main(sys.argv[1])
