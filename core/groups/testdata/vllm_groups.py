"""Runs the prefix cache of a vLLM release on random requests, without a GPU.

  python vllm_groups.py RELEASE_DIR SEED LAYOUTS STEPS [payloads]

RELEASE_DIR is an unpacked wheel. Each layout of cache groups is one KVCacheManager with its
coordinator and block pool; torch, the configuration and Request are stand-ins, as nothing of
them is computed with. Each line of the output is JSON: a layout; the events of a step, as the
engine would publish them; or what the release would reuse of a prompt, at that moment. The
last line counts what was asked. With payloads, each step also has the bytes that the engine publishes, and each
prompt its tokens.
"""

import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import sys
import types

import msgspec

RELEASE = sys.argv[1]
PAYLOADS = sys.argv[5:] == ["payloads"]
REAL = """vllm vllm.v1 vllm.v1.core vllm.v1.core.block_pool vllm.v1.core.kv_cache_utils vllm.v1.core.kv_cache_manager
vllm.v1.core.kv_cache_coordinator vllm.v1.core.single_type_kv_cache_manager vllm.v1.core.kv_cache_metrics
vllm.v1.kv_cache_interface vllm.v1.kv_cache_spec_registry vllm.utils vllm.utils.math_utils vllm.distributed
vllm.distributed.kv_events""".split()
STAND_INS = ("torch", "zmq", "numpy", "cbor2", "xxhash")


