from ping_pong import Urgent

from batchwright.testing import Job, drive

JOBS = [
    Job("a", 4, 12, priority=10),
    Job("b", 4, 12, priority=10),
    Job("urgent", 4, 6, at=3, priority=0),
    Job("equal", 4, 6, at=4, priority=10),
]


def run():
    return drive(Urgent(), JOBS, max_num_residents=2)


def test_the_urgent_one_has_a_seat_at_once():
    assert run().first_token("urgent") == 3


def test_and_one_eviction_is_enough():
    tape = run()
    print(tape)
    assert tape.preemptions == [(3, "b")]
