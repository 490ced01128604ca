"""`asgi-gateway hash-key`: what belongs into the keys file, for a given secret or a new one."""

import argparse
import secrets
import sys
from typing import Final

from asgi_gateway.access.keys import digest_of, is_name

# The SDK takes no other keys.
PREFIX: Final = "tml-"
# An attacker who gets at the file can try short ones.
MIN_CHARACTERS: Final = 20
_TEXT: Final = "print the keys file's entry for a secret on standard input, or for a new one"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("hash-key", help=_TEXT, description=_TEXT)
    parser.add_argument("name", nargs="?", default="NAME", help="the caller's name")
    parser.add_argument(
        "--new", action="store_true", help="make a secret; so it is where a terminal is the input"
    )


def run(name: str, *, new: bool) -> int:
    """Writes the entry on stdout and a new secret, once, on stderr; returns the exit status."""
    if not is_name(name):
        return _refuse(f"{name!r:.80} is no name: 1 to 64 of letters, digits, '.', '_' and '-'")
    if new or sys.stdin.isatty():
        secret = PREFIX + secrets.token_urlsafe(32)
        sys.stderr.write(f"the key, shown this once: {secret}\n")
    else:
        secret = sys.stdin.readline().strip()
    if len(secret) < MIN_CHARACTERS:
        return _refuse(f"a key has {MIN_CHARACTERS} characters at least; --new makes one")
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        return _refuse("a key goes into a header: printable ASCII without blanks")
    if not secret.startswith(PREFIX):
        sys.stderr.write(f"asgi-gateway: the SDK takes only keys that begin with {PREFIX}\n")
    table = f'"{name}"' if "." in name else name
    sys.stdout.write(f'[{table}]\nsha256 = "{digest_of(secret.encode()).hex()}"\n')
    return 0


def _refuse(problem: str) -> int:
    sys.stderr.write(f"asgi-gateway: {problem}\n")
    return 2
