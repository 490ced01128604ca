"""A clock that tests move by hand."""


class ManualClock:
    """Starts at 1,000 s; `advance` is the only thing that moves it."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def wall_time(self) -> float:
        return 1_700_000_000.0 + self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds
