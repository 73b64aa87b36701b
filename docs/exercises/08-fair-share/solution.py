from collections import Counter

from batchwright import Policy, hookimpl


class FairShare(Policy):
    """The client with the fewest tokens goes first; one that comes back begins where the others are."""

    def __init__(self, params=None, **values):
        super().__init__(params, **values)
        self.count = Counter()
        self.unfinished = Counter()

    @hookimpl
    def admission(self, step):
        yield step.running
        for request in sorted(step.waiting, key=lambda r: self.count[r.client_id]):
            yield request
            if not request.num_scheduled:
                break

    @hookimpl
    def step_finished(self, step):
        for request in step.batch:
            self.count[request.client_id] += request.num_scheduled

    @hookimpl
    def request_arrived(self, request):
        client = request.client_id
        if not self.unfinished[client]:
            others = [self.count[c] for c, number in self.unfinished.items() if number and c != client]
            self.count[client] = max(self.count[client], min(others, default=0))
        self.unfinished[client] += 1

    @hookimpl
    def request_finished(self, request):
        self.unfinished[request.client_id] -= 1

    @hookimpl
    def policy_attached(self, step):
        self.unfinished = Counter(r.client_id for r in (*step.waiting, *step.running))
