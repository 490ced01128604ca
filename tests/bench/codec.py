"""Decoding and encoding against the parser's bare parse of the same body.

    python -m tests.bench.codec

CPU time of one thread, best of several runs. Bodies are the stand-in's, one choice: "full" is what
vLLM sends with `logprobs: 0` and `return_token_ids`, "names" with `return_tokens_as_token_ids`
alone, "lean" holds ids and logprobs and next to nothing else. Memory is what the resident set grows
by at most, in a process of its own, over the body's size; a body that is smaller than the steps of
an allocator says nothing about it. What a decoder makes once and keeps, about 0.7 MB, is not in it.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import simdjson

from asgi_gateway.codec import Want
from asgi_gateway.codec.decode import Decoder
from asgi_gateway.codec.encode import encode
from loadgen.body import EXACT, Style, answer
from loadgen.request import Limits, check, read
from loadgen.tape import Tape

VOCAB = 151_936
PROMPT = 32
LENGTHS = (16, 8192, 32_768)
FORMS = {
    "full": ("return_token_ids", Want(), EXACT),
    "lean": ("return_token_ids", Want(), Style(lean=True)),
    "names": ("return_tokens_as_token_ids", Want(named_tokens=True), EXACT),
}
# So long that a decoder takes it the way of the long ones.
WARM_UP_TOKENS = 8192
MEASURED_FROM_BYTES = 100_000


class Ratio(NamedTuple):
    """One size and form: microseconds of CPU, and memory beside the body over the body's size."""

    tokens: int
    form: str
    body_bytes: int
    codec_us: float
    parse_us: float
    memory: float | None

    @property
    def ratio(self) -> float:
        return self.codec_us / self.parse_us


class Longest(NamedTuple):
    """A scored prompt: its longest step and all steps together, milliseconds of CPU."""

    prompt_tokens: int
    k: int
    body_bytes: int
    longest_ms: float
    total_ms: float


