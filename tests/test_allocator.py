"""When freed memory is given back: the amounts, the pace, and that the function is the real one."""

import ctypes
import platform
import resource
import threading

import pytest

from asgi_gateway.allocator import (
    AT_REST_BYTES,
    EVERY_S,
    WORTH_AT_REST_BYTES,
    WORTH_BYTES,
    Allocator,
    malloc_trim,
)
from tests.store.records import accepted
from tests.support.gateway import driven


class Heap:
    """A trim that can be held up, and says where it runs."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.pads: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def trim(self, pad: int) -> int:
        self.go_on.wait(10)
        self.pads.append(pad)
        self.threads.append(threading.get_ident())
        return 1


async def ended(allocator: Allocator) -> None:
    assert allocator._running is not None
    await allocator._running


async def test_a_fall_is_given_back_in_steps_and_at_rest_the_rest() -> None:
    heap = Heap()
    allocator, now = Allocator(heap.trim), 0.0
    trimmed_at = []
    for held in (0, 100 << 20, *range(100 << 20, -1, -(1 << 20))):
        now += EVERY_S
        if allocator.tick(held, now):
            trimmed_at.append(held)
            await ended(allocator)
    top, step = 100 << 20, WORTH_BYTES
    assert trimmed_at == [top - step, top - 2 * step, top - 3 * step, 0]
    assert heap.pads == [0] * allocator.trims
    assert threading.get_ident() not in heap.threads, "the loop must not wait for it"


@pytest.mark.parametrize(
    ("peak", "held", "worth"),
    [
        (WORTH_BYTES, 0, True),
        (WORTH_AT_REST_BYTES, 0, True),
        (WORTH_AT_REST_BYTES - 1, 0, False),
        (AT_REST_BYTES + WORTH_AT_REST_BYTES, AT_REST_BYTES, True),
        (AT_REST_BYTES + 1 + WORTH_AT_REST_BYTES, AT_REST_BYTES + 1, False),
        (AT_REST_BYTES + 1 + WORTH_BYTES, AT_REST_BYTES + 1, True),
    ],
)
async def test_what_is_worth_a_call(peak: int, held: int, worth: bool) -> None:
    allocator = Allocator(Heap().trim)
    assert not allocator.tick(peak, 0.0)
    assert allocator.tick(held, 0.0) is worth
    if worth:
        await ended(allocator)
        assert not allocator.tick(held, 100.0), "once"


async def test_one_at_a_time_and_one_a_second() -> None:
    heap = Heap()
    allocator = Allocator(heap.trim)
    heap.go_on.clear()
    allocator.tick(WORTH_BYTES, 0.0)
    assert allocator.tick(0, 0.0)
    allocator.tick(WORTH_BYTES, 0.1)
    assert not allocator.tick(0, 10.0), "the first still runs"
    heap.go_on.set()
    await ended(allocator)
    assert allocator.tick(0, 10.0)
    await ended(allocator)
    allocator.tick(WORTH_BYTES, 10.1)
    assert not allocator.tick(0, 10.0 + EVERY_S - 0.01)
    assert allocator.tick(0, 10.0 + EVERY_S)
    await ended(allocator)


async def test_without_the_function_nothing_happens() -> None:
    allocator = Allocator(None)
    allocator.tick(1 << 40, 0.0)
    assert not allocator.tick(0, 100.0)
    assert allocator.trims == 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has it")
def test_it_gives_back_what_lies_between() -> None:
    trim = malloc_trim()
    assert trim is not None
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(4096) for _ in range(8192)]  # 32 MiB
    for block in blocks:
        ctypes.memset(block, 1, 4096)
    held = _rss_bytes()
    keep, gone = blocks[::64], [b for i, b in enumerate(blocks) if i % 64]
    for block in gone:
        libc.free(block)
    trim(0)
    given_back = held - _rss_bytes()
    for block in keep:
        libc.free(block)
    assert given_back > 16 << 20


async def test_a_gateway_gives_back_after_a_burst() -> None:
    """In the gateway's own tick, by the size of what its store holds."""
    heap = Heap()
    async with driven("http://127.0.0.1:9") as gateway:
        app = gateway.gateway
        app._allocator = Allocator(heap.trim)
        store = app._store
        records = [accepted(store, number, body=b"x" * 65536) for number in range(1000)]
        gateway.gateway.tick()
        for record in records:
            store.evict(record)
        gateway.gateway.tick()
        await ended(app._allocator)
        assert app._allocator.trims == 1


def _rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
