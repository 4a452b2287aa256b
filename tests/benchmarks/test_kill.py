"""What `benchmarks.kill` calls silence."""

from benchmarks.kill import silence, too_late

SECOND = 1_000_000_000


def at(*seconds: float) -> list[int]:
    return [int(s * SECOND) for s in seconds]


def test_silence_counts_from_the_kill_and_not_from_what_came_before() -> None:
    assert silence(at(1, 2, 9, 10), 8 * SECOND) == 1.0


def test_one_straggler_from_the_wire_does_not_end_the_silence() -> None:
    assert silence(at(10.1, 16.1, 16.2), 10 * SECOND) == 6.0


def test_what_comes_after_a_lease_is_no_silence_of_the_kill() -> None:
    assert silence(at(10.5, 11, 200), 10 * SECOND) == 0.5


def test_whoever_comes_back_after_minutes_was_silent_for_minutes() -> None:
    assert silence(at(1, 130), 10 * SECOND) == 120


def test_nothing_after_the_kill_is_nothing_to_measure() -> None:
    assert silence(at(1, 2), 10 * SECOND) == 0


def test_a_killed_cassandra_has_half_a_minute_and_passcodes_do_not_wait_for_it() -> None:
    assert too_late({"cassandra": {"security": 4, "marketing": 29}, "api": {"security": 60}}) == []
    assert too_late({"cassandra": {"security": 6, "marketing": 31}}) == [
        "cassandra: security silent for 6 s",
        "cassandra: marketing silent for 31 s",
    ]
