"""Runs the prefix cache of an SGLang release on random requests, without a GPU.

  python sglang_caches.py RELEASE_DIR SEED HISTORIES STEPS

RELEASE_DIR is an unpacked wheel. Each history is one UnifiedRadixCache with the components of a kind of model
(full attention, the same with EAGLE, sliding windows, states, both) and the release's allocators; it needs
torch, as the cache's values are tensors. What the cache does not need for that is a stand-in, and so are
the names of blocks, which a compiled module of the release makes. Each line of the output is JSON: a kind; the
bytes that the engine publishes; or a prompt, what the release reuses of it at that moment, and how much of it
full attention has.
"""

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import sys
import types
from array import array

RELEASE, (SEED, HISTORIES, STEPS) = sys.argv[1], map(int, sys.argv[2:5])
CACHE = "sglang.srt.mem_cache."
REAL = [CACHE + name for name in """allocator allocator.base allocator.page_interleave allocator.paged allocator.swa allocator.token
    base_prefix_cache base_swa_memory_pool cache_init_params common events evict_policy hicache_storage memory_pool radix_cache
    unified_cache unified_cache.cache_action unified_cache.component_type unified_cache.components unified_cache.components.base
    unified_cache.components.full unified_cache.components.mamba unified_cache.components.swa unified_cache.session_ref_tracker
    unified_cache.storage_attachment unified_cache.tree_core_registry unified_cache.unified_tree_core
    unified_cache.unified_tree_core_interface unified_radix_cache utils""".split()]
REAL += ["sglang.srt.disaggregation.kv_events", "sglang.srt.environ", "sglang.srt.session.streaming_session"]
PACKAGES = ["sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.disaggregation", "sglang.srt.session"]


