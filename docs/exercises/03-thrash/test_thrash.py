from thrash import Memory

from batchwright.testing import Job, drive


def run(jobs):
    return drive(Memory(), jobs, num_blocks=110, block_size=16, prefix_cache=False)


def test_nothing_is_computed_twice():
    tape = run([*(Job(f"letter-{n}", 399, 30) for n in range(4)), Job("last", 400, 2)])
    print(tape.num_recomputed, "of", tape.num_computed, "tokens were computed before; evicted:", tape.preemptions)
    assert tape.num_recomputed == 0


def test_and_no_block_is_held_for_a_token_that_never_comes():
    """All declare 1500 tokens, to be safe, and stop after 10."""
    tape = run([Job(f"chat-{n}", 30, 10, max_tokens=1500) for n in range(8)])
    print(tape)
    assert tape.num_steps <= 20
