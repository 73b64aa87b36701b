from cheapest import Victims

from batchwright.testing import Job, drive

JOBS = [Job("letter", 32, 8), Job("question", 16, 8), Job("book", 240, 8)]


def run():
    # 18 blocks hold the prompts. The first decodes need one more each, and there are two.
    return drive(Victims(), JOBS, num_blocks=20, block_size=16, max_num_batched_tokens=512, prefix_cache=False)


def test_little_is_computed_again():
    tape = run()
    print(tape)
    print(tape.preemptions)
    assert tape.num_recomputed < 20


def test_everybody_ends():
    assert [len(run().tokens(job.name)) for job in JOBS] == [8, 8, 8]
