"""What clients were promised, and what they were told of it."""

import msgspec

CLONE = 1_000_000_000
# Two of the states of a sample.
GONE, OPEN = "gone", "open"


class Sample(msgspec.Struct, eq=False):
    """One promise of the gateway.

    state: open, result, failed, lost (its client is to be told 410) or gone (nothing is owed).
    runs: upstream requests since it was accepted, `again` how many of them the table allows.
    """

    request_id: str
    target: str
    seq_id: int
    tokens: int
    state: str = OPEN
    first_token: int = 0
    runs: int = 0
    again: int = 0
    engine_faults: int = 0
    # Whether its client was told by itself, and so is owed no report.
    told: bool = False
    # It was lost and submitted again under its id: the log may still tell of its first end too.
    revived: bool = False
    # Its clocks have run long enough for any of several ends.
    loose: bool = False

    @property
    def clone(self) -> int:
        return self.seq_id // CLONE


class Poller(msgspec.Struct, eq=False):
    """A client's batched polls: its cursor, and every id that it was told."""

    cursor: int = 0
    told: set[str] = set()
