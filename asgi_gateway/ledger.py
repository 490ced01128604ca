"""What must be told to whoever remembers across a restart. This one remembers nothing."""

from typing import Final

from asgi_gateway.store.records import Record


class Ledger:
    """Told of sessions, clones and open samples as they come and go.

    Every method is called before the client learns of what it tells, and must not raise: a ledger
    that cannot write says so in its own health.
    """

    def accepted(self, record: Record) -> None:
        """A sample was taken in; its id goes out next."""

    def closed(self, request_id: str) -> None:
        """The client has the outcome, or will never ask."""

    def session_made(self, session_id: str, caller: str) -> None:
        pass

    def session_finished(self, session_id: str) -> None:
        pass

    def session_forgotten(self, session_id: str) -> None:
        pass

    def sampling_made(
        self,
        sampling_session_id: str,
        session_id: str,
        seq_id: int,
        *,
        upstream_name: str,
        base_model: str,
        cache_salt: str,
        model_path: str | None,
    ) -> None:
        pass

    def joined(self, sampling_session_id: str, counter: int) -> None:
        """A clone of a sampling client got its number."""


NOBODY: Final = Ledger()
