from batchwright import HOLD, Policy, hookimpl


class Urgent(Policy):
    """The lowest priority number first, resident or not, and nobody overtakes."""

    @hookimpl
    def admission(self, step):
        for request in sorted((*step.running, *step.waiting), key=lambda r: r.priority):
            yield request
            if not request.num_scheduled:
                break

    @hookimpl
    def preemption(self, step, request):
        return HOLD if request.is_waiting else request
