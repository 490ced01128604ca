"""When room is made: after a wait, and for those behind at once."""

from asgi_gateway.store.shortage import Shortage


def test_the_first_waits_and_who_comes_right_after_does_not() -> None:
    shortage = Shortage()
    assert not shortage.lasts(1000.0, 30)
    shortage.begins(0.0)
    assert not shortage.lasts(29.9, 30)
    assert shortage.lasts(30.0, 30)
    shortage.begins(30.5)
    assert shortage.lasts(30.5, 30)
    shortage.begins(31.6)  # after a second in which nobody was short of room
    assert not shortage.lasts(32.0, 30)
    assert shortage.lasts(61.6, 30)


def test_those_who_ask_again_meet_one_shortage_until_nobody_asks() -> None:
    shortage = Shortage()
    for second in range(30):
        shortage.seen(float(second))
        assert not shortage.lasts(float(second), 30)
    shortage.seen(30.0)
    assert shortage.lasts(30.0, 30)
    shortage.seen(35.0)
    assert shortage.lasts(35.0, 30)
    shortage.seen(46.0)
    assert not shortage.lasts(46.0, 30)
