from batchwright import HOLD, Policy, hookimpl


class Victims(Policy):
    """Evicts whoever has the least to compute again."""

    @hookimpl
    def preemption(self, step, request):
        if request.is_waiting:
            return HOLD  # nobody is evicted to let a newcomer in
        residents = [r for r in step.running if r.is_resident]
        return min(residents, key=lambda r: r.num_computed)
