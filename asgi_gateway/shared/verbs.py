"""All verbs of the shared store: those of `samples`, and those about many at once."""

from collections.abc import Iterable
from typing import Final

from asgi_gateway.errors import Unsupported
from asgi_gateway.shared import replies
from asgi_gateway.shared.commands import Command
from asgi_gateway.shared.groups import group_of, group_of_session
from asgi_gateway.shared.outcomes import (
    Acknowledged,
    Buried,
    Completions,
    Counts,
    Forgotten,
    Swept,
)
from asgi_gateway.shared.samples import SampleVerbs, called

# So many samples of one call hold the server for about a millisecond.
PER_CALL: Final = 128
# Bodies that one adoption hands over.
ADOPTED_BYTES: Final = 4 << 20
# Numbers in the server are exact up to here; cursors of ours are below.
_MAX_CURSOR: Final = 2**53
_MAX_CLONE: Final = 2**63


class Verbs(SampleVerbs):
    def page(
        self,
        sampling_session_id: str,
        clone: int,
        cursor: int,
        limit: int,
        now: int | None,
        *,
        watch: bool,
    ) -> Command[Completions]:
        """What a poller has not seen; what it has is dropped. watch: `p<clone>:<session>` comes
        once the log grows, where there is nothing to tell now.

        Raises:
            Unsupported: no such clone can be.
        """
        if not 0 <= clone < _MAX_CLONE:
            raise Unsupported("target.cloned_sampler_id must be 0 or more, and below 2^63")
        return self._command(
            _PAGE,
            group_of_session(sampling_session_id),
            replies.completions,
            sampling_session_id,
            clone,
            cursor if 0 <= cursor < _MAX_CURSOR else 0,
            limit,
            self.epoch if watch else "",
            "" if now is None else now,
            self.lifetimes.keep,
        )

    def acknowledge(self, request_ids: Iterable[str], caller: str) -> list[Command[Acknowledged]]:
        """The client has these outcomes. Ids that are unknown, foreign or another caller's are
        fine."""
        return self._acknowledge(request_ids, caller, "")

    def told(self, request_id: str, caller: str) -> list[Command[Acknowledged]]:
        """Its client knows that it is lost: the note goes, and nothing else."""
        return self._acknowledge((request_id,), caller, "1")

    def sweep(self, group: int, now: int | None, limit: int = PER_CALL) -> Command[Swept]:
        return self._command(
            _SWEEP,
            group,
            replies.swept,
            "" if now is None else now,
            limit,
            self.lifetimes.lost,
            self.lifetimes.fence,
        )

    def bury(
        self,
        group: int,
        epoch: str,
        now: int | None,
        limit: int = PER_CALL,
        *,
        adopt: bool = False,
    ) -> Command[Buried]:
        """Fence a dead process, and end its unfinished samples: lost, or ours where adopted."""
        return self._command(
            _BURY,
            group,
            replies.buried,
            epoch,
            "" if now is None else now,
            limit,
            self.lifetimes.lost,
            self.epoch if adopt else "",
            ADOPTED_BYTES,
        )

    def forget(
        self,
        sampling_session_id: str,
        now: int | None,
        *,
        told: bool,
        accepted_by: int,
        scan: str = "",
        limit: int = PER_CALL,
    ) -> Command[Forgotten]:
        """End a session's samples, and with `told` all that is known of it; to be repeated from
        `scan` on. Samples accepted after `accepted_by` are spared. Owners of unfinished ones get
        `c<request_id>`."""
        return self._command(
            _FORGET,
            group_of_session(sampling_session_id),
            replies.forgotten,
            sampling_session_id,
            self.epoch,
            "" if now is None else now,
            int(told),
            accepted_by,
            scan or "0",
            limit,
            self.lifetimes.lost,
        )

    def counts(self, group: int) -> Command[Counts]:
        return Command(
            group, ("HMGET", self._tags[group] + b":c", "b", "u", "s", "l"), replies.counts
        )

    def _acknowledge(
        self, request_ids: Iterable[str], caller: str, notes: str
    ) -> list[Command[Acknowledged]]:
        by_group: dict[int, list[str]] = {}
        for request_id in request_ids:
            group = group_of(request_id)
            if group is not None:
                by_group.setdefault(group, []).append(request_id)
        return [
            self._command(
                _ACKNOWLEDGE,
                group,
                replies.acknowledged,
                caller,
                notes,
                *ids[start : start + PER_CALL],
            )
            for group, ids in by_group.items()
            for start in range(0, len(ids), PER_CALL)
        ]


_PAGE: Final = called("page")
_ACKNOWLEDGE: Final = called("acknowledge")
_SWEEP: Final = called("sweep")
_BURY: Final = called("bury")
_FORGET: Final = called("forget")