class Anything(type):
    """A class of which every attribute is there."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = Anything(name, (), {"__init__": lambda self, *a, **k: None, "__getattr__": silent})
        setattr(cls, name, value)
        return value

    def __or__(cls, other):
        return cls

    def __ror__(cls, other):
        return cls

    def __getitem__(cls, item):
        return cls


def silent(self, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *a, **k: None


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "init_logger":
            return lambda *a, **k: Anything("Logger", (), {"__getattr__": silent})()
        if name == "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES":
            return True
        value = Anything(name, (), {"__init__": lambda self, *a, **k: None, "__getattr__": silent})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        folder = os.path.join(RELEASE, *name.split("."))
        if name in REAL and not os.path.isdir(folder):
            return None
        if name not in REAL and name.split(".")[0] not in STAND_INS + ("vllm",):
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=folder, is_package=True)

    def create_module(self, spec):
        m = StandIn(spec.name)
        if spec.name in REAL:  # a package's own __init__ would bring in all of the engine
            m.__path__ = [spec.origin]
        return m

    def exec_module(self, module):
        pass


sys.path.insert(0, RELEASE)
sys.meta_path.insert(0, Finder())

import vllm.v1.kv_cache_interface  # noqa: E402
spec = sys.modules["vllm.v1.kv_cache_interface"]
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.core.block_pool import AllBlocksCleared, BlockHashToBlockMap, BlockRemoved, BlockStored  # noqa: E402
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id  # noqa: E402


class Request:
    """What the manager reads of one."""

    lora_request = session_id = cache_salt = prompt_embeds = None
    mm_features = ()
    skip_reading_prefix_cache = False
    num_preemptions = num_in_flight_tokens = num_computed_tokens = shared_prefix_boundary = 0
    status = None

    def __init__(self, number, tokens, unit):
        self.request_id, self.all_token_ids, self.unit = str(number), tokens, unit
        self.num_tokens = self.num_prompt_tokens = len(tokens)
        self.block_hashes, parent = [], b""
        for i in range(unit, len(tokens) + 1, unit):
            parent = hashlib.sha256(parent + repr(tokens[i - unit : i]).encode()).digest()
            self.block_hashes.append(parent)


def attention(cls, size, **more):
    return cls(block_size=size, num_kv_heads=1, head_size=1, dtype=None, **more)


def state(size, mode):
    return spec.MambaSpec(block_size=size, shapes=((1,),), dtypes=(None,), mamba_cache_mode=mode)


names = {}


def name(h):
    """Blocks are named by numbers in the order in which they come, for the lines to be short."""
    return names.setdefault(h, len(names) + 1)


def layout(rnd):
    """Returns the groups, as (spec, whether it is EAGLE's), and whether EAGLE is used."""
    size = rnd.choice((1, 2, 4))
    full = lambda k=1: attention(spec.FullAttentionSpec, k * size)
    window = lambda k=1: attention(spec.SlidingWindowSpec, k * size, sliding_window=rnd.choice((2, 3, 5, 8, 9, 13)))
    mamba = lambda: state(size, "align")
    chunk = lambda: attention(spec.ChunkedLocalAttentionSpec, size, attention_chunk_size=size * rnd.choice((2, 3, 4)))
    kind = rnd.randrange(12)
    if kind < 9:
        specs = [
            lambda: [full(), window()],
            lambda: [window(), full()],
            lambda: [full(), window(), window()],
            lambda: [full(2), window()],
            lambda: [full(), window(2)],
            lambda: [full(4), window(2), window()],
            lambda: [full(), mamba()],
            lambda: [mamba(), full(), window()],
            lambda: [window(), window()],
        ][kind]()
    elif kind == 9:
        specs = [full(), chunk()]
    elif kind == 10:
        specs = [full(), chunk(), window()]
    else:
        specs = [full(), mamba(), mamba()]
    eagle = kind not in (9, 10) and rnd.random() < 0.35
    flagged = set()
    attentions = [i for i, s in enumerate(specs) if not isinstance(s, spec.MambaSpec)]
    if eagle and (rnd.random() < 0.7 or len(attentions) < len(specs)):
        flagged = {rnd.choice(attentions)}
    return [(s, i in flagged) for i, s in enumerate(specs)], eagle


def made(rnd, steps, out, manager, sizes, unit):
    """Asks about caches that hold anything, more than requests and evictions come to."""
    pool = manager.block_pool
    asked, hits = 0, 0
    for _ in range(3 * steps):
        request = Request(0, [rnd.randrange(1000) for _ in range(rnd.randrange(1, 14 * max(sizes)))], unit)
        pool.cached_block_hash_to_block = BlockHashToBlockMap()
        step, lost = (unit if manager.coordinator.__dict__.get("enable_partial_hash_hits") else 0), rnd.choice((0.05, 0.15, 0.4))
        events = [{"cleared": True}]
        for g, size in enumerate(sizes):
            ends = [e for e in range(step or size, request.num_tokens + 1, step or size) if rnd.random() > lost]
            for e in ends:
                pool.cached_block_hash_to_block.insert(make_block_hash_with_group_id(request.block_hashes[e // unit - 1], g), pool.blocks[1])
            events.append({"stored": [name(int.from_bytes(request.block_hashes[e // unit - 1], "big") & ((1 << 64) - 1)) for e in ends], "group": g})
        _, n, _ = manager.get_computed_blocks(request)
        out({"events": events})
        asked, hits = asked + 1, hits + (n > 0)
        out({"tokens": request.num_tokens, "hashes": [name(int.from_bytes(h, "big") & ((1 << 64) - 1)) for h in request.block_hashes], "reused": n})
    return asked, hits


def run(rnd, steps, out):
    names.clear()
    groups, eagle = layout(rnd)
    sizes = [s.block_size for s, _ in groups]
    align, unit = max(sizes), min(sizes)
    if all(isinstance(s, (spec.MambaSpec, spec.FullAttentionSpec)) for s, _ in groups) and rnd.random() < 0.5:
        unit = rnd.choice([u for u in (1, 2, 4) if u <= unit])  # hits that end within a block
    retention = 0 if rnd.random() < 0.2 and any(isinstance(s, (spec.SlidingWindowSpec, spec.MambaSpec)) for s, _ in groups) else None
    manager = KVCacheManager(
        spec.KVCacheConfig(
            num_blocks=rnd.choice((40, 80, 200)),
            kv_cache_tensors=[],
            kv_cache_groups=[spec.KVCacheGroupSpec(["l%d" % i], s, is_eagle_group=e) for i, (s, e) in enumerate(groups)],
            prefix_cache_retention_interval=retention,
        ),
        max_model_len=4096,
        scheduler_block_size=align,
        hash_block_size=unit,
        use_eagle=eagle,
        enable_kv_cache_events=True,
    )
    dropping = manager.coordinator.drop_eagle_group_ids
    out({"groups": [
        {"kind": spec.get_kv_cache_spec_kind(s).value, "block_size": s.block_size,
         "window": getattr(s, "sliding_window", 0) or 0, "chunk": getattr(s, "attention_chunk_size", 0) or 0, "eagle": i in dropping}
        for i, (s, _) in enumerate(groups)
    ], "unit": unit, "align": align, "retention": retention})
    if rnd.random() < 0.4:
        return made(rnd, steps, out, manager, [s.block_size for s, _ in groups], unit)
    prompts, number, asked, hits = [], 0, 0, 0
    for _ in range(steps):
        if prompts and rnd.random() < 0.8:
            old = rnd.choice(prompts)
            tokens = old[: rnd.randrange(len(old) + 1)]
        else:
            tokens = []
        tokens = tokens + [rnd.randrange(1000) for _ in range(rnd.randrange(1, 12 * align))]
        prompts = (prompts + [tokens])[-30:]
        number += 1
        request = Request(number, tokens, unit)
        done = manager.get_computed_blocks(request)
        blocks, cached, request.shared_prefix_boundary = done
        first = True
        while cached < len(tokens) or first:
            n = min(len(tokens) - cached, rnd.choice((align, 3 * align, 1000)))
            if n < len(tokens) - cached:
                n -= (cached + n) % align
                if n <= 0:
                    n = len(tokens) - cached
            if first:
                ok = manager.allocate_slots(request, n, cached, blocks)
            else:
                ok = manager.allocate_slots(request, n)
            first = False
            if ok is None:
                break
            cached += n
            request.num_computed_tokens = cached
            manager.coordinator.remove_skipped_blocks(request.request_id, cached, len(tokens))
            manager.new_step_starts()
        manager.free(request)
        if rnd.random() < 0.02:
            manager.reset_prefix_cache()
        events, taken = [], manager.take_events()
        for e in taken:
            if isinstance(e, BlockStored):
                events.append({"stored": [name(h) for h in e.block_hashes], "group": e.group_idx})
            elif isinstance(e, BlockRemoved):
                events.append({"removed": [name(h) for h in e.block_hashes], "group": e.group_idx})
            elif isinstance(e, AllBlocksCleared):
                events.append({"cleared": True})
        line = {"events": events}
        if PAYLOADS:
            line["payload"] = msgspec.msgpack.encode([1.5, taken]).hex()
        out(line)
        for _ in range(3):
            old = rnd.choice(prompts)
            ask = old[: rnd.randrange(1, len(old) + 1)] if rnd.random() < 0.5 else old + [1000 + rnd.randrange(9) for _ in range(rnd.randrange(1, 2 * align))]
            request = Request(0, ask, unit)
            _, n, _ = manager.get_computed_blocks(request)
            asked, hits = asked + 1, hits + (n > 0)
            line = {"tokens": len(ask), "hashes": [name(int.from_bytes(h, "big") & ((1 << 64) - 1)) for h in request.block_hashes], "reused": n}
            if PAYLOADS:
                line["ids"] = ask
            out(line)
    return asked, hits


def main():
    seed, layouts, steps = map(int, sys.argv[2:5])
    out = lambda line: print(json.dumps(line, separators=(",", ":")))
    total = [0, 0]
    for i in range(layouts):
        asked, hits = run(random.Random(seed * 1000003 + i), steps, out)
        total[0], total[1] = total[0] + asked, total[1] + hits
    out({"asked": total[0], "hits": total[1]})


main()
