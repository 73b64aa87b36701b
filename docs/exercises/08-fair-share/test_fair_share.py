from fair_share import FairShare

from batchwright.testing import Job, drive


def crowd(client, number, length, at=0):
    return [Job(f"{client}-{n}", length, length, at=at, client_id=client) for n in range(number)]


def served(jobs, clients, steps):
    """Tokens that each client got in these steps; two requests run at a time."""
    tape = drive(FairShare(), jobs, max_num_residents=2)
    got = dict.fromkeys(clients, 0)
    for step in tape.steps:
        if step.number in steps:
            for name, num_tokens in step.batch.items():
                got[tape.requests[name].client_id] += num_tokens
    print(got)
    return got.values()


CROWDS = [*crowd("small", 100, 4), *crowd("large", 25, 32)]


def test_long_requests_get_their_client_no_larger_share():
    got = served(CROWDS, ["small", "large"], range(400))
    assert max(got) < 1.3 * min(got)


def test_who_was_away_has_saved_nothing_up():
    got = served([*CROWDS, *crowd("late", 100, 4, at=200)], ["small", "large", "late"], range(200, 400))
    assert max(got) < 2 * min(got)
