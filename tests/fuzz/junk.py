"""Values and bytes that readers stumble over."""

import json
from random import Random
from typing import Any, Final

# As they stand in a document, valid JSON or not.
FRAGMENTS: Final = (
    *("null", "true", "false", "0", "-0", "1", "-1", "2", "01", "+1", "1.", ".5", "1.0", "1.5"),
    *("1e0", "1e2", "1E5", "1e-5", "1e999", "-1e999", "0e0", "NaN", "Infinity", "-Infinity"),
    *("2147483647", "2147483648", "9007199254740993", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("18446744073709551615", "18446744073709551616", "1" * 400, "0x10", "1_000", "\u0661"),
    *('""', '"x"', '"1"', '"null"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"'),
    *('"\\u0000"', '"\\r\\nX-A: b"', '"\\u001b[2J"', '"\\u2028"', '"\u202e"', '"\\x"', '"\t"'),
    *("'x'", '"unended', "[]", "{}", "[[]]", "[null]", "[1,[2]]", "[1,2,]", "[,]", '{"a":1}'),
    *('{"a":1,}', '{"a"}', "{1:2}", '{"type":"x"}', '["a","b"]', "[1,2]", "[1.5]", "[true]"),
    *("undefined", "None", "/**/1", "", " ", "\x00", "[" * 300 + "]" * 300, '{"a":' * 300),
)
DEEP: Final = ("[" * 5000, "[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000)
BYTES: Final = (
    *(b"\x00", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"),
    *(b"\n", b"\r\n", b"\x1b[31m", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\t"),
    *(b"0", b"9", b"-", b"e", b".", b"null", b"//", b"\xe2\x80\xa8"),
)
# What ids, names and paths are replaced by.
TEXTS: Final = (
    *("", " ", ".", "..", "../..", "/", "//", "a/b", "a\\b", "a:b", "a b", "a\tb", "*", "%", "?"),
    *("%2e%2e%2f", "%00", "%0d%0aX-A: b", "x\r\nX-Injected: 1", "x\nX-Injected: 1", "x\rY"),
    *("x\x7f", "x\x85y", "x\u2028y", "\ufeffx", "\u202ex", "e\u0301", "\u0131", "\U0001f600"),
    *("x" * 128, "x" * 129, "x" * 5000, "-", "_", "0", "None", "null", "__proto__", "$(id)"),
    *("'; DROP TABLE x;--", "{{7*7}}", "{model_id}", "${jndi:ldap://x}", "\x1b]0;x\x07", "\x1b[2J"),
    *("tinker://", "tinker://run", "tinker://run/weights/step", "tinker://run/sampler_weights/step"),
    *("tinker://run/step", "tinker://run/weights/../step", "tinker://run/weights/.step"),
    *("tinker://run/weights/a/b", "tinker:///weights/step", "TINKER://run/weights/step"),
    *("tinker://run/weights/step\n", "tinker://run/weights/step\x00", "tinker://run/weights/%73tep"),
    *("tinker://user@run/weights/step", "tinker://run:80/weights/step", "tinker://run/weights/"),
    *("http://127.0.0.1/", "//127.0.0.1/x", "file:///etc/passwd", "http://[::1]/", "@127.0.0.1"),
    *("stand-in", "run_step", "STAND-IN", "stand-in ", "stand-in\x00"),
    *("0000000000-0-AAAAAAAAAAAAAAAA", "0000000000-0-AAAAAAAAAAAAAAA\n", "\x00", "`id`"),
    "0000000000-0-AAAA/AAAAAAAAAAA",
    "0000000000-ffffffffffffffff-________________",
)  # fmt: skip


class Raw(str):
    """A fragment that is written as it is."""

    __slots__ = ()


def dumps(value: Any) -> str:
    """JSON; a dict may be a list of pairs, so that a key can come twice."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        value = Pairs(value.items())
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(k)}:{dumps(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join([dumps(item) for item in value]) + "]"
    return json.dumps(value)


class Pairs(list[tuple[str, Any]]):
    """An object's keys and values in their order."""


def text(rng: Random) -> str:
    """A hostile name, sometimes two glued together or one with a character changed."""
    chosen = rng.choice(TEXTS)
    kind = rng.random()
    if kind < 0.2:
        return chosen + rng.choice(TEXTS)
    if kind < 0.4 and chosen:
        at = rng.randrange(len(chosen))
        return chosen[:at] + chr(rng.choice((0, 10, 13, 27, 47, 58, 92, 127, 233))) + chosen[at:]
    if kind < 0.5:
        return "".join(chr(rng.randrange(1, 0x300)) for _ in range(rng.randrange(20)))
    return chosen


def damage(rng: Random, body: bytes) -> bytes:
    """One or two changes of bytes, wherever they fall."""
    for _ in range(rng.choice((1, 1, 2))):
        kind, at = rng.randrange(11), rng.randrange(len(body) + 1)
        if kind == 0:
            body = body[:at]
        elif kind == 1:
            body = body[:at] + body[at + rng.choice((1, 1, 2, 9)) :]
        elif kind == 2:
            body = body[:at] + rng.choice(BYTES) + body[at:]
        elif kind == 3:
            body = body[:at] + rng.choice(BYTES) + body[at + 1 :]
        elif kind == 4:
            body = body[:at] + bytes((rng.randrange(256),)) + body[at + 1 :]
        elif kind == 5:
            body += rng.choice((b"x", b"{}", body[:50], b"\x00", b" \n", b"\xff"))
        elif kind == 6:
            body = rng.choice((b"\xef\xbb\xbf", b" ", b"\x00", b"\xff\xfe")) + body
        elif kind == 7:
            piece = body[at : at + rng.randrange(30)]
            to = rng.randrange(len(body) + 1)
            body = body[:to] + piece + body[to:]
        elif kind == 8:
            body = body[:at] + rng.choice(FRAGMENTS).encode() + body[at + 1 :]
        elif kind == 9 and rng.random() < 0.05:
            body = body[:at] + rng.choice(DEEP).encode() + body[at:]
        elif kind == 10 and rng.random() < 0.1:
            body = body.decode("latin-1").encode(rng.choice(("utf-16", "utf-8-sig", "utf-32")))
    return body
