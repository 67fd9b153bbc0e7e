"""Drives the simulated scheduler and vLLM's own side by side and compares every step.

Run by vLLM's own Python, in the checkout: -m tests.engine.scheduler_worlds 1000

The last line printed is a JSON object: how many random worlds, steps, preemptions and the like, and
where the two differed. Every world has its own limits, arrivals, priorities and aborts; half of
them cache prefixes, and their prompts share some. Equal must be: the requests of a step with their
token counts and order, the preempted, running and waiting counts, the free blocks, and what was
asked of the prefix cache and found there. A world ends at its first difference.

With each ``--plant FIELD=VALUE``, fifty worlds more are run in which the simulated scheduler alone
has that limit: differences to find.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import vllm.config as settings
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface as kv
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler as RealScheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from loadgen.engine.prefix_cache import block_keys
from loadgen.engine.scheduler import Scheduler, SchedulerConfig
from tests.engine.models import COMMON, LLAMA, TINY

MAX_MODEL_LEN = 64
PLANTED_WORLDS = 50


class Differs(Exception):
    """The two did not do the same."""


@dataclass
class World:
    """Two schedulers under one random stream of events."""

    seed: int
    config: SchedulerConfig
    real: Any
    simulated: Scheduler
    rng: random.Random
    alive: set[int] = field(default_factory=set)
    arrived: int = 0
    aborts: int = 0
    preemptions: int = 0
    now: int = 0
    said: dict[int, list[int]] = field(default_factory=dict)
    told: dict[int, list[int]] = field(default_factory=dict)
    queries: int = 0
    hits: int = 0

    def run(self) -> None:
        """Run until all requests are done; raises Differs at the first difference."""
        total = self.rng.randint(1, 30)
        due = 0
        while self.arrived < total or self.alive:
            while self.arrived < total and self.now >= due:
                self.arrive()
                due = self.now + self.rng.choice([0, 0, 1, 2, 5, 10])
            if self.alive and self.rng.random() < 0.03:
                self.abort(self.rng.choice(sorted(self.alive)))
            self.step()
            self.now += 1

    def arrive(self) -> None:
        """Give both schedulers the same new request."""
        ids, output = self.prompt(), self.rng.randint(1, 63)
        priority, arrived_s = self.rng.randint(-1, 2), float(self.now)
        request = Request(
            request_id=name(self.arrived),
            prompt_token_ids=ids,
            sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
            pooling_params=None,
            arrival_time=arrived_s,
            priority=priority,
            block_hasher=self.hasher(),
        )
        self.real.add_request(request)
        # Every token that vLLM will be given is known here, as a server knows what it will say.
        answer = [answer_token(ids, self.arrived, n) for n in range(output)]
        keys = block_keys([*ids, *answer], self.config.block_size)
        self.simulated.add(self.arrived, len(ids), output, priority, arrived_s, keys)
        self.said[self.arrived] = answer
        self.told[self.arrived] = [*ids, *answer]
        self.alive.add(self.arrived)
        self.arrived += 1

    def prompt(self) -> list[int]:
        """Return 1 to 63 tokens; most begin as others do, some go on as an answer went.

        A prompt that repeats whole blocks to its end is known but for its last token.
        """
        if not self.config.enable_prefix_caching:
            return [5] * self.rng.randint(1, 63)
        if self.told and self.rng.random() < 0.15:
            whole = self.told[self.rng.choice(sorted(self.told))][:48]
            return whole[: max(1, len(whole) // 16 * 16)]
        head = [self.rng.randint(1, 3)] * self.rng.choice([0, 16, 20, 32, 40, 48])
        tail = [self.rng.randint(1, 3) for _ in range(self.rng.randint(1, 15))]
        if self.said and self.rng.random() < 0.3:
            head = self.told[self.rng.choice(sorted(self.told))]
        return [*head, *tail][:63]

    def hasher(self) -> Any:
        """Return how vLLM hashes blocks; None where it caches nothing."""
        config = self.config
        if not config.enable_prefix_caching:
            return None
        return get_request_block_hasher(config.block_size, sha256)

    def abort(self, seq_id: int) -> None:
        """Drop a request from both."""
        self.alive.discard(seq_id)
        self.aborts += 1
        self.real.finish_requests(name(seq_id), RequestStatus.FINISHED_ABORTED)
        self.simulated.abort(seq_id)

    def step(self) -> None:
        """Run one step on both and compare all that can be seen of it."""
        planned, step = self.real.schedule(), self.simulated.step()
        real = [(int(key), count) for key, count in planned.num_scheduled_tokens.items()]
        self.same("scheduled", real, list(step.scheduled))
        lost = sorted(int(key) for key in planned.preempted_req_ids or ())
        self.same("preempted", lost, sorted(set(step.preempted)))
        self.preemptions += len(lost)
        stats = self.real.kv_cache_manager.make_prefix_cache_stats()
        self.queries, self.hits = self.queries + stats.queries, self.hits + stats.hits
        asked = self.simulated.prefix_queries_total, self.simulated.prefix_hits_total
        self.same("prefix cache", (self.queries, self.hits), asked)
        for seq_id, known in step.hits:
            told = self.real.requests[name(seq_id)].prefill_stats.num_cached_tokens
            self.same("cached tokens", told, known)
        self.answer(planned, [name(seq_id) for seq_id, _ in step.scheduled])
        self.alive -= {each.seq_id for each in self.simulated.complete(step) if each.finished}
        self.same("alive", {int(key) for key in self.real.requests}, self.alive)
        counts = (self.simulated.running, self.simulated.waiting)
        self.same("counts", self.real.get_request_counts(), counts)
        free = self.simulated.config.usable_blocks - self.simulated.kv_used_blocks
        self.same("free", self.real.kv_cache_manager.block_pool.get_num_free_blocks(), free)

    def answer(self, planned: Any, ids: list[str]) -> None:
        """Give vLLM one sampled token for every request that has caught up."""
        requests = [self.real.requests[key] for key in ids]
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={key: index for index, key in enumerate(ids)},
            sampled_token_ids=[
                [self.next_token(r)] if r.num_computed_tokens >= r.num_tokens else []
                for r in requests
            ],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.real.update_from_output(planned, output)

    def next_token(self, request: Any) -> int:
        """Return what a request says next."""
        return self.said[int(request.request_id)][request.num_output_tokens]

    def same(self, what: str, real: object, simulated: object) -> None:
        """Stop at the first difference."""
        if real != simulated:
            raise Differs(
                f"world {self.seed}, step {self.now}, {self.simulated.config}: {what}: "
                f"vLLM {real}, simulated {simulated}"
            )


def name(seq_id: int) -> str:
    """A request id that vLLM orders as the number."""
    return f"{seq_id:06d}"


def answer_token(ids: list[int], seq_id: int, number: int) -> int:
    """Return a token of an answer; prompts of even length have the answers of their like."""
    return 4 + number % 3 if len(ids) % 2 == 0 else 100 + seq_id


def random_config(rng: random.Random, *, caching: bool) -> SchedulerConfig:
    """Limits that let every mechanism occur."""
    seats, size = rng.randint(1, 12), rng.choice([8, 16, 16, 32])
    least = MAX_MODEL_LEN // size + 1
    return SchedulerConfig(
        max_num_batched_tokens=max(seats, rng.randint(1, 80)),
        max_num_seqs=seats,
        policy="priority" if rng.random() < 0.5 else "fcfs",
        long_prefill_token_threshold=rng.choice([0, 0, rng.randint(1, 30)]),
        num_gpu_blocks=least + rng.choice([rng.randint(0, 7), rng.randint(0, 35)]),
        block_size=size,
        max_model_len=MAX_MODEL_LEN,
        reserve_full_isl=rng.random() < 0.7,
        watermark=rng.choice([0.0, 0.0, 0.1, 0.3]),
        enable_prefix_caching=caching,
    )


def real_scheduler(config: SchedulerConfig, model: Path) -> Any:
    """vLLM's scheduler with the same limits."""
    cache = settings.CacheConfig(
        block_size=config.block_size, enable_prefix_caching=config.enable_prefix_caching
    )
    whole = settings.VllmConfig(
        model_config=settings.ModelConfig(
            model=str(model), skip_tokenizer_init=True, max_model_len=config.max_model_len
        ),
        scheduler_config=settings.SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            policy=config.policy,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            watermark=config.watermark,
            scheduler_reserve_full_isl=config.reserve_full_isl,
            async_scheduling=False,
        ),
        cache_config=cache,
    )
    cache.num_gpu_blocks = config.num_gpu_blocks
    spec = kv.FullAttentionSpec(
        block_size=config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    blocks = kv.KVCacheConfig(
        num_blocks=config.num_gpu_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[kv.KVCacheGroupSpec(["layer"], spec)],
    )
    return RealScheduler(
        vllm_config=whole,
        kv_cache_config=blocks,
        block_size=config.block_size,
        structured_output_manager=StructuredOutputManager(whole),
        log_stats=True,
    )


def compare(worlds: int, planted: dict[str, Any], model: Path) -> dict[str, Any]:
    """Run that many worlds; returns what was seen in all of them together."""
    seen: Counter[str] = Counter(dict.fromkeys(("preemptions", "aborts", "cached_tokens"), 0))
    differences = []
    for seed in range(worlds):
        rng = random.Random(seed)
        config = random_config(rng, caching=seed % 2 == 1)
        own = replace(config, **planted)
        world = World(seed, config, real_scheduler(config, model), Scheduler(own), rng)
        try:
            world.run()
        except Differs as difference:
            differences.append(str(difference))
        seen += Counter(
            worlds=1,
            steps=world.now,
            requests=world.arrived,
            preemptions=world.preemptions,
            aborts=world.aborts,
            cached_tokens=world.hits,
            by_priority=config.policy == "priority",
            with_threshold=config.long_prefill_token_threshold > 0,
            with_watermark=config.watermark > 0,
            with_prefix_cache=config.enable_prefix_caching,
        )
    return {**seen, "differences": len(differences), "first_differences": differences[:3]}


def planted_limit(text: str) -> tuple[str, Any]:
    """Read FIELD=VALUE, the value as JSON."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main() -> int:
    """Compare and print; 1 where the two differed without a plant."""
    parser = argparse.ArgumentParser(description="vLLM's scheduler and the simulated one")
    parser.add_argument("worlds", type=int, nargs="?", default=1000)
    parser.add_argument("--plant", type=planted_limit, action="append", default=[])
    args = parser.parse_args()
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**COMMON, **LLAMA, **TINY}))
        told = compare(args.worlds, {}, Path(folder))
        told["planted"] = {
            name: compare(PLANTED_WORLDS, {name: value}, Path(folder))["differences"]
            for name, value in args.plant
        }
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if told["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
