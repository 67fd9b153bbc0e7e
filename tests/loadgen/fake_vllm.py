"""Stands in for `vllm serve`: its help, its log, and the pages that a launcher asks for."""

import json
import os
import shutil
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HELP = """usage: vllm serve
  --revision R --tokenizer-revision R --served-model-name N --host H --port P
  --enable-chunked-prefill, --no-enable-chunked-prefill
  --max-num-batched-tokens N --max-num-seqs N --max-model-len N --dtype D
"""


def value(words, flag, otherwise):
    return type(otherwise)(words[words.index(flag) + 1]) if flag in words else otherwise


def page(path, words):
    seqs = value(words, "--max-num-seqs", 1024)
    if os.environ.get("FAKE_LIES"):
        seqs += 1
    if path == "/health":
        return {}
    if path == "/version":
        return {"version": "0.0.fake"}
    if path == "/v1/models":
        return {"data": [{"id": value(words, "--served-model-name", "m"), "max_model_len": 4096}]}
    if path.startswith("/server_info") and os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
        if os.environ.get("FAKE_MUTE"):
            return None
        batched = value(words, "--max-num-batched-tokens", 8192)
        scheduler = {"max_num_seqs": seqs, "max_num_batched_tokens": batched, "policy": "fcfs"}
        cache = {"enable_prefix_caching": False, "num_gpu_blocks": 10, "block_size": 16}
        model = {"dtype": "torch.bfloat16", "max_model_len": 4096}
        config = {"scheduler_config": scheduler, "cache_config": cache, "model_config": model}
        return {"vllm_config": config}
    return None


def wait_for_others(folder, count):
    """Serve only once that many engines have started."""
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < count:
        time.sleep(0.02)


def main(words):
    if "--help=all" in words:
        print(f"WARNING {time.time_ns()} [cuda.py:45] Failed to import from vllm._C")
        print(HELP, f"(on {shutil.get_terminal_size().columns} columns)")
        return 0
    if os.environ.get("FAKE_CRASH"):
        print("CUDA out of memory", flush=True)
        return 1
    if os.environ.get("FAKE_WAITS"):
        wait_for_others(Path(os.environ["FAKE_WAITS"]), 2)
    shown = {"max_num_seqs": value(words, "--max-num-seqs", 1024)}
    print(f"INFO non-default args: {shown}", flush=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found = page(self.path, words)
            body = json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    ThreadingHTTPServer(("127.0.0.1", value(words, "--port", 0)), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
