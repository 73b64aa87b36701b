from batchwright import HOLD, Policy, hookimpl


class Urgent(Policy):
    """The lowest priority number first; who is less urgent makes room."""

    preemptive = True  # a newcomer may evict

    @hookimpl
    def admission(self, step):
        yield from sorted((*step.running, *step.waiting), key=lambda r: (r.priority, r.arrival_index))

    @hookimpl
    def preemption(self, step, request):
        residents = [r for r in (*step.running, *step.batch) if r.is_resident]  # of the last steps, and of this one
        worst = max(residents, key=lambda r: r.priority)
        if worst.priority >= request.priority:
            return worst
        return request if request.is_resident else HOLD
