"""Samples by number: the request of each, and what is right about its result."""

from array import array
from typing import Final

from google.protobuf.message import DecodeError

from loadgen import answers
from loadgen.faults import Fault, fault_prompt_id
from loadgen.sampling_pb2 import STOP_REASON_LENGTH, SampleResponse

MODEL: Final = answers.MODEL
_FIRST_ID: Final = 1_000
_PER_ID: Final = 100_000
_FILLER: Final = 7_919
_FAULT_ID: Final = fault_prompt_id(Fault.CLOSE_MIDWAY, answers.VOCAB)


class Samples:
    """Sample number n asks for `max_tokens` after a prompt of its own: n is its first two ids.

    Every `fault_every`-th begins with one id more, at which a stand-in with faults breaks its
    answer off; 0 for none.
    """

    def __init__(self, prompt_tokens: int, max_tokens: int, fault_every: int = 0) -> None:
        self._fault_every = fault_every
        self._filler = [_FIRST_ID + i * _FILLER % _PER_ID for i in range(prompt_tokens - 2)]
        self._max_tokens = max_tokens
        tail = "".join(f",{token}" for token in self._filler)
        self._rest = (
            f'{tail}]}}]}},"sampling_params":{{"max_tokens":{max_tokens},"temperature":1.0,'
            '"top_k":-1,"top_p":1.0},"prompt_logprobs":false,"topk_prompt_logprobs":0,'
            '"topk_sample_logprobs":0,"record_stability_info":false,"prompt_alt_tokens_k":0,'
            '"type":"sample"}'
        )

    def request(self, number: int, sampling_session_id: str, seq_id: int) -> bytes:
        """The body of its asample."""
        ids = ",".join(map(str, self._ids(number)))
        return (
            f'{{"sampling_session_id":"{sampling_session_id}","seq_id":{seq_id},"num_samples":1,'
            f'"prompt":{{"chunks":[{{"type":"encoded_text","tokens":[{ids}{self._rest}'
        ).encode()

    def fault(self, number: int, body: bytes) -> str | None:
        """What is wrong with the result of a sample; None where nothing is."""
        try:
            sequences = SampleResponse.FromString(body).sequences
        except DecodeError:
            return "it is no SampleResponse"
        if len(sequences) != 1:
            return f"it has {len(sequences)} sequences"
        prompt = [*self._ids(number), *self._filler]
        count = self._max_tokens
        if sequences[0].tokens != array("i", answers.tokens(prompt, count=count)).tobytes():
            return "its tokens are another sample's"
        if sequences[0].logprobs != array("f", answers.logprobs(prompt, count=count)).tobytes():
            return "its logprobs are wrong"
        if sequences[0].stop_reason != STOP_REASON_LENGTH:
            return f"its stop reason is {sequences[0].stop_reason}"
        return None

    def _ids(self, number: int) -> tuple[int, ...]:
        ids = (_FIRST_ID + number % _PER_ID, _FIRST_ID + number // _PER_ID)
        faulty = self._fault_every and number % self._fault_every == 0
        return (_FAULT_ID, *ids) if faulty else ids
