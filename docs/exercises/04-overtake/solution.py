from batchwright import Policy, hookimpl


class Queue(Policy):
    """Whoever fits may overtake those who do not, but nobody is passed more than three times."""

    most = 3

    def __init__(self, params=None, **values):
        super().__init__(params, **values)
        self.passed = {}  # request to how often it was

    @hookimpl
    def admission(self, step):
        yield step.running
        blocked = []
        for request in step.waiting:
            yield request
            if not request.num_scheduled:
                blocked.append(request)
            else:
                for other in blocked:
                    self.passed[other] = self.passed.get(other, 0) + 1
            if any(self.passed.get(other, 0) >= self.most for other in blocked):
                break

    @hookimpl
    def request_admitted(self, request):
        self.passed.pop(request, None)

    @hookimpl
    def request_finished(self, request):
        self.passed.pop(request, None)
