"""Clients ask for their samples, one by one and in batches."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.support.asgi_client import Response, turns
from tests.support.promised.books import Books
from tests.support.promised.samples import GONE, OPEN, Poller, Sample


class Polling(Books):
    """Polls may wait, leave, lose their answer or acknowledge what came before."""

    @precondition(lambda self: self.samples)
    @rule(data=st.data(), old_sdk=st.booleans(), stays=st.booleans())
    def poll(self, data: Any, old_sdk: bool, stays: bool) -> None:
        sample = data.draw(st.sampled_from(self.samples))
        self.run(self._poll(sample, old_sdk, stays))

    async def _poll(self, sample: Sample, old_sdk: bool, stays: bool) -> Response | None:
        accept = "application/json" if old_sdk else "application/x-protobuf"
        connection = self.driven.client.start(
            "POST",
            "/api/v1/retrieve_future",
            {"request_id": sample.request_id},
            {"Accept": accept},
        )
        await turns(6)
        if connection.answered:
            answer = await connection.response()
            self._told(sample, answer)
            return answer
        assert sample.state == OPEN or sample.loose
        if stays:
            self.parked.append((sample, connection))
        else:
            connection.hang_up()
            await turns(6)
            assert connection.answered
        return None

    @rule(
        data=st.data(),
        clone=st.sampled_from([0, 0, 1]),
        lost=st.booleans(),
        acknowledges=st.booleans(),
    )
    def batched_poll(self, data: Any, clone: int, lost: bool, acknowledges: bool) -> None:
        """One look; a lost answer leaves the client at its cursor."""
        target = data.draw(st.sampled_from(self.targets))
        poller = self.pollers.setdefault((target, clone), Poller())
        mine = [
            s
            for s in self.samples
            if s.request_id in poller.told and s.state in ("result", "failed") and not s.loose
        ]
        done = data.draw(st.lists(st.sampled_from(mine), max_size=2)) if mine else []
        self._batched(target, clone, done if acknowledges else [], lost=lost)

    def _batched(self, target: str, clone: int, acknowledged: list[Sample], *, lost: bool) -> None:
        poller = self.pollers.setdefault((target, clone), Poller())
        for sample in acknowledged:
            sample.state, sample.told = GONE, True
        ids = self.run(self._look(target, clone, poller, acknowledged, lost=lost))
        revived = {s.request_id for s in self.samples if s.revived or s.loose}
        once = [request_id for request_id in ids if request_id not in revived]
        assert len(once) == len(set(once)), "one completion twice in a page"
        for sample in self.samples:
            if sample.request_id in once and not sample.loose:
                assert sample.state != OPEN, sample

    async def _look(
        self,
        target: str,
        clone: int,
        poller: Poller,
        acknowledged: list[Sample] | None = None,
        *,
        lost: bool = False,
    ) -> list[str]:
        body = {
            "target": {"sampling_session_id": target, "cloned_sampler_id": clone},
            "prev_cursor": poller.cursor,
            "timeout": 0,
            "retrieved_request_ids": [s.request_id for s in acknowledged or []],
        }
        answer = await self._post("retrieve_futures", body)
        assert answer.status == 200, answer.body
        page = answer.json()
        ids = [entry["request_id"] for entry in page["completions"]]
        unread = {
            s.request_id
            for s in self.samples
            if (s.target, s.clone) == (target, clone)
            and s.state in ("result", "failed", "lost")
            and not (s.loose or s.told or s.request_id in poller.told)
        }
        assert unread <= set(ids), "a completion above the cursor was not reported"
        states = {s.request_id: s for s in self.samples}
        told = {entry["request_id"]: entry for entry in page["completions"]}
        for request_id, entry in told.items():
            sample = states.get(request_id)
            if sample is not None and sample.state != OPEN and not sample.loose:
                finished = entry["state"] == "finished"
                assert finished == (sample.state == "result"), (entry, sample)
        if not lost:
            poller.told |= set(ids)
            poller.cursor = page["cursor"]
        return ids
