from batchwright import Policy, hookimpl


class Queue(Policy):
    """First come, first served: whoever does not fit is waited for."""

    @hookimpl
    def admission(self, step):
        yield step.running
        for request in step.waiting:
            yield request
            if not request.num_scheduled:
                break
