"""What the gateway does is held against what it promised."""

from asgi_gateway.codec.sampling_pb2 import SampleResponse
from tests.support.asgi_client import Response, turns
from tests.support.promised.process import Process
from tests.support.promised.samples import GONE, OPEN, Sample


class Books(Process):
    """Checks that follow every rule after which they may fail."""

    def _told(self, sample: Sample, answer: Response) -> None:
        """What a poll of its own says must be what the model knows."""
        if answer.status == 408:
            assert sample.state == OPEN or sample.loose
            return
        if answer.status == 410:
            assert sample.state in ("lost", GONE) or sample.loose, sample
            sample.state, sample.told = GONE, True
            return
        assert answer.status == 200, answer.body
        if sample.loose and sample.state == GONE:
            return
        if b"error" in answer.body[:10]:
            assert sample.state == "failed" or sample.loose, sample
            assert answer.json()["category"] in ("user", "server")
            return
        assert sample.state == "result", sample
        if answer.headers[b"content-type"] == b"application/x-protobuf":
            sequence = SampleResponse.FromString(answer.body).sequences[0]
            tokens = list(memoryview(sequence.tokens).cast("i"))
        else:
            tokens = answer.json()["sequences"][0]["tokens"]
        assert tokens == [sample.first_token, sample.first_token + 1], "another run's result"

    def _count_runs(self) -> None:
        new, self.seen = self.upstream.sent[self.seen :], len(self.upstream.sent)
        for sent in new:
            sample = next(s for s in self.samples if s.request_id == sent.request_id)
            sample.runs += 1
            assert sample.runs <= 1 + sample.again, "it runs twice"

    def _parked_are_answered(self) -> None:
        """Those whose samples are over, and those whose hold ended."""
        self.run(turns())
        for entry in list(self.parked):
            sample, connection = entry
            if connection.answered:
                self.parked.remove(entry)
                self._told(sample, self.run(connection.response()))
            else:
                assert sample.state == OPEN or sample.loose, "a poll sleeps on what is over"
