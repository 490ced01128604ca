"""Saves of weights through the gateway's own calls: a lost reply, and encodings."""

import msgspec

from asgi_gateway.asgi import Scope
from asgi_gateway.training.proxy import Answer
from asgi_gateway.training.trainer import Trainer, headers_of
from tests.support.clock import ManualClock


class Asked:
    """A trainer that knows each save once, as SkyRL does: a repeat is a conflict."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, method: str, path: str, body: object, headers: object) -> Answer:
        self.bodies.append(msgspec.json.encode(body))
        if len(self.bodies) > 1:
            return Answer(409, {}, b'{"detail":"conflict"}')
        return Answer(200, {"content-type": "application/json"}, b'{"request_id":"7"}')


def save(sampler: int, seq_id: int = 3) -> bytes:
    request = {"model_id": "m", "sampling_session_seq_id": sampler, "seq_id": seq_id}
    return msgspec.json.encode(request)


SCOPE: Scope = {
    "headers": [(b"x-api-key", b"tml-x"), (b"accept-encoding", b"gzip"), (b"host", b"here")]
}


async def test_a_repeated_save_gets_its_first_answer() -> None:
    asked = Asked()
    trainer = Trainer(asked, ManualClock())
    first = await trainer.save_weights(save(0), SCOPE, "c")
    assert await trainer.save_weights(save(1), SCOPE, "c") == first
    assert len(asked.bodies) == 1


async def test_another_save_is_another_one() -> None:
    asked = Asked()
    trainer = Trainer(asked, ManualClock())
    await trainer.save_weights(save(0), SCOPE, "c")
    assert (await trainer.save_weights(save(1, seq_id=4), SCOPE, "c")).status == 409
    assert (await trainer.save_weights(save(2, seq_id=4), SCOPE, "c")).status == 409, "not kept"
    assert len(asked.bodies) == 3


async def test_a_callers_answer_is_not_given_to_another() -> None:
    asked = Asked()
    trainer = Trainer(asked, ManualClock())
    first = await trainer.save_weights(save(0), SCOPE, "c")
    second = await trainer.save_weights(save(0), SCOPE, "another")
    assert (first.status, second.status) == (200, 409), "it asks the trainer itself"


def test_a_call_in_the_clients_name_asks_for_no_encoding() -> None:
    assert headers_of(SCOPE) == {"x-api-key": "tml-x"}