def ratios(rounds: int = 15) -> list[Ratio]:
    """A row per length and form."""
    tape = Tape(VOCAB)
    rows = []
    for tokens in LENGTHS:
        for form, (option, want, style) in FORMS.items():
            body = completion(tape, tokens, option, style)
            decoder, parser = Decoder(), simdjson.Parser()

            def codec(body: bytes = body, want: Want = want, decoder: Decoder = decoder) -> None:
                encode(decoder.decode(body, want, PROMPT))

            def reused(body: bytes = body, parser: simdjson.Parser = parser) -> None:
                parser.parse(body)

            def fresh(body: bytes = body) -> None:
                simdjson.Parser().parse(body)

            times = _best([codec, reused, fresh], rounds, max(2, 4096 // tokens))
            first = completion(tape, WARM_UP_TOKENS, option, style)
            memory = _memory(first, body, form) if len(body) > MEASURED_FROM_BYTES else None
            rows.append(Ratio(tokens, form, len(body), times[0], min(times[1:]), memory))
    return rows


def longest_steps(rounds: int = 3) -> list[Longest]:
    """The prompts of 12k and 32k tokens with five alternatives each."""
    return [_longest(length, 5, rounds) for length in (12_000, 32_768)]


def completion(tape: Tape, tokens: int, option: str, style: Style = EXACT) -> bytes:
    """The stand-in's body of so many tokens."""
    asked = {
        "prompt": [13 + 4093 * i for i in range(PROMPT)],
        "max_tokens": tokens,
        "logprobs": 0,
        option: True,
    }
    job = check(
        read(json.dumps(asked).encode(), b"application/json"), Limits(("base",), 1 << 20, VOCAB)
    )
    made = answer(job, tape, style, request_id="0123456789abcdef", created=1_795_967_011)
    return made.body


def scored_prompt(length: int, k: int) -> bytes:
    """A body with k alternatives and the own token at every position of a prompt."""
    rows = ["null"]
    for position in range(1, length):
        own = position * 7919 % VOCAB
        cells = [(own, -11.746516227722168 - position % 7 / 4, 26_814 - position % 999)]
        cells += [
            (VOCAB + rank, -rank / 8 - 0.053541183471679690, rank) for rank in range(1, k + 1)
        ]
        texts = (' \\"]%d' if token % 16 == 3 else " word%d" for token, _, _ in cells)
        row = ",".join(
            f'"{token}":{{"logprob":{logprob!r},"rank":{rank},"decoded_token":"{text % position}"}}'
            for (token, logprob, rank), text in zip(cells, texts, strict=True)
        )
        rows.append("{" + row + "}")
    ids = ",".join(str(position * 7919 % VOCAB) for position in range(length))
    return (
        '{"id":"cmpl-0","object":"text_completion","created":1,"model":"base","choices":[{"index":0,'
        '"text":"a","logprobs":{"text_offset":[0],"token_logprobs":[-1.5],"tokens":["a"],'
        '"top_logprobs":[{"a":-1.5}]},"finish_reason":"length","stop_reason":null,"token_ids":[5],'
        f'"prompt_logprobs":[{",".join(rows)}],"prompt_token_ids":[{ids}],"routed_experts":null}}],'
        f'"usage":{{"prompt_tokens":{length},"total_tokens":{length + 1},"completion_tokens":1}}}}'
    ).encode()


def _best(calls: list[Callable[[], None]], rounds: int, inner: int) -> list[float]:
    """Microseconds of each call, the best of so many rounds; a first call warms the cache."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for number, call in enumerate(calls):
            call()
            start = time.thread_time_ns()
            for _ in range(inner):
                call()
            best[number] = min(best[number], (time.thread_time_ns() - start) / inner / 1000)
    return best


def _longest(length: int, k: int, rounds: int) -> Longest:
    body, want = scored_prompt(length, k), Want(prompt_logprobs=True, prompt_topk=k)
    decoder = Decoder()
    # Steps are the same in every round: the best time of each, and then the longest of them.
    best: list[float] = []
    for _ in range(rounds):
        steps, taken, done = decoder.steps(body, want, length), [], False
        while not done:
            start = time.thread_time_ns()
            done = next(steps, steps) is steps
            taken.append((time.thread_time_ns() - start) / 1e6)
        best = [min(pair) for pair in zip(best or taken, taken, strict=True)]
    return Longest(length, k, len(body), max(best), sum(best))


# What was freed before would be memory to decode into, so it is given back.
_CHILD = """
import ctypes, sys
from pathlib import Path
from asgi_gateway.codec import Want
from asgi_gateway.codec.decode import Decoder
from asgi_gateway.codec.encode import encode
def kib(name):
    status = Path("/proc/self/status").read_text()
    return int(status.split(name + ":")[1].split()[0])
first, body = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]).read_bytes()
want, decoder = Want(named_tokens=sys.argv[3] == "names"), Decoder()
encode(decoder.decode(first, want, int(sys.argv[4])))
ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")
before = kib("VmRSS")
result = encode(decoder.decode(body, want, int(sys.argv[4])))
print((kib("VmHWM") - before) * 1024 / len(body))
"""


def _memory(first: bytes, body: bytes, form: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, "first"), Path(folder, "body")]
        for file, data in zip(files, (first, body), strict=True):
            file.write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, *map(str, files), form, str(PROMPT)],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
    return float(done.stdout)


def main() -> None:
    for row in ratios():
        memory = "" if row.memory is None else f", memory {row.memory:.2f} x the body"
        print(
            f"{row.tokens:6} tokens {row.form:5} {row.body_bytes:8} bytes: {row.codec_us:8.1f} us,"
            f" bare parse {row.parse_us:8.1f} us, ratio {row.ratio:.2f}{memory}"
        )
    for prompt in longest_steps():
        print(
            f"prompt of {prompt.prompt_tokens} x {prompt.k}, {prompt.body_bytes} bytes: longest"
            f" step {prompt.longest_ms:.1f} ms, all {prompt.total_ms:.0f} ms"
        )


if __name__ == "__main__":
    main()
