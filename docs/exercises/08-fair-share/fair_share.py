from collections import Counter

from batchwright import Policy, hookimpl


class FairShare(Policy):
    """Clients take turns: the one with the fewest requests so far goes first."""

    def __init__(self, params=None, **values):
        super().__init__(params, **values)
        self.count = Counter()

    @hookimpl
    def admission(self, step):
        yield step.running
        for request in sorted(step.waiting, key=lambda r: self.count[r.client_id]):
            yield request
            if not request.num_scheduled:
                break

    @hookimpl
    def request_admitted(self, request):
        self.count[request.client_id] += 1
