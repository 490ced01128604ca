"""Requests whose framing two parsers may read differently, as raw bytes.

Plain data, for any server: (name, bytes, expectation). Every request that could reach the
application is `POST /api/v1/create_session`, so `asgi_gateway_sessions` counts those that did.

| expectation | answers | sessions made | connection |
|---|---|---|---|
| `refused` | none, or one of 400 to 599 | 0 | closed |
| `one` | none or one | at most 1 | closed or kept; nothing is read as a second request |
| `served` | one, 200 | 1 | kept |
| `served, then closed` | one, 200 | 1 | closed |
| `two` | two, 200 | 2 | kept |

A client sends the bytes at once and nothing after them.
"""

from typing import Final, Literal, NamedTuple

Expectation = Literal["refused", "one", "served", "served, then closed", "two"]


class Case(NamedTuple):
    name: str
    sent: bytes
    expectation: Expectation


LINE: Final = b"POST /api/v1/create_session HTTP/1.1\r\n"
HOST: Final = b"Host: gateway\r\n"
JSON: Final = b"Content-Type: application/json\r\n"
BODY: Final = b'{"tags":[]}'
# One whole request; where it is read as a second one a session comes to be.
INNER: Final = LINE + HOST + b"Content-Length: 2\r\n\r\n{}"


def _chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def _request(*headers: bytes, body: bytes = b"", line: bytes = LINE) -> bytes:
    return line + HOST + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


_CL: Final = b"Content-Length: %d" % len(BODY)
_TE: Final = b"Transfer-Encoding: chunked"
_HIDDEN: Final = b"0\r\n\r\n" + INNER

