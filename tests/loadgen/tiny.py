"""A sweep small enough for tests, and servers that stand in for a launcher's."""

import asyncio
import shutil
from contextlib import asynccontextmanager

from loadgen.confirm import Confirmed
from loadgen.files import read_json, write_json
from loadgen.freeze import freeze_sweep
from loadgen.identity import EXTERNAL_IDENTITY
from loadgen.launching import Standing
from loadgen.stack import Endpoint
from loadgen.sweep_file import read_sweep
from tests.loadgen.truth import truth_server

TINY = """
rounds = 3
looks = [3]
strata = ["low"]
[rates.mixed]
low = 20.0
near = 25.0
[classes.short]
prompt_tokens = 96
output_tokens = 4
[classes.long]
prompt_tokens = 160
output_tokens = 4
[mixes.mixed]
shares = { short = 0.75, long = 0.25 }
[mixes.short]
derived_from = "mixed"
keep = ["short"]
[intervals]
ramp_s = 0.1
window_s = 0.3
drain_s = 2.0
timeout_s = 2.0
[contract.short]
ttft_s = 1.0
max_stall_s = 1.0
e2e_s = 2.0
gate_strata = [["mixed", "low"]]
[contract.long]
ttft_s = 1.0
max_stall_s = 1.0
e2e_s = 2.0
gate_strata = [["mixed", "low"]]
[baseline.stand_in]
max_num_seqs = 64
max_model_len = 2048
[[cells]]
cell_id = "C1"
args = { max_num_seqs = 8 }
[launcher]
kind = "simulated"
"""


def frozen(folder):
    """Plan the tiny sweep: 12 runs on 6 starts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.toml").write_text(TINY)
    freeze_sweep(read_sweep(folder / "sweep.toml"), folder / "out")
    return folder / "out"


def shortened(source, target, starts=1, **changes):
    """Copy a planned sweep with only its first starts' runs, and other changes of the plan."""
    shutil.copytree(source, target)
    plan = read_json(target / "plan.json")
    plan["runs"] = [run for run in plan["runs"] if run["start"] <= starts]
    write_json(target / "plan.json", {**plan, **changes})
    return target, read_json(target / "plan.json")


class Engine:
    """Answers /health and /metrics until it is told to be dead."""

    def __init__(self):
        self.dead = False

    async def handle(self, reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        status = b"503 Gone" if self.dead else b"200 OK"
        page = b'vllm:num_requests_running{engine="0"} 0.0\n'
        head = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (status, len(page)) + page)
        await writer.drain()
        writer.close()


class StandInLauncher:
    """Serves known truth instead of starting engines; faults are scripted by start number."""

    def __init__(self, confirmed=None, fails=None, dies_after=None):
        self.confirmed, self.fails, self.dies_after = confirmed, fails or {}, dies_after
        self.starts, self.open, self.needs = [], 0, []
        self.truth = None

    async def prepare(self, needs):
        self.needs = list(needs)
        return {"image": "stand-in"}

    @asynccontextmanager
    async def standing(self, need, folder):
        folder.mkdir(parents=True)
        self.starts.append(need.name)
        if (error := self.fails.get(len(self.starts))) is not None:
            raise error
        engine = Engine()
        confirmed = self.confirmed or Confirmed("engine", need.args)
        async with (
            truth_server(ttft_s=0.01, gap_s=0.001, prompt_tokens=96) as truth,
            await asyncio.start_server(engine.handle, "127.0.0.1", 0) as server,
        ):
            self.truth, self.engine = truth, engine
            truth.script = lambda body: {"chunks": body["max_tokens"]}
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.open += 1
            told = {"model": "m"}
            yield Standing(
                Endpoint(truth.url, None, (url,), "m", {}, told), EXTERNAL_IDENTITY, confirmed
            )
            self.open -= 1
