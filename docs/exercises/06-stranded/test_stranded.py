from stranded import Urgent

from batchwright.testing import Job, drive

JOBS = [Job("early", 8, 6, priority=1), Job("other", 4, 1, at=2, priority=1), Job("urgent", 12, 2, at=2, priority=0)]


def run():
    return drive(Urgent(), JOBS, num_blocks=4)


def test_who_holds_the_blocks_goes_on():
    tape = run()
    print(tape)
    assert max(tape.gaps("early")) == 1


def test_and_the_urgent_one_is_still_the_next():
    tape = run()
    assert tape.first_token("early") < tape.first_token("urgent") <= tape.first_token("other")
