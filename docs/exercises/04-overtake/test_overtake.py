from overtake import Queue

from batchwright.testing import Job, drive

JOBS = [Job("first", 22, 8), Job("large", 16, 2), Job("small", 3, 2)]


def run(*more):
    return drive(Queue(), [*JOBS, *more], num_blocks=8)


def test_the_small_one_need_not_wait_for_the_large_one():
    tape = run()
    print(tape)
    assert tape.first_token("small") <= 1


def test_but_a_stream_of_small_ones_passes_the_large_one_four_times_at_most():
    tape = run(*(Job(f"s{n}", 3, 2, at=n) for n in range(1, 40)))
    print(tape)
    began = {name: next(s.number for s in tape.steps if name in s.batch) for name in tape.requests}
    assert sum(began[name] < began["large"] for name in began if name not in ("first", "large")) <= 4