class Anything(type):
    """A class of which every attribute is there, which says no to what it is asked."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)

    def __or__(cls, other):
        return cls

    __ror__ = __getitem__ = __or__

    def __iter__(cls):
        return iter(())

    def __bool__(cls):
        return False


def anything(name):
    def new(cls, *args, **named):
        decorates = len(args) == 1 and not named and isinstance(args[0], (types.FunctionType, type))
        return args[0] if decorates else object.__new__(cls)

    def attribute(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)

    return Anything(name, (), {
        "__new__": new,
        "__init__": lambda self, *args, **named: None,
        "__call__": lambda self, *args, **named: args[0] if len(args) == 1 and callable(args[0]) else None,
        "__getattr__": attribute,
        "__enter__": lambda self: self,
        "__exit__": lambda self, *args: None,
        "__bool__": lambda self: False,
    })


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, anything(name))
        return getattr(self, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the real modules in the release, and stand-ins for its others and for compilers of kernels."""

    def find_spec(self, name, path, target=None):
        if name in REAL:
            base = os.path.join(RELEASE, *name.split("."))
            if os.path.isdir(base):
                return importlib.util.spec_from_file_location(name, base + "/__init__.py", submodule_search_locations=[base])
            return importlib.util.spec_from_file_location(name, base + ".py")
        if name.split(".")[0] in ("sglang", "triton", "orjson", "psutil", "zmq", "pydantic"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return types.ModuleType(spec.name) if spec.name in PACKAGES else StandIn(spec.name)

    def exec_module(self, module):
        module.__path__ = []


sys.meta_path.insert(0, Finder())

import msgspec  # noqa: E402
import torch  # noqa: E402
from sglang.srt.disaggregation.kv_events import KVEventBatch  # noqa: E402
from sglang.srt.mem_cache import utils  # noqa: E402
from sglang.srt.mem_cache.allocator import paged as paged_module, swa as swa_module  # noqa: E402
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components import ComponentType, mamba as mamba_module  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402


def block_names(tokens, prior, page):
    """In place of the compiled one: readers take what blocks are called as it is."""
    names, tokens = [], list(tokens)
    for start in range(0, len(tokens), page):
        prior = hashlib.sha256((prior or b"") + repr(tokens[start:start + page]).encode()).digest()
        names.append(prior.hex())
    return names


class Platform:
    capabilities = types.SimpleNamespace(supports_triton=False)

    def get_paged_allocator_cls(self):
        return None


class Pool(BaseSWAKVPool):
    swa_req_ring_size = None

    def __init__(self):
        pass

    def register_mapping(self, mapping):
        self.full_to_swa_index_mapping = mapping

    def translate_loc_from_full_to_swa(self, indices):
        return self.full_to_swa_index_mapping[indices.to(torch.int64)]


class Windows(SWATokenToKVPoolAllocator):
    def alloc(self, tokens):  # in whole pages, which the release has a kernel for
        full, window = self.full_attn_allocator.alloc(tokens), self.swa_attn_allocator.alloc(tokens)
        self.set_full_to_swa_mapping(full, window)
        return full


class States:
    def __init__(self, slots):
        self.slots = list(range(1, slots))

    def available_size(self):
        return len(self.slots)

    schedulable_available_size = available_size

    def alloc(self, count):
        return torch.tensor([self.slots.pop() for _ in range(count)])

    def free(self, slots):
        self.slots.extend(slots.tolist())


class Requests(HybridReqToTokenPool):
    def __init__(self, slots):
        self.mamba_allocator = States(slots)


Pool.__abstractmethods__ = Requests.__abstractmethods__ = frozenset()
utils.get_native_hash = block_names
swa_module.current_platform = paged_module.current_platform = Platform()
mamba_module.mamba_cache_chunk_size = lambda: 1
mamba_module.mamba_checkpoint_grid = lambda page: page
mamba_module.get_exec = lambda: types.SimpleNamespace(mamba=types.SimpleNamespace(mamba_max_states_per_path=-1))
encoder = msgspec.msgpack.Encoder()


def say(**line):
    print(json.dumps(line))


class History:
    def __init__(self, rnd):
        self.rnd = rnd
        self.kind = rnd.choice(["full", "eagle", "window", "state", "window+state"])
        # Without SGLang's extra buffer states are kept with pages of one token only.
        self.page = 1 if "state" in self.kind else rnd.choice([1, 4, 16])
        self.window = self.page * rnd.randint(1, 6) - rnd.choice([0, rnd.randrange(self.page)]) if "window" in self.kind else 0
        self.window = max(self.window, 1) if "window" in self.kind else 0
        self.size = self.page * rnd.choice([64, 200])
        self.requests = Requests(rnd.choice([8, 24]))
        pool, common = Pool(), (torch.int64, "cpu")
        if self.window:
            self.alloc = Windows(self.size, self.size // rnd.choice([1, 2, 4]), self.page, *common, pool, False)
        elif self.page == 1:
            self.alloc = TokenToKVPoolAllocator(self.size, *common, pool, False)
        else:
            self.alloc = PagedTokenToKVPoolAllocator(self.size, self.page, *common, pool, False)
        components = [ComponentType.FULL] + [ComponentType.SWA] * bool(self.window) + [ComponentType.MAMBA] * ("state" in self.kind)
        self.cache = UnifiedRadixCache(CacheInitParams(
            disable=False, req_to_token_pool=self.requests, token_to_kv_pool_allocator=self.alloc, page_size=self.page,
            is_eagle=self.kind == "eagle", enable_kv_cache_events=True, sliding_window_size=self.window or None,
            tree_components=tuple(components), tree_core_backend="python"))
        self.vocabulary = rnd.choice([3, 1000])
        self.prompts = [[]]
        say(kind=self.kind, page=self.page, window=self.window)

    def publish(self):
        events = self.cache.tree_core.kv_events.take()
        if events:
            say(payload=encoder.encode(KVEventBatch(ts=0.0, events=events)).hex())

    def prompt(self):
        rnd = self.rnd
        known = rnd.choice(self.prompts) if rnd.random() < 0.8 else []
        prompt = known[:rnd.randint(0, len(known))] + [rnd.randrange(self.vocabulary) for _ in range(rnd.randint(1, 20 * self.page))]
        self.prompts.append(prompt[:self.size // 2])
        return self.prompts[-1]

    def step(self):
        prompt = self.prompt()
        # SGLang asks for all but the last token, which is computed in any case (Req.init_next_round_input).
        found = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", prompt[:-1]))))
        self.publish()
        say(ids=prompt, reused=found.device_prefix_len, full=found.full_kv_hit_length)
        if self.rnd.random() < 0.3:
            return
        lock = self.cache.lock(found.last_device_node)
        if self.room(-(-len(prompt) // self.page) * self.page - found.device_prefix_len):
            self.run(prompt, found)
        self.cache.unlock(lock)
        self.publish()

    def room(self, tokens):
        """Makes room for so many tokens and a state, as far as that can be had."""
        states = self.requests.mamba_allocator
        def left():
            full, window = self.alloc.available_size(), tokens
            if self.window:
                full, window = self.alloc.full_available_size(), self.alloc.swa_available_size()
            return tokens - full, tokens - window, (1 if "state" in self.kind else 0) - states.available_size()
        missing = [max(0, n) for n in left()]
        if any(missing):
            self.cache.evict_for_alloc(EvictParams(num_tokens=missing[0], swa_num_tokens=missing[1], mamba_num=missing[2]))
        return max(left()) <= 0

    def run(self, prompt, found):
        """Keeps what a request computes, as one that has ended does."""
        reused, tokens = found.device_prefix_len, -(-len(prompt) // self.page) * self.page
        fresh = self.alloc.alloc(tokens - reused) if tokens > reused else torch.empty(0, dtype=torch.int64)
        slots = torch.cat([self.cache.path_device_indices(found.last_device_node), fresh])
        key = RadixKey(array("q", prompt), is_bigram=self.kind == "eagle").page_aligned(self.page)
        insert = InsertParams(key=key, value=slots[:len(key)].clone(), prev_prefix_len=reused)
        if self.window and self.rnd.random() < 0.5:  # slots that the window has left are freed while a request runs
            gone = (len(key) - self.window - self.page) // self.page * self.page
            if gone > reused:
                self.alloc.free_swa(slots[reused:gone])
                insert.set_evicted_seqlen(ComponentType.SWA, gone)
        if "state" in self.kind:
            insert.mamba_value = self.requests.mamba_allocator.alloc(1)
        if len(key):
            result = self.cache.insert(insert)
            if insert.mamba_value is not None and result.mamba_exist:
                self.requests.mamba_allocator.free(insert.mamba_value)
        elif insert.mamba_value is not None:
            self.requests.mamba_allocator.free(insert.mamba_value)
        rest = slots[max(len(key), reused):]
        if len(rest):
            self.alloc.free(rest)


rnd = random.Random(SEED)
for _ in range(HISTORIES):
    history = History(rnd)
    for _ in range(STEPS):
        history.step()
