"""How long a `stop` may be."""

from typing import Final

from asgi_gateway.errors import Malformed

# Entries of `stop`, and what they may have together; vLLM looks for each after every token. The
# shape of a sample with few of them is kept for the next one.
MAX_STOPS: Final = 1024
MAX_STOP_CHARACTERS: Final = 64 << 10
KEPT_STOPS: Final = 32
KEPT_STOP_CHARACTERS: Final = 1024


def short(stop: str | list[str | int]) -> bool:
    """Whether a shape with it is worth keeping.

    Raises:
        Malformed: too many, or too long.
    """
    entries = [stop] if isinstance(stop, str) else stop
    if len(entries) > MAX_STOPS:
        raise Malformed(f"sampling_params.stop has {len(entries)} entries, at most {MAX_STOPS}")
    size = sum([len(entry) for entry in entries if isinstance(entry, str)])
    if size > MAX_STOP_CHARACTERS:
        raise Malformed(
            f"sampling_params.stop has {size} characters together, at most {MAX_STOP_CHARACTERS}"
        )
    return len(entries) <= KEPT_STOPS and size <= KEPT_STOP_CHARACTERS
