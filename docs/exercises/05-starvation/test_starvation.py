from starvation import ShortFirst

from batchwright.testing import Job, drive

JOBS = [Job("long", 24, 1), *(Job(f"s{n}", 8, 1, at=n) for n in range(20))]


def run():
    return drive(ShortFirst(), JOBS, max_num_batched_tokens=8)  # a short prompt a step, and one comes a step


def test_the_long_one_has_its_turn():
    tape = run()
    print(tape)
    assert tape.first_token("long") <= 15


def test_and_those_that_came_with_it_went_first():
    tape = run()
    assert [tape.first_token(f"s{n}") for n in range(4)] == [0, 1, 2, 3]
