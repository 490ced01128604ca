"""What speaks against new samples: several sources, one answer, all reasons."""

import pytest

from asgi_gateway.admission import Admission
from asgi_gateway.errors import Overloaded, Unready


def test_nothing_objects_at_first() -> None:
    admission = Admission()
    admission.check()
    assert admission.reasons == []


def test_an_objection_without_refusal_is_a_reason_and_lets_samples_in() -> None:
    admission = Admission()
    admission.object("drain", "about to stop")
    admission.check()
    assert admission.reasons == ["about to stop"]


def test_the_first_that_refuses_answers_and_all_are_named() -> None:
    admission = Admission()
    admission.object("memory", "memory is short", Overloaded)
    admission.object("drain", "the gateway is stopping", Unready)
    with pytest.raises(Overloaded, match="memory is short"):
        admission.check()
    assert admission.reasons == ["memory is short", "the gateway is stopping"]
    admission.clear("memory")
    with pytest.raises(Unready, match="the gateway is stopping"):
        admission.check()
    admission.clear("drain")
    admission.clear("drain")
    admission.check()
    assert admission.reasons == []


def test_a_source_may_change_its_mind() -> None:
    admission = Admission()
    admission.object("drain", "about to stop")
    admission.object("drain", "stopping", Unready)
    with pytest.raises(Unready, match=r"^stopping$"):
        admission.check()
    assert admission.reasons == ["stopping"]
