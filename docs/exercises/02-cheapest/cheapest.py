from batchwright import HOLD, Policy, hookimpl


class Victims(Policy):
    """Evicts whoever came last."""

    @hookimpl
    def preemption(self, step, request):
        if request.is_waiting:
            return HOLD  # nobody is evicted to let a newcomer in
        residents = [r for r in step.running if r.is_resident]
        return residents[-1]