CASES: Final[list[Case]] = [
    # --- what must work, or the others prove nothing ---------------------------------------------
    Case("content-length", _request(_CL, body=BODY), "served"),
    Case("chunked", _request(_TE, body=_chunked(BODY)), "served"),
    Case(
        "chunked in upper case",
        _request(b"TRANSFER-ENCODING: CHUNKED", body=_chunked(BODY)),
        "served",
    ),
    Case("two requests at once", 2 * _request(_CL, body=BODY), "two"),
    Case(
        "content-length, then chunked",
        _request(_CL, body=BODY) + _request(_TE, body=_chunked(BODY)),
        "two",
    ),
    Case("blank lines in front", b"\r\n\r\n" + _request(_CL, body=BODY), "one"),
    # --- two framings ----------------------------------------------------------------------------
    Case("CL and TE", _request(b"Content-Length: %d" % len(_HIDDEN), _TE, body=_HIDDEN), "refused"),
    Case("TE and CL", _request(_TE, b"Content-Length: %d" % len(_HIDDEN), body=_HIDDEN), "refused"),
    Case("TE and CL of 4", _request(_TE, b"Content-Length: 4", body=_chunked(BODY)), "refused"),
    Case("two equal lengths", _request(_CL, _CL, body=BODY), "refused"),
    Case("two different lengths", _request(b"Content-Length: 0", _CL, body=BODY), "refused"),
    Case("a list of lengths", _request(b"Content-Length: 11, 11", body=BODY), "refused"),
    Case("TE twice", _request(_TE, _TE, body=_chunked(BODY)), "one"),
    Case(
        "TE twice, the last identity",
        _request(_TE, b"Transfer-Encoding: identity", body=_HIDDEN),
        "refused",
    ),
    # --- a length that is no number --------------------------------------------------------------
    Case("a signed length", _request(b"Content-Length: +11", body=BODY), "refused"),
    Case("a negative length", _request(b"Content-Length: -1", body=INNER), "refused"),
    Case("a length in hex", _request(b"Content-Length: 0xb", body=BODY), "refused"),
    Case("an empty length", _request(b"Content-Length: ", body=INNER), "refused"),
    Case("a length with a blank inside", _request(b"Content-Length: 1 1", body=BODY), "refused"),
    Case("a length with an underscore", _request(b"Content-Length: 1_1", body=BODY), "refused"),
    Case("a fractional length", _request(b"Content-Length: 11.0", body=BODY), "refused"),
    Case(
        "a length above 64 bits",
        _request(b"Content-Length: 18446744073709551627", body=BODY),
        "refused",
    ),
    Case(
        "a length in other digits",
        _request("Content-Length: \u0661\u0661".encode(), body=BODY),
        "refused",
    ),
    # --- a transfer coding that is not ours ------------------------------------------------------
    Case("TE xchunked", _request(b"Transfer-Encoding: xchunked", body=_HIDDEN), "refused"),
    Case("TE identity", _request(b"Transfer-Encoding: identity", body=_HIDDEN), "refused"),
    Case(
        "TE chunked, identity",
        _request(b"Transfer-Encoding: chunked, identity", body=_HIDDEN),
        "refused",
    ),
    Case(
        "TE chunked in quotes", _request(b'Transfer-Encoding: "chunked"', body=_HIDDEN), "refused"
    ),
    Case(
        "TE behind a vertical tab",
        _request(b"Transfer-Encoding: \x0bchunked", body=_HIDDEN),
        "refused",
    ),
    Case("TE in HTTP/1.0", _request(_TE, body=_HIDDEN, line=LINE.replace(b"1.1", b"1.0")), "one"),
    # --- lines -----------------------------------------------------------------------------------
    Case("bare LF after a header", LINE + HOST + b"X: y\n" + _CL + b"\r\n\r\n" + BODY, "refused"),
    Case(
        "bare LF after the request line",
        LINE.replace(b"\r\n", b"\n") + HOST + _CL + b"\r\n\r\n" + BODY,
        "refused",
    ),
    Case("bare LF everywhere", _request(_CL, body=BODY).replace(b"\r\n", b"\n"), "refused"),
    Case("bare CR in a value", _request(b"X: a\rContent-Length: 0", _CL, body=BODY), "refused"),
    Case("a folded header", _request(b"X: a\r\n b", _CL, body=BODY), "refused"),
    Case("a folded TE", _request(b"Transfer-Encoding:\r\n chunked", body=_HIDDEN), "refused"),
    Case("space before the colon", _request(b"Content-Length : 11", body=BODY), "refused"),
    Case(
        "tab before the colon", _request(b"Transfer-Encoding\t: chunked", body=_HIDDEN), "refused"
    ),
    Case(
        "a header that begins with a space",
        LINE + b" X: y\r\n" + HOST + _CL + b"\r\n\r\n" + BODY,
        "refused",
    ),
    Case("a header without a name", _request(b": x", _CL, body=BODY), "refused"),
    Case("a header without a colon", _request(b"Nonsense", _CL, body=BODY), "refused"),
    Case("NUL in a name", _request(b"X\x00Y: z", _CL, body=BODY), "refused"),
    Case("NUL in a value", _request(b"X: a\x00b", _CL, body=BODY), "refused"),
    Case("NUL behind the length", _request(b"Content-Length: 11\x00", body=BODY), "refused"),
    Case("a header name in latin-1", _request(b"Transf\xebr: z", _CL, body=BODY), "refused"),
    # --- chunks ----------------------------------------------------------------------------------
    Case(
        "a chunk size that is no number",
        _request(_TE, body=b"zz\r\n" + BODY + b"\r\n0\r\n\r\n"),
        "refused",
    ),
    Case(
        "a chunk size with 0x", _request(_TE, body=b"0xb\r\n" + BODY + b"\r\n0\r\n\r\n"), "refused"
    ),
    Case("a signed chunk size", _request(_TE, body=b"+b\r\n" + BODY + b"\r\n0\r\n\r\n"), "refused"),
    Case(
        "a negative chunk size", _request(_TE, body=b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"), "refused"
    ),
    Case("an empty chunk size", _request(_TE, body=b"\r\n" + BODY + b"\r\n0\r\n\r\n"), "refused"),
    Case(
        "a chunk size above 64 bits", _request(_TE, body=b"1000000000000000b\r\n" + BODY), "refused"
    ),
    Case(
        "a chunk longer than its size",
        _request(_TE, body=b"5\r\n" + BODY + b"\r\n0\r\n\r\n"),
        "refused",
    ),
    Case(
        "a chunk that ends in LF", _request(_TE, body=b"b\r\n" + BODY + b"\n0\r\n\r\n"), "refused"
    ),
    Case(
        "a chunk size that ends in LF",
        _request(_TE, body=b"b\n" + BODY + b"\r\n0\r\n\r\n"),
        "refused",
    ),
    Case(
        "a chunk size that ends in CR",
        _request(_TE, body=b"b\r" + BODY + b"\r\n0\r\n\r\n"),
        "refused",
    ),
    Case(
        "a space before the chunk size",
        _request(_TE, body=b" b\r\n" + BODY + b"\r\n0\r\n\r\n"),
        "refused",
    ),
    Case(
        "a small chunk extension", _request(_TE, body=b"b;a=b\r\n" + BODY + b"\r\n0\r\n\r\n"), "one"
    ),
    Case(
        "a LF in a chunk extension",
        _request(_TE, body=b"b;a\n" + BODY + b"\r\n0\r\n\r\n"),
        "refused",
    ),
    Case(
        "a CR in a chunk extension",
        _request(_TE, body=b"b;a\rb\r\n" + BODY + b"\r\n0\r\n\r\n"),
        "refused",
    ),
    Case("a trailer", _request(_TE, body=b"b\r\n" + BODY + b"\r\n0\r\nX: y\r\n\r\n"), "one"),
    Case(
        "a trailer that says a length",
        _request(_TE, body=b"b\r\n" + BODY + b"\r\n0\r\nContent-Length: 99\r\n\r\n" + b"x"),
        "one",
    ),
    # --- the request line ------------------------------------------------------------------------
    Case(
        "absolute form",
        _request(_CL, body=BODY, line=LINE.replace(b"/api", b"http://other/api")),
        "one",
    ),
    Case(
        "authority form",
        _request(_CL, body=BODY, line=b"CONNECT gateway:80 HTTP/1.1\r\n"),
        "refused",
    ),
    Case(
        "a target without a slash",
        _request(_CL, body=BODY, line=LINE.replace(b"/api", b"api")),
        "refused",
    ),
    Case(
        "a space in the target",
        _request(_CL, body=BODY, line=LINE.replace(b"create", b"cre ate")),
        "refused",
    ),
    Case(
        "a tab after the method",
        _request(_CL, body=BODY, line=LINE.replace(b"POST ", b"POST\t")),
        "refused",
    ),
    Case(
        "a NUL in the target",
        _request(_CL, body=BODY, line=LINE.replace(b"create", b"cre\x00ate")),
        "refused",
    ),
    Case(
        "a method in small letters",
        _request(_CL, body=BODY, line=LINE.replace(b"POST", b"post")),
        "refused",
    ),
    Case("no version", _request(_CL, body=BODY, line=LINE.replace(b" HTTP/1.1", b"")), "refused"),
    Case("HTTP/1.2", _request(_CL, body=BODY, line=LINE.replace(b"1.1", b"1.2")), "refused"),
    Case("HTTP/11.1", _request(_CL, body=BODY, line=LINE.replace(b"1.1", b"11.1")), "refused"),
    Case("HTTP/2 by surprise", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + INNER, "refused"),
    Case(
        "a GET with a hidden POST",
        b"GET /api/v1/create_session HTTP/1.1\r\n"
        + HOST
        + b"Content-Length: %d\r\n\r\n" % len(INNER)
        + INNER,
        "one",
    ),
    # --- after the end ---------------------------------------------------------------------------
    Case(
        "more behind connection: close",
        _request(_CL, b"Connection: close", body=BODY) + INNER,
        "served, then closed",
    ),
    Case(
        "an upgrade",
        _request(_CL, b"Connection: upgrade", b"Upgrade: h2c", body=BODY) + INNER,
        "one",
    ),
    Case(
        "an upgrade without a body",
        b"GET /livez HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n" + INNER,
        "one",
    ),
]
