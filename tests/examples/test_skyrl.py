"""What docs/skyrl.md says of names: one adapter for a run, whichever of its saves is asked for."""

from typing import Any

from tests.support.gateway import SDK_HEADERS, driven
from tests.support.upstream import FakeUpstream

RUN = "model_5987ddb1"
LISTED: dict[str, Any] = {
    "object": "list",
    "data": [
        {"id": "Qwen/Qwen3-0.6B", "max_model_len": 65536, "parent": None},
        {"id": RUN, "max_model_len": None, "parent": "Qwen/Qwen3-0.6B"},
    ],
}


async def test_every_save_of_a_run_is_its_adapter_with_a_salt_of_its_own() -> None:
    upstream = FakeUpstream(LISTED)
    async with (
        upstream.running(),
        driven(upstream.url, models__adapter_name="{model_id}") as gateway,
    ):
        session = (await gateway.client.post("/api/v1/create_session", {"tags": []})).json()
        for number, path in enumerate((f"{RUN}/000001", f"{RUN}/sampler_weights/000002")):
            made = await gateway.client.post(
                "/api/v1/create_sampling_session",
                {
                    "session_id": session["session_id"],
                    "sampling_session_seq_id": number,
                    "model_path": f"tinker://{path}",
                },
                SDK_HEADERS,
            )
            assert made.status == 200, made.body
            gateway.sampling_session_id = made.json()["sampling_session_id"]
            request_id = (await gateway.submit(number)).json()["request_id"]
            assert (await gateway.poll(request_id).response()).status == 200
    asked = [request.json() for request in upstream.requests]
    assert [one["model"] for one in asked] == [RUN, RUN]
    assert len({one["cache_salt"] for one in asked}) == 2
