from stall import Chat

from batchwright.testing import Job, drive

JOBS = [Job("chat", 4, 8), Job("report", 160, 1, at=1), Job("other", 4, 1, at=2)]


def run():
    return drive(Chat(), JOBS, max_num_batched_tokens=16)


def test_a_chat_never_stands_still():
    tape = run()
    print(tape)
    assert max(tape.gaps("chat")) == 1


def test_and_the_report_hardly_waits_for_it():
    assert run().first_token("report") <= 12
